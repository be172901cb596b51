"""L13: why a pattern is named where it is, and not where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.base.errors import UsageError
from mindtorch.graph import capture
from mindtorch.graph.patterns import explain


class Block(nn.Module):
    def __init__(self, activation: str = "relu") -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(4, 8), nn.Linear(8, 4), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(getattr(torch, self.activation)(self.up(x)))


def said(*activations: str, name: str = "feed-forward") -> list[str]:
    models = [Block(each) for each in activations]
    with capture() as graph:
        for model in models:
            model(torch.randn(3, 4))
    return explain(graph, name).splitlines()


def test_L13_what_was_found_says_how_it_is_known_and_where() -> None:
    head, form, place = said("relu")
    assert head == "feed-forward: 1 candidate"
    assert form == "  1 × compared with a reference: same result (activation relu, gated False)"
    assert place.startswith("      aten::addmm, Block.down, ") and f"{__file__}:21" in place


def test_L13_what_was_refused_says_why() -> None:
    head, form, _ = said("sin")
    assert head == "feed-forward: 1 candidate"
    assert form == "  1 × not one: it has no known activation between its projections"


@pytest.mark.parametrize(("n", "more"), [(3, []), (4, ["      and 1 more"])])
def test_L13_of_many_places_three_are_named(n: int, more: list[str]) -> None:
    models = nn.ModuleList(Block() for _ in range(n))
    with capture() as graph:
        for model in models:
            F.relu(model(torch.randn(3, 4)))
    lines = explain(graph, "feed-forward").splitlines()
    assert lines[1].startswith(f"  {n} × ") and len(lines) == 2 + min(n, 3) + len(more) and lines[5:] == more


def test_L13_nothing_that_looks_like_it() -> None:
    assert said("relu", name="attention") == ["attention: no candidates"]


def test_L13_an_unknown_pattern_is_told_with_those_that_are_known() -> None:
    with pytest.raises(
        UsageError, match=r"expected a pattern \(.*attention.*\), got 'atention'; did you mean 'attention'"
    ):
        said("relu", name="atention")
