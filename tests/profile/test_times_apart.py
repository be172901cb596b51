"""C2: what went into recording, loading modules and compiling is in no named stretch, and in no iteration's time."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from mindtorch._ext.collect import now_ns
from mindtorch.profile import Profiler
from mindtorch.profile.measure import sampling


def test_C2_a_scope_is_never_longer_than_the_whole(tmp_path, monkeypatch) -> None:
    """The first zero_grad loads torch's compiler: it was 70 % of a run of which its phase was 4 %."""
    (tmp_path / "slow_within.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Profiler(whole=True) as profiler:
        torch.ones(2)
        with torch.profiler.record_function("loads"):
            import slow_within  # noqa: F401
        with torch.profiler.record_function("works"):
            time.sleep(0.1)
    report = profiler.report()
    scopes = {row["name"]: row["total_s"] for row in report["labels"]}
    assert report["startup"]["import_s"] >= 0.3
    assert scopes["loads"] <= report["totals"]["time_s"] - scopes["works"] and scopes["works"] >= 0.1
    del sys.modules["slow_within"]


def test_C2_a_program_that_numbers_its_scopes_names_4096_of_them() -> None:
    with Profiler(whole=True) as profiler:
        torch.ones(2)
        for k in (*range(4098), 3, 4097):
            with torch.profiler.record_function(f"step {k}"):
                pass
    rows = {row["name"]: row for row in profiler.report()["labels"]}
    assert len(rows) == 4097 and "step 4096" not in rows
    assert {name: rows[name]["calls"] for name in ("step 0", "step 3", "step 4095", "(others)")} == {
        "step 0": 1, "step 3": 2, "step 4095": 1, "(others)": 3,
    }  # fmt: skip
    for row in (rows["step 3"], rows["(others)"]):
        assert row["calls"] * row["min_s"] <= row["total_s"] <= row["calls"] * row["max_s"]


def test_C2_a_scope_within_which_the_first_model_is_called_counts_from_that_call() -> None:
    """What an optimizer's step does before its closure calls a model is construction, as far as the report goes."""
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    with Profiler() as profiler:
        with torch.profiler.record_function("step"):
            for _ in range(300):
                x + 1
            time.sleep(0.3)
            net(x)
    report = profiler.report()
    ((scope, total),) = [(row["calls"], row["total_s"]) for row in report["labels"]]
    assert scope == 1 and 0 < total <= report["totals"]["time_s"] < 0.3


def test_C2_recording_is_taken_off_the_iteration_that_it_was_in() -> None:
    """All iterations were told shorter by the same share, though the first one has what is new."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        net(torch.ones(2, 2)).sum().backward()
        optimizer.step()

    step()
    with Profiler() as profiler:
        for number in range(3):
            if number == 1:
                since = now_ns()
                time.sleep(0.4)
                profiler.collector.aside(since)  # as if recording had taken that long
            if number == 2:
                time.sleep(0.2)
            step()
    steps, totals = profiler.report()["steps"], profiler.report()["totals"]
    assert totals["overhead_s"] >= 0.4 and steps["count"] == 3
    assert steps["time_s"]["max"] >= 0.2 > steps["time_s"]["median"]
    assert sum(profiler.recording().step_ns) <= totals["time_s"] * 1e9


class Noting:
    """Notes of calls that load a module when they are first asked for, as torch's do."""

    def __init__(self, where: str) -> None:
        self.where = where

    def begins(self, *_: object) -> object:
        if self.where == "before":
            import slow_within  # noqa: F401
        return self

    def ended(self, *_: object) -> None:
        if self.where == "after":
            import slow_within  # noqa: F401


@torch.library.custom_op("genie_times_apart::loads", mutates_args=())
def loads(x: torch.Tensor) -> torch.Tensor:
    import slow_within  # noqa: F401

    return x + 1


@pytest.mark.parametrize("where", ["before", "after", "in the op"])
def test_C2_what_watching_loads_is_counted_once(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace's first look at a tensor loads a part of torch: overhead and import both had that time."""
    (tmp_path / "slow_within.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    net = torch.nn.Linear(2, 2)
    with Profiler() as profiler:
        profiler.collector.noted = Noting(where)
        if where == "in the op":
            loads(torch.ones(2))
        net(torch.ones(2, 2))
        profiler.collector.noted = None
    report = profiler.report()
    startup, totals = report["startup"], report["totals"]
    parts = startup["import_s"], startup["init_s"], report["steps"]["warmup_s"], totals["overhead_s"], totals["time_s"]
    assert sum(parts) == pytest.approx(totals["wall_s"], rel=1e-9)
    assert startup["import_s"] >= 0.3 > totals["overhead_s"] and totals["time_s"] < 0.3
    del sys.modules["slow_within"]


def test_L12_what_follows_a_model_for_long_without_an_op_is_not_its_forward_pass() -> None:
    """Drawing a figure of what a model gave was 69 % "forward"."""

    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.1)
            return x * 2

    net = Slow()
    with Profiler() as profiler:
        loss = (net(torch.ones(2, requires_grad=True)) ** 2).sum()
        time.sleep(0.3)
        loss.backward()
    phases = {row["name"]: row["time_s"] for row in profiler.report()["phases"]}
    assert phases["other"] >= 0.25 and 0.1 <= phases["forward"] < 0.25


def test_C1_a_programs_own_loop_is_watched_only_so_far_after_a_call(monkeypatch):
    """Who reads what is noted in Python: a loss or the choice of a token is short, a program's own loop may be long."""
    monkeypatch.setattr(sampling, "MOST_AFTER", 10)
    lengths = []
    for steps in (0, 9, 10, 11, 12, 50):
        with Profiler() as profiler, torch.no_grad():
            x = nn.Linear(4, 4)(torch.ones(2, 4))
            for _ in range(steps):
                x = x * 2
        (sample,) = profiler.sampling.samples
        lengths.append(len(sample.graph))
    assert [length - lengths[0] for length in lengths] == [0, 9, 10, 11, 11, 11]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted as Linux lists them")
def test_C2_the_clock_stops_before_genie_waits_for_its_own_thread(monkeypatch) -> None:
    """Half of a program of 10 ms was the 5 ms until the sampling thread had ended, at the program's last line."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    at_stop = []
    with Profiler() as profiler:
        torch.ones(2).sum()
        stop = profiler.collector.stop
        monkeypatch.setattr(profiler.collector, "stop", lambda: (at_stop.append(threads()), stop()))
    assert at_stop[0] > threads()
