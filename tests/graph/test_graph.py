"""SPEC L10: ``ComputationGraph`` built by hand and from the tape of lazy tensors."""

from __future__ import annotations

import sys
import weakref

import pytest
import torch

import mindtorch
from mindtorch.graph import ComputationGraph, Edge, Hole, Opaque, Output

LAZY = "remote_accelerator:0"
F32 = torch.float32


@pytest.fixture(autouse=True)
def nothing_pending():
    mindtorch.flush("test")
    yield
    mindtorch.flush("test")


def ops(graph: ComputationGraph) -> list[str]:
    return [node.op for node in graph.nodes if node.kind == "op"]


def check_topological(graph: ComputationGraph) -> None:
    order = graph.get_execution_order()
    assert [node.id for node in order] == list(range(len(graph)))
    assert all(source < node.id for node in order for source, _ in node.inputs)


# ---- by hand ---------------------------------------------------------------------------------------------------------
def test_L10_add_operation_keeps_what_it_is_given():
    graph = ComputationGraph()
    x = torch.ones(2, 3)
    both = graph.add_operation(
        "aten::var_mean",
        [x, 0],
        {"keepdim": True},
        outputs=[((1, 3), F32, "cpu")] * 2,
        module="Net.norm",
        phase="forward",
        location=("net.py", 7, "forward"),
    )
    last = graph.add_operation("aten::stack", [[(both, 1), both], x])
    assert [node.op for node in graph.nodes] == ["genie::data", "aten::var_mean", "aten::stack"]
    assert both.inputs == ((0, 0),) and both.args == (Hole(0), 0) and both.kwargs == {"keepdim": True}
    assert both.outputs == (Output((1, 3), F32, "cpu"),) * 2
    assert (both.module, both.phase, both.source, both.kind) == ("Net.norm", "forward", "net.py:7", "op")
    assert last.inputs == ((1, 1), (1, 0), (0, 0)) and last.args == ([Hole(0), Hole(1)], Hole(2))
    assert list(graph.edges) == [Edge(0, 0, 1, 0), Edge(1, 1, 2, 0), Edge(1, 0, 2, 1), Edge(0, 0, 2, 2)]
    assert graph.nodes[-1] == last and graph.nodes[0:2] == [graph.nodes[0], both]
    check_topological(graph)


def test_L10_get_or_create_node():
    graph = ComputationGraph()
    x, p = torch.ones(3), torch.nn.Parameter(torch.ones(2))
    node = graph.get_or_create_node(x)
    assert (node.op, node.kind, node.outputs) == ("genie::data", "input", (Output((3,), F32, "cpu"),))
    assert graph.get_or_create_node(x) == node == graph.get_or_create_node(node.id) and len(graph) == 1
    assert graph.get_or_create_node(p).kind == "parameter"
    made = torch.zeros(3)
    relu = graph.add_operation("aten::relu", [x], outputs=[made])
    assert graph.get_or_create_node(made) == relu and graph.get_or_create_node(relu) is relu
    with pytest.raises(IndexError):
        graph.get_or_create_node(99)
    with pytest.raises(TypeError, match="got str"):
        graph.get_or_create_node("x")


def test_L10_bad_operations_are_refused_and_leave_the_graph_as_it_was():
    graph, other = ComputationGraph(), ComputationGraph()
    node = graph.add_operation("aten::ones", [2], outputs=[((2,), F32, "cpu")])
    with pytest.raises(ValueError, match="of another"):
        other.add_operation("aten::relu", [node])
    with pytest.raises(IndexError, match="1 outputs"):
        graph.add_operation("aten::relu", [(node, 1)])
    with pytest.raises(ValueError, match="phase"):
        graph.add_operation("aten::relu", [node], phase="sideways")
    assert len(graph) == 1 and len(other) == 0


def test_L10_a_recycled_address_is_not_the_same_tensor():
    graph = ComputationGraph()
    seen = set()
    for _ in range(200):  # each storage dies before the next is made, so addresses are used again
        seen.add(graph.get_or_create_node(torch.ones(1000)).id)
    assert len(seen) == 200


