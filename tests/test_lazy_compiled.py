"""`torch.compile` and recorded tensors (SPEC L1, L7): what has any runs as it is, everything else is compiled."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.base import torch_facts
from mindtorch.patch import tracing

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that counts what it compiles."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.compiled += 1
        return graph.forward


@dataclass
class Batch:
    x: torch.Tensor


class Holder:
    x: torch.Tensor


ANYWHERE = Holder()


class Net(nn.Module):
    """No class of torch's own: those are not compiled by `Module.compile`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _net(d: str) -> nn.Module:
    torch.manual_seed(0)
    return Net().to(d)


def _of_a_module(d: str, **how: Any) -> object:
    return torch.compile(_net(d), **how)(torch.ones(2, 3, device=d))


def _in_place(d: str, **how: Any) -> object:
    model = _net(d)
    model.compile(**how)
    return model(torch.ones(2, 3, device=d))


def _of_a_method(d: str, **how: Any) -> object:
    return torch.compile(_net(d).forward, **how)(torch.ones(2, 3, device=d))


def _trained(d: str, **how: Any) -> object:
    model = torch.compile(_net(d), **how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3, device=d)).square().sum().backward()
        optimizer.step()
    return list(model.parameters())


def _attribute(d: str, **how: Any) -> object:
    ANYWHERE.x = torch.arange(3.0, device=d)
    return torch.compile(lambda: ANYWHERE.x * 2, **how)()


def _closure(d: str, **how: Any) -> object:
    x = torch.arange(3.0, device=d)
    return torch.compile(lambda: x * 2, **how)()


def _moved_later(d: str, **how: Any) -> object:
    model = torch.compile(_net("cpu"), **how)
    on_cpu = model(torch.ones(2, 3))
    return on_cpu, model.to(d)(torch.ones(2, 3, device=d))


def _nested(d: str, **how: Any) -> object:
    inner = torch.compile(lambda x: x * 3, **how)
    return torch.compile(lambda x: inner(x) + 1, **how)(torch.ones(3, device=d))


