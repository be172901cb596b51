"""SPEC C6, L10, L12: `capture` of plain torch programs."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.engine import semantics
from mindtorch.graph import ComputationGraph, capture


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = Attention()
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return x + self.attn(self.norm(x)) * self.scale


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def find(graph: ComputationGraph, op: str):
    return [node for node in graph.nodes if node.op == f"aten::{op}"]


def test_C6_a_capture_begins_in_no_earlier_models_loss():
    """Tracking that is on for something else has seen the earlier one."""
    semantics.install()
    try:
        nn.Linear(2, 2)(torch.ones(1, 2))
        with capture() as graph:
            torch.ones(2).sum()
        with semantics.stage("prefill"), capture() as staged:
            torch.ones(2).sum()
    finally:
        semantics.uninstall()
    assert [node.phase for node in graph.nodes] == ["other", "other"]
    assert [node.phase for node in staged.nodes] == ["prefill", "prefill"]


def test_C6_capture_of_a_small_transformer():
    model, x = Small(), torch.randn(2, 3, 8)
    with torch.no_grad(), capture() as graph:
        out = model(x)
    assert [node.module for node in find(graph, "native_layer_norm")] == [f"Small.layers.{i}.norm" for i in range(4)]
    assert [node.module for node in find(graph, "addmm")] == [
        *(f"Small.layers.{i}.attn.{name}" for i in range(4) for name in ("qkv", "out")), "Small.head",
    ]  # fmt: skip
    assert find(graph, "addmm")[0].module_info.classes == ("Small", "ModuleList", "Block", "Attention", "Linear")
    assert {node.phase for node in graph.nodes if node.kind == "op"} == {"forward"}
    names = {node.name for node in graph.nodes if node.kind == "parameter"}
    assert names == {f"Small.{name}" for name, _ in model.named_parameters()}
    assert {n.name for n in graph.nodes if n.kind == "input"} == {"", *(f"Small.layers.{i}.scale" for i in range(4))}
    assert graph.get_or_create_node(out).module == "Small.head"
    assert find(graph, "addmm")[0].source.startswith(__file__)
    assert all(source < node.id for node in graph.nodes for source, _ in node.inputs)


def test_C6_capture_changes_nothing():
    model, x = Small(), torch.randn(2, 3, 8)
    expected = model(x)
    expected.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    installed = semantics.is_installed()
    with capture():
        out = model(x)
        out.sum().backward()
    assert torch.equal(out, expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads))
    assert semantics.is_installed() == installed


def test_C6_phases_and_saved_tensors_of_a_training_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture() as graph:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
    tanh, backward = find(graph, "tanh")[0], find(graph, "tanh_backward")[0]
    assert (tanh.phase, backward.phase) == ("forward", "backward")
    assert backward.module == "Sequential.1"
    assert (tanh.id, 0) in backward.inputs, "autograd hands out another object for the output it saved"
    updates = [node for node in graph.nodes if node.phase == "optimizer" and node.op.endswith("add_")]
    assert updates and graph.get_or_create_node(model[0].weight) in updates


def test_C6_in_place_ops_make_what_aliases_show():
    with capture() as graph:
        x = torch.zeros(4, 4)
        row, last = x[0], x[3]
        row.fill_(1)
        total = x.sum()
        last.mul_(2)
        row_total = row.sum()
    fill, mul = find(graph, "fill_")[0], find(graph, "mul_")[0]
    sums = find(graph, "sum")
    assert sums[0].inputs == ((fill.id, 0),) and graph.get_or_create_node(total) == sums[0]
    assert mul.inputs == ((fill.id, 0),), "the second write reads what the first left in the storage"
    assert sums[1].inputs == ((mul.id, 0),) and graph.get_or_create_node(row_total) == sums[1]


def test_C6_out_arguments_and_foreach_writes_are_outputs():
    with capture() as graph:
        a, b, out = torch.ones(2), torch.ones(3), torch.empty(2)
        torch.add(a, a, out=out)
        torch._foreach_mul_([a, b], 2.0)
        c = b + 1
    add, foreach = find(graph, "add")[0], find(graph, "_foreach_mul_")[0]
    assert graph.get_or_create_node(out) == add and len(add.outputs) == 1
    assert [o.shape for o in foreach.outputs] == [(2,), (3,)]
    assert graph.get_or_create_node(c).inputs == ((foreach.id, 1),)


def test_C6_multi_output_ops_have_output_indices():
    with capture() as graph:
        values, indices = torch.arange(6.0).view(2, 3).max(1)
        kept = indices + 1
    assert graph.get_or_create_node(kept).inputs == ((graph.get_or_create_node(values).id, 1),)


def test_C6_segments_end_where_the_program_reads():
    with capture() as graph:
        x = torch.ones(3)
        if x.sum() > 0:
            x = x + 1
        picked = x[x > 1]
        picked * 2
    readers = [segment.read_by for segment in graph.segments]
    assert readers[0] == "aten::_local_scalar_dense" and readers[-1] == "" and len(readers) == 3
    assert graph.segments[0].start == 0 and graph.segments[-1].stop == len(graph)
    assert all(a.stop == b.start for a, b in zip(graph.segments, graph.segments[1:]))


def test_C6_storages_that_die_are_not_confused():
    with capture() as graph:
        for _ in range(50):
            torch.ones(1000).add_(1)
            gc.collect(0)
    assert [graph.nodes[node.inputs[0][0]].op for node in find(graph, "add_")] == ["aten::ones"] * 50
    assert len({node.inputs for node in find(graph, "add_")}) == 50


def test_C6_parameters_made_inside_have_their_names():
    with capture() as graph:
        model = nn.Linear(3, 2)
        model(torch.ones(1, 3))
    named = {node.name: node.op for node in graph.nodes if node.name}
    assert named == {"Linear.weight": "aten::uniform_", "Linear.bias": "aten::uniform_"}


def test_C6_lazy_tensors_are_captured_too():
    with capture() as graph:
        x = torch.ones(3, device="remote_accelerator:0")
        y = torch.relu(x) * 2
        y.add_(1)
        z = y - x
    assert z.tolist() == [2, 2, 2]
    assert [node.op for node in graph.nodes] == [f"aten::{op}" for op in ("ones", "relu", "mul", "add_", "sub")]
    assert find(graph, "sub")[0].inputs == ((3, 0), (0, 0)), "y is what add_ left"
    assert graph.nodes[1].outputs[0].device == "remote_accelerator:0"


def test_C6_reading_a_lazy_tensor_reads_what_made_it():
    with capture() as graph:
        x = torch.ones(3, device="remote_accelerator:0")
        assert (x.sum() * 2).item() == 6
    assert [node.op for node in graph.nodes] == [f"aten::{op}" for op in ("ones", "sum", "mul", "_local_scalar_dense")]
    assert graph.nodes[3].inputs == ((2, 0),)


def test_C6_an_error_inside_ends_the_capture():
    with pytest.raises(RuntimeError, match="size"), capture() as graph:
        torch.ones(2) + torch.ones(3)
    assert [node.op for node in graph.nodes] == ["aten::ones"] * 2
    torch.ones(1)
    assert len(graph) == 2


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.LazyLinear(8), nn.LazyLinear(4), nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.norm(self.b(torch.relu(self.a(x))))


def test_C6_lazy_modules_have_names_of_parameters_and_of_the_class_they_become():
    model, x = Lazy().to(torch.float64), torch.ones(3, 5, dtype=torch.float64)
    with capture() as graph:
        model.to(torch.float64)
        first = model(x)
        model(x).sum().backward()
    assert first.shape == (3, 4)
    weights = [graph.nodes[find(graph, "addmm")[i].inputs[0][0]].name for i in range(4)]
    assert weights == ["Lazy.a.bias", "Lazy.b.bias"] * 2
    named = {node.name: node.op for node in graph.nodes if node.name}
    assert named.keys() >= {f"Lazy.{name}" for name, _ in (*model.named_parameters(), *model.named_buffers())}
    assert named["Lazy.a.weight"] == named["Lazy.b.bias"] == "aten::uniform_", "the last of its initialization"
    classes = {node.module_info.classes[-1] for node in graph.nodes if len(node.module_info.names) == 2}
    assert classes == {"Linear", "BatchNorm1d"}


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_C6_layers_that_a_model_gets_while_it_trains_are_initialized_and_named() -> None:
    """Their weights had no names, and what made them stood between the iterations as the program's own operations."""
    with capture() as graph:
        model = Growing()
        for step in range(3):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if step < 2:
                model.layers.append(nn.Linear(4, 4))
    named = {node.name for node in graph.nodes if node.name}
    assert named == {f"Growing.layers.{n}.{what}" for n in range(3) for what in ("weight", "bias")}
    assert {node.op for node in graph.nodes if node.name} == {"aten::uniform_"}
    text = graph.to_text(100)
    assert "initialization: 6 parameters, 12 ops" in text and "empty(" not in text


def test_C6_nothing_listens_to_new_parameters_afterwards() -> None:
    hooks = nn.modules.module._global_parameter_registration_hooks
    before = dict(hooks)
    with capture():
        assert len(hooks) == len(before) + 1
    assert dict(hooks) == before
