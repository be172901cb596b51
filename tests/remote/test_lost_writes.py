"""R1, L9: a write that failed elsewhere takes with it what the local executor takes with it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mindtorch
from mindtorch.base.errors import SessionLost
from mindtorch.engine.execute import LocalExecutor, values
from mindtorch.engine.remote.client import RemoteExecutor

from ..executors import mortal, using

LAZY = "remote_accelerator:0"


def outcomes(reads: list[Callable[[], object]]) -> list[object]:
    """What each read gives, or that it fails and on account of which operation."""
    found: list[object] = []
    for read in reads:
        try:
            found.append(read())
        except mindtorch.MaterializationError as error:
            found.append(str(error).partition("]")[0])
    return found


def fill_beyond(x: torch.Tensor) -> None:
    x.index_fill_(0, torch.full((1,), 900, device=LAZY), 1.0)


def one_storage() -> list[object]:
    """Read in an order in which the failure is told before some of what depends on it is asked for."""
    x = torch.arange(100.0, device=LAZY)
    before = x + 1
    part = x[10:20]
    fill_beyond(x)
    after, of_part, beside = x * 2, part + 1, torch.ones(100, device=LAZY) + 1
    found = outcomes([lambda: after[3].item(), lambda: of_part.tolist(), lambda: beside.sum().item()])
    later = x + 5  # recorded when it has been told: the tensor is as it was
    return found + outcomes([later.tolist, x.tolist, part.tolist, before.tolist, after.tolist])


def in_two_segments() -> list[object]:
    x = torch.arange(100.0, device=LAZY)
    assert x.sum().item() == 4950.0
    fill_beyond(x)
    view = x.view(10, 10)
    view.mul_(2)  # which is not done either
    total = view.sum()
    other = torch.zeros(100, device=LAZY)
    other.copy_(x)
    found = outcomes([total.item, other.tolist, other.tolist, x.tolist])
    x.add_(1)
    return found + outcomes([x.tolist, view.tolist, (other + 1).tolist, total.item])


def by_a_value() -> list[object]:
    bad = torch.ones(100, device=LAZY).gather(0, torch.full((100,), 700, device=LAZY))
    x, y = torch.zeros(100, device=LAZY), torch.ones(100, device=LAZY)
    found = outcomes([bad.sum().item])
    x.add_(bad)
    z = x + 1
    found += outcomes([z.tolist, z.tolist, y.tolist, x.tolist])
    return found + outcomes([(x + y).tolist, lambda: x.nonzero().tolist(), lambda: bad.nonzero().tolist()])


def before_a_setting_changes() -> list[object]:
    x, y = torch.zeros(100, device=LAZY), torch.ones(100, device=LAZY)
    fill_beyond(x)
    z = x + y
    torch.set_default_dtype(torch.float64)
    found = outcomes([y.tolist, y.tolist, z.tolist, x.tolist])
    torch.set_default_dtype(torch.float32)
    return found


@pytest.mark.parametrize("program", [one_storage, in_two_segments, by_a_value, before_a_setting_changes])
@pytest.mark.usefixtures("nothing_pending")
def test_R1_a_write_that_failed_takes_with_it_what_it_takes_locally(
    program: Callable[[], list[object]], elsewhere: RemoteExecutor
) -> None:
    got = program()
    with using(LocalExecutor("cpu")):
        expected = program()
    assert got == expected
    assert any(isinstance(each, str) for each in expected) and any(not isinstance(each, str) for each in expected)


def test_R4_a_write_to_what_a_session_has_lost_is_told_where_that_is_read() -> None:
    """Not by an unrelated read of the next session."""
    gone = set[int]()
    with using(mortal(1, gone)):
        y = torch.ones(3, device=LAZY) * 2
        kept = torch.ones(3).to(LAZY)
        mindtorch.flush("computed there")
        gone.add(1)
        y.add_(1)
        with pytest.raises(SessionLost):
            (y + 1).tolist()
    with using(LocalExecutor()):
        kept.add_(y)  # which is told, since its tensor stays as it was
        with values.lock:
            values.go_on()
        assert outcomes([(torch.ones(1, device=LAZY) + 1).tolist]) == ["session lost: worker 1 was ended"]
        y.mul_(2)
        with values.lock:
            values.go_on()
        assert (torch.ones(1, device=LAZY) + 1).tolist() == [2]
        with pytest.raises(SessionLost):
            y.tolist()
        assert kept.tolist() == [1, 1, 1]
