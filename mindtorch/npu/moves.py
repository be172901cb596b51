"""Copies between the CPU, NPUs and other devices, differentiable (SPEC N4)."""

from __future__ import annotations

from typing import Any

import torch

from .._ext import blocks as _blocks
from .._ext import in_flight, pool, streams
from .._ext.guards import NoGrad
from ..base.sourceline import named
from ..devices import lazy_device, mode
from ..devices.names import of_number
from ..devices.places import NPU, RECORDED, where
from ..engine.execute import tensors
from ..engine.record.arguments import to_call
from ..engine.record.handlers import refuse_pinning
from ..engine.record.meta import MetaTensor, relocate
from ..engine.record.predict import check_movable, is_fake, quiet
from . import library
from .tensor import NpuTensor, block_of, empty, has_memory, is_npu, of_this_mode, on_host, span, view_bits

__all__ = ["is_pinned", "pin_memory"]  # which programs call
_META = torch.device("meta")
_NAME = "Tensor.to"  # what errors call it


def index_of(device: Any) -> int:
    """The index that ``npu[:i]`` names, the thread's current device if none; RuntimeError if there is no such."""
    return pool.check_index(library.device_index(device))


class _Move(torch.autograd.Function):
    """A copy on another device; the gradient goes back to the first."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, device: Any, non_blocking: bool) -> torch.Tensor:
        ctx.source = t.device
        ctx.set_materialize_grads(False)
        return _moved(t, device, non_blocking)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if grad is None else move(grad, ctx.source), None, None


def move(t: torch.Tensor, device: Any, non_blocking: bool = False) -> Any:
    """A copy of ``t`` on ``device``, of the same dtype; either may be an NPU. ``t`` itself where it is there."""
    if is_npu(t) and where(device) is NPU and index_of(device) == block_of(t).device:
        return t
    if not is_npu(t) and where(device) is not NPU:
        return t.to(device)
    if isinstance(t, MetaTensor) or t.is_meta:
        return relocate(t, device)
    if t.requires_grad and torch.is_grad_enabled():
        return _Move.apply(t, device, non_blocking)
    made = _moved(t, device, non_blocking)
    return of_this_mode(made) if is_npu(made) or made.device.type == "cpu" else made


def _moved(t: torch.Tensor, device: Any, non_blocking: bool) -> torch.Tensor:
    streams.follow()
    with NoGrad():
        return named(_NAME, _copied, t.detach(), device, non_blocking)


def _copied(t: torch.Tensor, device: Any, non_blocking: bool) -> torch.Tensor:
    if not is_npu(t):
        return upload(t, index_of(device), non_blocking)
    place = where(device)
    if place is NPU:
        return _across(t, index_of(device))
    if place is RECORDED:
        return tensors.from_plain(download(t), tensors.index_of(device))
    there = torch.device(str(device))
    if there == _META:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_META)
    host = download(t)
    return host if there.type == "cpu" else host.to(there, non_blocking=non_blocking)


def upload(t: torch.Tensor, index: int, non_blocking: bool = False) -> NpuTensor:
    """A copy of a CPU or CUDA tensor, or of a lazy one, on ``npu:index``, with the strides torch's ``.to()`` gives."""
    if isinstance(t, tensors.LazyTensor):
        t = t.cpu()
    check_movable(t, "npu")
    with quiet():
        if t._is_zerotensor():  # autograd's zeros, without memory
            t = t.clone()
        host = t.detach().to("cpu").resolve_conj().resolve_neg()
        stride = torch.empty_like(host, device=_META).stride()
        if host.stride() != stride:
            host = torch.empty_strided(host.shape, stride, dtype=host.dtype).copy_(host)
        made = empty(host.shape, stride, host.dtype, index)
        length = host.numel() * host.element_size()
        if length:
            pinned = non_blocking and host.data_ptr() == t.data_ptr() and _blocks.is_pinned(host.data_ptr())
            _blocks.copy_in(block_of(made), 0, host.data_ptr(), length, not pinned)
            in_flight.put(index, _NAME)
        return made


def download(t: NpuTensor) -> torch.Tensor:
    """A copy of an NPU tensor in host memory, with the strides torch's ``.to()`` gives; waits for it."""
    has_memory(t)
    with quiet():
        first, length = span(t)
        storage = torch.UntypedStorage(length)
        if length:
            _blocks.copy_out(block_of(t), first, storage.data_ptr(), length)
        host = on_host(t, storage, first)
        dense = length == t.numel() * t.element_size() and not view_bits(t) and host.storage_offset() == 0
        return host if dense else host.clone()


