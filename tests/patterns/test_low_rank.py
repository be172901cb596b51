"""L13: LoRA, in the forms that programs have of it, within the blocks that it adapts; and what is only near it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


W, A, B, BIAS = parameter(12, 16), parameter(3, 12).T, parameter(16, 3).T, parameter(16)
W = nn.Parameter(W.detach())
WIDE_A, WIDE_B = parameter(12, 12), parameter(12, 16)
C, D = parameter(12, 2), parameter(2, 16)


class Adapter(nn.Module):
    """As peft has it."""

    def __init__(self, base: nn.Module, a: nn.Module, b: nn.Module, scale: float = 2.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.base, self.a, self.b, self.scale, self.dropout = base, a, b, scale, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(self.dropout(x))) * self.scale


def linear(bias: bool = True, **options: float) -> Adapter:
    return Adapter(nn.Linear(12, 16, bias), nn.Linear(12, 3, False), nn.Linear(3, 16, False), **options)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(20, 16), parameter(3, 20), parameter(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) + F.embedding(ids, self.a.T) @ self.b.T * 0.5


def found(program: Callable[[Tensor], object], x: Tensor | None = None) -> list[Instance]:
    x = torch.randn(2, 5, 12) if x is None else x
    with capture() as graph:
        program(x * 1.0 if x.is_floating_point() else x)
    return [each for each in find_patterns(graph) if each.pattern == "LoRA"]


def again(x: Tensor) -> Tensor:
    return x @ W + 2 * (x @ A @ B) + 0.25 * (x @ C @ D)


IMAGE = torch.randn(2, 12, 7, 7)
FORMS: dict[str, tuple[Callable[[Tensor], object], Tensor | None, dict[str, Any]]] = {
    "products": (lambda x: x @ W + 2 * (x @ A @ B), None, {}),
    "products, the other way round": (lambda x: 2 * (x @ A @ B) + x @ W, None, {}),
    "products and a bias": (lambda x: x @ W + BIAS + (x @ A @ B) / 2, None, {"scale": 0.5}),
    "modules": (linear(), None, {}),
    "without a bias": (linear(False), None, {}),
    "not scaled": (lambda x: x @ W + x @ A @ B, None, {"scale": 1.0}),
    "with dropout": (linear(dropout=0.3), None, {}),
    "scaled between": (lambda x: x @ W + (x @ A * 2) @ B, None, {}),
    "a negative scale": (linear(scale=-0.5), None, {"scale": -0.5}),
    "of many rows": (linear(), torch.randn(4, 1000, 12), {}),
    "a convolution": (
        Adapter(nn.Conv2d(12, 16, 3, 1, 1), nn.Conv2d(12, 3, 3, 1, 1, bias=False), nn.Conv2d(3, 16, 1, bias=False)),
        IMAGE, {"of": "a convolution"},
    ),
    "an embedding": (Embedded(), torch.randint(20, (2, 5)), {"of": "an embedding", "scale": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_L13_lora_is_found_and_proven(name: str) -> None:
    program, x, attributes = FORMS[name]
    (instance,) = found(program, x)
    plain = {"rank": 3, "of": "a projection", "scale": 2.0}
    assert (instance.attributes, instance.verified, instance.refused) == ({**plain, **attributes}, True, "")


def test_L13_two_adapters_of_one_product_are_two() -> None:
    assert [(each.attributes["rank"], each.attributes["scale"], each.verified) for each in found(again)] == [
        (3, 2.0, True), (2, 0.25, True),
    ]  # fmt: skip


NEAR: dict[str, Callable[[Tensor], object]] = {
    "something is computed between": lambda x: x @ W + torch.relu(x @ A) @ B,
    "what is added is of another": lambda x: x @ W + (x + 1) @ A @ B,
    "one product more": lambda x: x @ W + x @ W,
    "a bottleneck": lambda x: x + x @ A @ B[:, :12],
    "the products are of one weight": lambda x: x @ W + (x @ A) @ (x @ A).mT @ torch.ones(5, 16),
    "multiplied": lambda x: (x @ W) * (x @ A @ B),
    "a gate": lambda x: x @ W + torch.sigmoid(x @ W) * (x @ A @ B),
    "a scale for each number": lambda x: x @ W + BIAS * (x @ A @ B),
}


@pytest.mark.parametrize("name", NEAR)
def test_L13_what_only_looks_like_lora_is_none(name: str) -> None:
    assert [each for each in found(NEAR[name]) if not each.refused] == []


def test_L13_what_is_added_has_a_low_rank() -> None:
    (instance,) = found(lambda x: x @ W + x @ WIDE_A @ WIDE_B)
    assert instance.refused == "its rank of 12 is as high as that of a product of 12 numbers"


class Block(nn.Module):
    """Attention and a feed-forward, all of their projections adapted."""

    def __init__(self, gated: bool) -> None:
        super().__init__()

        def made(n: int, m: int) -> Adapter:
            return Adapter(nn.Linear(n, m), nn.Linear(n, 2, False), nn.Linear(2, m, False), dropout=0.1)

        self.q, self.k, self.v, self.o = (made(16, 16) for _ in range(4))
        self.up, self.gate, self.down = made(16, 32), made(16, 32) if gated else None, made(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).view(2, 5, 4, 4).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16))
        hidden = F.silu(self.up(x))
        return x + self.down(hidden if self.gate is None else hidden * self.gate(x))


@pytest.mark.parametrize("gated", [False, True])
def test_L13_adapted_blocks_are_found_as_plain_ones_are(gated: bool) -> None:
    model = Block(gated)
    with capture() as graph:
        model(torch.randn(2, 5, 16))
    instances = find_patterns(graph)
    names = [each.pattern for each in instances if each.verified]
    assert names == ["LoRA"] * (6 + gated) + ["attention", "feed-forward"]
    bases = {n.id for n in graph.nodes if n.op == "aten::addmm" and n.module.endswith(".base")}
    held = {n for each in instances if each.pattern != "LoRA" for n in each.nodes}
    assert bases and bases <= held
    assert {n.id for n in graph.nodes if n.module.endswith((".a", ".b"))} & held == set()
