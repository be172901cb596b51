"""SPEC C6: the iterations of a loop are shown once, and nothing that is named is hidden."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.boxes import pre_order
from mindtorch.graph.dot import Drawing
from mindtorch.graph.fold import fold
from mindtorch.graph.picture import boxes
from mindtorch.graph.text import _name


def trained(steps: int, kind: str = "SGD", size: Callable[[int], int] = lambda step: 4, read: bool = False,
            drawn: bool = False) -> ComputationGraph:  # fmt: skip
    with capture() as graph:
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.1)
        x, y = torch.ones(4, 8), torch.ones(4, 1)
        for step in range(steps):
            if drawn:
                x, y = torch.randn(size(step), 8), torch.rand(size(step), 1)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            if read:
                loss.item()
        (loss * net[2].bias + net[0].weight.sum()).tolist()
    return graph


def sound(graph: ComputationGraph) -> None:
    """Every name in the text is one that a line has, no two nodes have the same; every read is in the picture."""
    text = graph.to_text(200)
    lines = set(re.findall(r"^[│├└─ ]*%(\d+) ", text, re.MULTILINE))
    assert set(re.findall(r"%(\d+)", text)) == lines
    _, folded = fold(graph)
    names = [_name(node.id, folded) for node in graph.nodes]
    assert len(set(names)) == len(names)
    assert sum(map(len, Drawing(graph).edges().values())) == len(graph.edges)
    drawn = re.findall(r"^ +n(\d+) \[label", graph.to_dot(), re.MULTILINE)
    assert len(set(drawn)) == len(drawn) and lines <= set(drawn)


def headings(graph: ComputationGraph) -> list[str]:
    return re.findall(r"^── (\w+) ─", graph.to_text(), re.MULTILINE)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_C6_iterations_of_a_loop_are_shown_once(read: bool, drawn: bool) -> None:
    graph = trained(10, read=read, drawn=drawn)
    text = graph.to_text(120)
    assert f"\n10 × these {3 + read + 2 * drawn}:\n" in text and headings(graph) == ["other", "iterations", "other"]
    assert text.count(" mse_loss(") == 1 == text.count("─ forward") and "optimizer" in text
    loss = re.search(r"%(\d+) mse_loss\(", text)
    assert loss is not None and f"mul(%{loss[1]}@10, " in text  # of the last one
    assert re.search(r"mul\(%\d+@10, %\d+#4@10\)", text)  # the fourth of the parameters
    sound(graph)


def test_C6_an_iteration_that_differs_is_shown() -> None:
    graph = trained(10, "Adam")  # the first one makes the optimizer's state
    assert headings(graph)[:4] == ["other", "forward", "backward", "optimizer"]
    assert "\n9 × these 3:\n" in graph.to_text()
    sound(graph)
    graph = trained(6, size=lambda step: 4 + step % 2, drawn=True)
    assert "\n3 × these 10:\n" in graph.to_text()
    sound(graph)
    graph = trained(6, size=lambda step: 4 + step, drawn=True)
    assert "iterations" not in headings(graph) and graph.to_text().count(" mse_loss(") == 6
    sound(graph)


def test_C6_one_step_is_no_loop() -> None:
    graph = trained(1)
    assert headings(graph) == ["other", "forward", "backward", "optimizer", "other"]
    sound(graph)


class Cached(nn.Module):
    """Keys of all tokens so far, one call after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, past: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        keys = x = self.table(ids)
        if past is not None:
            keys = torch.cat([past, keys], 1)
        return self.head((x @ keys.mT).softmax(-1) @ keys), keys


@pytest.mark.parametrize("steps", [3, 9])
def test_C6_steps_of_decode_are_shown_once_though_their_cache_grows(steps: int) -> None:
    net, ids, cache = Cached(), torch.ones(2, 5, dtype=torch.int64), None
    with capture() as graph, torch.no_grad():
        for _ in range(steps + 2):
            logits, cache = net(ids, cache)
            ids = logits[:, -1:].argmax(-1)
    text = graph.to_text(120)
    assert headings(graph)[-3:] == ["prefill", "iterations", "other"] and f"\n{steps + 1} × these " in text
    assert text.count("─ decode") == 1 == text.count(" cat(") and text.count("sizes differ") >= 2
    assert sorted(boxes(graph).nodes) == list(range(len(graph)))
    sound(graph)


def test_C6_an_attention_is_one_though_only_the_last_step_shows_all_of_it() -> None:
    """Later steps read the cache of all others, whose projection is then no attention's alone."""

    class Net(Cached):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, ids: torch.Tensor, past: torch.Tensor | None = None) -> Any:
            q, k, v = self.qkv(self.table(ids)).view(2, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.head(self.out(y.transpose(1, 2).reshape(2, -1, 8))), (k, v)

    net, ids, cache = Net(), torch.ones(2, 5, dtype=torch.int64), None
    with capture() as graph, torch.no_grad():
        for _ in range(10):
            logits, cache = net(ids, cache)
            ids = logits[:, -1:].argmax(-1)
    root = boxes(graph)
    assert "attention 1 ×" in root.name
    assert [box.pattern.times for box in pre_order(root) if box.pattern and box.pattern.name == "attention"] == [
        1,
        1,
        8,
    ]