def _across(t: NpuTensor, index: int) -> NpuTensor:
    """A copy on another NPU, through the host, ordered against the current streams of both."""
    stride = torch.empty_strided(t.shape, t.stride(), device=_META)
    stride = torch.empty_like(stride).stride()
    if t.stride() != stride or view_bits(t):
        here = block_of(t).device
        streams.current_stream(here).wait_stream(streams.current_stream(index))  # as `copy_across` does
        fresh = empty(t.shape, stride, t.dtype, here)
        NpuTensor.__torch_dispatch__(torch.ops.aten.copy_.default, (), (fresh, t))
        t = fresh
    made = empty(t.shape, stride, t.dtype, index)
    length = t.numel() * t.element_size()
    if length:
        _blocks.copy_across(block_of(made), 0, block_of(t), t.storage_offset() * t.element_size(), length)
        for each in (index, block_of(t).device):
            in_flight.put(each, _NAME)
    return made


def fakes() -> bool:
    """Whether tensors without data may say that they are on an NPU: in the program's own FakeTensorMode, where torch
    knows ``npu`` by name. A compiler's are refused, so that it leaves the call to be run later."""
    return lazy_device.torch_knows_npu and torch._guards.TracingContext.try_get() is None


def faked(device: Any) -> torch.device:
    """Torch's device of the name of an NPU."""
    return torch.device("npu", library.device_index(device))


def pins() -> bool:
    """Whether memory pinned for no device in particular is the NPU's, or cannot be had for want of one.

    Torch that knows ``npu`` by name would ask it in C++, which nobody answers there.
    """
    known = lazy_device.torch_knows_npu and mode.now.estimate is None
    return known or library.is_the_accelerator()


def is_pinned(t: torch.Tensor) -> bool:
    """Whether a CPU tensor is in page-locked memory of the NPU's library."""
    return t.device.type == "cpu" and t.numel() > 0 and bool(_blocks.is_pinned(t.data_ptr()))


def pin_memory(t: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor in page-locked memory of the NPU's library: ``non_blocking`` copies do not wait.

    As ``torch.Tensor.pin_memory``: contiguous, itself where it is pinned already, differentiable.
    """
    if t.device.type != "cpu" or t.layout is not torch.strided or is_npu(t):
        refuse_pinning(t)
    if t.numel() == 0 or _blocks.is_pinned(t.data_ptr()):
        return t
    return _Pin.apply(t) if t.requires_grad and torch.is_grad_enabled() else _pinned(t)


def _pinned(t: torch.Tensor) -> torch.Tensor:
    buffer = _blocks.Pinned(t.numel() * t.element_size())
    made = torch.frombuffer(buffer, dtype=torch.uint8).view(t.dtype).view(t.shape)
    return made.copy_(t.detach())


class _Pin(torch.autograd.Function):
    """A copy in pinned memory; the gradient is the copy's."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        return _pinned(t)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad


def to(t: torch.Tensor, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``t.to(*args, **kwargs)``, from or to an NPU."""
    args, kwargs = numbered(args, kwargs)
    target, options = to_call(args, kwargs)
    if is_fake(t) and fakes():
        if target is not None:
            options["device"] = faked(target) if where(target) is NPU else target
        return torch.ops.aten.to.dtype_layout(t, **options) if options else t
    non_blocking = bool(options.pop("non_blocking", False))
    stays = target is None or (is_npu(t) and where(target) is NPU and index_of(target) == block_of(t).device)
    if stays:
        return _convert(t, options) if options else t
    options.pop("copy", None)  # a move between devices always copies
    if is_npu(t):  # in the order that computes on the CPU
        return _convert(move(t, target, non_blocking), options)
    return move(_convert(t, options), target, non_blocking)


def numbered(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a ``.to(...)``, a bare integer among them as the device that it means."""
    if args and type(args[0]) is int:
        return (of_number(args[0]), *args[1:]), kwargs
    if type(kwargs.get("device")) is int:
        return args, {**kwargs, "device": of_number(kwargs["device"])}
    return args, kwargs


def _convert(t: torch.Tensor, options: dict[str, Any]) -> Any:
    if not options:
        return t
    with torch._C.DisableTorchFunctionSubclass():
        return torch._C.TensorBase.to(t, **options)
