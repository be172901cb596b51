"""C2, L14: ops on lazy tensors are counted when recorded and timed when they run, each once."""

import json
import time
from typing import NamedTuple

import pytest
import torch

from mindtorch._ext import context, timeline
from mindtorch._ext.collect import now_ns
from mindtorch.engine.execute import local
from mindtorch.profile import Profiler, write_trace

DEVICE = "remote_accelerator:0"
N = 384


class Product(torch.nn.Module):
    def __init__(self, n: int = N) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n, n) / n)

    def forward(self, x):
        return x @ self.weight


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Product(), Product()

    def forward(self, x):
        return self.second(self.first(x).relu())


def row(report, table, key, value):
    return next(r for r in report[table] if r[key] == value)


class Ran(NamedTuple):
    """A run of a recorded op, ns on the profile's clock."""

    start: int
    ns: int
    module: str
    phase: str


def runs(profiler, name):
    """Those of the ops of one name, as the log has them, in order."""
    collector, found = profiler.collector, []
    for i in range(collector.event_count()):
        kind, start, ns, sig, module, _, phase, _, _ = collector.event(i)
        if kind == timeline.RUN and collector.sig_ops[sig].name == name:
            found.append(Ran(start, ns, profiler.names[module], context.phase_name(phase)))
    return found


def seconds(ran):
    """Of these runs together."""
    return pytest.approx(sum(one.ns for one in ran) / 1e9, rel=1e-6)


def test_C2_run_time_belongs_to_op_module_phase_and_line_of_recording(record):
    net, x = Pair().to(DEVICE), torch.ones(N, N, device=DEVICE)
    values, read = [], []

    def program():
        with torch.no_grad():
            y = net(x)
        time.sleep(0.02)
        read.append(now_ns())
        values.append(y.cpu())
        read.append(now_ns())

    report, profiler = record(program)
    assert torch.allclose(values[0], torch.ones(N, N))
    mm = row(report, "ops", "name", "aten::mm")
    assert mm["calls"] == 2 and mm["flops"] == 2 * 2 * N**3 == report["totals"]["flops"] - N * N  # and relu's
    ran = runs(profiler, "aten::mm")
    assert mm["self_s"] == seconds(ran) and all(one.ns > 0 for one in ran)
    assert read[0] <= ran[0].start and ran[0].start + ran[0].ns <= ran[1].start  # not when they were recorded
    assert ran[1].start + ran[1].ns <= read[1]
    first, second = (row(report, "modules", "path", f"Pair.{name}") for name in ("first", "second"))
    assert first["calls"] == second["calls"] == 1 and first["flops"] == second["flops"] == 2 * N**3
    assert first["self_s"] + second["self_s"] >= mm["self_s"]
    assert [one.module for one in ran] == ["Pair.first", "Pair.second"]
    assert first["self_s"] * 1e9 >= 0.999 * ran[0].ns and second["self_s"] * 1e9 >= 0.999 * ran[1].ns
    forward = row(report, "phases", "name", "forward")
    assert forward["time_s"] >= mm["self_s"] and forward["flops"] == report["totals"]["flops"]
    line = next(r for r in report["lines"] if r["source"] == "return x @ self.weight")
    assert line["calls"] == 2 and line["self_s"] - line["python_s"] == pytest.approx(mm["self_s"], rel=1e-6)
    # The sleep is the program's, outside every module; what ran at the read is not, as the modules sum to the whole.
    assert row(report, "modules", "path", "")["self_s"] >= 0.02
    assert report["mode"] == "measured" and report["device"].split(", ")[0] == DEVICE
    assert report["lazy"]["runs"] >= 3 and report["lazy"]["executor"] == "cpu"
    assert report["lazy"]["run_s"] >= mm["self_s"] and report["lazy"]["run_s"] <= report["totals"]["time_s"]
    assert any("peak memory" in text for text in report["warnings"])
    assert not any("had not run" in text for text in report["warnings"])
    assert all(runs.ran == runs.recorded for runs in profiler.collector.runs.values())


def test_C2_profiling_does_not_make_lazy_ops_run(record):
    net, x = Product().to(DEVICE), torch.ones(N, N, device=DEVICE).cpu().to(DEVICE)
    outputs = []

    def program():
        with torch.no_grad():
            outputs.append(net(x))

    report, _ = record(program)
    assert not outputs[0].materialized
    assert report["lazy"]["runs"] == 0 and row(report, "ops", "name", "aten::mm")["self_s"] == 0
    assert any("never ran because" in text and "aten::mm ×1" in text for text in report["warnings"])
    assert row(report, "ops", "name", "aten::mm")["bytes"] == 4 * N * N


