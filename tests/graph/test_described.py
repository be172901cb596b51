"""C6, L13: a graph shows what the user's analyzer says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from mindtorch import Analysis, Analyzer, ComputationGraph, capture, set_analyzer
from mindtorch.base.errors import UsageError
from mindtorch.graph.analysis import describe
from mindtorch.graph.patterns import Instance


class Scores(Analyzer):
    """Calls each softmax ``scoring``, and all after it phase ``reading``."""

    def analyze(self, graph: ComputationGraph) -> Analysis:
        found = [node.id for node in graph.nodes if node.op.endswith("softmax")]
        after = {node.id: "reading" for node in graph.nodes if node.kind == "op" and node.id > min(found)}
        patterns = tuple(Instance("scoring", n, frozenset([n]), (n,), True, {"axis": -1}) for n in found)
        return Analysis({}, patterns, "", {}, {}, 0, 0, "", frozenset(), (), phase_of=after)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.chosen, self.last = nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.chosen(self.first(x)))
        return found


@pytest.fixture
def graph() -> Iterator[ComputationGraph]:
    previous = set_analyzer(Scores())
    try:
        with capture() as found, torch.no_grad():
            Model()(torch.randn(2, 4))
        describe(found)
        yield found
    finally:
        set_analyzer(previous)


def test_C6_patterns_of_an_analyzer_are_in_text_and_pictures(graph: ComputationGraph) -> None:
    text, svg, page = graph.to_text(), graph.to_svg(), graph.to_html()
    (line,) = [line for line in text.splitlines() if "[scoring]" in line]
    assert "_softmax" in line
    assert "scoring" in svg and "scoring" in page
    assert "feed-forward" not in svg, "nothing but what it says"


def test_C6_phases_of_an_analyzer_are_in_text_and_pictures(graph: ComputationGraph) -> None:
    text = graph.to_text()
    assert text.index("── forward") < text.index("first") < text.index("── reading") < text.index("last")
    assert "reading" in graph.to_svg() and "reading" in graph.to_html()


def test_C6_what_an_analyzer_says_is_in_json_and_read_back(graph: ComputationGraph) -> None:
    data = json.loads(graph.to_json())
    (node,) = [node for node in data["nodes"] if node["op"] == "aten::_softmax"]
    assert data["patterns"] == [
        {"name": "scoring", "anchor": node["id"], "nodes": [node["id"]], "verified": True, "attributes": {"axis": -1}}
    ]
    assert data["nodes"][-1]["phase"] == "reading" and node["phase"] == "forward"
    assert json.loads(ComputationGraph.from_dict(data).to_json()) == data


def test_C6_a_part_of_a_graph_keeps_what_an_analyzer_says(graph: ComputationGraph) -> None:
    part = graph.reduced(["chosen"])
    assert part.patterns is not None and [part.nodes[each.anchor].op for each in part.patterns] == ["aten::_softmax"]
    closed = graph.reduced(depth=0)
    assert [node.phase for node in closed.nodes if node.kind == "module"] == ["forward", "reading"]


class Fails(Analyzer):
    def analyze(self, graph: ComputationGraph) -> Analysis:
        raise KeyError("layers")


class Silent(Analyzer):
    def analyze(self, graph: ComputationGraph) -> Analysis:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("analyzer", "why"),
    [
        (Fails(), "Fails.analyze raised KeyError: 'layers'"),
        (Silent(), "expected an Analysis from Silent.analyze, got NoneType"),
    ],
)
def test_C6_an_analyzer_that_fails_is_one_clear_error(analyzer: Analyzer, why: str) -> None:
    previous = set_analyzer(analyzer)
    try:
        with pytest.raises(UsageError, match=why):
            describe(ComputationGraph())
    finally:
        set_analyzer(previous)
