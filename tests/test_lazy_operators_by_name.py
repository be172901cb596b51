"""Operators that name a device, called as ``torch.ops.aten`` has them (SPEC L2, L7): what compilers and graphs call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"
aten = torch.ops.aten
VALUES: dict[str, Any] = {
    "size": [2, 3], "stride": [1, 2], "physical_layout": [1, 0], "end": 7, "start": 1, "steps": 4, "n": 5, "m": 3,
    "fill_value": 2.5, "window_length": 6, "periodic": False, "mean": 0.5, "std": 2.0, "high": 9, "low": 2, "s": 3,
    "row": 3, "col": 3, "dtype": torch.float32, "alpha": 0.5, "beta": 0.4,
    "names": None,  # dimensions have had none since torch 2.13
}  # fmt: skip
LEFT_OUT = {
    "_cudnn_init_dropout_state": "has a kernel for CUDA only",
    "_efficientzerotensor": "autograd's own; torch refuses it on a device that is not its own",
    "_empty_affine_quantized": "quantized: by torch's function only, torch._empty_affine_quantized(…)",
    "_sparse_compressed_tensor_with_dims": "sparse: by torch's functions only",
    "_sparse_coo_tensor_with_dims": "sparse: by torch's functions only",
    "from_file": "maps a file's memory, which is the host's",
    "sparse_coo_tensor": "sparse: by torch's function only, torch.sparse_coo_tensor(…)",
    "_make_dep_token": "a token of a compiler's, on the CPU",
    "_nested_tensor_from_tensor_list": "takes tensors, and puts them where they are",
}


def operators(with_tensor: bool) -> Iterator[Any]:
    """Every overload of aten that names a device and whose only tensor, if any, is ``self``."""
    # not dir(aten), which has only the names that something has asked for
    names = {
        name.removeprefix("aten::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    for name in sorted(names - LEFT_OUT.keys()):
        packet = getattr(aten, name)
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            tensors = [a.name for a in arguments if str(a.type) == "Tensor"]
            if any(a.name == "device" for a in arguments) and tensors == ["self"] * with_tensor:
                yield getattr(packet, overload)


def call(overload: Any, device: Any, **given: Any) -> Any:
    """The overload with a value for each argument that has none, drawing from one seed."""
    torch.manual_seed(5)
    given["device"] = torch.device(device)
    for argument in overload._schema.arguments:
        if argument.name == "generator":
            given["generator"] = torch.Generator(device).manual_seed(7)
        elif argument.name not in given and not argument.has_default_value():
            given[argument.name] = VALUES[argument.name]
    return overload(**given)


def undefined(overload: Any) -> bool:
    return "empty" in overload._schema.name


@pytest.mark.parametrize("overload", list(operators(False)), ids=str)
def test_L2_factories_by_name_equal_the_cpus(overload: Any, same_bits: Callable[..., None]) -> None:
    expected, got = call(overload, "cpu"), call(overload, LAZY)
    assert isinstance(got, mindtorch.LazyTensor) and got.device == torch.device(LAZY)
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    if not undefined(overload):
        same_bits(got, expected, str(overload))


# They name a device, and make nothing there.
LOOK = {"is_pinned", "pin_memory", "_pin_memory", "_resize_output", "_resize_output_"}


@pytest.mark.parametrize("there", ["cpu", LAZY, "remote_accelerator:1"])
@pytest.mark.parametrize("here", ["cpu", LAZY, "remote_accelerator:1"])
@pytest.mark.parametrize("overload", [o for o in operators(True) if o._schema.name[6:] not in LOOK], ids=str)
def test_L2_what_is_made_beside_a_tensor_is_where_the_call_says(
    overload: Any, here: str, there: str, same_bits: Callable[..., None]
) -> None:
    x = torch.randn(2, 3)
    expected, got = call(overload, "cpu", self=x), call(overload, there, self=x.to(here))
    assert got.device == torch.device(there)
    assert isinstance(got, mindtorch.LazyTensor) == (there != "cpu")
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    if not undefined(overload):
        same_bits(got, expected, str(overload))


def test_L2_a_copy_by_name_is_a_copy_and_a_move_by_name_is_none() -> None:
    x = torch.ones(2, device=LAZY)
    copied = aten._to_copy.default(x, device=torch.device(LAZY))
    copied.add_(1)
    assert x.tolist() == [1, 1] and copied.tolist() == [2, 2]
    assert aten.to.device(x, torch.device(LAZY), torch.float32) is x


@pytest.mark.parametrize("here", ["cpu", LAZY])
@pytest.mark.parametrize("there", ["cpu", LAZY, "remote_accelerator:1"])
def test_L2_a_move_to_where_another_is(here: str, there: str) -> None:
    x, other = torch.ones(2), torch.ones(1, dtype=torch.float64)
    moved = aten.to.other(x.to(here), other.to(there))
    assert (moved.device, moved.dtype, moved.tolist()) == (torch.device(there), torch.float64, [1, 1])
    put = torch.ops.prims.device_put.default(x.to(here), torch.device(there))
    assert (put.device, put.dtype, put.tolist()) == (torch.device(there), torch.float32, [1, 1])


@pytest.mark.parametrize("index", [0, 1])
def test_L2_the_number_of_a_tensors_device(index: int) -> None:
    x = torch.ones(2, device=f"remote_accelerator:{index}")
    assert torch.get_device(x) == torch.Tensor.get_device(x) == x.get_device() == index
    assert torch.get_device(torch.ones(2)) == -1


def test_L2_a_factory_by_name_that_needs_a_gradient_has_one() -> None:
    x = torch.ops.aten.ones.default([2], device=torch.device(LAZY)).requires_grad_()
    (x * 3).sum().backward()
    assert x.grad is not None and x.grad.device == torch.device(LAZY) and x.grad.tolist() == [3, 3]


def test_L7_two_draws_of_a_traced_graph_stay_two() -> None:
    """``make_fx`` saw one number of a generator's state, so that its merging of equal calls took two draws for one."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

    def draw(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(3, device=x.device) * torch.randn(3, device=x.device) + torch.rand(3, device=x.device)

    def targets(device: str) -> list[str]:
        traced = make_fx(draw)(torch.zeros(3, device=device))
        merged = CSEPass(banned_ops=get_CSE_banned_ops())(traced).graph_module
        return [str(node.target) for node in merged.graph.nodes]

    assert targets(LAZY) == targets("cpu")
    assert targets(LAZY).count("aten.randn.default") == 2


class Making(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[0], x.shape[0], device=x.device).tril()
        return mask @ x + torch.arange(x.shape[1], device=x.device) + torch.zeros_like(x, device=x.device)


def test_L7_an_exported_module_makes_its_tensors_on_the_device(same_bits: Callable[..., None]) -> None:
    x = torch.randn(3, 4)
    exported = torch.export.export(Making(), (x.to(LAZY),), strict=False)
    devices = {node.kwargs["device"] for node in exported.graph.nodes if "device" in node.kwargs}
    assert devices == {torch.device(LAZY)}
    got = exported.module()(x.to(LAZY) * 2)
    assert got.device == torch.device(LAZY)
    same_bits(got, Making()(x * 2), "exported")


class Holding(torch.nn.Module):
    """A module with a tensor that is neither parameter nor buffer, or one that is."""

    def __init__(self, device: str, form: str, data: torch.Tensor, forward: Callable[..., Any]) -> None:
        super().__init__()
        t = data.clone().to(device)  # a module may write to it
        if form == "parameter":
            t = torch.nn.Parameter(t)
        if form in ("buffer", "passing buffer"):
            self.register_buffer("t", t, persistent=form == "buffer")
        else:
            self.t = t + 0 if form == "pending" else t
        self.does = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(x, self.t)


VECTOR, MATRIX, INDEX = torch.arange(3.0) + 1, torch.arange(9.0).view(3, 3), torch.tensor([2, 0, 1])
HELD: dict[str, tuple[torch.Tensor, Callable[..., Any]]] = {
    "product": (VECTOR, lambda x, t: x * t),
    "on the left": (VECTOR, lambda x, t: t - x),
    "computed with": (VECTOR, lambda x, t: x * (t * 2)),
    "in a list": (VECTOR, lambda x, t: torch.cat([x, t])),
    "weight": (MATRIX, torch.nn.functional.linear),
    "view": (MATRIX, lambda x, t: x + t[0]),
    "index": (INDEX, lambda x, t: x[t]),
    "gathered by": (INDEX, lambda x, t: x.gather(0, t)),
    "written from": (VECTOR, lambda x, t: x.clone().mul_(t)),
    "written to": (VECTOR, lambda x, t: x + t.add_(1)),
    "places": (VECTOR, lambda x, t: torch.zeros(3, device=t.device) + x),
}


@pytest.mark.parametrize("form", ["attribute", "pending", "parameter", "buffer", "passing buffer"])
@pytest.mark.parametrize("use", HELD)
def test_L7_an_exported_module_may_hold_recorded_tensors(use: str, form: str) -> None:
    """Beside the compiler's tensors without data, a recorded attribute stood for one on the CPU."""
    data, forward = HELD[use]
    if form == "parameter" and (use == "written to" or not data.is_floating_point()):
        pytest.skip("a parameter is not written to, and has no integers")
    seen = []
    for device in ("cpu", LAZY):
        module = Holding(device, form, data, forward)
        exported = torch.export.export(module, (torch.ones(3, device=device),), strict=False)
        got = exported.module()(torch.full((3,), 2.0, device=device))
        assert got.device == torch.device(device)
        seen.append(([str(n.target) for n in exported.graph.nodes], got.dtype, got.tolist(), module.t.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("use", ["product", "on the left", "index", "written from", "written to"])
def test_L3_recorded_tensors_meet_fake_ones_as_the_cpus_do(use: str, allowed: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def met(device: str) -> Any:
        data, forward = HELD[use]
        held = data.clone().to(device)
        with FakeTensorMode(allow_non_fake_inputs=allowed):
            x = torch.ones(3, device=device)
            try:
                got = forward(x, held)
            except AssertionError as error:
                return "Please convert all Tensors to FakeTensors" in str(error)
        assert got.device == torch.device(device)
        return type(got), got.shape, got.dtype

    assert met(LAZY) == met("cpu")
