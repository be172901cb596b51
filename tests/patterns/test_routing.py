"""L13: routing of mixtures of experts, in the forms that models have of it; and what is only near one."""

from __future__ import annotations

import math
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


CORRECTION = nn.Parameter(torch.tensor([0.3, -0.2, 0.0, 0.1, -0.3]), requires_grad=False)


def by_hand(logits: Tensor) -> tuple[Tensor, Tensor]:
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).topk(2)


def corrected(logits: Tensor) -> tuple[Tensor, Tensor]:
    scores = logits.sigmoid()
    chosen = (scores + CORRECTION).topk(2).indices
    return normalized((scores.gather(-1, chosen), chosen))


def noisy(logits: Tensor, elsewhere: float = -math.inf, noise: bool = True) -> tuple[Tensor, Tensor]:
    """As Shazeer et al. have it: what the chosen ones count stands among those of all experts, which count nothing."""
    logits = logits + torch.randn_like(logits) * F.softplus(logits.detach() @ torch.ones(5, 5)) if noise else logits
    values, places = logits.topk(2)
    gates = torch.full_like(logits, elsewhere).scatter(-1, places, values).softmax(-1)
    return gates.gather(-1, places), places


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
    "softmax by hand": (by_hand, {}, {}, 7),
    "chosen with a bias": (corrected, {}, {"scores": "sigmoid", "normalized": True}, 7),
    "of all": (lambda x: noisy(x, noise=False), {}, {"scores": "softmax of the chosen", "normalized": True}, 5),
    "with noise": (noisy, {}, {"scores": "softmax of the chosen", "normalized": True}, 4),
    "all experts for each token": (lambda x: x.softmax(-1).topk(2), {"together": True}, {}, 3),
}


@pytest.mark.parametrize("name", FORMS)
def test_L13_routings_are_found_and_proven(name: str) -> None:
    choose, options, attributes, ops = FORMS[name]
    (found,) = routed(choose, **options)
    plain = {"experts": 5, "chosen": 2, "scores": "softmax", "normalized": False}
    assert (found.attributes, found.verified, found.refused) == ({**plain, **attributes}, True, "")
    assert len(found.nodes) == ops


@pytest.mark.parametrize("form", ["einsum", "picked"])
def test_L13_weights_may_be_picked_and_summed_over_in_a_product(form: str) -> None:
    """gpt-fast's mixture puts experts together by an einsum; "Build a Large Language Model" picks each expert's weights
    with index_select and gather."""

    class Mixture(Experts):
        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.choose(self.gate(x))
            if form == "einsum":
                given = torch.stack([expert(x) for expert in self.experts], -2)
                kept = given.gather(-2, chosen[..., None].expand(*chosen.shape, 8))
                return torch.einsum("tai,ta->ti", kept, weights)
            found = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, places = (chosen == number).nonzero(as_tuple=True)
                picked = weights.index_select(0, rows).gather(-1, places[:, None])
                found.index_add_(0, rows, expert(x.index_select(0, rows)) * picked)
            return found

    with capture() as graph:
        Mixture(softmax_after)(torch.randn(12, 8))
    (found,) = [each for each in find_patterns(graph) if each.pattern == "routing"]
    assert not found.refused and found.verified
    assert [found.attributes[name] for name in ("experts", "chosen", "scores")] == [5, 2, "softmax of the chosen"]


def test_L13_a_routing_of_a_batch_of_sequences() -> None:
    (found,) = routed(lambda x: x.softmax(-1).topk(2), (2, 6, 8), together=True)
    assert found.verified


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.softmax(-1).topk(2, largest=False),
        lambda x: x.softmax(0).topk(2),
        lambda x: noisy(x, 0.0),
        lambda x: noisy(x, -1.0, noise=False),
    ],
    ids=["the lowest", "over tokens", "with others", "with others, without noise"],
)
def test_L13_what_chooses_otherwise_is_no_routing(choose: Choose) -> None:
    assert [each.refused for each in routed(choose, (5, 8), together=True)] == [
        "it does not choose the experts with the highest scores"
    ]


def test_L13_what_chooses_tokens_for_each_expert_is_no_routing() -> None:
    found = routed(lambda x: x.softmax(-1).topk(5, dim=0), (5, 8), together=True)
    assert [each.refused for each in found] == ["it does not choose along the axis of the experts"]


def found_in(model: nn.Module, program: Callable[[Tensor], object]) -> list[str]:
    with capture() as graph:
        program(model(torch.randn(4, 8)))
    return [each.refused for each in find_patterns(graph) if each.pattern == "routing"]


def test_L13_what_a_sampler_keeps_is_no_routing() -> None:
    def sampled(logits: Tensor) -> Tensor:
        least = logits.topk(3).values[..., -1:]
        return F.softmax(logits.masked_fill(logits < least, -torch.inf), -1)

    assert found_in(nn.Linear(8, 5), sampled) == ["its scores scale no output of other weights"]


def test_L13_the_best_of_what_no_projection_gives_are_no_routing() -> None:
    assert found_in(nn.LayerNorm(8), lambda x: x.topk(2)) == []


class Grouped(nn.Module):
    """Experts in groups, of which the best are chosen first, as DeepSeek has it."""

    def __init__(self, of_group: Callable[[Tensor], Tensor], wrong: str = "") -> None:
        super().__init__()
        self.gate, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8), requires_grad=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.of_group, self.wrong = of_group, wrong

    def forward(self, x: Tensor) -> Tensor:
        scores = F.linear(x, self.gate).sigmoid()
        choice = scores + self.bias
        of_groups = self.of_group(choice.view(-1, 4, 2))
        best = of_groups.topk(2, sorted=False, largest=self.wrong != "the worst groups").indices
        mask = torch.zeros_like(of_groups).scatter_(1, best, 1)
        mask = mask.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, 8).bool()
        choice = choice.masked_fill(mask if self.wrong == "the other groups" else ~mask, -torch.inf)
        chosen = choice.topk(3 if self.wrong == "" else 2, sorted=False).indices
        weights = (choice if self.wrong == "weighs what it chose by" else scores).gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            found.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return found


def in_groups(model: nn.Module) -> list[Instance]:
    with capture() as graph:
        model(torch.randn(12, 8))
    return [each for each in find_patterns(graph) if each.pattern == "routing"]


@pytest.mark.parametrize("of_group", [lambda x: x.topk(2, dim=-1)[0].sum(-1), lambda x: x.max(-1).values])
def test_L13_routings_by_groups_are_found_and_proven(of_group: Callable[[Tensor], Tensor]) -> None:
    (found,) = in_groups(Grouped(of_group))
    assert (found.verified, found.refused, found.place) == (True, "", ("Grouped.gate",))
    assert found.attributes == {
        "experts": 8, "chosen": 3, "scores": "sigmoid", "normalized": True, "groups": "2 of 4",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["the worst groups", "the other groups", "weighs what it chose by"])
def test_L13_what_chooses_otherwise_among_groups_is_no_routing(wrong: str) -> None:
    (found,) = in_groups(Grouped(lambda x: x.max(-1).values, wrong))
    assert found.refused == "it does not choose the experts with the highest scores in the best groups"
