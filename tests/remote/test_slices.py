"""R5: of a storage of which another worker reads a small part, that part crosses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.engine.remote.placing import PlacingExecutor

from ..executors import using
from .test_placing import DEVICE, mlp, over, same

pytestmark = pytest.mark.usefixtures("nothing_pending")

WEIGHT = 64 * 64 * 4


@pytest.mark.parametrize("made", [False, True])
def test_R5_a_program_that_joins_slices_of_all_parameters_fits_divided(made: bool) -> None:
    """Before its first call. Copies of all of them were on one worker. made: on the device, and not uploaded."""

    def program(device: str) -> Any:
        with torch.device(device if made else "cpu"):
            model = mlp()
        model = model.to(device)
        with torch.no_grad():
            first = torch.cat([p.flatten()[:8] for p in model.parameters()])
            return first.sum().item(), first, list(model.parameters())

    limit = 68_000  # half of the weights
    with using(over(3, limit)) as executor:
        same(program)
        assert executor._workers is not None
        assert max(executor._held(each) for each in executor.executors) <= limit
        # Eight numbers of each; of a bias, which is 256 bytes, too.
        assert 0 < sum(executor.moves.values()) <= 16 * 8 * 4


def two(kind: Callable[[], Any]) -> PlacingExecutor:
    """The layer `there` is on worker 1."""
    executor = PlacingExecutor([kind() for _ in range(2)], 1 << 24)
    executor._workers = {"Reader": 0, "Reader.there": 1}
    return executor


class Reader(nn.Module):
    """Reads parts of a layer's result on another worker."""

    def __init__(self, parts: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.there, self.weight, self.parts = nn.Linear(64, 64, bias=False), nn.Parameter(torch.ones(1)), parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.there(x)
        return torch.cat([part.flatten() * self.weight for part in self.parts(y)])


PARTS: dict[str, tuple[Callable[[torch.Tensor], list[torch.Tensor]], int]] = {
    "a row": (lambda y: [y[3]], 256),
    "a row, from the middle of 64 bytes": (lambda y: [y[3, 5:40]], 160),
    "two rows": (lambda y: [y[3], y[5]], 3 * 256),
    "transposed rows": (lambda y: [y[2:4].t()], 2 * 256),
    "a column": (lambda y: [y[:, 1]], WEIGHT),  # all of it is between its first number and its last one
    "much": (lambda y: [y[:20]], WEIGHT),
    "nothing": (lambda y: [y[:0]], 0),
}


@pytest.mark.parametrize("kind", [mindtorch.LoopbackExecutor, mindtorch.PipeExecutor])
@pytest.mark.parametrize("name", PARTS)
def test_R5_of_a_value_that_is_read_elsewhere_what_is_read_crosses(kind: Callable[[], Any], name: str) -> None:
    parts, nbytes = PARTS[name]

    def program(device: str) -> Any:
        torch.manual_seed(3)
        model, x = Reader(parts).to(device), torch.rand(64, 64).to(device)
        out = []
        for _ in range(3):
            if device != "cpu":
                executor.moves.clear()
            with torch.no_grad():
                out.append(model(x).cpu())
        return out

    with using(two(kind)) as executor:
        same(program)
        if name == "nothing":
            assert executor.moves[1, 0] in (0, WEIGHT)
        else:
            assert executor.moves[1, 0] == nbytes


def test_R5_a_part_is_of_what_was_written_last_and_writes_go_to_the_whole() -> None:
    def program(device: str) -> Any:
        torch.manual_seed(3)
        model, x = Reader(lambda y: [y[3], y[4]]).to(device), torch.rand(64, 64).to(device)
        weight, out = model.there.weight, []
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        for k in range(4):
            with torch.no_grad():
                weight[k].mul_(1.5)  # a part that is written is its storage
                rows = torch.cat([weight[k], weight[k + 1] * 2])
                weight.add_(rows[:64])
            loss = model(x).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            out += [loss.item(), rows.clone().cpu(), weight[k].detach().clone().cpu()]
        return out, list(model.parameters())

    with using(two(mindtorch.LoopbackExecutor)) as executor:
        same(program)
        assert executor.moves


def test_R5_a_part_that_was_read_is_a_view_still() -> None:
    """A slice is no copy of its storage: a view that the program keeps is of the storage."""
    with using(two(mindtorch.LoopbackExecutor)), torch.no_grad():
        model, x = Reader(lambda y: [y[3]]).to(DEVICE), torch.rand(64, 64).to(DEVICE)
        y = model.there(x)
        row = y[3]
        total = (torch.cat([row]) * model.weight).sum()
        expected = y.cpu()[3].sum().item()
        assert total.item() == pytest.approx(expected)
        y.add_(1.0)
        assert torch.equal(row.cpu(), y.cpu()[3])