def test_L10_the_graph_does_not_keep_tensors_alive():
    graph = ComputationGraph()
    x = torch.ones(3)
    ref = weakref.ref(x)
    generator = type("Generator", (torch.Generator,), {})()  # torch 2.12 has no weak references to its own
    generator_ref = weakref.ref(generator)
    graph.add_operation("aten::rand_like", [x], {"generator": generator}, outputs=[torch.ones(3)])
    del x, generator
    assert ref() is None and generator_ref() is None
    assert graph.nodes[1].kwargs == {"generator": Opaque("Generator")}


def test_L10_constants_that_compare_equal_stay_apart():
    graph = ComputationGraph()
    nodes = [graph.add_operation("aten::full", [[2], value]) for value in (1, 1.0, True)]
    assert [type(node.args[1]) for node in nodes] == [int, float, bool]


# ---- from the tape ---------------------------------------------------------------------------------------------------
def test_L10_pending_is_the_tape_in_program_order():
    x = torch.randn(4, 4, device=LAZY)
    y = torch.relu(x @ x)
    graph = ComputationGraph.pending()
    assert (
        ops(graph)
        == ["aten::randn", "aten::matmul", "aten::relu"]
        == [
            graph.get_or_create_node(t).op
            for t in (x, graph.nodes[1].id, y)  # type: ignore[list-item]
        ]
    )
    assert graph.nodes[1].inputs == ((0, 0), (0, 0))
    assert graph.nodes[2].outputs == (Output((4, 4), F32, LAZY),)
    assert graph.nodes[2].source.startswith(__file__)
    assert len(graph.segments) == 1 and graph.segments[0].stop == len(graph)
    check_topological(graph)
    assert not y.materialized


def test_L10_pending_after_a_read_starts_from_data():
    x = torch.ones(3, device=LAZY) * 2
    assert x.sum().item() == 6
    y = x + 1
    graph = ComputationGraph.pending()
    assert [(node.op, node.kind) for node in graph.nodes] == [("genie::data", "input"), ("aten::add", "op")]
    assert graph.get_or_create_node(x).id == 0 and graph.get_or_create_node(y).id == 1


def test_L10_multi_output_edges_carry_the_output_index():
    x = torch.randn(4, 6, device=LAZY)
    a, b, c = x.split(2, dim=1)
    out = c + a
    graph = ComputationGraph.from_tensors(out)
    split = next(node for node in graph.nodes if len(node.outputs) == 3)
    adder = graph.nodes[graph.outputs[0][0]]
    assert adder.inputs == ((split.id, 2), (split.id, 0))
    del b


def test_L10_an_in_place_op_makes_what_is_read_later_through_any_alias():
    x = torch.zeros(4, 4, device=LAZY)
    row = x[1]
    row.add_(1)
    column = x[:, 0] * 2
    graph = ComputationGraph.pending()
    written = next(node for node in graph.nodes if node.op == "aten::add_")
    assert graph.get_or_create_node(x) == written == graph.get_or_create_node(row)
    reader = graph.get_or_create_node(column)
    view = graph.nodes[reader.inputs[0][0]]
    assert view.inputs == ((written.id, 0),), "the view is taken of what add_ left"
    assert column.cpu().tolist() == [0, 2, 0, 0]


def test_L10_from_tensors_takes_writes_along_and_leaves_the_rest():
    x = torch.zeros(3, device=LAZY)
    unrelated = torch.ones(2, device=LAZY) * 5
    x.add_(1)
    y = x * 2
    x.mul_(0)  # later: y does not see it
    assert ops(ComputationGraph.from_tensors(y)) == ["aten::zeros", "aten::add_", "aten::mul"]
    assert ops(ComputationGraph.from_tensors(x)) == ["aten::zeros", "aten::add_", "aten::mul_"]
    assert ops(ComputationGraph.from_tensors(unrelated)) == ["aten::ones", "aten::mul"]
    both = ComputationGraph.from_tensors(unrelated, y)
    assert [both.nodes[n].op for n, _ in both.outputs] == ["aten::mul", "aten::mul"]
    check_topological(both)


