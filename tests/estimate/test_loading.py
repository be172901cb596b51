"""C4: what makes a DataLoader's batches is the host's work; in workers it is beside the model, and in no time."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")
REST = 0.1
BATCHES = 3


class Images(Dataset[torch.Tensor]):
    """Two of a batch, each made by a module, with a rest."""

    def __init__(self, rest: float) -> None:
        self.images = torch.rand(2 * BATCHES, 256, 256)
        self.transform = nn.Softmax(-1)
        self.rest = rest

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(self.rest)
        return self.transform(self.images[i] - 0.5)


def estimate(workers: int, device: str, rest: float = 0.0) -> dict[str, Any]:
    with Estimator(target=L4) as estimator:
        model = nn.Linear(256, 8).to(device)
        for batch in DataLoader(Images(rest), 2, num_workers=workers):
            model(batch.to(device)).sum().backward()
    return estimator.report()


def times(report: dict[str, Any], name: str) -> dict[str, float]:
    return {row["name"]: row["time_s"] if "time_s" in row else row["self_s"] for row in report[name]}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_C4_what_workers_of_a_loader_would_do_takes_no_time(device: str) -> None:
    """A program on the CPU paid for its transforms as for kernels of the accelerator, and its launches for workers."""
    here, there = estimate(0, device), estimate(2, device)
    assert times(here, "phases")["data"] > times(there, "phases")["data"] == 0
    model = ("forward", "backward")
    assert [times(here, "phases")[name] for name in model] == [times(there, "phases")[name] for name in model]
    assert here["totals"]["ops"] == there["totals"]["ops"]
    assert times(here, "ops")["aten::_softmax"] == times(there, "ops")["aten::_softmax"] == 0
    assert here["waits"]["data_s"] == pytest.approx(times(here, "phases")["data"]) and there["waits"]["data_s"] == 0
    assert there["totals"]["time_s"] == pytest.approx(sum(times(there, "phases").values()))
    assert any("in a DataLoader's workers (2), in parallel with the model" in note for note in there["warnings"])
    assert not any("workers" in note for note in here["warnings"])


def test_C4_the_python_of_workers_is_not_the_programs() -> None:
    here, there = (estimate(workers, "cuda", REST)["host"] for workers in (0, 1))
    assert here["here_s"] > REST > here["workers_s"] == 0
    assert there["workers_s"] > REST > there["here_s"]


def test_C4_workers_of_an_iterable_dataset_and_of_a_loader_within_a_dataset() -> None:
    class Pairs(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            return (images.softmax(-1) for images in DataLoader(Images(0.0), 2, num_workers=1))

    with Estimator(target=L4) as estimator:
        for batch in DataLoader(Pairs(), None, num_workers=2):
            nn.Linear(256, 8, device="cuda")(batch.cuda())
    report = estimator.report()
    assert times(report, "phases")["data"] == 0
    assert next(row for row in report["ops"] if row["name"] == "aten::_softmax")["calls"] == 3 * BATCHES


def test_C4_programs_see_of_a_loader_what_they_asked_for() -> None:
    theirs = inspect.signature(DataLoader.__init__), inspect.signature(DataLoader.__iter__)
    with Estimator(target=L4):
        assert (inspect.signature(DataLoader.__init__), inspect.signature(DataLoader.__iter__)) == theirs
        asked = {"num_workers": 2, "pin_memory": True, "prefetch_factor": 4, "persistent_workers": True, "timeout": 9}
        loader: DataLoader[torch.Tensor] = DataLoader(Images(0.0), 2, **asked)  # type: ignore[arg-type]
        for _ in range(2):
            assert len(list(loader)) == BATCHES and {name: getattr(loader, name) for name in asked} == asked
        with pytest.raises(ValueError, match="prefetch_factor"):
            DataLoader(Images(0.0), 2, prefetch_factor=4)
