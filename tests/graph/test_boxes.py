"""SPEC C6: the graph as boxes within boxes: every node in one, counts that sum, modules by path, patterns by name."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import torch
from layers import Layer, Layers
from torch import nn
from torch.nn import functional as F

from mindtorch.base.errors import UsageError
from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.boxes import IN, MOST_CHILDREN, OUT, Box, pre_order
from mindtorch.graph.patterns.attention import Attention as Attention_
from mindtorch.graph.picture import boxes, shown


class Attention(nn.Module):
    def __init__(self, written_out: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.written_out = written_out

    def forward(self, x):
        q, k, v = (part.view(2, 5, 4, 4).transpose(1, 2) for part in self.qkv(x).split(16, dim=2))
        y = (q @ k.mT / 2).softmax(-1) @ v if self.written_out else F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(2, 5, 16))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.up, self.down = nn.LayerNorm(16), Attention(), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x


class Branches(nn.Module):
    """Modules that are equal but for their sizes, in a list of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.ModuleList(
            nn.Sequential(*(nn.Conv2d(4, 4, 2 * i + 1, padding=i) for i in range(n))) for n in (1, 3)
        )

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.b] + [x], 1)[:, :4]


def transformer() -> ComputationGraph:
    model, x = Transformer(12), torch.zeros(2, 5, 16)
    with capture() as graph, torch.no_grad():
        model(x)
    return graph


def training() -> ComputationGraph:
    with capture() as graph:
        model = Layers(6)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
    return graph


def branches() -> ComputationGraph:
    model = nn.Sequential(Branches(), Branches(), Branches())
    with capture() as graph:
        model(torch.zeros(1, 4, 8, 8))
    return graph


def unequal() -> ComputationGraph:
    """More side by side than anyone can look at."""
    with capture() as graph:
        x = torch.ones(1)
        for i in range(2 * MOST_CHILDREN + 7):
            x = torch.cat([x, x[: 1 + i % 2]]) if i % 3 else x.relu()
    return graph


def passed_on() -> ComputationGraph:
    """A weight of all layers, and layers that are read from afar."""

    class Net(Layers):
        def forward(self, x):
            made = [x := layer(x) * self.h[0].up.weight.sum() for layer in self.h]
            return torch.cat(made)

    with capture() as graph:
        Net(4)(torch.ones(3, 8)).sum().backward()
    return graph


PROGRAMS = [transformer, training, branches, unequal, passed_on, ComputationGraph]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.__name__)
def graph(request: pytest.FixtureRequest) -> ComputationGraph:
    return request.param()


@pytest.mark.parametrize("added", [(1, 1, 2), (1, 1, 1, 2), (1, 1, 1, 2, 3), (1, 1, 2, 2, 3, 3)], ids=str)
def test_C6_of_ops_in_a_row_only_those_that_do_the_same_are_counted_together(added):
    class Sums(nn.Module):
        def forward(self, x):
            return [x + number for number in added]

    with capture() as graph:
        Sums()(torch.ones(3, 4))
    assert sorted(boxes(graph).nodes) == list(range(len(graph))), "each once"
    said = re.findall(r"add\(%0, (\d)\)(?: ×(\d))?", graph.to_text())
    assert {int(number): int(times or 1) for number, times in said} == Counter(added)


@pytest.mark.parametrize("init", [False, True])
def test_C6_every_node_is_in_one_box_and_counts_sum_to_the_graphs(graph, init):
    root = boxes(graph, init=init)
    assert sorted(root.nodes) == list(range(len(graph))), "each once"
    for box in pre_order(root):
        within = [node for child in box.children for node in child.nodes]
        assert len(set(within)) == len(within) and set(within) <= set(box.nodes)
        own = set(box.nodes) - set(within)
        assert not box.children or not [node for node in own if graph.nodes[node].kind == "op"]
        assert box.ops == sum(graph.nodes[node].kind == "op" for node in box.nodes)
        assert len(box.children) <= MOST_CHILDREN
    made = set() if init else {id for id in graph._names if graph.nodes[id].kind == "op"}
    parameters = {node.id for node in graph.nodes if node.kind == "parameter"}
    assert len(set(root.parameters)) == len(root.parameters) and parameters <= set(root.parameters) <= parameters | made
    sizes = [torch.Size(graph.nodes[node].outputs[0].shape).numel() for node in root.parameters]
    assert root.elements == sum(sizes)


def test_C6_edges_of_a_box_go_between_its_children_and_onwards(graph):
    for box in pre_order(boxes(graph)):
        for source, target in box.edges:
            assert source == IN or 0 <= source < len(box.children)
            assert target == OUT or 0 <= target < len(box.children)
            assert source == IN or target == OUT or source < target, "downwards"


def named(root: Box, path: str, phase: str = "forward") -> Box:
    """The box of a module."""
    (found,) = [box for box in pre_order(root) if box.kind == "module" and box.path == path
                and any(up.name == phase for up in box.above())]  # fmt: skip
    return found