def test_L10_from_tensors_sees_writes_through_aliases_of_computed_values():
    x = torch.zeros(4, device=LAZY)
    half = x[:2]
    mindtorch.flush("test")
    x.add_(1)
    graph = ComputationGraph.from_tensors(half)
    assert ops(graph) == ["aten::add_"] and half.cpu().tolist() == [1, 1]


def test_L10_random_draws_bring_the_draws_before_them():
    first = torch.rand(2, device=LAZY)
    second = torch.rand(3, device=LAZY)
    plain = torch.ones(3, device=LAZY)
    assert ops(ComputationGraph.from_tensors(second)) == ["aten::rand", "aten::rand"]
    assert ops(ComputationGraph.from_tensors(first)) == ["aten::rand"]
    assert ops(ComputationGraph.from_tensors(plain)) == ["aten::ones"]


def test_L10_from_tensors_wants_lazy_tensors():
    with pytest.raises(TypeError, match="expected recorded tensors, got Tensor"):
        ComputationGraph.from_tensors(torch.ones(1))


def test_L10_values_made_after_the_graph_are_from_outside():
    x = torch.ones(2, device=LAZY)
    graph = ComputationGraph.pending()
    nodes = len(graph)
    for _ in range(5):  # slots are used again; none of these may be taken for x
        fresh = torch.zeros(2, device=LAZY)
        assert graph.get_or_create_node(fresh).op == "genie::data"
        del fresh
    assert len(graph) == nodes + 5 and graph.get_or_create_node(x).op == "aten::ones"


def test_L10_module_path_and_phase_on_every_op():
    class Pair(torch.nn.Sequential):
        pass

    model = Pair(torch.nn.Linear(3, 3), torch.nn.ReLU()).to(LAZY)
    x = torch.ones(2, 3, device=LAZY)
    mindtorch.flush("test")
    model(x).sum().backward()
    graph = ComputationGraph.pending()
    relu = next(node for node in graph.nodes if node.op == "aten::relu")
    assert (relu.module, relu.phase) == ("Pair.1", "forward")
    assert relu.module_info.classes == ("Pair", "ReLU")
    assert {node.phase for node in graph.nodes if node.kind == "op"} == {"forward", "backward"}


def test_L10_building_and_searching_take_as_many_calls_per_op_however_many_there_are():
    def calls(length: int) -> int:
        mindtorch.flush("test")
        y = torch.zeros(4, device=LAZY)
        for _ in range(length):
            y = y + 1
        found: list[str] = []
        sys.setprofile(lambda frame, event, arg: found.append(event) if event.endswith("call") else None)
        try:
            graphs = ComputationGraph.pending(), ComputationGraph.from_tensors(y)
        finally:
            sys.setprofile(None)
        assert [len(graph) for graph in graphs] == [length + 1] * 2
        return len(found)

    calls(500)  # what is remembered from then on is
    few, many = calls(500), calls(4000)
    assert few > 2 * 500 and many <= 8 * few


def test_L10_a_long_chain(whole):
    length = 300_000 if whole else 100_000
    x = torch.zeros(4, device=LAZY)
    y = x
    for _ in range(length):
        y = y + 1
    graph = ComputationGraph.pending()
    assert len(graph) == length + 1 and len(graph.edges) == length
    assert graph.nodes[length].inputs == ((length - 1, 0),)
    assert graph.edges[length - 1] == Edge(length - 1, 0, length, 0)
    columns = (
        graph._call,
        graph._module,
        graph._place,
        graph._phase,
        graph._kind,
        graph._first,
        graph._source,
        graph._output,
        graph._producers._slots,
    )
    assert sum(map(sys.getsizeof, columns)) < 60 * length
    part = ComputationGraph.from_tensors(y)
    assert len(part) == length + 1 and part.outputs == ((length, 0),)
    lines = part.to_text().splitlines()
    assert len(lines) < 10 and f"×{length}" in lines[-1]
