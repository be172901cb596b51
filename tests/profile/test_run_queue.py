"""C5: what a busy machine makes a step wait for is known, where Linux tells."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch.cli import report_header
from mindtorch.cli.render import Canvas
from mindtorch.profile import Profiler
from mindtorch.profile.measure import collect, run_queue
from mindtorch.profile.measure.run_queue import RunQueue
from mindtorch.profile.report import times

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone tells of waits")


class Told:
    """Files of threads, and switches, as the kernel would have them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.switches = folder, 0
        self.waits({os.getpid(): (100, 5_000)})
        patch.setattr(run_queue, "_THREADS", str(folder))
        patch.setattr(run_queue.resource, "getrusage", self.usage)

    def usage(self, who: int) -> object:
        return type("Usage", (), {"ru_nvcsw": self.switches // 2, "ru_nivcsw": self.switches - self.switches // 2})

    def waits(self, by: dict[int, tuple[int, int]]) -> None:
        for name in os.listdir(self.folder):
            if int(name) not in by:
                (self.folder / name / "schedstat").unlink()
                (self.folder / name).rmdir()
        for thread, (ran, waited) in by.items():
            (self.folder / str(thread)).mkdir(exist_ok=True)
            (self.folder / str(thread) / "schedstat").write_text(f"{ran} {waited} 7\n")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    if run_queue.resource is None:
        pytest.skip("this system has no resource module")
    return Told(tmp_path, monkeypatch)


def test_C5_of_threads_that_compute_the_one_that_waited_longest_counts(told: Told) -> None:
    """Another one, which only looks now and then, may wait without harm: that is below a tenth."""
    queue, me = RunQueue(), os.getpid()
    assert queue.known and queue.look() == 0
    told.switches += 1
    told.waits({me: (1_100, 5_200), 1: (99, 9_000)})
    assert queue.look() == 200
    told.switches += 1
    told.waits({me: (2_100, 5_300), 1: (199, 9_400)})  # a tenth
    assert queue.look() == 600
    told.switches += 1
    told.waits({me: (2_200, 5_350)})  # the other one has ended
    assert queue.look() == 650 == queue.waited


def test_C5_without_a_switch_of_threads_nobody_has_waited(told: Told) -> None:
    queue = RunQueue()
    told.waits({os.getpid(): (200, 9_000)})
    assert queue.look() == 0  # the files are not read
    told.switches += 1
    assert queue.look() == 4_000


def test_C5_a_step_ran_for_the_share_in_which_it_did_not_wait() -> None:
    """Of 100 ns, 20 of which were recording, 50 were waiting: half of the 80 that are the program's."""
    spans, away, queued = [(0, 100), (100, 200), (200, 300)], [(90, 20)], [(60, 50), (290, 300)]
    assert times.running(spans, away, queued) == [40, 100, 0]
    assert times.share(0, 200, queued) == 0.25 and times.share(5, 5, queued) == 0


def test_C5_where_nobody_tells_of_waits_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "_THREADS", str(tmp_path))
    with Profiler() as profiler:
        _train(3)
    report = profiler.report()
    assert report["steps"]["running_quartiles_s"] is None and report["steps"]["quartiles_s"]
    assert report["totals"]["queued_s"] == 0


def _train(steps: int) -> None:
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_C5_each_step_is_told_without_what_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a step took: no step takes less than nothing, and no run waits longer than it takes."""

    class Waits(RunQueue):
        def __init__(self) -> None:
            self.known, self.waited = True, 0

        def look(self) -> int:
            self.waited += 10**12
            return self.waited

    monkeypatch.setattr(collect, "RunQueue", Waits)
    with Profiler() as profiler:
        _train(4)
    report = profiler.report()
    steps = report["steps"]
    assert steps["running_quartiles_s"] == [0, 0, 0] and min(steps["quartiles_s"]) > 0
    assert len(profiler.recording().running_ns) == steps["count"] == 4
    assert report["totals"]["queued_s"] == report["totals"]["time_s"]


@linux
def test_C5_a_busy_processor_shows_in_the_header() -> None:
    """Two programs that only compute, on one processor."""
    (one,) = [sorted(os.sched_getaffinity(0))[0]]
    mine = os.sched_getaffinity(0)
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{one}])\nwhile True: pass"])
    try:
        with Profiler(whole=True) as profiler:
            thread = threading.Thread(target=_on, args=(one,))
            thread.start()
            thread.join()
    finally:
        other.kill()
        other.wait()
    assert os.sched_getaffinity(0) == mine
    report = profiler.report()
    assert report["totals"]["queued_s"] > 0
    report["totals"]["queued_s"], report["totals"]["time_s"] = 1.1, 10.0
    assert "for 1.10 s of the time above (11 %), the program waited for a processor" in _header(report)
    report["totals"]["queued_s"] = 0.9
    assert "for a processor" not in _header(report)


def _header(report: dict[str, Any]) -> str:
    shown = Canvas(200, color=False)
    report_header.header(report, shown, "")
    return shown.text()


def _on(processor: int) -> None:
    os.sched_setaffinity(0, [processor])  # of this thread
    x = torch.ones(300, 300)
    for _ in range(60):
        x = (x @ x).clamp(0, 1)