def test_C2_training_on_lazy_tensors_has_its_phases(record):
    def program():
        net = Pair().to(DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        x = torch.ones(N, N).to(DEVICE)
        for _ in range(2):
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
        net.first.weight.detach().cpu()

    report, profiler = record(program)
    macs = {phase["name"]: phase["macs"] for phase in report["phases"]}
    assert (macs["forward"], macs["backward"]) == (2 * 2 * N**3, 2 * 3 * N**3)
    for name, often in (("forward", 3), ("backward", 5)):  # nobody needs the first loss, the second weight
        ran = [one for one in runs(profiler, "aten::mm") if one.phase == name]
        assert len(ran) == often and row(report, "phases", "name", name)["time_s"] * 1e9 > sum(one.ns for one in ran)
    assert row(report, "modules", "path", "Pair.second")["macs"] == 2 * 3 * N**3
    assert row(report, "ops", "name", "aten::mm")["calls"] == 10


def test_C2_what_was_recorded_in_a_stage_is_timed_in_it(record):
    """Warm-up that nobody reads runs before the measured steps do, and those before recording stops."""
    net, x, values = Product().to(DEVICE), torch.ones(N, N).to(DEVICE), []

    def program():
        with torch.no_grad():
            for _ in range(5):
                values.append(net(x))

    report, profiler = record(program, warmup=2, steps=2)
    assert [v.materialized for v in values] == [True] * 4 + [False]
    ran = runs(profiler, "aten::mm")
    mm = row(report, "ops", "name", "aten::mm")
    assert len(ran) == 4 and mm["calls"] == 2 and mm["self_s"] == seconds(ran[2:])
    assert report["lazy"]["runs"] == 2 and report["steps"]["warmup_s"] * 1e9 > ran[0].ns + ran[1].ns
    assert len(profiler.marks) == 4


def test_C2_lazy_initialization_is_start_up(record):
    def program():
        weights = [torch.randn(N, N, device=DEVICE) for _ in range(20)]
        net = Product().to(DEVICE)
        with torch.no_grad():
            net(weights[0]).cpu()

    report, profiler = record(program)
    assert "aten::randn" not in {r["name"] for r in report["ops"]}
    ran = runs(profiler, "aten::randn")
    assert len(ran) == 20 and report["startup"]["init_s"] * 1e9 > sum(one.ns for one in ran)
    assert report["lazy"]["runs"] < 5


def test_C2_ops_that_run_eagerly_and_reads_inside_ops(record):
    def program():
        x = torch.arange(N * 8.0).to(DEVICE)
        y = (x * 2).view(8, N)
        z = y @ y.T
        kept = z[z > 0]  # its size is known only once z is: runs at once, with all it needs
        assert kept.shape == (64,) and bool((kept > 0).all())
        with pytest.raises(RuntimeError):
            torch.linalg.cholesky(-z).sum().item()

    report, _ = record(program)
    mm = row(report, "ops", "name", "aten::mm")
    assert mm["calls"] == 1 and mm["self_s"] > 0 and mm["macs"] == 64 * N
    assert report["lazy"]["runs"] >= 3


def test_C2_values_made_by_creation_functions_or_before_the_profile_count_when_they_run(record):
    x = torch.ones(N, N).to(DEVICE)
    before = x @ x
    report, _ = record(lambda: (before + torch.zeros(N, N, device=DEVICE)).cpu())
    calls = {r["name"]: r["calls"] for r in report["ops"]}
    assert calls["aten::zeros"] == 1 and calls["aten::add"] == 1
    # Recorded whole, out of sight: its FLOPs are not known, which the report says.
    assert [(r["name"], r["calls"]) for r in report["uncounted"]] == [("aten::matmul", 1)]


def test_C2_report_of_a_plain_program_is_not_lazy(record):
    waiting = torch.ones(N, N).to(DEVICE) + 1
    report, _ = record(lambda: torch.nn.Linear(2, 2)(torch.ones(1, 2)))
    assert report["lazy"] is None and report["device"] == "cpu" and not waiting.materialized


def test_C2_computed_lazy_values_are_in_the_peak(record):
    net = Product(512).to(DEVICE)  # 1 MiB, computed

    def program():
        with torch.no_grad():
            net(torch.ones(1, 512).to(DEVICE)).cpu()

    report, _ = record(program)
    assert report["totals"]["peak_bytes"] >= 1 << 20


def test_C2_trace_shows_recording_and_run_apart(record, tmp_path):
    net = Product(8).to(DEVICE)

    def program():
        with torch.no_grad():
            net(torch.ones(1, 8).to(DEVICE)).cpu()

    _, profiler = record(program)
    assert write_trace(profiler.recording(), tmp_path / "t.json") == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = {(e["tid"], e["name"]): e for e in events if e["ph"] == "X"}
    assert {(1, "aten::mm (recorded)"), (3, "aten::mm"), (1, "Product")} <= set(slices)
    run = slices[3, "aten::mm"]
    assert run["args"]["module"] == "Product" and run["ts"] > slices[1, "Product"]["ts"]


def test_L14_observer_is_removed_at_the_end():
    with Profiler():
        assert local._op_observer is not None
    assert local._op_observer is None
