"""C2: the page as a browser shows it. Without a Chromium on this machine these tests are left out, and say so."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
import torch

from mindtorch.cli import units
from mindtorch.profile import write_html
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report import difference_page, page
from mindtorch.profile.report.difference import compare
from tests.browsing import needs_browser, shown

VIEWER = Path(page.__file__).with_name("viewer")
pytestmark = needs_browser


def texts(document: str, pattern: str) -> list[str]:
    """What is within the elements that a pattern finds, without their tags."""
    found = re.findall(pattern, document, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", part)).split()) for part in found]


def last_row(document: str, table: str) -> str:
    (text,) = texts(document, rf'<table id="{table}">.*?<tfoot>(.*?)</tfoot>')
    return text


@pytest.fixture
def trained(record, training):
    return record(lambda: training(layers=4), lines=True, shapes=True)


def test_C2_page_shows_one_time_in_header_flame_graph_and_tables(trained, tmp_path):
    report, profiler = trained
    write_html(report, profiler.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    assert complaints == []
    time = units.seconds(report["totals"]["time_s"])
    ops = units.count(report["totals"]["ops"])
    (sentence,) = texts(document, r'id="sentence">(.*?)</p>')
    assert sentence.startswith(f"{time} in {ops} operations: ")
    assert texts(document, r'id="flame-said"[^>]*>(.*?)</p>') == [f"all: {time}"]
    for table in ("phase-table", "module-table", "op-table", "line-table"):
        row = last_row(document, table)
        assert row.startswith("all ") and f" {time} " in row and " 100 " in row, row
    for name in ("op-table", "line-table", "phase-table"):
        assert units.amount(report["totals"]["flops"]) in last_row(document, name)
    (made_of,) = texts(document, r'<section id="patterns".*?</section>') or [""]
    assert all(row["name"] in made_of for row in report["patterns"])
    overhead = 100 * report["totals"]["overhead_s"] / report["totals"]["time_s"]  # as the terminal has it
    assert f"{overhead:.{int(overhead < 99.95)}f} % " in " ".join(texts(document, r"<dt>Overhead</dt>(.*?)</div>"))
    titles = texts(document, r"<h2[^>]*>(.*?)</h2>")
    said = [row["text"] for row in report["findings"]]
    shown_ = texts(document, r'<section id="findings".*?</section>')
    assert all(text in shown_[0] for text in said) if said else shown_ == []
    tables = ["Phases", "Flame graph", "Modules", "Operations", "Lines", "Shapes"]
    tables += ["Made of"] if report["patterns"] else []
    assert titles == [*["Findings"][: len(said)], *tables, "Timeline", "Memory", "Not counted", "The run"]


@pytest.mark.parametrize(("queued", "told"), [(1.1, True), (0.9, False)])
def test_C2_page_says_that_the_machine_was_busy(trained, tmp_path, queued, told):
    report, profiler = trained
    report["totals"] |= {"queued_s": queued, "time_s": 10.0}
    write_html(report, profiler.recording(), tmp_path / "p.html")
    document, _ = shown(tmp_path / "p.html")
    assert ("for 1.10 s of the time (11.0 %), the program waited for a processor" in document) is told


def test_C2_page_shows_the_parts_of_phases(trained, tmp_path):
    report, profiler = trained
    row = {"phase": "forward", "ops": 7, "flops": 2000, "macs": 0}
    report["parts"] = [
        {**row, "name": "vision tower", "modules": ["Net.a", "Net.b"], "calls": 4, "time_s": 0.004},
        {**row, "name": "the rest", "modules": [], "calls": None, "time_s": 0.001},
    ]
    report["totals"]["time_s"] = 0.01
    write_html(report, profiler.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    assert complaints == []
    (table,) = texts(document, r"<table[^>]*>(?:(?!</table>).)*Parts of phases.*?</table>")
    assert "forward: vision tower 4 × 1.00 ms Net.a, Net.b 7 4.00 ms 40.0 2.00 k" in table, table
    assert table.endswith("forward: the rest 7 1.00 ms 10.0 2.00 k"), table


def test_C2_page_of_an_estimate_shows_its_memory_and_its_roofline(Net, tmp_path):
    with Estimator(target=targets.find("h100")) as estimator:
        Net(layers=4)(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
    report = estimator.report(command=["net.py"])
    phase = {"name": "forward", "steps": 1, "tokens": 6}
    report["workload"] = {"seq": 3, "batch": 2, "train": True, "dtype": "float32", "phases": [phase]}
    write_html(report, estimator.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    assert complaints == []
    time, least = (units.seconds(report["totals"][key]) for key in ("time_s", "bound_s"))
    (sentence,) = texts(document, r'id="sentence">(.*?)</p>')
    assert sentence.startswith(f"About {time} (") and " on NVIDIA H100" in sentence
    assert f"at least {least}" in " ".join(texts(document, r"<dd>(.*?)</dd>"))
    peak = units.bytes_text(report["memory"]["peak_bytes"])
    assert f"What the peak of {peak} is made of" in texts(document, r"<h3>(.*?)</h3>")
    assert "2 × 3 tokens, a training step, float32" in texts(document, r"<dd>(.*?)</dd>")
    labels = re.findall(r'<svg[^>]*aria-label="([^"]*)"', document)
    assert labels[0].startswith(f"Memory over the program: at most {peak}") and labels[1].startswith("Roofline of h100")
    assert "blocks.0-3 ×4 Block" in " ".join(texts(document, r'<table id="module-table">(.*?)</table>'))


def test_C2_page_of_an_estimate_says_what_was_assumed_as_the_terminal_does(Net, tmp_path):
    with Estimator(target=targets.find("h100")) as estimator:
        loss = Net()(torch.zeros(2, 3, dtype=torch.long)).sum()
        for weight in (0.5, 0.3):
            (loss * weight).item()
        bool(loss > 1)
    report = estimator.report(command=["net.py"])
    write_html(report, estimator.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    assert complaints == []
    (table,) = texts(document, r"<table[^>]*>(?:(?!</table>).)*Assumed values.*?</table>")
    number, truth = report["assumed"]
    first, last = (units.assumption(number[key]) for key in ("value", "last"))
    assert first != last and len(first) < 8 and truth["value"] is False
    assert f" {first} … {last} 2 " in table and table.endswith(" False 1"), table


def test_C2_page_shows_names_as_they_are(record, tmp_path):
    evil = ["</script><b>", "<!-- <img src=x onerror=alert(1)>", "{{data}}", "a&amp;b"]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in evil:
                self._modules[name] = torch.nn.Linear(2, 2)

        def forward(self, x):
            for module in self._modules.values():
                x = module(x)
            return x

    report, profiler = record(lambda: Net()(torch.ones(1, 2)), lines=True, shapes=True)
    report["command"] = ["</title><i>", *evil]
    write_html(report, profiler.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    assert complaints == []
    assert not re.search(r"<(img|i)\b", document)
    assert texts(document, r"<h1>(.*?)</h1>") == [" ".join(["</title><i>", *evil])]
    (tree,) = texts(document, r'<table id="module-table">(.*?)</table>')
    assert all(f"{name} Linear" in tree for name in evil)


def test_C2_page_writes_numbers_as_the_terminal_does(tmp_path):
    values = [0, 1, 7, 42, 999, 1000, 1024, 99_951, 1_000_000, 123_456_789, 3 * 2**30, 7.7e12, 1.2e18, 5e21]
    times = [0.0, 3e-9, 1.2345e-6, 4.44e-5, 0.00123, 0.04321, 0.9996, 1.5, 12.34, 999.4, 1000.2, 4000.7, 400_000.0]
    parts = [(0, 1), (0.0001, 1), (0.421, 1), (1, 1), (1, 3), (2, 3)]
    wanted = {
        "seconds": [units.seconds(value) for value in times],
        "amount": [units.amount(value) for value in values],
        "number": [units.number(value) for value in values],
        "bytes": [units.bytes_text(value) for value in values],
        "count": [units.count(value) for value in values if value == int(value)],
        "percent": [units.percent(*part) for part in parts],
        "work": [units.work(value, "FLOP") for value in values],
    }
    script = (
        (VIEWER / "text.js").read_text()
        + f"""
    const values = {json.dumps(values)}, found = {{
      seconds: {json.dumps(times)}.map(seconds), amount: values.map(amount), number: values.map(number),
      bytes: values.map(bytes), count: values.map(count), work: values.map((value) => work(value, "FLOP")),
      percent: {json.dumps(parts)}.map((part) => percent(...part)),
    }};
    document.getElementById("out").textContent = JSON.stringify(found);
    """
    )
    (tmp_path / "n.html").write_text(f'<meta charset="utf-8"><pre id="out"></pre><script>{script}</script>')
    document, complaints = shown(tmp_path / "n.html")
    assert complaints == []
    (out,) = re.findall(r'<pre id="out">(.*?)</pre>', document)
    assert json.loads(html.unescape(out)) == wanted


def test_C2_page_shows_each_finding_with_its_line_and_what_to_try(tmp_path):
    with Estimator(target=targets.find("h100")) as estimator, torch.no_grad():
        torch.nn.Linear(4096, 4096, device="cuda")(torch.ones(4096, 4096, device="cuda"))
    report = estimator.report(command=["net.py"])
    (row,) = report["findings"]
    assert row["id"] == "float32-products"
    write_html(report, estimator.recording(), tmp_path / "p.html")
    document, complaints = shown(tmp_path / "p.html")
    (text,) = texts(document, r'<section id="findings".*?</section>')
    assert complaints == []
    assert text == f"Findings {row['text']} {row['place']['source']} try {row['try']}"


def test_C5_page_of_a_difference_shows_its_totals_where_it_was_and_what_differs(Net, tmp_path):
    reports = []
    for layers in (3, 4):
        with Estimator(target=targets.find("h100")) as estimator:
            Net(layers=layers)(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
        reports.append(estimator.report(command=["net.py"]))
    found = compare(*reports, ("a.json", "</title><i>.json"))
    found["failed"] = ["flops>+1% holds"]
    difference_page.write_html(found, tmp_path / "d.html")
    document, complaints = shown(tmp_path / "d.html")
    assert complaints == [] and not re.search(r"<i\b", document)
    assert texts(document, r"<h1>(.*?)</h1>") == ["a.json → </title><i>.json"]
    before, after = (units.amount(report["totals"]["flops"]) for report in reports)
    more = units.amount(found["totals"]["flops"]["difference"])
    (said,) = texts(document, r'id="flame-said"[^>]*>(.*?)</p>')
    assert said.startswith(f"all: {before} → {after}, +{more}, ")
    (sentence,) = texts(document, r'id="sentence">(.*?)</p>')
    assert sentence.startswith("Operations +") and "FLOPs +" in sentence
    assert "Most of the FLOPs in Net.blocks.3.up (" in sentence
    for table in ("rows-table", "modules-table"):
        assert last_row(document, table).startswith(f"all +{more} "), table
    assert last_row(document, "held-table") == f"all +{units.bytes_text(found['totals']['peak']['difference'])}"
    titles = texts(document, r"<h2[^>]*>(.*?)</h2>")
    assert titles == ["Flame graph", "Memory", "Phases", "Modules", "Rows", "The runs"]
    assert "flops>+1% holds" in texts(document, r'<p class="warned">(.*?)</p>')
    assert "new" in " ".join(texts(document, r'<table id="modules-table">(.*?)</table>'))


def test_C5_page_of_no_difference_says_so(Net, record, tmp_path):
    report, _ = record(lambda: Net(layers=2)(torch.zeros(2, 3, dtype=torch.long)))
    difference_page.write_html(compare(report, report, ("a", "b")), tmp_path / "d.html")
    document, complaints = shown(tmp_path / "d.html")
    assert complaints == []
    assert texts(document, r'id="sentence">(.*?)</p>') == ["No operation, FLOP, byte or parameter differs."]
    assert texts(document, r"<h2[^>]*>(.*?)</h2>") == ["Flame graph", "The runs"]
