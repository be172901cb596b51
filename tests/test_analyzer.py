"""What segments mean (SPEC L13: the semantic analyzer; L5: its hints on tensors)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import mindtorch
from mindtorch import Analysis, ComputationGraph

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def for_an_h100() -> Iterator[None]:
    mindtorch.flush("test")
    previous = mindtorch.set_analyzer(mindtorch.RooflineAnalyzer("h100"))
    yield
    mindtorch.set_analyzer(previous)


def hints(t: torch.Tensor) -> dict[str, Any]:
    return t.metadata.workload_hints  # type: ignore[attr-defined, no-any-return]


def analyzed(*wanted: torch.Tensor) -> tuple[ComputationGraph, Analysis]:
    graph = ComputationGraph.from_tensors(*wanted)
    return graph, mindtorch.get_analyzer().analyze(graph)


def nodes(graph: ComputationGraph, *ops: str) -> list[int]:
    return [node.id for node in graph.nodes if node.op.removeprefix("aten::") in ops]


def groups(said: Analysis, kind: str) -> list[Any]:
    return [group for group in said.together if group.kind == kind]


def test_L13_operations_are_bound_by_what_the_roofline_says() -> None:
    a = torch.ones(4096, 4096, device="remote_accelerator:0", dtype=torch.bfloat16)
    product = a @ a
    row = torch.ones(1, 4096, device=LAZY, dtype=torch.bfloat16) @ a
    tiny = torch.ones(2, device=LAZY) + 1
    assert hints(product)["bound"] == "compute" and hints(row)["bound"] == "memory" and hints(tiny)["bound"] == "launch"
    _, said = analyzed(product, row, tiny)
    assert said.bound == "compute" and set(said.seconds) == {"compute", "memory", "launch"}
    assert said.flops >= 2 * 4096**3 + 2 * 4096**2 and "H100" in said.target


def test_L13_patterns_and_phases_of_a_segment() -> None:
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(LAZY)
    loss = block(torch.randn(1, 4, 8).to(LAZY)).sum()
    graph, said = analyzed(loss)
    assert said.phase == "forward"
    assert {"attention", "feed-forward", "normalization"} <= {each.pattern for each in said.patterns}
    products = nodes(graph, "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu")
    assert products and all(said.hints(n)["pattern"] == "attention" for n in products)
    loss.backward()
    _, said = analyzed(*(p.grad for p in block.parameters()))
    assert said.phase == "backward" and said.phases["forward"] > 0


def test_L13_a_layer_that_is_one_call_has_a_bound() -> None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_transformer_encoder_layer_fwd", "Meta"):
        pytest.skip("torch 2.12 cannot infer the result of that call, which therefore runs at once")
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().to(LAZY)
    with torch.no_grad():
        y = layer(torch.randn(1, 4, 8).to(LAZY))
    graph, said = analyzed(y)
    (node,) = nodes(graph, "_transformer_encoder_layer_fwd")
    assert said.bounds[node] == "launch" and said.nbytes > 4 * (4 * 8 * 8 + 2 * 8 * 16)


def test_L13_what_reads_a_weight_stays_with_it() -> None:
    embedding = torch.nn.Embedding(10, 4).to(LAZY)
    other = torch.nn.Linear(4, 4).to(LAZY)

    def tied(ids: torch.Tensor) -> torch.Tensor:
        return F.linear(other(embedding(ids)).relu(), embedding.weight)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.other = embedding, other

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return tied(ids)

    model = Model()
    runs: list[mindtorch.SegmentRun] = []
    with torch.no_grad(), mindtorch.register_segment_hook(runs.append):
        model(torch.arange(3).to(LAZY)).tolist()
    run = runs[-1]
    weights = {group.names: group for group in groups(run.analysis, "weights")}
    assert {tuple(sorted(names)) for names in weights} == {
        ("Model.embedding.weight",),
        ("Model.other.bias", "Model.other.weight"),
    }
    assert weights["Model.embedding.weight",].nbytes == 160
    ops = [run.graph.nodes[n].op for n in sorted(weights["Model.embedding.weight",].nodes)]
    assert ops == ["aten::embedding", "aten::linear"]


def test_L13_caches_that_grow_or_are_written_stay_with_their_readers() -> None:
    static = torch.zeros(1, 2, 8, 4).to(LAZY)
    k = torch.ones(1, 2, 1, 4).to(LAZY)
    static[:, :, 2:3] = k
    graph, said = analyzed((static * 2).sum())
    (group,) = groups(said, "cache")
    assert group.nbytes == 256 and set(nodes(graph, "copy_", "mul")) <= group.nodes
    past, q = torch.randn(1, 2, 8, 4).to(LAZY), torch.randn(1, 2, 1, 4).to(LAZY)
    keys = torch.cat((past, k), 2)
    graph, said = analyzed(F.scaled_dot_product_attention(q, keys, keys))
    assert [group.nbytes for group in groups(said, "cache")] == [256, 32]
    graph, said = analyzed(torch.cat((past, past), 2) + 1)
    assert groups(said, "cache") == [], "to join two tensors is no cache"


def test_L13_memory_that_is_written_again_stays_in_one_place() -> None:
    x = torch.ones(4).to(LAZY)
    y = x * 2
    y[1:].add_(1)
    graph, said = analyzed(y + 0)
    (group,) = groups(said, "activations")
    assert {graph.nodes[n].op for n in group.nodes} >= {"aten::mul", "aten::add_", "aten::add"}


def test_L13_what_can_be_made_again() -> None:
    x = torch.ones(4).to(LAZY)
    kept, lost = x.exp(), torch.ones(4).to(LAZY)
    before = lost.sin()
    lost.zero_()
    drawn = torch.rand(4, device=LAZY)
    graph, said = analyzed(kept + before + lost + drawn + torch.arange(4, device=LAZY) + torch.empty(4, device=LAZY))
    again = {graph.nodes[n].op for n in said.recomputable}
    assert {"aten::exp", "aten::add", "aten::arange"} <= again
    assert again.isdisjoint({"aten::sin", "aten::zero_", "aten::rand", "aten::empty"})


def test_L13_what_can_be_kept() -> None:
    assert analyzed(torch.ones(4).to(LAZY) + torch.rand(4, device=LAZY))[1].cacheable
    _, said = analyzed(torch.ones(4).to(LAZY) + torch.empty(4, device=LAZY))
    assert not said.cacheable and said.not_cacheable == "aten::empty returns uninitialized memory"


# ---- hints on tensors ------------------------------------------------------------------------------------------------
def test_L5_hints_of_a_tensor_that_waits_and_of_one_that_is_computed() -> None:
    x = torch.ones(4, 8).to(LAZY)
    y = F.layer_norm(x, (8,))
    found = hints(y)
    assert found == {
        "tag": "norm", "bytes": 128, "pattern": "normalization", "bound": "launch", "recomputable": True,
        "together": [], "cacheable": True, "segment_phase": "other", "segment_bound": "launch",
    }  # fmt: skip
    assert not y.materialized, "reading metadata ran something"
    y.tolist()
    assert hints(y) == {"tag": "norm", "bytes": 128}
    assert hints(x)["bytes"] == 128


def test_L5_hints_are_of_what_is_pending_now() -> None:
    x = torch.ones(4).to(LAZY)
    y = x.exp()
    assert hints(y)["recomputable"]
    x.add_(1)
    assert not hints(y)["recomputable"]


# ---- replacing it ----------------------------------------------------------------------------------------------------
class Counting(mindtorch.Analyzer):
    def __init__(self) -> None:
        self.asked = 0

    def analyze(self, graph: ComputationGraph) -> Analysis:
        self.asked += 1
        none: dict[int, str] = {node.id: "users" for node in graph.nodes}
        return Analysis({"mine": len(graph)}, (), "mine", {}, none, 0, 0, "never", frozenset(), ())


def test_L13_a_user_s_analyzer_is_asked_once_for_a_segment() -> None:
    mine = Counting()
    previous = mindtorch.set_analyzer(mine)
    try:
        assert mindtorch.get_analyzer() is mine
        x = torch.ones(4).to(LAZY)
        made = [x + n for n in range(5)]
        assert [hints(t)["bound"] for t in made] == ["users"] * 5 and hints(made[0])["segment_phase"] == "mine"
        assert not hints(made[1])["cacheable"] and mine.asked == 1
        made.append(x + 9)
        hints(made[-1])
        assert mine.asked == 2
        with pytest.raises(mindtorch.UsageError, match=r"\[set_analyzer\] expected an Analyzer, got str"):
            mindtorch.set_analyzer("h100")  # type: ignore[arg-type]
        assert mindtorch.set_analyzer(None) is mine
        assert isinstance(mindtorch.get_analyzer(), mindtorch.RooflineAnalyzer)
    finally:
        mindtorch.set_analyzer(previous)


def test_L13_an_unknown_target_is_refused() -> None:
    with pytest.raises(mindtorch.UsageError):
        mindtorch.RooflineAnalyzer("h1000")


def test_L13_recording_asks_no_analyzer() -> None:
    """It works on segments: what is recorded and run calls the same functions, as often, whichever is set."""

    def calls(work: Callable[[], object]) -> int:
        count = 0

        def note(frame: Any, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        for _ in range(8):  # by then, calls that may be made without Python are
            work()
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        return count

    def program() -> None:
        x = torch.ones(4, 4).to(LAZY)
        for _ in range(50):
            x = (x @ x).relu() + 1
        x.tolist()

    mine = Counting()
    without = calls(program)
    mindtorch.set_analyzer(mine)
    assert calls(program) == without and mine.asked == 0
