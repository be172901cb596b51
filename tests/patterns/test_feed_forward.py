"""L13, feed-forward: every form is found and proven, and what only looks like it is not labelled."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns
from mindtorch.graph.patterns.pattern import FEW, agree, begin_alike
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

Form = Callable[["Block", Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, form: Form, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.form, wide, inner = form, choose.choice([8, 12, 20]), choose.choice([16, 24, 34])
        self.norm = nn.LayerNorm(wide)
        self.up, self.gate, self.both = nn.Linear(wide, inner), nn.Linear(wide, inner), nn.Linear(wide, 2 * inner)
        self.down, self.again = nn.Linear(inner, wide), nn.Linear(wide, inner)
        self.weight, self.bias = nn.Parameter(torch.randn(wide, inner)), nn.Parameter(torch.randn(inner))
        self.drop = nn.Dropout(0.5)
        self.shape = choose.choice([1, 2, 5]), choose.choice([3, 7]), wide
        self.other = nn.Parameter(torch.randn(self.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, torch.tanh(x))


def labels(form: Form, seed: int = 0, train: bool = False) -> list[Instance]:
    torch.manual_seed(seed)
    block = Block(form, seed).train(train)
    with capture() as graph, torch.no_grad():
        block(torch.randn(block.shape))
    return [found for found in find_patterns(graph) if found.pattern == "feed-forward"]


def plain(act: Callable[[Tensor], Tensor]) -> Form:
    return lambda b, x: x + b.down(act(b.up(b.norm(x))))


def gated(act: Callable[[Tensor], Tensor]) -> Form:
    def form(b: Block, x: Tensor) -> Tensor:
        y = b.norm(x)
        return x + b.down(act(b.gate(y)) * b.up(y))

    return form


def by_hand(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def halves(b: Block, x: Tensor) -> Tensor:
    gate, up = b.both(b.norm(x)).chunk(2, -1)
    return x + b.down(up * F.silu(gate))


def interleaved(b: Block, x: Tensor) -> Tensor:
    both = b.both(b.norm(x))
    gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(-7.0, 7.0)
    return x + b.down((up + 1) * gate * torch.sigmoid(1.702 * gate))


ARE: dict[str, tuple[Form, str, bool]] = {
    "relu6": (plain(F.relu6), "relu6", False),
    "gated relu6": (gated(F.relu6), "relu6", True),
    "relu": (plain(F.relu), "relu", False),
    "gelu": (plain(F.gelu), "gelu", False),
    "gelu (tanh)": (plain(lambda x: F.gelu(x, approximate="tanh")), "gelu (tanh)", False),
    "gelu by hand": (plain(by_hand), "gelu (tanh)", False),
    "squared relu": (plain(lambda x: F.relu(x).square()), "squared relu", False),
    "quick gelu": (plain(lambda x: x * torch.sigmoid(1.702 * x)), "quick gelu", False),
    "in place": (plain(F.relu_), "relu", False),
    "no norm": (lambda b, x: x + b.down(F.relu(b.up(x))), "relu", False),
    "norm after": (lambda b, x: b.norm(x + b.down(F.relu(b.up(x)))), "relu", False),
    "norm before the sum": (lambda b, x: x + b.norm(b.down(F.relu(b.up(x)))), "relu", False),
    "bias by itself": (lambda b, x: x + b.down(F.relu(b.norm(x) @ b.weight + b.bias)), "relu", False),
    "scaled": (lambda b, x: x + 0.5 * b.down(F.silu(b.up(b.norm(x)))), "silu", False),
    "scaled past it": (lambda b, x: b.norm(1.7 * x + b.down(F.relu(b.up(x)))), "relu", False),  # as DeepNorm is
    "scaled by weights past it": (lambda b, x: x * b.other + b.down(F.relu(b.up(b.norm(x)))), "relu", False),
    "silu, gated": (gated(F.silu), "silu", True),
    "gelu, gated": (gated(F.gelu), "gelu", True),
    "sigmoid, gated": (gated(torch.sigmoid), "sigmoid", True),
    "halves": (halves, "silu", True),
    "interleaved": (interleaved, "clamped swiglu", True),
    "beside another block": (lambda b, x: x + (b.down(F.relu(b.up(b.norm(x)))) + b.other), "relu", False),
}

ARE_NONE: dict[str, Form] = {
    "two linear maps": lambda b, x: x + b.down(b.up(b.norm(x))),
    "an unknown function": plain(torch.sin),
    "a relu that ends at 20": plain(lambda x: F.hardtanh(x, 0.0, 20.0)),
    "a scaled activation": plain(lambda x: 1.3 * F.gelu(x)),
    "a shifted activation": plain(lambda x: F.relu(x - 0.5)),
    "no residual": lambda b, x: b.down(F.relu(b.up(b.norm(x)))),
    "residual of another tensor": lambda b, x: b.other + b.down(F.relu(b.up(b.norm(x)))),
    "residual of another tensor, scaled": lambda b, x: 1.7 * b.other + b.down(F.relu(b.up(b.norm(x)))),
    "a product past it": lambda b, x: x * x.mean() + b.down(F.relu(b.up(b.norm(x)))),
    "a gate for channels": lambda b, x: x * torch.sigmoid(b.down(F.relu(b.up(x.mean(1, keepdim=True))))),
    "a second reader": lambda b, x: (lambda h: x + b.down(h) + h.mean())(F.relu(b.up(b.norm(x)))),
    "a softmax between": lambda b, x: x + b.down(b.up(b.norm(x)).softmax(-1)),
    "a norm between": lambda b, x: x + b.down(F.normalize(F.relu(b.up(b.norm(x))), dim=-1)),
    "gated by another tensor": lambda b, x: x + b.down(F.silu(b.gate(b.norm(x))) * b.again(b.other)),
    "gated by a sum": lambda b, x: x + b.down(F.silu(b.gate(b.norm(x))) * (b.up(b.norm(x)) + 1)),
}


@pytest.mark.parametrize("form", ARE)
def test_L13_feed_forward_is_found_in_each_form_and_proven(form: str, generated: int) -> None:
    program, activation, is_gated = ARE[form]
    for seed in range(generated):
        (instance,) = [each for each in labels(program, seed) if not each.refused]
        assert instance.verified, instance
        assert instance.attributes == {"activation": activation, "gated": is_gated}


@pytest.mark.parametrize("form", ARE_NONE)
def test_L13_what_only_looks_like_feed_forward_is_not_labelled(form: str, generated: int) -> None:
    for seed in range(generated):
        assert [each for each in labels(ARE_NONE[form], seed) if not each.refused] == [], seed


def test_L13_one_projection_may_take_all_rows_as_one_list() -> None:
    def form(b: Block, x: Tensor) -> Tensor:
        y = b.norm(x)
        gate = (y.flatten(0, 1) @ b.gate.weight.t()).view(*y.shape[:2], -1)
        return x + F.linear(F.silu(gate) * F.linear(y, b.up.weight), b.down.weight)

    block = Block(form, 2).eval()
    with torch.inference_mode(), capture() as graph:  # there linear is one call, of rows as they lie
        block(torch.randn(block.shape))
    (found,) = [each for each in find_patterns(graph) if each.pattern == "feed-forward"]
    assert (found.refused, found.attributes) == ("", {"activation": "silu", "gated": True})


def test_L13_dropout_within_feed_forward_is_part_of_it() -> None:
    (found,) = labels(lambda b, x: x + b.drop(b.down(b.drop(F.relu(b.up(b.norm(x)))))), train=True)
    assert found.verified


def test_L13_experts_that_share_a_residual_are_one_place() -> None:
    def experts(b: Block, x: Tensor) -> Tensor:
        y, out = b.norm(x).flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
        for expert in (b.up, b.gate):
            rows = torch.arange(0, len(y), 2)
            out.index_add_(0, rows, b.down(F.relu(expert(y[rows]))))
        return x + out.view(x.shape)

    found = labels(experts)
    assert [each.verified for each in found] == [True, True]
    assert len({each.place for each in found}) == 1


@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_L13_activations_with_constants_that_are_tensors_are_known_in_estimates_too(there: str) -> None:
    """GELU as "Build a Large Language Model" writes it."""

    class Tanh(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            y, other = self.up(x), torch.tensor(3.0, device=there)
            root = torch.sqrt(torch.tensor(2.0 / torch.pi, device=there))
            y = 0.5 * y * (1 + torch.tanh(root * (y + 0.044715 * torch.pow(y, other))))
            return x + self.down(y)

    with Estimator(target=targets.find("h100")) as estimator, torch.no_grad():
        model = nn.Sequential(Tanh(), Tanh()).cuda()
        for _ in range(2):
            model(torch.randn(4, 6, device="cuda"))
    rows = [row for row in estimator.report()["patterns"] if row["name"] == "feed-forward"]
    assert [(row["instances"], row["calls"], row["attributes"]["activation"]) for row in rows] == [
        (2, 4, "gelu (tanh)")
    ]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
def test_L13_what_agrees_begins_alike(scale: float) -> None:
    """A function is tried on all numbers only if the first agree: of none that agrees do they differ."""
    generator = torch.Generator().manual_seed(1)
    agreed = differed = 0
    for off in (0.0, 1e-5, 1e-4, 1.9e-4, 2.1e-4, 4e-4, 4.1e-4, 1e-3, 0.1):
        expected = torch.randn(3 * FEW, generator=generator) * scale
        expected[-1] *= 1.5  # the largest may be behind those that are looked at
        found = expected + off * (expected.abs() + expected.abs().max().clamp(min=1.0)) * torch.sign(expected)
        alike = begin_alike(found, expected[:FEW], float(found.abs().max()))
        if agree(found, expected):
            agreed += 1
            assert alike
        differed += not alike
    assert agreed >= 3 and differed
