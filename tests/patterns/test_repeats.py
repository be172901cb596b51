"""What is found in one of a model's equal blocks is in all of them, and nothing else is (SPEC L12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.patterns import Found, Instance, Pattern, find_patterns
from mindtorch.graph.patterns import find as find_module
from mindtorch.graph.patterns.flow import FORWARD, Flow
from mindtorch.graph.patterns.repeats import LEAST, Blocks

WIDTH, HEADS = 16, 2


class Block(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = F.gelu) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(2, 3).unbind()
        attended = (q @ k.mT / (WIDTH // HEADS) ** 0.5 + mask).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(self.activation(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self, blocks: list[Block], gives_all: bool = False) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(11, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 11)
        self.gives_all = gives_all

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        mask = torch.full((5, 5), -torch.inf).triu(1)
        every = [x := block(x, mask) for block in self.blocks]
        return self.head(sum(every) if self.gives_all else x)


def graph_of(model: nn.Module) -> ComputationGraph:
    with torch.no_grad(), capture() as graph:
        model(torch.arange(10).reshape(2, 5))
    return graph


def in_whole(graph: ComputationGraph, monkeypatch: pytest.MonkeyPatch) -> list[Instance]:
    """Instances as they are found without blocks."""
    with monkeypatch.context() as patched:
        patched.setattr(find_module.Blocks, "of", lambda flow: None)
        return find_patterns(graph, known={})


def test_L12_every_block_has_what_the_whole_graph_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Model([Block() for _ in range(9)]))
    blocks = Blocks.of(Flow(graph))
    assert blocks is not None and blocks.count >= 8
    assert len(blocks.flow.graph) == len(graph) - blocks.size * (blocks.count - 4)
    found = find_patterns(graph, known={})
    assert found == in_whole(graph, monkeypatch)
    names = [each.pattern for each in found if not each.refused]
    assert (names.count("attention"), names.count("feed-forward"), names.count("normalization")) == (9, 9, 18)
    assert len({each.place for each in found}) == len(found)


@pytest.mark.parametrize("count", [LEAST - 1, LEAST, LEAST + 1, LEAST + 2])
def test_L12_of_few_blocks_each_is_looked_at(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Model([Block() for _ in range(count)]))
    blocks = Blocks.of(Flow(graph))
    assert (0 if blocks is None else blocks.count) == (
        count - 1 if count > LEAST else 0
    )  # the first makes the mask's view
    assert find_patterns(graph, known={}) == in_whole(graph, monkeypatch)


@pytest.mark.parametrize("other", range(10))
def test_L12_a_block_that_is_another_ends_a_run(other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: its activation is of another kind, and no feed-forward's."""
    model = Model([Block((lambda x: x.sin() + x) if n == other else F.gelu) for n in range(10)])
    graph = graph_of(model)
    found = find_patterns(graph, known={})
    assert found == in_whole(graph, monkeypatch)
    assert sum(each.pattern == "feed-forward" and not each.refused for each in found) == 9


def test_L12_what_all_blocks_give_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Model([Block() for _ in range(9)], gives_all=True))
    assert Blocks.of(Flow(graph)) is None
    assert find_patterns(graph, known={}) == in_whole(graph, monkeypatch)


class Products(Pattern):
    """Each k-th product, which is nothing that a block has by itself; or pairs of products that are far apart."""

    name, phases = "products", FORWARD

    def __init__(self, every: int = 1, apart: int = 0) -> None:
        self.every, self.apart, self.sizes = every, apart, list[int]()

    def find(self, flow: Flow) -> Iterator[Found]:
        self.sizes.append(len(flow.graph))
        products = [node for node in flow.nodes if flow.is_linear(node)]
        for n, node in enumerate(products[:: self.every]):
            if n + self.apart < len(products):
                yield Found(node, {node, products[n + self.apart]}, [], lambda: None)  # type: ignore[arg-type,return-value]


def by_blocks(pattern: Pattern, graph: ComputationGraph) -> tuple[list[Any], list[Any]]:
    flow = Flow(graph)
    blocks = Blocks.of(flow)
    assert blocks is not None
    found = ([(each.anchor, sorted(each.nodes)) for each in find] for find in
             (blocks.candidates(pattern), pattern.find(flow)))  # type: ignore[union-attr]  # fmt: skip
    return tuple(found)  # type: ignore[return-value]


@pytest.mark.parametrize(("every", "apart"), [(1, 0), (1, 1), (1, 4), (3, 0), (5, 0), (1, 5), (1, 9), (1, 17)])
def test_L12_what_is_not_of_one_block_is_looked_for_in_all(every: int, apart: int) -> None:
    graph = graph_of(Model([Block() for _ in range(10)]))
    pattern = Products(every, apart)
    found, expected = by_blocks(pattern, graph)
    assert found == expected
    near = every == 1 and apart <= 4
    assert (pattern.sizes[1] == len(graph)) and (len(pattern.sizes) == (2 if near else 3))


def test_L12_patterns_of_others_see_all_layers() -> None:
    graph = graph_of(Model([Block() for _ in range(10)]))
    pattern = Products()
    find_patterns(graph, [pattern], failed={})
    assert pattern.sizes == [len(graph)]
