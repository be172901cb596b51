"""L7: what a function makes while `torch.func` transforms it, or `make_fx` traces it, is as it is on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import mindtorch

LAZY = "remote_accelerator:0"
_functorch = torch._C._functorch
_func = torch.func


def _by_default(device: str) -> torch.Tensor:
    with torch.device(device):
        return torch.ones(3)


MAKERS: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "ones": lambda w, d: torch.ones(3, device=d),
    "zeros": lambda w, d: torch.zeros((3,), device=d),
    "empty": lambda w, d: torch.empty(3, device=d).fill_(1.0),
    "full": lambda w, d: torch.full((3,), 2.0, device=d),
    "arange": lambda w, d: torch.arange(3.0, device=d),
    "linspace": lambda w, d: torch.linspace(0, 1, 3, device=d),
    "tensor": lambda w, d: torch.tensor([1.0, 2.0, 3.0], device=d),
    "as_tensor": lambda w, d: torch.as_tensor([1.0, 2.0, 3.0], device=d),
    "eye": lambda w, d: torch.eye(3, device=d)[0],
    "zeros_like": lambda w, d: torch.zeros_like(w),
    "rand_like": lambda w, d: torch.rand_like(w),
    "new_tensor": lambda w, d: w.new_tensor([1.0, 2.0, 3.0]),
    "new_full": lambda w, d: w.new_full((3,), 2.0),
    "new_empty": lambda w, d: w.new_empty(3).fill_(2.0),
    "outer's like": lambda w, d: torch.ones_like(torch.ones(3, device=d)),
    "outer's new": lambda w, d: torch.ones(3, device=d).new_ones(3),
    "randn": lambda w, d: torch.randn(3, device=d),
    "to": lambda w, d: torch.ones(3).to(d),
    "parameter": lambda w, d: nn.Parameter(torch.ones(3, device=d)),
    "buffer": lambda w, d: nn.Buffer(torch.ones(3, device=d)),
    "scalar_tensor": lambda w, d: torch.scalar_tensor(2.0, device=d).repeat(3),
    "indices": lambda w, d: torch.tril_indices(3, 3, device=d)[0, :3].float(),
    "window": lambda w, d: torch.hann_window(3, device=d),
    "default device": lambda w, d: _by_default(d),
    "linear": lambda w, d: nn.Linear(3, 3, device=d).weight[0].detach().fill_(1.0),
}
USES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "read": lambda t, w: None,
    "mul_": lambda t, w: t.mul_(2),
    "add_": lambda t, w: t.add_(w),
    "a view": lambda t, w: t[1:].zero_(),
}
TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "grad": lambda g, w: _func.grad(lambda w: g(w).sum())(w),
    "vjp": lambda g, w: _func.vjp(g, w)[1](torch.ones_like(w))[0],
    "jvp": lambda g, w: _func.jvp(g, (w,), (w,))[1],
    "vmap": lambda g, w: _func.vmap(g)(torch.stack([w, w + 1])),
    "vmap, different": lambda g, w: _func.vmap(g, randomness="different")(torch.stack([w, w + 1])),
    "functionalize": lambda g, w: _func.functionalize(g)(w),
    "grad of grad": lambda g, w: _func.grad(
        lambda v: (_func.grad(lambda w: g(w).pow(2).sum())(v) * v).sum()
    )(w),
    "vmap of grad": lambda g, w: _func.vmap(_func.grad(lambda w: g(w).sum()), randomness="same")(torch.stack([w, w])),
    "jacfwd": lambda g, w: _func.jacfwd(g, randomness="same")(w),
    "hessian": lambda g, w: _func.hessian(lambda w: g(w).pow(2).sum())(w),
}  # fmt: skip


def _layers(t: torch.Tensor) -> list[tuple[int, bool, bool, bool]]:
    """What transforms have put around a tensor, from the outside."""
    found = []
    while _functorch.is_functorch_wrapped_tensor(t):
        kinds = _functorch.is_gradtrackingtensor(t), _functorch.is_batchedtensor(t), _functorch.is_functionaltensor(t)
        found.append((_functorch.maybe_get_level(t), *kinds))
        t = _functorch.get_unwrapped(t)
    return found


def _ran(device: str, make: Any, use: Any, transform: Any) -> tuple[Any, list[Any]]:
    torch.manual_seed(1)
    w, layers = torch.tensor([1.0, 2.0, 3.0]).to(device), []

    def function(w: torch.Tensor) -> torch.Tensor:
        made = make(w, device)
        layers.append(_layers(made))
        use(made, w)
        return made * w

    try:
        return transform(function, w).cpu().tolist(), layers
    except RuntimeError as error:
        return str(error)[:60], layers


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_L7_a_tensor_made_within_a_transform_belongs_to_it(transform: str) -> None:
    """It was taken for one from outside, which must not be written."""
    for name, make in MAKERS.items():
        for use, write in USES.items():
            expected, got = (_ran(device, make, write, TRANSFORMS[transform]) for device in ("cpu", LAZY))
            assert repr(got) == repr(expected), (name, use)


TRACED: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "to the CPU and back": lambda w, d: (w.cpu() * 2).to(d),
    "to the CPU": lambda w, d: w.cpu() * 2,
    "from the CPU": lambda w, d: torch.ones(3).to(d).mul_(2) * w,
    "tensor": lambda w, d: torch.tensor([1.0, 2.0, 3.0], device=d).mul_(2) * w,
    "as_tensor": lambda w, d: torch.as_tensor([1.0, 2.0, 3.0], device=d).add_(w),
    "new_tensor": lambda w, d: w.new_tensor([1.0, 2.0, 3.0]).mul_(2) * w,
    "ones": lambda w, d: torch.ones(3, device=d).mul_(2) * w,
    "like": lambda w, d: torch.zeros_like(w).add_(w),
    "another dtype": lambda w, d: w.to(device=d, dtype=torch.float64),
    "an index": lambda w, d: w[torch.tensor([2, 0, 1], device=d)],
}


@pytest.mark.parametrize("name", TRACED)
def test_L7_a_graph_of_make_fx_keeps_no_value_that_was_its_inputs(name: str) -> None:
    """Data of ``torch.tensor`` was written anew by each run of the graph; what was read was a constant in it."""
    results = []
    for device in ("cpu", LAZY):
        first, then = torch.tensor([1.0, 2.0, 3.0]).to(device), torch.tensor([3.0, 1.0, 2.0]).to(device)
        graph = make_fx(functools.partial(lambda device, w: TRACED[name](w, device), device))(first)
        results.append([graph(then).cpu().tolist() for _ in range(2)])
    assert results[1] == results[0]


def test_L7_a_graph_of_make_fx_takes_tensors_from_the_cpu_to_a_device() -> None:
    graph = make_fx(lambda x: (x.to(LAZY) * 2).cpu() + x)(torch.ones(3))
    assert graph(torch.full((3,), 2.0)).tolist() == [6.0] * 3


def test_L7_make_fx_refuses_what_its_graph_cannot_hold() -> None:
    w = torch.ones(3, device=LAZY)
    for read in (lambda w: w * w.sum().item(), lambda w: w * w.tolist()[0], lambda w: w if w.sum() > 1 else -w):
        with pytest.raises(mindtorch.UnsupportedOperationError, match="got one that reads a traced value"):
            make_fx(read)(w)
    with pytest.raises(mindtorch.UnsupportedOperationError, match="on the CPU with pre_dispatch=True"):
        make_fx(lambda w: w * 2, pre_dispatch=True)(w)
    constant = torch.full((), 2.0, device=LAZY)
    assert make_fx(lambda w: w * constant.item())(w)(w).tolist() == [2.0] * 3  # no value of an input's
    assert (w * w.sum().item()).tolist() == [3.0] * 3


def test_L7_a_module_may_be_made_within_a_transform() -> None:
    def made(w: torch.Tensor, device: str) -> torch.Tensor:
        weight, bias = nn.Parameter(torch.ones(3, device=device)), nn.Parameter(w.new_ones(3), requires_grad=False)
        assert weight.requires_grad and weight.is_leaf and not bias.requires_grad
        return (w * weight + bias).square().sum()

    expected, got = (_func.grad(made)(torch.ones(3, device=device), device).tolist() for device in ("cpu", LAZY))
    assert got == expected

    def asked(w: torch.Tensor) -> torch.Tensor:
        return (torch.ones(3, device=w.device).requires_grad_() * w).sum()

    for device in ("cpu", LAZY):  # by the program itself
        with pytest.raises(RuntimeError, match="inside of a function being transformed"):
            _func.grad(asked)(torch.ones(3, device=device))
