"""SPEC C6: the graph as text, JSON, DOT and networkx."""

from __future__ import annotations

import builtins
import itertools
import json
import re
import shutil
import subprocess

import pytest
import torch
from layers import Layers
from torch import nn

from mindtorch.graph import ComputationGraph, Hole, Opaque, capture
from mindtorch.graph.dot import Drawing, quote

F32 = torch.float32


class Model(Layers):
    def __init__(self, layers: int = 12) -> None:
        super().__init__(layers)


def captured(layers: int) -> ComputationGraph:
    """A forward pass and its sum."""
    model = Model(layers)
    with capture() as graph:
        model(torch.ones(3, 8)).sum().item()
    return graph


@pytest.fixture(scope="module")
def graph() -> ComputationGraph:
    return captured(12)


@pytest.fixture
def odd() -> ComputationGraph:
    """Every kind of constant, and names made to break a format."""
    graph = ComputationGraph()
    made = graph.add_operation(
        'my::op"\\',
        [
            torch.ones(2),
            1,
            1.5,
            float("inf"),
            float("nan"),
            2 + 1j,
            None,
            True,
            "a\n",
            (1, [2.0]),
            slice(0, None),
            ...,
            torch.float16,
            torch.strided,
            torch.channels_last,
            torch.device("cpu"),
            {"k": 1},
        ],
        {"key": [torch.ones(1)]},
        outputs=[((), torch.bool, "cpu"), ((0, 3), torch.int64, "meta")],
        module='A"\\.b\n',
        phase="backward",
        location=("fü.py", 3, "g"),
    )
    graph.add_operation("aten::neg", [(made, 1)])
    graph.outputs = ((made.id, 0),)
    return graph


# ---- JSON ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("which", ["graph", "odd"])
def test_C6_json_round_trip(which, request):
    graph = request.getfixturevalue(which)
    text = graph.to_json()
    data = json.loads(text, parse_constant=pytest.fail)  # NaN and Infinity are not JSON
    assert data == graph.to_dict()
    again = ComputationGraph.from_dict(data)
    assert again.to_json() == text and again.to_text() == graph.to_text() and again.to_dot() == graph.to_dot()
    assert data["schema_version"] == 1
    assert data["counts"]["nodes"] == len(data["nodes"]) == len(graph)
    assert data["counts"]["edges"] == len(data["edges"]) == len(graph.edges)


def test_C6_json_constants_come_back(odd):
    node = ComputationGraph.from_dict(odd.to_dict()).nodes[2]
    assert node.args[:4] == (Hole(0), 1, 1.5, float("inf")) and node.args[4] != node.args[4]
    assert node.args[5:] == (
        2 + 1j,
        None,
        True,
        "a\n",
        (1, [2.0]),
        slice(0, None),
        ...,
        torch.float16,
        torch.strided,
        torch.channels_last,
        Opaque("cpu"),
        {"k": 1},
    )
    assert node.kwargs == {"key": [Hole(1)]}
    assert (node.phase, node.location, node.module) == ("backward", ("fü.py", 3, "g"), 'A"\\.b\n')


def test_C6_json_of_the_same_program_is_the_same():
    texts = []
    for _ in range(2):
        model = Model(2)
        with capture() as graph:
            model(torch.ones(3, 8))
        texts.append(graph.to_json())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("change", [{"schema_version": 2}, {"nodes": [{"id": 5, "inputs": []}]},
                                    {"nodes": [{"id": 0, "inputs": [[0, 0]]}]}])  # fmt: skip
def test_C6_json_that_is_no_graph_is_refused(odd, change):
    with pytest.raises(ValueError, match="expected"):
        ComputationGraph.from_dict({**odd.to_dict(), **change})


# ---- networkx --------------------------------------------------------------------------------------------------------
def test_L10_networkx_has_the_same_nodes_and_edges(graph):
    networkx = pytest.importorskip("networkx")
    made = graph.to_networkx()
    assert made.number_of_nodes() == len(graph) and made.number_of_edges() == len(graph.edges)
    assert networkx.is_directed_acyclic_graph(made)
    for node in graph.nodes:
        assert made.nodes[node.id]["op"] == node.op and made.in_degree(node.id) == len(node.inputs)
    edge = graph.edges[3]
    assert made.edges[edge.source, edge.target, edge.input] == {"output": edge.output, "input": edge.input}


def test_C6_networkx_reads_the_json_that_is_made_for_it(graph):
    networkx = pytest.importorskip("networkx")
    data = json.loads(graph.to_networkx_json())
    assert data["counts"] == graph.to_dict()["counts"] and data["schema_version"] == 1
    made, expected = networkx.node_link_graph(data, edges="edges"), graph.to_networkx()
    assert type(made) is type(expected) is networkx.MultiDiGraph
    assert dict(made.nodes.data()) == dict(expected.nodes.data()) and made.graph == expected.graph
    assert sorted(made.edges(keys=True, data="output")) == sorted(expected.edges(keys=True, data="output"))
    assert made.graph["outputs"] == [list(output) for output in graph.outputs]


