"""L13: routing of mixtures of experts, in the forms that models have of it; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns

Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


class Experts(nn.Module):
    """choose: of the logits of each token, what the chosen ones count, and which these are."""

    def __init__(self, choose: Choose, bias: bool = False, together: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 5, bias=bias)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.choose, self.together = choose, together

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.choose(self.gate(x))
        if self.together:  # all of them, for each token
            given = torch.stack([expert(x) for expert in self.experts], -2)
            kept = given.gather(-2, chosen[..., None].expand(*chosen.shape, 8))
            return (kept * weights[..., None]).sum(-2)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            found.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return found


def routed(choose: Choose, shape: tuple[int, ...] = (12, 8), **options: bool) -> list[Instance]:
    model = Experts(choose, **options)
    with capture() as graph:
        model(torch.randn(shape))
    return [each for each in find_patterns(graph) if each.pattern == "routing"]


def normalized(chosen: Any) -> tuple[Tensor, Tensor]:
    values, places = chosen
    return values / values.sum(-1, keepdim=True), places


def softmax_after(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, places = logits.topk(2)
    return values.softmax(-1), places


def with_epsilon(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, places = logits.sigmoid().topk(2, dim=-1)
    return values / (values.sum(-1, keepdim=True) + 1e-20) * 2.5, places


def in_double(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, places = logits.double().softmax(-1).topk(2)
    return values.float(), places


FORMS: dict[str, tuple[Choose, dict[str, bool], dict[str, Any], int]] = {
    "softmax": (lambda x: x.softmax(-1).topk(2), {}, {}, 3),
    "one": (lambda x: x.softmax(-1).topk(1), {}, {"chosen": 1}, 3),
    "all": (lambda x: x.softmax(-1).topk(5), {}, {"chosen": 5}, 3),
    "normalized": (lambda x: normalized(x.softmax(-1).topk(2)), {}, {"normalized": True}, 5),
    "softmax of the chosen": (softmax_after, {}, {"scores": "softmax of the chosen", "normalized": True}, 3),
    "sigmoid": (lambda x: x.sigmoid().topk(2), {}, {"scores": "sigmoid"}, 3),
    "sigmoid, normalized and scaled": (with_epsilon, {}, {"scores": "sigmoid", "normalized": True}, 6),
    "as they are": (lambda x: x.topk(2), {}, {"scores": "none"}, 2),
    "with a bias": (lambda x: x.softmax(-1).topk(2), {"bias": True}, {}, 3),
    "in another precision": (in_double, {}, {}, 4),
    "all experts for each token": (lambda x: x.softmax(-1).topk(2), {"together": True}, {}, 3),
}


@pytest.mark.parametrize("name", FORMS)
def test_L13_routings_are_found_and_proven(name: str) -> None:
    choose, options, attributes, ops = FORMS[name]
    (found,) = routed(choose, **options)
    plain = {"experts": 5, "chosen": 2, "scores": "softmax", "normalized": False}
    assert (found.attributes, found.verified, found.refused) == ({**plain, **attributes}, True, "")
    assert len(found.nodes) == ops


def test_L13_a_routing_of_a_batch_of_sequences() -> None:
    (found,) = routed(lambda x: x.softmax(-1).topk(2), (2, 6, 8), together=True)
    assert found.verified


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.softmax(-1).topk(2, largest=False),
        lambda x: x.softmax(0).topk(2),
    ],
    ids=["the lowest", "over tokens"],
)
def test_L13_what_chooses_otherwise_is_no_routing(choose: Choose) -> None:
    assert [each.refused for each in routed(choose, (5, 8), together=True)] == [
        "it does not choose the experts with the highest scores"
    ]


def test_L13_what_chooses_tokens_for_each_expert_is_no_routing() -> None:
    found = routed(lambda x: x.softmax(-1).topk(5, dim=0), (5, 8), together=True)
    assert [each.refused for each in found] == ["it chooses along another axis than that of the experts"]


def found_in(model: nn.Module, program: Callable[[Tensor], object]) -> list[str]:
    with capture() as graph:
        program(model(torch.randn(4, 8)))
    return [each.refused for each in find_patterns(graph) if each.pattern == "routing"]


def test_L13_what_a_sampler_keeps_is_no_routing() -> None:
    def sampled(logits: Tensor) -> Tensor:
        least = logits.topk(3).values[..., -1:]
        return F.softmax(logits.masked_fill(logits < least, -torch.inf), -1)

    assert found_in(nn.Linear(8, 5), sampled) == ["what it chose weighs nothing that other weights compute"]


def test_L13_the_best_of_what_no_projection_gives_are_no_routing() -> None:
    assert found_in(nn.LayerNorm(8), lambda x: x.topk(2)) == []