FORMS: dict[str, Callable[..., object]] = {
    "function": lambda d, **how: torch.compile(lambda x: (x * 2).sin().sum(), **how)(torch.ones(3, device=d)),
    "module": _of_a_module,
    "Module.compile": _in_place,
    "method": _of_a_method,
    "training": _trained,
    "in a list": lambda d, **how: torch.compile(lambda x: x[0] + x[1], **how)([torch.ones(3, device=d)] * 2),
    "in a dataclass": lambda d, **how: torch.compile(lambda b: b.x + 1, **how)(Batch(torch.ones(3, device=d))),
    "attribute": _attribute,
    "closure": _closure,
    "makes one": lambda d, **how: torch.compile(lambda n: torch.zeros(n, device=d) + 1, **how)(4),
    "moves one there": lambda d, **how: torch.compile(lambda x: x.to(d) * 2, **how)(torch.ones(3)),
    "moves one back": lambda d, **how: torch.compile(lambda x: (x * 2).cpu() + 1, **how)(torch.ones(3, device=d)),
    "moved later": _moved_later,
    "nested": _nested,
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("form", FORMS)
def test_L7_compiled_programs_run_on_recorded_tensors(form: str, backend: str, fullgraph: bool) -> None:
    """The compiled CPU program is only asked where no compiler of C++ is needed for it."""
    want = FORMS[form]("cpu", backend="eager", fullgraph=fullgraph)
    found = FORMS[form](LAZY, backend=backend if form != "moved later" else "eager", fullgraph=fullgraph)
    assert repr(torch.utils._pytree.tree_map(_plain, found)) == repr(torch.utils._pytree.tree_map(_plain, want))


def _plain(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, torch.Tensor) else value


def test_L7_nothing_with_recorded_tensors_is_compiled_and_all_else_is() -> None:
    graphs = Graphs()
    double = torch.compile(lambda x: x.sin() * 2, backend=graphs, fullgraph=True)
    plain, recorded = torch.ones(3), torch.ones(3, device=LAZY)
    assert double(recorded).tolist() == double(plain).tolist()
    assert graphs.compiled == 1
    assert double(recorded).tolist() == double(plain).tolist()
    assert graphs.compiled == 1, "neither again, nor for the recorded tensor"
    assert double(torch.ones(3, dtype=torch.float64)).tolist() == double(recorded.double()).tolist()
    assert graphs.compiled == 2


def test_L7_what_was_compiled_before_the_device_was_used(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        graphs = []
        @torch.compile(fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
        def f(x): return torch.relu(x) + 1
        print(f(torch.ones(2)).tolist(), len(graphs))
        import mindtorch
        print(f(torch.ones(2, device="remote_accelerator")).tolist(), f(torch.ones(2)).tolist(), len(graphs))
    """
    assert after_torch(code).stdout.splitlines() == ["[2.0, 2.0] 1", "[2.0, 2.0] [2.0, 2.0] 1"]


def test_L7_errors_of_compiled_functions_are_the_programs() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    for x in (torch.ones(3), torch.ones(3, device=LAZY)):
        with pytest.raises(KeyError, match="mine"):
            torch.compile(raises, backend="eager")(x)
    with pytest.raises(RuntimeError, match=r"shape '\[7\]' is invalid"):
        torch.compile(lambda x: x.view(7), backend="eager", fullgraph=True)(torch.ones(3, device=LAZY))
    there = torch.ones(3, device=LAZY)
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.compile(lambda x: x + there, backend="eager", fullgraph=True)(torch.ones(3))


def test_L9_dynamos_own_export_is_refused_and_torchs_is_not() -> None:
    there = _net(LAZY), torch.ones(2, 3, device=LAZY)
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"on the CPU: torch\.export\.export takes recorded"):
        torch._dynamo.export(there[0], aten_graph=True)(there[1])
    exported = torch.export.export(there[0], (there[1],)).module()
    assert exported(there[1]).tolist() == there[0](there[1]).tolist()
    graph, _ = torch._dynamo.export(_net("cpu"), aten_graph=True)(torch.ones(2, 3))
    assert graph(torch.ones(2, 3)).tolist() == _net("cpu")(torch.ones(2, 3)).tolist()


def test_L1_a_graph_that_cannot_be_whole_is_refused_for_plain_tensors() -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    compiled = torch.compile(prints, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2, device=LAZY)).tolist() == [2.0, 2.0]
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        compiled(torch.ones(2))


def test_L1_a_torch_that_compiles_elsewhere_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_facts, "lost", {})
    graphs = Graphs()
    double = torch.compile(lambda x: x * 2, backend=graphs, fullgraph=True)
    with torch.compiler.set_stance("default"):  # what it was is put back
        assert list(tracing.of_dynamo(types.ModuleType("torch._dynamo.convert_frame"))) == []
        assert double(torch.ones(2)).tolist() == double(torch.ones(2, device=LAZY)).tolist() == [2.0, 2.0]
        assert graphs.compiled == 0
        assert list(mindtorch.stats()["torch_lost"].values()) == ["torch.compile compiles nothing"]
    double(torch.ones(2))
    assert graphs.compiled == 1


def test_L1_disable_gives_dynamo_back_as_it_was() -> None:
    from torch._dynamo import convert_frame

    ours = convert_frame.CatchErrorsWrapper.__call__
    mindtorch.disable()
    try:
        assert convert_frame.CatchErrorsWrapper.__call__ is not ours
        assert convert_frame.CatchErrorsWrapper.__call__.__module__ == "torch._dynamo.convert_frame"
    finally:
        mindtorch.enable()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_L7_compiled_functions_of_lazy_tensors(backend: str, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(d)
        scale = torch.ones(2, device=d)

        @torch.compile(backend=backend)
        def f(x: torch.Tensor) -> torch.Tensor:
            y = model(x) + scale
            if x.sum() > 0:
                y = y + x[:, :2]
            scale.add_(1)
            return y

        out = [f(torch.full((3, 4), value, device=d)) for value in (1.0, -1.0, 2.0)]
        sum(o.sum() for o in out).backward()
        return out, scale, [p.grad for p in model.parameters()]

    same_as_eager(program)


def test_L7_compiled_functions_that_move_tensors(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch._dynamo.reset()
        f = torch.compile(lambda a: (a.cpu() * 2).to(d) + a, backend="eager")
        return f(torch.ones(2, 3, device=d)), torch.compile(lambda a: (a * 2).to(d), backend="eager")(torch.ones(4))

    same_as_eager(program)
