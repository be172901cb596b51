"""C2: what to try where a model waits for data, where a line is in no iteration, and where the first is another."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mindtorch.profile import Profiler
from mindtorch.profile.report import time_findings
from mindtorch.profile.report.build import build_report
from mindtorch.profile.report.recording import Loaded
from tests.profile.test_findings import Slow, ids, measured, the

pytestmark = pytest.mark.usefixtures("idle_machine")

STARTING = (
    "num_workers=0 if items are cheap to make: most of that time goes into starting workers, up to their "
    "first batch, and into ending them"
)


class Cheap(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2)


def epochs(dataset: Dataset[Any], count: int, anew: bool, workers: int, kept: bool = False) -> str:
    """What to try, of so many epochs."""
    with Profiler(whole=True) as seen:
        loader = None
        for _ in range(count):
            if anew or loader is None:
                loader = DataLoader(dataset, batch_size=1, num_workers=workers, persistent_workers=kept)
            for _ in loader:
                nn.Identity()(torch.ones(1))
    advice: str = the(seen.report(), "data-wait")["try"]
    return advice


@pytest.mark.parametrize(("count", "anew"), [(1, False), (3, False), (3, True)])
def test_C2_finding_data_wait_knows_workers_that_start_again_and_again(
    count: int, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = time_findings._load_faster

    def look(loaded: Loaded | None, ns: int) -> str:
        seen.append(loaded)
        return real(loaded, ns)

    monkeypatch.setattr(time_findings, "_load_faster", look)
    epochs(Cheap(), count, anew, 2)
    (loaded,) = seen
    assert (loaded.iterators, loaded.started) == (count, count)
    assert (loaded.again, loaded.anew) == (count > 1 and not anew, anew)
    assert 0 < loaded.starting <= 1  # how much of it depends on what else the machine does


@pytest.mark.parametrize(("again", "anew", "kept"), [
    (False, False, ""), (True, False, "persistent_workers=True"),
    (False, True, "one DataLoader for all epochs, with persistent_workers=True"),
    (True, True, "one DataLoader for all epochs, with persistent_workers=True"),
])  # fmt: skip
def test_C2_finding_data_wait_of_workers_that_start_again_and_again(again: bool, anew: bool, kept: str) -> None:
    """It said "persistent_workers=True" of a loader that each epoch made anew, and "more num_workers" of no work."""

    def advice(starting: float) -> str:
        return time_findings._load_faster(Loaded(3, 3, again, anew, starting), 10**9)

    assert advice(0.51) == (f"{kept}, or {STARTING}" if kept else STARTING)
    more = f"more num_workers of the DataLoader{kept and ', '}{kept}; or cheaper transforms"
    assert advice(0.5) == advice(0.0) == more


def test_C2_finding_data_wait_of_workers_that_stay() -> None:
    assert epochs(Slow(0.1), 2, False, 1, kept=True) == "more num_workers of the DataLoader; or cheaper transforms"


@pytest.mark.parametrize(("starts", "wanted"), [
    (10**10, "cheaper transforms, or batches that index whole tensors; starting workers would take longer"),
    (0, "num_workers of the DataLoader: batches are made while the model computes; or cheaper transforms"),
])  # fmt: skip
def test_C2_finding_data_wait_of_batches_that_are_there_sooner_than_workers(
    starts: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_findings, "_STARTS", starts)  # what workers take to start: machines vary
    assert epochs(Slow(0.02), 4, True, 0) == wanted


def train(where: str) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def long() -> None:
        torch.ones(2), sum(i for i in range(4_000_000)), torch.ones(2)

    for _ in range(4):
        net(torch.ones(1, 2)).sum().backward()
        if where == "in":
            long()
        optimizer.step()
    if where == "after":
        long()


@pytest.mark.parametrize(("where", "wanted"), [
    ("in", "the same work on whole tensors, or once before the loop; "),
    ("after", "fewer calls at that line, which is outside the iterations; "),
])  # fmt: skip
def test_C2_finding_python_line_in_no_iteration(where: str, wanted: str) -> None:
    """A line that ran once, after the loop, was to run once before the loop."""
    with Profiler() as seen:
        train(where)
    row = the(seen.report(), "python-line")
    assert row["try"] == f"{wanted}genie profile --hits says how often the line runs"


def test_C2_finding_python_line_without_iterations() -> None:
    """A line of a program without a loop (it read what torch's profiler had found) was to run before the loop."""
    with Profiler() as seen:
        net, x = nn.Linear(2, 2), torch.ones(1, 2)
        net(x), net(x)
        sum(i for i in range(4_000_000)), torch.ones(2)
    report = seen.report()
    row = the(report, "python-line")
    assert report["steps"]["count"] == 0
    assert row["try"].startswith("the same work on whole tensors, or outside any loop; ")


def test_C2_finding_python_line_in_a_library() -> None:
    """--hits was advised, which counts no line of a library's."""
    code = "def slow(x):\n    return x + 1, sum(i for i in range(4_000_000)), x + 2\n"
    scope: dict[str, Any] = {}
    exec(compile(code, "/site-packages/slowly/lines.py", "exec"), scope)
    with Profiler() as seen:
        net = nn.Linear(2, 2)
        for _ in range(4):
            net(torch.ones(1, 2))
            scope["slow"](torch.ones(2))
    row = the(seen.report(), "python-line")
    assert row["place"]["line"] == 2 and row["try"] == "fewer calls into slowly there, or one call on larger tensors"


@torch.no_grad()
def encode_and_decode() -> None:
    model = nn.Linear(512, 512)
    for step in range(6):
        model(torch.ones(2048 if not step else 8, 512))
        time.sleep(0.3 if not step else 0.05)


def test_C2_a_first_iteration_that_does_other_work_is_no_finding() -> None:
    """Leaving it out of the report would leave out what the program is there for."""
    report = measured(encode_and_decode)
    assert report["steps"]["count"] == 6 and report["steps"]["first_s"] > 2 * report["steps"]["time_s"]["median"]
    assert "first-iteration" not in ids(report)


def test_C2_finding_python_line_has_the_hits_that_were_counted() -> None:
    """It advised --hits in a run with --hits."""
    with Profiler(whole=True, hits=True) as seen:
        for _ in range(3):
            nn.Identity()(torch.ones(1))
            time.sleep(0.1)
    (row,) = (row for row in seen.report()["findings"] if row["id"] == "python-line")
    assert row["try"].endswith("; the line is reached 3 times")


def test_C2_no_finding_python_line_where_a_program_may_have_waited_for_a_processor() -> None:
    """One wait of 50 ms on a busy machine was "21 % of the time is Python at one line"."""
    with Profiler(whole=True) as seen:
        for _ in range(2):
            torch.ones(2), time.sleep(0.1), torch.ones(2)
    recording = seen.recording()
    found = [
        [row["id"] for row in build_report(dataclasses.replace(recording, queued=queued))["findings"]]
        for queued in (0.0, 0.6, 0.9)
    ]
    assert found == [["python-line"], ["python-line"], []]
