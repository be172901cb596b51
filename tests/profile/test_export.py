"""C2: CSV and trace files: complete or absent, loadable, properly nested, bounded."""

import csv
import gzip
import itertools
import json
import os

import pytest

from mindtorch.profile import write_csv, write_json, write_trace
from mindtorch.profile.report import trace as trace_module


@pytest.fixture
def trained(record, training):
    return record(training)


def nested(slices):
    """Asserts that slices of one track are inside each other or apart, never crossing."""
    open_ends: list[float] = []
    for start, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], name
        open_ends.append(end)


def load(path):
    trace = json.loads(path.read_text())
    slices: dict[int, list] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start, ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
            slices.setdefault(event["tid"], []).append((start, start + ns, event["name"]))
    return trace, slices


def test_C2_trace_is_json_with_nested_slices(trained, tmp_path):
    report, profiler = trained
    assert write_trace(profiler.recording(), tmp_path / "t.json") == 0
    trace, slices = load(tmp_path / "t.json")
    for track in slices.values():
        nested(track)
    names = [name for _, _, name in slices[1]]
    assert names.count("Net") >= 2 and names.count("Net.blocks.1.attn") >= 2
    ops = sum("::" in name for name in names)
    assert ops == report["totals"]["ops"] + report["startup"]["ops"]
    assert {"forward", "backward", "optimizer"} <= {name for _, _, name in slices[2]}
    for left, right in zip(sorted(slices[2]), sorted(slices[2])[1:]):
        assert left[1] == right[0]
    memory = [e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "live bytes"]
    assert max(memory) >= report["totals"]["peak_bytes"] * 0.5
    flops = [e["args"].get("flops", 0) for e in trace["traceEvents"] if e["ph"] == "X" and "args" in e]
    assert sum(flops) >= report["totals"]["flops"]


@pytest.mark.parametrize("points", [4000, 7])
def test_C2_trace_counts_flops_a_second(trained, tmp_path, monkeypatch, points):
    report, profiler = trained
    monkeypatch.setattr(trace_module, "COUNTER_POINTS", points)
    write_trace(profiler.recording(), tmp_path / "t.json")
    trace, _ = load(tmp_path / "t.json")
    rates = [(e["ts"], e["args"]["FLOP/s"]) for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "FLOP/s"]
    assert rates == sorted(rates, key=lambda point: point[0]) and rates[-1][1] == 0
    counted = sum(rate * (until[0] - at) / 1e6 for (at, rate), until in itertools.pairwise(rates))
    flops = [e["args"].get("flops", 0) for e in trace["traceEvents"] if e["ph"] == "X" and "args" in e]
    assert counted == pytest.approx(sum(flops), rel=1e-6) and sum(flops) >= report["totals"]["flops"]
    assert len(rates) <= points + 2


def test_C2_trace_leads_from_a_call_to_its_backward_pass(trained, tmp_path, monkeypatch):
    _, profiler = trained
    write_trace(profiler.recording(), tmp_path / "t.json")
    trace, slices = load(tmp_path / "t.json")
    events = trace["traceEvents"]
    begins, ends = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert begins and begins.keys() == ends.keys()

    def named(event):
        """The modules whose slices are there."""
        at = round(event["ts"] * 1000)
        return [name for start, end, name in slices[event["tid"]] if start <= at < end and "::" not in name]

    for key, begin in begins.items():
        assert begin["ts"] < ends[key]["ts"]
        assert set(named(begin)) & set(named(ends[key])), "an arrow is between slices of one module"
    linear = [e for e in begins.values() if "Net.blocks.1.attn.out" in named(e)]
    assert len(linear) == 2  # in each of two steps
    monkeypatch.setattr(trace_module, "FLOWS", 3)
    write_trace(profiler.recording(), tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text().count('"ph":"s"') == 3


def test_C2_trace_is_bounded_and_says_so(trained, tmp_path):
    _, profiler = trained
    dropped = write_trace(profiler.recording(), tmp_path / "t.json", max_events=50)
    assert dropped == profiler.collector.event_count() - 50
    trace, slices = load(tmp_path / "t.json")
    assert trace["otherData"]["dropped_events"] == dropped
    nested(slices[1])


def test_C2_trace_can_be_compressed(trained, tmp_path):
    _, profiler = trained
    write_trace(profiler.recording(), tmp_path / "t.json")
    write_trace(profiler.recording(), tmp_path / "t.json.gz")
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()


def test_C2_csv_has_every_row(trained, tmp_path):
    report, _ = trained
    write_csv(report, tmp_path / "r.csv")
    with open(tmp_path / "r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for table, key in (("phase", "phases"), ("module", "modules"), ("op", "ops"), ("line", "lines")):
        assert sum(row["table"] == table for row in rows) == len(report[key])
    total = sum(float(row["self_s"]) for row in rows if row["table"] == "op")
    assert total == pytest.approx(report["totals"]["time_s"], rel=1e-9)


def test_C2_nothing_is_half_written(trained, tmp_path):
    report, profiler = trained
    target = tmp_path / "r.json"
    target.write_text("old")
    with pytest.raises(TypeError):
        write_json({**report, "command": object()}, target)
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["r.json"]
    for write, what in ((write_json, report), (write_csv, report), (write_trace, profiler.recording())):
        with pytest.raises(FileNotFoundError):
            write(what, tmp_path / "missing" / "file")
        with pytest.raises(IsADirectoryError):
            write(what, tmp_path)
    assert os.listdir(tmp_path) == ["r.json"]
    write_json(report, target)
    assert json.loads(target.read_text()) == report
