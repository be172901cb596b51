"""L13: rotary embeddings, in the forms that programs have of them; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns

HEADS, WIDTH, LENGTH = 2, 8, 5
Turn = Callable[[Tensor, Tensor], Tensor]


class Attending(nn.Module):
    """turn: of queries or keys (batch, heads, tokens, width), and angles (tokens, width / 2)."""

    def __init__(self, turn: Turn, angles: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.turn, self.angles = turn, angles
        self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(LENGTH, device=x.device).float(), self.frequencies)
        if self.angles is not None:
            angles = self.angles(x)
        q, k, v = (each(x).view(-1, LENGTH, HEADS, WIDTH).transpose(1, 2) for each in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(self.turn(q, angles), self.turn(k, angles), v)
        return x + self.o(context.transpose(1, 2).reshape(x.shape))


def rotated(turn: Turn, angles: Callable[[Tensor], Tensor] | None = None) -> list[Instance]:
    model = Attending(turn, angles)
    with capture() as graph:
        model(torch.randn(3, LENGTH, 16))
    found = find_patterns(graph)
    assert [each.verified for each in found if each.pattern == "attention"] == [True]
    return [each for each in found if each.pattern == "rotary embedding"]


def twice(angles: Tensor) -> Tensor:
    return torch.cat([angles, angles], -1)


def half_turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def neighbours_turned(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def halves(x: Tensor, angles: Tensor) -> Tensor:
    angles = twice(angles)
    return x * angles.cos() + half_turned(x) * angles.sin()


def scaled_tables(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = twice(angles).cos() * 1.3, twice(angles).sin() * 1.3
    return x * cos + half_turned(x) * sin


def neighbours(x: Tensor, angles: Tensor) -> Tensor:
    angles = angles.repeat_interleave(2, -1)
    return x * angles.cos() + neighbours_turned(x) * angles.sin()


def of_two_halves(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def backwards(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x[..., :4], x[..., 4:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos + b * sin, a * (-sin) + b * cos], -1)


def of_neighbours(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def as_complex(x: Tensor, angles: Tensor) -> Tensor:
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(-2)


def reordered(x: Tensor, angles: Tensor) -> Tensor:
    """Neighbours come in, halves go out."""
    x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).reshape(x.shape)
    return halves(x, angles)


def added_with_product(x: Tensor, angles: Tensor) -> Tensor:
    angles = twice(angles)
    return torch.addcmul(x * angles.cos(), half_turned(x), angles.sin())


def in_half_precision(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = twice(angles).cos().bfloat16(), twice(angles).sin().bfloat16()
    x = x.bfloat16()
    return (x * cos + half_turned(x) * sin).float()


def part(x: Tensor, angles: Tensor) -> Tensor:
    return torch.cat([halves(x[..., :4], angles[..., ::2]), x[..., 4:]], -1)


def part_of_neighbours(x: Tensor, angles: Tensor) -> Tensor:
    kept, turned = x.split([6, 2], -1)
    return torch.cat([kept, neighbours(turned, angles[..., :1])], -1)


TABLE = nn.Parameter(torch.randn(20, WIDTH), requires_grad=False)
PLACES = torch.arange(LENGTH) + 2


def from_tables(x: Tensor, _: Tensor) -> Tensor:
    sin, cos = TABLE[PLACES].chunk(2, -1)
    sin, cos = (each.repeat_interleave(2, -1) for each in (sin, cos))
    return x * cos + neighbours_turned(x) * sin


def from_wide_tables(x: Tensor, _: Tensor) -> Tensor:
    return x * TABLE[PLACES].to(x.dtype) + half_turned(x) * TABLE[PLACES + 7]


FORMS: dict[str, tuple[Turn, dict[str, Any]]] = {
    "halves": (halves, {}),
    "scaled tables": (scaled_tables, {}),
    "neighbours": (neighbours, {"pairs": "neighbours"}),
    "two halves": (of_two_halves, {}),
    "the other way round": (backwards, {}),
    "neighbours, one by one": (of_neighbours, {"pairs": "neighbours"}),
    "complex": (as_complex, {"pairs": "neighbours"}),
    "reordered": (reordered, {"pairs": "neighbours"}),
    "added with a product": (added_with_product, {}),
    "in half precision": (in_half_precision, {}),
    "part": (part, {"turned": "4 of 8"}),
    "part, the last numbers": (part_of_neighbours, {"turned": "2 of 8"}),
    "from tables": (from_tables, {"pairs": "neighbours"}),
    "from wide tables": (from_wide_tables, {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_L13_rotary_embeddings_are_found_and_proven(name: str) -> None:
    turn, attributes = FORMS[name]
    found = rotated(turn)
    assert [(each.verified, each.refused) for each in found] == [(True, "")] * 2
    if attributes != {"turned": "2 of 8"}:
        assert [each.attributes for each in found] == [{"turned": "all", "pairs": "halves"} | attributes] * 2
    else:  # of one pair, both are the same
        assert [each.attributes["turned"] for each in found] == ["2 of 8"] * 2
    assert len({each.place for each in found}) == 1, "queries and keys of one attention are one place"


def test_L13_rotary_embeddings_of_two_layers_are_two_places() -> None:
    model = nn.Sequential(Attending(halves), Attending(halves))
    with capture() as graph:
        model(torch.randn(3, LENGTH, 16))
    found = [each for each in find_patterns(graph) if each.pattern == "rotary embedding"]
    assert (len(found), len({each.place for each in found})) == (4, 2)


def test_L13_the_sines_and_cosines_are_part_of_the_rotary_embedding() -> None:
    model = Attending(halves)
    with capture() as graph:
        model(torch.randn(3, LENGTH, 16))
    held = {n for each in find_patterns(graph) if each.pattern == "rotary embedding" for n in each.nodes}
    assert {n.id for n in graph.nodes if n.op in ("aten::cos", "aten::sin", "aten::neg")} <= held
    assert not {n.id for n in graph.nodes if n.op == "aten::addmm"} & held


def test_L13_rotary_embeddings_of_many_tokens_are_tried_with_fewer() -> None:
    model, seen = Attending(halves), torch.randn(20000, LENGTH, 16, device="meta")
    with capture() as graph:
        model.to("meta")(seen)
    found = [each for each in find_patterns(graph) if each.pattern == "rotary embedding"]
    assert [each.verified for each in found] == [True, True]


def no_sign(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * twice(angles).cos() + torch.cat([b, a], -1) * twice(angles).sin()


def both_signs(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * twice(angles).cos() + torch.cat([-b, -a], -1) * twice(angles).sin()


def two_angles(x: Tensor, angles: Tensor) -> Tensor:
    angles = torch.cat([angles, 2 * angles], -1)
    return x * angles.cos() + half_turned(x) * angles.sin()


def not_of_one_angle(x: Tensor, angles: Tensor) -> Tensor:
    return x * twice(angles).cos() + half_turned(x) * twice(angles * 2).sin()


def exchanged(x: Tensor, angles: Tensor) -> Tensor:
    return x * twice(angles).sin() + half_turned(x) * twice(angles).cos()


def pairs_mixed(x: Tensor, angles: Tensor) -> Tensor:
    """Tables for halves, numbers turned by neighbours."""
    return x * twice(angles).cos() + neighbours_turned(x) * twice(angles).sin()


def only_scaled(x: Tensor, angles: Tensor) -> Tensor:
    return x * twice(angles).cos() + x * twice(angles).sin()


def squashed(x: Tensor, angles: Tensor) -> Tensor:
    return x * twice(angles).cos() + torch.tanh(half_turned(x)) * twice(angles).sin()


def moved(x: Tensor, angles: Tensor) -> Tensor:
    return x * twice(angles).cos() + half_turned(x + 1) * twice(angles).sin()


def conjugated(x: Tensor, angles: Tensor) -> Tensor:
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)).conj() * turns).flatten(-2)


def stretched(x: Tensor, angles: Tensor) -> Tensor:
    turns = torch.polar(angles, angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(-2)


NEAR = [
    no_sign, both_signs, two_angles, not_of_one_angle, exchanged, pairs_mixed, only_scaled, squashed, moved, conjugated,
    stretched,
]  # fmt: skip


@pytest.mark.parametrize("turn", NEAR)
def test_L13_what_only_looks_like_a_rotary_embedding_is_none(turn: Turn) -> None:
    found = rotated(turn)
    assert [each for each in found if not each.refused] == []


def test_L13_a_turn_by_angles_that_are_computed_from_what_is_turned_is_none() -> None:
    weight = nn.Parameter(torch.randn(16, WIDTH // 2))
    found = rotated(halves, lambda x: (x @ weight).unsqueeze(1))
    assert [each for each in found if not each.refused] == []


def test_L13_sines_and_cosines_that_are_added_are_none() -> None:
    assert rotated(lambda x, angles: x + torch.cat([angles.sin(), angles.cos()], -1)) == []


def test_L13_two_tensors_mixed_by_sines_and_cosines_are_none() -> None:
    model = nn.Linear(16, 16)
    times = torch.rand(3, 1)
    with capture() as graph:
        x, noise = model(torch.randn(3, 16)), model(torch.randn(3, 16))
        x * times.cos() + noise * times.sin()
    found = [each for each in find_patterns(graph) if each.pattern == "rotary embedding"]
    assert [each.refused for each in found] == ["its halves are of several tensors"]
