"""SPEC C2: the words of a report on a terminal, from a hand-made report dict."""

from __future__ import annotations

import multiprocessing.queues
import re

import pytest

from mindtorch.cli.render import Canvas, clean
from mindtorch.cli.report_header import _mostly
from mindtorch.cli.report_lines import short
from tests.cli.test_render import make_report, render


def test_C2_models_of_one_class_and_different_sizes_have_their_numbers_as_in_the_tree():
    """Two sizes of CLIP were "CLIP" and "CLIP" in the header, "CLIP" and "CLIP #2" in the tree."""
    report = make_report()
    sizes = [("Net #2", 300), ("Net", 100), ("Head #2", 20)]
    report["models"] = [{"name": name, "params": n, "param_bytes": 4 * n} for name, n in sizes]
    text = " ".join(re.sub("[│\n]", " ", render(report)).split())
    assert "models Net #2, 300 parameters (1.17 KiB); Net, 100 parameters (400 B); Head, 20 parameters (80 B)" in text


def test_L13_what_bounds_a_block_and_that_it_is_not_verified_are_one_remark():
    report = make_report()
    block = {"name": "attention", "instances": 4, "time_s": 0.5, "verified": False, "bound_by_s": {"launch": 1.0}}
    report["patterns"] = [
        block,
        dict(block, name="loss", bound_by_s={}),
        dict(block, name="convolution", verified=True),
    ]
    text = " ".join(re.sub("[│\n]", " ", render(report)).split())
    assert "attention 4 ×" in text and "% (launch-bound, not verified); loss 4 ×" in text
    assert "% (not verified); convolution 4 ×" in text and text.count("% (launch-bound)") == 1


@pytest.mark.parametrize(
    ("file", "package", "shown"),
    [
        (multiprocessing.queues.__file__, "standard library", "multiprocessing/queues.py"),
        ("/usr/lib/python3.14/json/decoder.py", "standard library", "json/decoder.py"),
        ("/opt/python3.14t/lib/python3.14t/abc.py", "standard library", "abc.py"),
        ("C.py", "standard library", "C.py"),
        ("/venv/lib/python3.11/site-packages/tqdm/std.py", "tqdm", "tqdm/std.py"),
    ],
)
def test_C2_a_line_of_the_standard_library_is_named_from_its_package_on(file: str, package: str, shown: str) -> None:
    """Beside "tqdm/std.py" stood the whole path of multiprocessing's queues, without room for their function."""
    assert short({"file": file, "package": package}) == shown


def test_C2_a_space_that_does_not_break_is_shown_as_a_space():
    assert clean("# a\u00a0b\tc\x1b[0m") == "# a b   c\ufffd[0m"


def test_C4_what_the_host_does_is_told_as_a_least_as_short_stretches_are_not_seen():
    host = {"here_s": 0.5, "workers_s": 0.25, "lines": []}
    text = " ".join(render(dict(make_report(), mode="estimate", host=host), width=200).split())
    assert "host time at least 500 ms of the program's own Python between ops" in text
    assert "data work at least 250 ms of the work of a DataLoader's workers, measured on this machine" in text
    host = {"here_s": 0.0, "workers_s": 0.0, "seen_from_s": 0.012, "lines": []}
    steps = {"count": 0, "warmup": 0, "warmup_s": 0.0, "time_s": [], "first_s": None, "quartiles_s": None}
    for n, said in ((10**6, True), (0, False)):
        text = render(dict(make_report(), mode="estimate", host=host, steps={**steps, "count": n}), width=200)
        words = "host time the program's own Python never ran for 12 ms between two ops; no figure includes shorter"
        assert (words in " ".join(text.split())) == said


@pytest.mark.parametrize(("waits", "words"), [
    ([], "start-up: 6.00 s"), ([{"for": "child processes", "self_s": 1.0}], "start-up and waiting: 6.00 s"),
])  # fmt: skip
def test_C2_what_most_of_a_run_was_names_waiting_only_where_it_waited(waits, words):
    startup = {"import_s": 4.0, "init_s": 2.0, "waits": waits}
    report = {"totals": {"wall_s": 10.0, "time_s": 3.0}, "startup": startup}
    assert _mostly(report) == f", most of it {words}"


def test_C2_a_number_stays_in_one_line_with_its_unit():
    """ "embedding 2 ×, 1" ended a line, and "% (launch-bound)" began the next."""
    text = "12 ms, 13 %, 14 ×, 15 MiB, 16 k tokens, 17 GFLOP/s; " * 20
    for width in range(60, 100):
        sheet = Canvas(width, False, False)
        sheet.paragraph(text)
        sheet.facts("title", "", [("fact", text)])
        assert not re.search(r"\d[ │]*\n[ │]*(ms|%|×|MiB|k|GFLOP/s)", sheet.text()), width
        assert " ".join(text.split()) in " ".join(sheet.text().split())


@pytest.mark.parametrize(("unseen", "words"), [
    ([], "98.7 % of compute calls have a FLOP formula"),
    ([{"what": "child process", "count": 2}],
     "98.7 % of the compute calls that genie saw have a FLOP formula; NOT SEEN: 2 child processes"),
])  # fmt: skip
def test_C3_coverage_names_what_it_is_a_share_of(unseen, words):
    text = " ".join(re.sub("[│\n]", " ", render(dict(make_report(), unseen=unseen))).split())
    assert f"coverage {words}" in text


def test_C4_launches_are_named_among_what_the_interval_is_wide_by():
    """Where the host was the limit, the header named ops of 1 ms; the interval was 300 ms wide."""
    doubt = [{"name": "(launch)", "seconds": 0.12}, {"name": "aten::mm", "seconds": 0.001}]
    roofline = {"doubt": doubt, "target": "h100", "launch_s": 1.0}
    report = dict(make_report(), mode="estimate", roofline=roofline)
    report["totals"]["predicted_s"] = 1.0
    text = " ".join(render(report, width=200).split())
    assert "uncertain most of all (launch) ±120 ms, then mm ±1.00 ms" in text


def test_C2_what_the_peak_is_made_of_says_in_how_many_tensors():
    """ "949 MiB in 296, optimizer state"."""
    largest = [{"bytes": 2**21, "count": n, "category": "optimizer state", "op": "aten::zeros_like"} for n in (296, 1)]
    text = render(dict(make_report(), memory={"peak_bytes": 2**23, "largest": largest}))
    assert "2.00 MiB in 296 tensors, optimizer state: zeros_like" in text
    assert "2.00 MiB, optimizer state: zeros_like" in text