def test_C6_boxes_say_what_patterns_compute_and_how_often():
    root = boxes(transformer())
    assert sorted(root.name.split("; ")) == ["attention 12 ×", "feed-forward 12 ×", "normalization 12 ×"]
    layer = named(root, "Transformer.h.0")
    assert layer.lines()[0] == "h.0 … h.11  12 × Block" and layer.times == 12 and layer.ops == 12 * (layer.ops // 12)
    assert named(root, "Transformer.h.0.attn").lines()[:2] == ["attn  Attention", "attention 12 ×"]
    assert named(root, "Transformer.h.0.norm").lines()[:2] == ["norm  LayerNorm", "normalization 12 ×"]
    (gathered,) = [box for box in pre_order(root) if box.kind == "pattern"]
    assert gathered.parent is layer and gathered.lines()[0] == "feed-forward 12 ×"
    assert [child.name for child in gathered.children] == ["up", "gelu", "down"]
    names = [child.name for child in layer.children]
    assert names == ["norm", "attn", "add", "feed-forward 12 ×", "add"]
    add = names.index("add")
    assert {(IN, 0), (IN, add), (0, 1), (1, add), (add, 3), (3, 4), (add, 4), (4, OUT)} == set(layer.edges)


class Listed(nn.Module):
    """A block whose feed-forward part is a `Sequential`, and one whose `Sequential` has more."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.more = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        x = x + self.mlp(self.norm(x))
        return x + self.more(x)


def listed() -> ComputationGraph:
    model = nn.Sequential(*(Listed() for _ in range(3)))
    with capture() as graph, torch.no_grad():
        model(torch.randn(5, 16))
    return graph


def test_C6_a_pattern_that_fails_is_not_named_and_all_else_is_drawn(monkeypatch, caplog):
    def find(flow):
        raise KeyError("of its own")

    monkeypatch.setattr(Attention_, "find", lambda self, flow: find(flow))
    with capture() as graph:
        Block()(torch.ones(2, 5, 16))
    root = boxes(graph)
    assert sorted(root.nodes) == list(range(len(graph)))
    assert "feed-forward" in root.name and "attention" not in root.name
    assert caplog.messages == ["the search for the pattern attention failed: KeyError: 'of its own'"]


def test_C6_a_sequential_that_a_pattern_covers_keeps_its_name():
    root = boxes(listed())
    mlp = named(root, "Sequential.0.mlp")
    assert mlp.lines()[:2] == ["mlp  Sequential", "feed-forward 3 ×"]
    assert [child.name for child in mlp.children] == ["mlp.0", "mlp.1", "mlp.2"] and mlp.ops == 15
    (part,) = [box for box in pre_order(root) if box.kind == "pattern"]
    assert part.lines()[0] == "feed-forward 3 ×" and part.path == "Sequential.0", "of `more` it is a part only"
    assert [child.name for child in part.children] == ["more.1", "more.2", "more.3"]


@pytest.mark.parametrize(("pattern", "found"), [
    ("Sequential.0.mlp", ["mlp"]), ("*.mlp.1", ["mlp.1"]), ("*.more", ["more.0", "more.1", "more.2", "more.3"]),
])  # fmt: skip
def test_C6_focus_finds_modules_whose_layers_have_taken_their_name(pattern, found):
    shown_boxes = pre_order(boxes(listed(), focus=pattern))
    assert [box.name for box in shown_boxes if box.found and box.kind == "module"] == found
    assert all(box.open for box in shown_boxes if box.found)


def test_C6_focus_says_a_models_name_once():
    root = boxes(transformer(), focus="h")
    assert [box.lines()[0] for box in root.children] == ["forward, Transformer"]
    assert [box.name for box in root.children[0].children if box.found] == ["h.0 … h.11"], "a list that runs nothing"


# ---- several ---------------------------------------------------------------------------------------------------------
def test_C6_graphs_side_by_side_are_each_as_it_is_alone():
    graphs = [("a.py --lr 0.1", transformer()), ("b.py", training()), ("c.py", transformer().reduced(["h.3"]))]
    (title, first), *others = graphs
    root, heads = shown(first, title, others)
    assert heads == ["3 graphs side by side"] and [box.kind for box in root.children] == ["graph"] * 3
    for box, (name, graph) in zip(root.children, graphs, strict=True):
        alone = boxes(graph)
        lines = box.lines()
        assert box.open and lines[0] == name and lines[1].startswith(f"{graph.count('op'):,} ops · ")
        assert not alone.name or alone.name in lines
        assert any(line.startswith("left out: ") for line in lines) == (name == "c.py")
        assert [(each.lines(), each.open) for each in pre_order(box)[1:]] == [
            (each.lines(), each.open) for each in pre_order(alone)[1:]
        ]


def test_C6_graphs_side_by_side_say_which_has_no_such_module():
    with pytest.raises(UsageError, match=r"^b.py: no module matches 'h.0.attn'; "):
        shown(transformer(), "a.py", [("b.py", training())], focus="h.0.attn")


def test_C6_a_graph_that_was_json_has_the_same_boxes():
    for graph in (transformer(), training()):
        again = ComputationGraph.from_dict(json.loads(graph.to_json()))
        assert [box.lines() for box in pre_order(boxes(again))] == [box.lines() for box in pre_order(boxes(graph))]


def test_C6_a_module_that_is_called_attention_and_is_none_is_not_named_so():
    class Attention(nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-2) @ x

    with capture() as graph:
        Attention()(torch.randn(3, 5, 5))
    assert not [box for box in pre_order(boxes(graph)) if box.pattern]


def test_C6_depth_says_which_modules_are_open():
    graph = transformer()
    for depth, names in ((0, []), (1, ["Transformer"]), (2, ["Transformer", "h.0 … h.11"])):
        found = [
            box.name for box in pre_order(boxes(graph, depth=depth)) if box.open and box.kind in ("module", "pattern")
        ]
        assert found == names


# ---- one module ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", ["h.0.attn", "h.7.attn", "Transformer.h.11.attn", "h.*.attn"])
def test_C6_focus_shows_a_module_and_what_it_reads_from_and_gives_to(pattern):
    root = boxes(transformer(), focus=pattern)
    (layer,) = root.children
    assert layer.name == "forward, Transformer.h.0 … h.11"
    assert [child.name for child in layer.children] == ["norm", "attn", "add"]
    assert [child.found for child in layer.children] == [False, True, False]
    assert [child.open for child in layer.children] == [False, True, False]
    assert set(layer.edges) == {(0, 1), (1, 2)}


def test_C6_focus_is_of_every_phase_in_which_the_module_runs():
    root = boxes(training(), focus="h.5.down")
    names = [box.name for box in root.children]
    assert len(names) >= 2 and all("Layers.h." in name for name in names)
    assert any("forward" in name for name in names) and any("backward" in name for name in names)


@pytest.mark.parametrize(("pattern", "near"), [
    ("h.0.atn", "nearest: Transformer.h.0.attn"), ("Transfomer", "nearest: Transformer"),
    ("nom", "nearest: Transformer.h.0.norm"), ("zzz", "there are Transformer, Transformer.h"),
])  # fmt: skip
def test_C6_focus_on_a_module_that_is_not_there_names_those_of_like_names(pattern, near):
    with pytest.raises(UsageError, match=f"no module matches '{pattern}'; ") as error:
        boxes(transformer(), focus=pattern)
    assert near in str(error.value) and "\n" not in str(error.value)


# ---- initialization --------------------------------------------------------------------------------------------------
def trained_inside(steps: int = 1, average: bool = False) -> ComputationGraph:
    with capture() as graph:
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
        nn.init.zeros_(model[2].weight)
        unused = torch.empty(3).normal_()
        copy = [parameter.detach().clone() for parameter in model.parameters()] if average else []
        x = torch.ones(4, 8)
        for _ in range(steps):
            model(x).sum().backward()
            for mine, parameter in zip(copy, model.parameters(), strict=False):
                mine.mul_(0.9).add_(parameter.detach())
    del unused
    return graph


def test_C6_initialization_is_one_line_in_text_and_one_box_in_pictures():
    graph = trained_inside()
    words = "initialization: 9 parameters, "
    (line,) = [line for line in graph.to_text().splitlines() if line.startswith(words)]
    ops = int(line.removeprefix(words).split()[0])
    after = min(node.id for node in graph.nodes if node.outputs and node.outputs[0].shape == (3,))
    assert ops == sum(node.kind == "op" for node in list(graph.nodes)[:after]), "all before what nobody is known by"
    assert f'init [label="{line}"' in graph.to_dot()
    first = boxes(graph).children[0]
    assert first.lines() == [line] and first.ops == ops and sorted(first.nodes) == list(range(after))
    for text in (graph.to_text(init=True), graph.to_dot(init=True)):
        assert "initialization" not in text and "uniform_" in text
    assert "uniform_" not in graph.to_text() + graph.to_dot()
    assert all(box.kind != "initialization" for box in pre_order(boxes(graph, init=True)))
    assert "9 more parameters and buffers are made" in graph.to_text(init=True)
    assert graph.to_dict() == ComputationGraph.from_dict(graph.to_dict()).to_dict(), "JSON has all"


def test_C6_what_an_average_of_the_weights_does_is_no_initialization():
    text = trained_inside(steps=2, average=True).to_text(200)
    assert "clone(" in text and "mul_(" in text and "add_(" in text and "initialization: 9 parameters" in text


def test_C6_a_graph_in_which_nothing_is_made_has_no_initialization():
    assert "initialization" not in transformer().to_text() + transformer().to_dot()
    with capture() as graph:
        Layer()(torch.ones(2, 8).mul(2))
    text = graph.to_text(100)
    assert "initialization: 4 parameters, 8 ops" in text and " ones(" in text and " mul(" in text
