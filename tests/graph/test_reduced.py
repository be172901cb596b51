"""SPEC C6: parts of a graph: some modules only, modules closed, nodes up to some point."""

from __future__ import annotations

import re

import pytest
import torch
from layers import Layers
from torch import nn

from mindtorch.base.errors import UsageError
from mindtorch.graph import ComputationGraph, capture


class Body(Layers):
    pass


class Net(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 8)
        self.body = Body(layers)
        self.head = nn.Linear(8, 10)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids))).sum()


@pytest.fixture(scope="module")
def graph() -> ComputationGraph:
    model = Net()
    with capture() as graph:
        model(torch.zeros(3, dtype=torch.long))
    return graph


def closed(graph: ComputationGraph) -> list[str]:
    return [node.module for node in graph.nodes if node.kind == "module"]


def sound(part: ComputationGraph) -> None:
    """Reads are of earlier nodes and of outputs that are there; JSON gives it back, text and DOT take it."""
    for node in part.nodes:
        for source, output in node.inputs:
            assert source < node.id and output < max(1, len(part.nodes[source].outputs))
        assert (node.kind in ("input", "parameter")) <= (node.inputs == ())
    again = ComputationGraph.from_dict(part.to_dict())
    assert again.to_json() == part.to_json() and again.to_text() == part.to_text() and again.left_out == part.left_out
    text = part.to_dot()
    drawn = re.findall(r"^ +n(\d+) \[label", text, re.MULTILINE)
    ends = {node for edge in re.findall(r"^ +n(\d+) -> n(\d+)", text, re.MULTILINE) for node in edge}
    assert text.count("{") == text.count("}") and len(set(drawn)) == len(drawn) and ends <= set(drawn)
    assert max(map(len, part.to_text(60).splitlines())) <= 60


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(0, ["Net"]), (1, ["Net.emb", "Net.body", "Net.head"]),
     (2, ["Net.body.h.0", "Net.body.h.1", "Net.body.h.2", "Net.body.h.3"]),
     (3, [f"Net.body.h.{i}.{name}" for i in range(4) for name in ("up", "down")])],
)  # fmt: skip
def test_C6_depth_closes_what_is_deeper(graph, depth, expected):
    part = graph.reduced(depth=depth)
    sound(part)
    assert closed(part) == expected, "a ModuleList runs nothing itself and is no level"
    inside = sum(node.kwargs["ops"] for node in part.nodes if node.kind == "module")
    assert inside + part.count("op") == graph.count("op") and part.left_out["ops"] == inside
    assert part.left_out["deeper_than"] == depth
    owned = sum(node.kwargs.get("parameters", 0) for node in part.nodes if node.kind == "module")
    assert owned + part.count("parameter") == graph.count("parameter")
    (result,) = (node for node in part.nodes if node.id == len(part) - 1)
    assert result.outputs[0].shape == ()


def test_C6_depth_beyond_the_deepest_changes_nothing(graph):
    part = graph.reduced(depth=9)
    assert part.to_dict()["nodes"] == graph.to_dict()["nodes"] and part.left_out == {}
    assert "left_out" not in part.to_dict()


def test_C6_depth_in_text_and_dot_is_a_line_and_a_box(graph):
    part = graph.reduced(depth=2)
    lines = [line for line in part.to_text().splitlines() if "h.0 … h.3" in line]
    assert len(lines) == 1 and "×4" in lines[0] and "Layer ▸" in lines[0] and lines[0].endswith("3x8 f32")
    assert 'label="left out: ' in part.to_dot() and "left out" not in graph.to_dot()
    boxes = [line for line in part.to_dot().splitlines() if "h.0 … h.3" in line]
    assert len(boxes) == 1 and "×4" in boxes[0] and "component" in boxes[0]


def test_C6_depth_keeps_parameters_that_others_use():
    model = Net(2)
    model.head.weight = model.emb.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture() as graph:
        model(torch.zeros(3, dtype=torch.long)).backward()
        optimizer.step()
    part = graph.reduced(depth=1)
    sound(part)
    (tied,) = (node for node in part.nodes if node.name == "Net.emb.weight")
    assert {part.nodes[edge.target].module for edge in part.edges if edge.source == tied.id} == {"Net.emb", "Net.head"}
    phases = {(node.module, node.phase) for node in part.nodes if node.kind == "module"}
    assert {("Net.body", "forward"), ("Net.body", "backward")} <= phases


def test_C6_module_shows_that_and_what_it_reads(graph):
    part = graph.reduced(modules=["body.h.2"])
    sound(part)
    assert {node.module for node in part.nodes if node.kind == "op"} == {
        "Net.body.h.2", "Net.body.h.2.up", "Net.body.h.2.down"}  # fmt: skip
    (source,) = (node for node in part.nodes if node.kind == "input")
    assert (source.op, source.module) == ("aten::add", "Net.body.h.1") and "from add, Net.body.h.1" in part.to_text()
    assert part.count("parameter") == 4
    assert part.left_out["modules_but"] == ["body.h.2"] and part.left_out["ops"] == graph.count("op") - part.count("op")


@pytest.mark.parametrize(
    ("patterns", "depth", "expected"),
    [(["Net.body.h.*"], 0, [f"Net.body.h.{i}" for i in range(4)]),
     (["*.up", "head"], 0, [*(f"Net.body.h.{i}.up" for i in range(4)), "Net.head"]),
     (["body"], 1, [f"Net.body.h.{i}" for i in range(4)])],
)  # fmt: skip
def test_C6_depth_counts_from_the_modules_asked_for(graph, patterns, depth, expected):
    part = graph.reduced(modules=patterns, depth=depth)
    sound(part)
    assert closed(part) == expected


def test_C6_module_that_is_not_there(graph):
    with pytest.raises(UsageError, match=r"no module matches 'nope' or 'h\?'; there are Net"):
        graph.reduced(modules=["nope", "h?"])


def test_C6_a_part_of_the_nodes_and_its_reads():
    with capture() as graph:
        x = torch.ones(3)
        x.sum().item()
        y = torch.exp(x)
    (exp,) = (node.id for node in graph.nodes if node.op == "aten::exp")
    part = graph.reduced(until=exp)
    sound(part)
    assert [node.op for node in part.nodes] == ["aten::ones", "aten::sum", "aten::_local_scalar_dense"]
    assert len(part.segments) == 1 and part.left_out["ops"] == 1 and y.shape == (3,)
