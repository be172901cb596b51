"""Whoever wants to is told of each segment that has run (SPEC L14: the profiling hook)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.engine.execute import around_segments
from tests.executors import using

LAZY = "remote_accelerator:0"


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    mindtorch.flush("test")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


@pytest.fixture(params=["here", "elsewhere"])
def told(request: pytest.FixtureRequest) -> Any:
    found: list[mindtorch.SegmentRun] = []
    if request.param == "here":
        with mindtorch.register_segment_hook(found.append):
            yield found
    else:
        with using(mindtorch.LoopbackExecutor()):
            mindtorch.flush("test")
            with mindtorch.register_segment_hook(found.append):
                yield found
    assert around_segments.listener is None


def test_L14_a_hook_is_told_what_a_segment_held(told: list[mindtorch.SegmentRun]) -> None:
    net = Net().to(LAZY)
    x = torch.ones(2, 4).to(LAZY)
    with torch.no_grad():
        y = net(x) + 1
        assert told == []
        loss = y.sum().item()
    line = sys._getframe().f_lineno - 1
    assert loss == loss
    (run,) = told
    assert run.trigger == "item" and run.line == f"{__file__}:{line}" and run.error == "" and not run.cached
    assert run.ops == {"aten::linear": 1, "aten::relu": 1, "aten::add": 1, "aten::sum": 1}
    assert run.bytes == 3 * 2 * 3 * 4 + 4
    assert run.phases == {"forward": 2, "other": 2} and run.modules == {"Net.fc": 1, "Net": 1, "": 2}
    assert 0 < run.seconds < 60
    graph = run.graph
    assert [node.op for node in graph.nodes if node.kind == "op"] == list(run.ops)
    assert sorted(node.name for node in graph.nodes if node.kind == "parameter") == ["Net.fc.bias", "Net.fc.weight"]
    assert [node.outputs[0].shape for node in graph.nodes if node.kind == "input"] == [(2, 4)]
    assert repr(run).startswith("<SegmentRun: 4 operations for item, ")


def test_L14_the_graph_is_that_of_then_whenever_it_is_asked_for(told: list[mindtorch.SegmentRun]) -> None:
    """Values do not live on for it, and calls that went meanwhile are still known."""
    x = torch.zeros(3).to(LAZY)
    view = x[1:]
    view.add_(1)
    (view * x[:2]).tolist()
    gone = weakref.ref(x)
    del x, view
    assert gone() is None
    for n in range(20):
        (torch.ones(n + 1, device=LAZY) * n).tolist()
    run = told[0]
    nodes = [node for node in run.graph.nodes if node.kind == "op"]
    written = next(node for node in nodes if node.op == "aten::add_")
    readers = [node.op for node in nodes if written.id in {source for source, _ in node.inputs}]
    assert readers == ["aten::slice", "aten::mul"]
    assert run.graph.count("input") == 1 and written.writes == (0,)


def test_L14_patterns_of_a_segment_that_has_run(told: list[mindtorch.SegmentRun]) -> None:
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(LAZY)
    y = block(torch.randn(1, 4, 8).to(LAZY))
    y.sum().item()
    (run,) = told
    names = [each.pattern for each in run.patterns]
    assert names.count("attention") == 1 and names.count("feed-forward") == 1
    assert all(each.verified for each in run.patterns)


def test_L14_hooks_are_taken_away_and_may_be_several() -> None:
    found: list[str] = []
    first = mindtorch.register_segment_hook(lambda run: found.append("first"))
    with mindtorch.register_segment_hook(lambda run: found.append("second")):
        (torch.ones(2, device=LAZY) + 1).tolist()
    (torch.ones(2, device=LAZY) + 1).tolist()
    first.remove()
    first.remove()
    (torch.ones(2, device=LAZY) + 1).tolist()
    assert found == ["first", "second", "first"]


def test_L14_what_a_hook_raises_is_told_and_loses_no_value() -> None:
    def breaks(run: mindtorch.SegmentRun) -> None:
        raise ValueError("it broke")

    after: list[mindtorch.SegmentRun] = []
    x = torch.ones(2, device=LAZY) + 1
    with mindtorch.register_segment_hook(breaks), mindtorch.register_segment_hook(after.append):
        with pytest.warns(RuntimeWarning, match=r"breaks raised ValueError: it broke"):
            assert x.tolist() == [2, 2]
    assert len(after) == 1 and x.tolist() == [2, 2]


def test_L14_a_hook_that_is_interrupted_loses_no_value() -> None:
    def interrupted(run: mindtorch.SegmentRun) -> None:
        raise KeyboardInterrupt

    x = torch.zeros(2, device=LAZY)
    x.add_(1)
    with mindtorch.register_segment_hook(interrupted), pytest.raises(KeyboardInterrupt):
        x.tolist()
    assert x.tolist() == [1, 1]


def test_L14_a_hook_may_read_and_is_not_told_of_that() -> None:
    waiting = torch.ones(2, device=LAZY) * 5
    seen: list[list[float]] = []
    with mindtorch.register_segment_hook(lambda run: seen.append(waiting.tolist())):
        assert (torch.ones(2, device=LAZY) + 1).tolist() == [2, 2]
    assert seen == [[5, 5]]


def test_L14_a_segment_that_fails_is_told_with_its_error(told: list[mindtorch.SegmentRun]) -> None:
    index = torch.tensor([5]).to(LAZY)
    made = torch.ones(2, 3).to(LAZY).index_select(0, index)
    with pytest.raises(mindtorch.MaterializationError):
        made.tolist()
    assert told[0].ops.get("aten::index_select") == 1
    if mindtorch.get_executor().place.type == "cpu":  # elsewhere it fails where its value is asked for
        assert "MaterializationError" in told[0].error


def test_L14_nothing_is_asked_where_nobody_listens() -> None:
    """No Python function of ours is called per operation, recording or running, that is not called without hooks."""

    def calls(work: Callable[[], object]) -> int:
        count = 0

        def note(frame: Any, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call" and "mindtorch" in frame.f_code.co_filename

        work()
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        return count

    def chain(n: int) -> None:
        x = torch.ones(4).to(LAZY)
        for _ in range(n):
            x = x + 1
        x.tolist()

    assert calls(lambda: chain(400)) == calls(lambda: chain(4))
    assert around_segments.listener is None and around_segments.keeper is None


def test_L14_a_hook_hears_that_values_came_out_of_a_cache() -> None:
    told: list[mindtorch.SegmentRun] = []
    x = torch.ones(3).to(LAZY)
    with mindtorch.cache(), mindtorch.register_segment_hook(told.append):
        for _ in range(2):
            assert (x * 3).tolist() == [3, 3, 3]
    assert [(run.cached, run.ops) for run in told] == [(False, {"aten::mul": 1}), (True, {"aten::mul": 1})]


def test_L14_a_hook_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"\[register_segment_hook\] expected a function of a SegmentRun, got int"):
        mindtorch.register_segment_hook(3)  # type: ignore[arg-type]
    assert around_segments.listener is None