def test_L10_networkx_missing_is_said_clearly(graph, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "networkx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install networkx"):
        graph.to_networkx()


# ---- DOT -------------------------------------------------------------------------------------------------------------
TOKEN = re.compile(r'\s*(?:("(?:[^"\\\n]|\\.)*")|([A-Za-z_][A-Za-z_0-9]*|[0-9]*\.?[0-9]+)|(->|[{}\[\];,=]))')


def check_dot(text: str) -> tuple[int, int, int]:
    """(nodes, edges, clusters) of DOT source; fails where it is no sequence of tokens or brackets do not match."""
    place, tokens = 0, []
    while text[place:].strip():
        match = TOKEN.match(text, place)
        assert match, f"not DOT: {text[place : place + 40]!r}"
        tokens.append(match.group(0).strip())
        place = match.end()
    depth: list[str] = []
    for token in tokens:
        if token in "{[":
            depth.append(token)
        elif token in "}]":
            assert depth and depth.pop() == {"}": "{", "]": "["}[token]
    assert not depth and tokens[:3] == ["digraph", "computation", "{"]
    nodes = sum(
        re.fullmatch(r"n\d+", a) is not None and b == "[" and before != "->"
        for before, a, b in zip(tokens, tokens[1:], tokens[2:], strict=False)
    )
    return nodes, tokens.count("->"), tokens.count("subgraph")


def test_C6_dot_is_well_formed_and_complete(odd):
    with capture() as graph:
        x = torch.ones(3, 8, requires_grad=True)
        (Model(1)(x) + x).sum().backward()
    for each in (odd, graph):
        modules = {node.module_info.names[: i + 1] for node in each.nodes if node.kind == "op"
                   for i in range(len(node.module_info.names))}  # fmt: skip
        nodes, edges, clusters = check_dot(each.to_dot(init=True))
        assert (nodes, edges) == (len(each), len(each.edges)) and clusters >= len(modules - {("Model", "h")})


def drawn(graph: ComputationGraph) -> Drawing:
    """The drawing, after a look at what holds of each: every read of the graph stands behind one edge of it."""
    drawing = Drawing(graph)
    text = graph.to_dot()
    check_dot(text)
    edges = drawing.edges()
    assert sum(map(len, edges.values())) == len(graph.edges)
    boxes = set(map(int, re.findall(r"^ +n(\d+) \[label", text, re.MULTILINE)))
    assert {node for edge in edges for node in edge[:2]} <= boxes
    assert boxes == {drawing.shown(node.id)[0] for node in graph.nodes}, "each node is drawn, or one like it is"
    assert all(edge.source < edge.target for edge in edges if not edge.crosses), "no cycles that Graphviz ranks by"
    if shutil.which("dot"):
        made = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0 and "<svg" in made.stdout and not made.stderr, made.stderr
    return drawing


def test_C6_dot_draws_equal_layers_once(graph):
    drawing = drawn(graph)
    text, small = graph.to_dot(), captured(3)
    assert "h.0 … h.11 ×12: Layer" in text
    assert check_dot(text) == check_dot(small.to_dot()), "as much is drawn of 12 layers as of 3"
    words = {line for line in text.splitlines() if "->" in line and "label" in line}
    (add,) = (node.id for node in graph.nodes if node.op == "aten::add" and node.id in drawing.items)
    assert f'  n{add} -> n{add} [label="to the next", style=dashed, constraint=false];' in words
    (total,) = (node.id for node in graph.nodes if node.op == "aten::sum")
    assert f'  n{add} -> n{total} [label="from h.11"];' in words
    assert sum('"to h.0"' in line for line in words) == 2  # x, read by the first layer alone, twice


