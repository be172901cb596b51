"""SPEC L8, L9: what torch does in C++ on memory that lazy tensors do not have: tracing, sparse tensors' sizes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")


@pytest.mark.parametrize("trace", [
    lambda: torch.jit.trace(lambda t: t * 2, torch.ones(2, device=LAZY)),
    lambda: torch.jit.trace(lambda a, b: a, (torch.ones(2), torch.ones(2, device=LAZY))),
    lambda: torch.jit.trace(nn.Linear(2, 2).to(LAZY), torch.ones(1, 2)),
    lambda: torch.jit.trace(nn.Linear(2, 2).to(LAZY).forward, torch.ones(1, 2)),
    lambda: torch.jit.trace(nn.Identity(), example_kwarg_inputs={"input": torch.ones(2, device=LAZY)}),
    lambda: torch.jit.trace_module(nn.Linear(2, 2), {"forward": torch.ones(1, 2, device=LAZY)}),
])  # fmt: skip
def test_L9_tracing_lazy_tensors_is_refused_with_the_way_out(trace: Callable[[], object]) -> None:
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"jit.trace.*remote_accelerator:0.*trace there"):
        trace()


def test_L9_a_scripted_module_is_saved_from_the_cpu() -> None:
    """C++ would read its parameters' memory, which ended the process."""
    module = torch.jit.script(nn.Linear(3, 4)).to("remote_accelerator")
    for save in (lambda: torch.jit.save(module, io.BytesIO()), lambda: module.save_to_buffer()):
        with pytest.raises(mindtorch.UnsupportedOperationError, match=r"jit.save.*remote_accelerator:0.*to\('cpu'\)"):
            save()
    torch.jit.save(module.to("cpu"), io.BytesIO())


class Holds(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class OnItsOwn(Holds):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.held


class InAList(Holds):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.held[0]


@pytest.mark.parametrize("save", ["save", "save_to_buffer", "_save_for_lite_interpreter", "in C++"])
@pytest.mark.parametrize("make", [
    lambda: OnItsOwn(torch.ones(2, device=LAZY)),
    lambda: InAList([torch.ones(2, device=LAZY)]),
    lambda: nn.Sequential(nn.Linear(2, 2), OnItsOwn(torch.ones(2, device=LAZY))),
], ids=["attribute", "list", "below"])  # fmt: skip
def test_L9_what_a_scripted_module_holds_beside_parameters_is_saved_from_the_cpu(
    make: Callable[[], nn.Module], save: str, tmp_path: Path
) -> None:
    """It ended the process."""
    module = torch.jit.script(make())
    given = () if save == "save_to_buffer" else (str(tmp_path / "saved"),)
    with pytest.raises(mindtorch.UnsupportedOperationError, match=r"jit.save.*attributes.*remote_accelerator:0"):
        module._c.save(*given) if save == "in C++" else getattr(module, save)(*given)


def test_L7_a_program_traced_on_the_cpu_runs_lazily(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        net = torch.jit.trace(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), torch.ones(1, 2)).to(device)
        double = torch.jit.trace(lambda t: t * 2 + 1, torch.ones(2))
        return net(torch.ones(4, 2, device=device)), double(torch.ones(2, device=device))

    same_as_eager(program)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": (4,)},
        {"size": (4,), "check_invariants": True},
        {"device": None},
        {"device": "where the values are"},
    ],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_L8_sparse_tensors_of_lazy_ones(options: dict, by_name: bool, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        indices, values = torch.tensor([[0, 2]], device=device), torch.ones(2, device=device).requires_grad_()
        given = {**options, "device": device} if options.get("device") else options
        if by_name:
            made = torch.sparse_coo_tensor(indices=indices, values=values * 3, **given)
        else:
            made = torch.sparse_coo_tensor(indices, values * 3, **given)
        made.to_dense().square().sum().backward()
        return made.detach().to_dense().tolist(), made.is_coalesced(), values.grad

    same_as_eager(program)


@pytest.mark.parametrize("named", [False, True])
def test_L8_other_sparse_layouts_of_lazy_ones(named: bool, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        ends, at = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 1], device=device)
        values = torch.arange(2.0, device=device).requires_grad_()
        where = {"device": device} if named else {}
        made = [
            torch.sparse_csr_tensor(ends, at, values, **where),
            torch.sparse_csc_tensor(ends, at, values, **where),
            torch.sparse_bsr_tensor(ends, at, values.view(2, 1, 1), **where),
            torch.sparse_bsc_tensor(ends, at, values.view(2, 1, 1), **where),
            torch.sparse_compressed_tensor(ends, at, values, layout=torch.sparse_csr, **where),
        ]
        return [(t.to_dense().tolist(), t.requires_grad) for t in made]

    same_as_eager(program)


MAKING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "full": lambda x: torch.full(x.shape, 3, device=x.device).add_(1) + x,
    "zeros": lambda x: torch.zeros(4, device=x.device).index_fill_(0, torch.arange(2, device=x.device), 5.0) * x,
    "two alike": lambda x: torch.ones(4, device=x.device).mul_(x) + torch.ones(4, device=x.device),
    "empty": lambda x: torch.empty(4, dtype=torch.float64, device=x.device).copy_(x),
    "drawn": lambda x: torch.rand(4, device=x.device) + x,
    "requires grad": lambda x: torch.ones(4, device=x.device, requires_grad=True) * x,
    "new_full": lambda x: x.new_full((4,), 2.0).sub_(1) + x,
    "like": lambda x: torch.zeros_like(x).add_(1) + x,
}


@pytest.mark.parametrize("name", MAKING)
def test_L7_what_make_fx_traces_makes_its_tensors_anew(name: str, same_as_eager: Same) -> None:
    """A tensor that the traced function makes is no constant of the graph: it may write to it, each time."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    def program(d: str) -> object:
        x = torch.arange(4.0).to(d)
        traced = make_fx(MAKING[name])(x.clone())
        assert not list(traced.buffers()) and not [n for n in traced.graph.nodes if n.op == "get_attr"]
        fewer = CSEPass()(traced).graph_module  # type: ignore[misc]
        return traced(x.clone()), traced(x.clone() + 1), fewer(x.clone()), fewer(x.clone())

    same_as_eager(program)
