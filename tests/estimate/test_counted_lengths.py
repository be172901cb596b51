"""C4: lengths that follow from comparisons with values that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mindtorch.profile.estimate import assumptions
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating


@pytest.fixture
def session() -> Iterator[None]:
    with estimating(Accelerator("Test GPU", 10**9)):
        yield


def first_true(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(dim=-1) == 0).sum(dim=-1)


@pytest.mark.parametrize("batch", [1, 3])
def test_C4_speculative_decoding_ends_when_its_length_is_reached(session: None, batch: int) -> None:
    """What is rejected of a draft is counted; the length that it is taken from was unknown, and 0: without an end."""
    lengths, rounds, drafted = torch.full((batch,), 4, device="cuda"), 0, 5
    while (lengths < 30).any():
        lengths += drafted
        of_target, of_draft = torch.rand(2, batch, drafted, device="cuda")
        accepted = first_true(torch.rand(batch, drafted, device="cuda") > of_target / of_draft)
        rejected = drafted - accepted
        lengths -= rejected
        assert torch.arange(int(lengths.amax())).shape == (9 + rounds * 6,)
        lengths, rounds = lengths + 1, rounds + 1
    assert rounds == 5
    found = {row["op"]: (row["value"], row["last"]) for row in assumptions.assumed()}  # at the lines that read them
    assert found == {"bool": (True, False), "int": (9, 33)}


def unknown(*size: int) -> torch.Tensor:
    return torch.rand(*size, device="cuda")


@pytest.mark.parametrize(("counted", "expected"), [
    (lambda few: few + 2, 6), (lambda few: 2 - few, -2), (lambda few: few * 3, 12), (lambda few: -few, -4),
    (lambda few: few.clamp(max=3), 3), (lambda few: few.clamp_(max=3), 3), (lambda few: few.clamp_(min=5), 5),
    (lambda few: torch.minimum(few, few - 1), 3), (lambda few: few[:, None][0], 4), (lambda few: few.abs().cpu(), 4),
    (lambda few: few.cumsum(0)[-1:], 12), (lambda few: few.view(1, 3).add_(1), 5), (lambda few: few[1:].sub_(0), 4),
    (lambda few: torch.tensor([1, 2, 3], device="cuda") + few, 6), (lambda few: few.mul_(2), 8),
    (lambda few: few.new_ones(6)[::2].sub_(few), -3),
])  # fmt: skip
def test_C4_arithmetic_goes_on_with_counts(session: None, counted: Any, expected: int) -> None:
    few = (unknown(3, 4) < 0.5).sum(-1)
    made = counted(few).flatten()
    assert made[len(made) // 2].item() == expected


def test_C4_counts_are_lost_where_others_are_written_into_a_part_of_them(session: None) -> None:
    few = (unknown(3, 4) < 0.5).sum(-1)
    few[1:].add_(1)
    assert few[0].item() == 0  # as all that is unknown
    few = (unknown(3, 4) < 0.5).sum(-1)
    few[1:].copy_(unknown(2).long())
    assert few[0].item() == 0
    few = (unknown(3, 4) < 0.5).sum(-1)
    assert few.view(torch.int32)[0].item() == 0


@pytest.mark.parametrize(("read", "token"), [
    (lambda chosen: chosen[:, 0].item(), 500), (lambda chosen: int(chosen[0][1]), 501),
    (lambda chosen: chosen.squeeze(0).tolist()[2], 502), (lambda chosen: chosen.view(-1).cpu().numpy()[0], 500),
    (lambda chosen: chosen.t()[0].to("cpu").item(), 500),
])  # fmt: skip
def test_C4_a_part_of_what_was_chosen_is_read_as_the_whole(session: None, read: Any, token: int) -> None:
    """A token, of a view of those that were chosen, was the first one: that which pads."""
    assert read(unknown(1, 1000).topk(5, -1).indices) == token