def test_C6_dot_of_a_training_loop_tells_which_repetition_an_edge_is_of():
    model = Model(16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with capture() as graph:
        for _ in range(2):
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
    drawn(graph)
    text = graph.to_dot()
    assert 'label="64 tensors"' in text and "from each" in text and text.count("\n") < 500
    assert 'label="forward"' in text and 'label="backward"' in text and 'label="optimizer"' in text


class Shared(nn.Module):
    """A weight that all layers share, one of each layer's, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, mask):
        for layer in self.h:
            x = layer(x) * self.scale + mask
        return x


def test_C6_dot_draws_a_shared_parameter_once_and_one_of_each_layer_in_it():
    model = Shared()
    with capture() as graph:
        model(torch.ones(3, 8), torch.zeros(8))
    drawn(graph)
    text = graph.to_dot()
    assert text.count('style="rounded,dashed"];') == 2 and "Shared.scale" in text and "Shared.h.0.weight" in text
    assert text.count('[label="to each"]') == 2


def test_C6_dot_parameters_are_dashed_and_inputs_are_not():
    model = Model(1)
    with capture() as graph:
        model(torch.ones(3, 8))
    dashed = [line for line in graph.to_dot().splitlines() if "dashed" in line]
    assert len(dashed) == graph.count("parameter") == 4 and "Model.h.0.up.weight" in dashed[0]


def test_C6_dot_quotes():
    assert quote('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


# ---- text ------------------------------------------------------------------------------------------------------------
def test_C6_text_folds_equal_layers(graph):
    lines = graph.to_text().splitlines()
    assert sum("Layer" in line for line in lines) == 1
    assert any("h.0 … h.11 ×12  Layer" in line for line in lines), "\n".join(lines)
    assert sum("relu" in line for line in lines) == 1
    assert any(re.search(r"%\d+ relu\(%\d+\) +3x16 f32$", line) for line in lines)
    assert len(lines) < 25


def test_C6_text_shows_a_layer_that_differs():
    model = Model(5)
    model.h[3] = nn.Identity()
    model.h[2].up, model.h[2].down = nn.Linear(8, 4), nn.Linear(4, 8)
    with capture() as graph:
        model(torch.ones(3, 8))
    text = graph.to_text()
    assert "h.0 … h.1 ×2" in text and "h.2  Layer" in text and "h.4  Layer" in text


@pytest.mark.parametrize("width", [80, 60, 100])
def test_C6_text_fits_the_width(graph, odd, width):
    deep = ComputationGraph()
    deep.add_operation(
        "aten::" + "long" * 40,
        [list(range(100))],
        outputs=[((10**9,) * 6, F32, "cpu")],
        module=".".join(f"level{i}" for i in range(9)),
    )
    with capture() as made:
        Model(1)(torch.ones(3, 8)).sum().item()
    assert "4 more parameters" in made.to_text(init=True)
    assert "initialization: 4 parameters, 8 ops" in made.to_text()
    for each in (graph, odd, deep, made):
        assert max(map(len, each.to_text(width).splitlines())) <= width


def test_C6_text_has_no_control_characters(odd):
    assert all(c.isprintable() or c == "\n" for c in odd.to_text())


def test_C6_text_puts_every_op_of_a_small_program_on_a_line():
    with capture() as graph:
        x = torch.ones(2, 3)
        (x @ torch.zeros(3, 4)).relu_().sum(0)
    words = [line.split()[1].partition("(")[0] for line in graph.to_text().splitlines() if line.startswith("%")]
    assert words == ["ones", "zeros", "mm", "relu_", "sum"]


def test_C6_text_of_an_empty_graph():
    assert ComputationGraph().to_text() == "0 ops, 0 edges, 0 parameters, 0 other inputs"


def references(text: str) -> set[str]:
    """The nodes that arguments name, as %5, %5@h.1 or %5#2."""
    return {name for arguments in re.findall(r"\((.*)\)", text) for name in re.findall(r"%\d+[^,\s\])]*", arguments)}


class Sums(Model):
    """Uses what layers in the middle made."""

    def forward(self, x):
        made = list(itertools.accumulate(self.h, lambda x, h: h(x), initial=x))
        return torch.cat([*made[1:], x])


def test_C6_text_names_what_folding_hides() -> None:
    with capture() as graph:
        Sums(4)(torch.ones(3, 8, requires_grad=True)).sum().backward()
    text = graph.to_text(120)
    lines = [re.sub(r"^[│├└─ ]+", "", line) for line in text.splitlines()]
    shown = {line.split()[0] for line in lines if line.startswith("%")}
    assert all(re.split("[@#]", name)[0] in shown for name in references(text))
    (line,) = (line for line in lines if " cat(" in line)
    assert re.search(r"\[(%\d+), \1@h\.1, \1@h\.2, \1@h\.3, %\d+\]", line), line


def test_C6_text_names_the_second_of_two_and_folds_within_folds() -> None:
    class Twice(nn.Module):
        def forward(self, x):
            return torch.tanh(torch.tanh(x))

    model = Sums(3)
    for i in range(3):
        model.h[i] = Twice()
    with capture() as graph:
        model(torch.ones(3, 8))
    (line,) = (line for line in graph.to_text(120).splitlines() if " cat(" in line)
    assert re.search(r"\[(%\d+#2), \1@h\.1, \1@h\.2, %\d+\]", line), line


def test_C6_text_does_not_take_stretches_for_equal_that_repeat_other_ops() -> None:
    class Part(nn.Module):
        def __init__(self, op) -> None:
            super().__init__()
            self.op = op

        def forward(self, x):
            for _ in range(3):
                x = self.op(x.neg())
            return x

    model = Sums(3)
    for i, op in enumerate((torch.sin, torch.cos, torch.exp)):
        model.h[i] = Part(op)
    with capture() as graph:
        model(torch.ones(3, 8))
    assert all(f" {op}(" in graph.to_text() for op in ("sin", "cos", "exp"))
