"""What happens to an ATen call on NPU tensors: a view, a native kernel, or a round through the CPU (SPEC N5, D4).

Views and other changes of metadata are torch's own C++ code on storages without host memory. An op with a registered
kernel runs on the device. Every other op is staged: what it reads is copied to the host, torch's CPU kernel runs, what
it wrote and gave is copied back, sharing memory as it does there. All of it is ordered on the device's current stream.

One file: each of the three ways falls back to the next, on the same description of the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import ops
from .._ext import blocks as _blocks
from .._ext import dispatch as _dispatch
from .._ext import in_flight, streams
from ..base import config
from ..base.errors import UnsupportedOperationError
from ..base.sourceline import named
from ..engine import semantics
from ..engine.record.handlers import histc
from ..engine.record.meta import refuse
from ..engine.record.mixing import refuse_two_devices
from ..engine.record.predict import (
    contiguous,
    decompose,
    knowing_views,
    multiplies_inside,
    quiet,
    taken_apart,
    tensors_in,
)
from ..ops import schema
from . import foreach
from .copies import as_bytes, converted
from .counts import count, native_counts, queued, staged_counts
from .descriptions import DTYPES, Calls, Description
from .kernels import NATIVE
from .random import drawing
from .tensor import (
    NpuTensor,
    as_npu,
    block_of,
    empty,
    has_memory,
    is_npu,
    on_host,
    restride,
    span,
    storage_of,
    view_bits,
    view_of,
)

_CPU = torch.device("cpu")
_native = config.npu_native()
semantics.know_lines()
# Tensors on different devices are what these are for, or they look at sizes only.
_ANYWHERE = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::set_", "aten::is_same_size", "aten::_to_copy"})
_UNSAFE_VIEWS = frozenset({"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"})  # say nothing
_ON_CPU = frozenset({"aten::_pack_padded_sequence"})  # whose second result torch wants on the CPU


@dataclass(frozen=True)
class _Op:
    """What is to be known of an overload, once."""

    func: Any
    name: str  # aten::add.Tensor
    base: str  # aten::add
    writes: frozenset[int | str]
    view: bool = False  # metadata only: no data is read or written
    in_place: bool = False  # of a view: it is its first argument that changes
    composite: bool = False
    blind: bool = False  # does not look at its first argument's data
    random: bool = False
    each: bool = False  # one of torch's `_foreach_` forms: several calls of an op at once
    step: Callable[..., None] | None = None  # of an optimizer, by other ops


def _describe(func: Any) -> _Op:
    name = func.name()
    base = name.partition(".")[0]
    row, writes = ops.row(base), schema.writes(func)
    in_place = torch.Tag.inplace_view in func.tags or base == "aten::detach_"
    return _Op(
        func,
        name,
        base,
        frozenset(writes),
        view=(schema.gives_aliases(func) and not writes) or in_place or base in _UNSAFE_VIEWS,
        in_place=in_place,
        composite=taken_apart(name, row),
        blind=ops.about(base).blind and not writes,
        random=schema.draws(func),
        each=base.startswith("aten::_foreach_"),
        step=_step(base),
    )


def _step(base: str) -> Callable[..., None] | None:
    if not base.startswith("aten::_fused_"):
        return None
    from .fused import STEPS  # few programs have such an optimizer

    return STEPS.get(base)


_ops: dict[Any, _Op] = {}


def use_native(on: bool) -> None:
    """Run ops with a kernel of the NPU's there, or every op through the CPU."""
    global _native
    _native = on


def native() -> bool:
    """Whether ops run there where the NPU has a kernel for them."""
    return _native


def dispatch(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """`__torch_dispatch__` of NpuTensor."""
    op = _ops.get(func)
    if op is None:
        op = _ops[func] = _describe(func)
    return named(op.base, _done, op, args, kwargs or {})


def _done(op: _Op, args: tuple, kwargs: dict) -> Any:
    func = op.func
    if op.composite:  # inference mode hands them down whole
        return decompose(func, args, kwargs)
    if op.view:
        return _view(op, args, kwargs)
    streams.follow()
    if op.base == "aten::histc" and (out := histc(args, kwargs)) is not NotImplemented:
        return out
    tensors = tensors_in([*args, *kwargs.values()])
    if op.name.startswith("c10d::"):
        raise UnsupportedOperationError(f"[{op.name}] torch.distributed has no backend for npu tensors: use .cpu()")
    if any(t.is_meta for t in tensors if not is_npu(t)):
        named = {**dict(enumerate(args)), **kwargs}
        if any(is_npu(t) for key in op.writes for t in tensors_in(named.get(key))):
            refuse(op.base)  # what has data cannot be written from there
        return func(*map_tensors(args, _as_meta), **_map_kwargs(kwargs, _as_meta))
    if op.base not in _ANYWHERE:
        _same_device(op, tensors)
    device = next(block_of(t).device for t in tensors if is_npu(t))
    if op.step is not None and _native:
        return op.step(*args, **kwargs)
    if op.each and _native and (out := foreach.apart(op.base, args, kwargs)) is not NotImplemented:
        return out
    if op.base == "aten::is_same_size":
        return args[0].shape == args[1].shape
    kernel = _dispatch.lookup(op.name, "npu") if _native else None
    if kernel is not None:
        out = kernel(_calls(device), args, kwargs)
        if out is not NotImplemented:
            count(native_counts, op.base, device)
            queued(device, op.base)
            return out
    if op.base == "aten::copy_" and (as_bytes(*args, **kwargs) or converted(kernel, _calls(device), *args, **kwargs)):
        count(native_counts, op.base, device)
        queued(device, op.base)
        return args[0]
    count(staged_counts, op.base, device)
    out = _staged(op, args, kwargs, tensors)
    in_flight.put(device, op.base)
    if op.each and op.writes:
        torch.autograd.graph.increment_version(args[0])  # C++ does not count what it writes
    return out


@functools.cache
def _calls(index: int) -> Calls:
    """What a native kernel needs of ``npu:index``."""
    return Calls(functools.partial(_description, index), functools.partial(_result, index), index)


def _description(index: int, a: object) -> Description | None:
    if not isinstance(a, NpuTensor) or a.dtype not in DTYPES or view_bits(a):
        return None
    storage = storage_of(a)
    block = storage._npu
    if block.device != index:
        return None
    if block.nbytes != storage.nbytes():
        has_memory(a)
    _blocks.used_by(block)
    length = block.nbytes // a.element_size()  # operators may touch what follows: not what the storage once had
    return block.ptr, tuple(a.shape), a.stride(), a.storage_offset(), length, DTYPES[a.dtype]


def _result(index: int, size: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None) -> NpuTensor:
    return empty(size, contiguous(size) if stride is None else stride, dtype, index)


def _same_device(op: _Op, tensors: list[torch.Tensor]) -> None:
    first = None
    for t in tensors:
        if is_npu(t):
            index = block_of(t).device
            if first is None:
                first = index
            elif index != first:
                refuse_two_devices(op.base, f"npu:{first}", f"npu:{index}")


# ---- metadata only ---------------------------------------------------------------------------------------------------
def _view(op: _Op, args: tuple, kwargs: dict) -> Any:
    if op.base in _METADATA:
        return _METADATA[op.base](*args, **kwargs)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        out = op.func(*args, **kwargs)
    return args[0] if op.in_place else map_tensors(out, as_npu)


def _set(target: NpuTensor, source: Any = None, offset: int = 0, size: Any = None, stride: Any = None) -> Any:
    if source is None and is_npu(target):
        source = empty((0,), (1,), target.dtype, block_of(target).device)
    if not is_npu(target) or not is_npu(source) or block_of(source).device != block_of(target).device:
        where = getattr(source, "device", type(source).__name__)
        raise RuntimeError(f"[set_] expected a source tensor on {target.device}, as the target is, got {where}")
    if size is not None:
        source = view_of(source, size, stride or contiguous(size), offset, source.dtype, view_bits(source))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch.ops.aten.set_.source_Tensor(target, source)


def _resize(t: NpuTensor, size: Any, *, memory_format: Any = None) -> NpuTensor:
    size = size.shape if isinstance(size, torch.Tensor) else size  # resize_as_
    layout = torch.contiguous_format if memory_format in (None, torch.preserve_format) else memory_format
    if tuple(size) != tuple(t.shape) or memory_format not in (None, torch.preserve_format):
        restride(t, size, torch.empty(size, device=_META, memory_format=layout).stride(), t.storage_offset())
    return t


_METADATA: dict[str, Callable[..., Any]] = {"aten::set_": _set, "aten::resize_": _resize, "aten::resize_as_": _resize}


# ---- through the CPU -------------------------------------------------------------------------------------------------
def whole(func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """Run a function that is not to be taken apart through the CPU."""
    streams.follow()
    op = _Op(func, name, name, frozenset({"out"}))
    tensors = tensors_in([*args, *kwargs.values()])
    device = next(block_of(t).device for t in tensors if is_npu(t))
    count(staged_counts, name, device)
    out = named(name, _staged, op, args, kwargs, tensors)
    in_flight.put(device, name)
    return out


def _staged(op: _Op, args: tuple, kwargs: dict, tensors: list[torch.Tensor]) -> Any:
    mine = [t for t in tensors if is_npu(t)]
    stage = _Stage(block_of(mine[0]).device, tensors)
    named = {**dict(enumerate(args)), **kwargs}
    for t in mine if not op.blind else mine[1:]:
        stage.reads(t)
    for key in op.writes:
        for t in tensors_in(named.get(key)):
            if is_npu(t):
                stage.writes(t)
    with quiet(grad=True) as inside:
        if op.blind:
            first = mine[0]
            stage.stand_in(first, torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device=_CPU))
        host_args = map_tensors(args, stage.host)
        host_kwargs = {k: map_tensors(v, stage.host) for k, v in kwargs.items()}
        if host_kwargs.get("device") is not None:
            host_kwargs["device"] = _CPU
        if not torch.is_grad_enabled() and multiplies_inside(op.base):
            stage.mark_parameters()
            inside.also(knowing_views())
        if op.random and kwargs.get("generator") is None:
            inside.also(drawing(stage.device))
        try:
            out = _HOST.get(op.name, op.func)(*host_args, **host_kwargs)
        finally:
            stage.give_back()  # also what a kernel wrote, or resized, before it refused the rest
    if op.base in _ON_CPU:
        return stage.adopt(out[0]), out[1]
    return map_tensors(out, stage.adopt)


class _Stage:
    """The host's copies of what a call reads and writes, and the way back."""

    def __init__(self, device: int, tensors: list[torch.Tensor]) -> None:
        self.device = device
        self._spans: dict[int, tuple[int, int]] = {}  # C++ storage -> (first byte, end) that the call can see
        self._owners: dict[int, NpuTensor] = {}  # C++ storage -> a tensor on it
        self._copies: dict[int, torch.UntypedStorage] = {}  # C++ storage -> the host's copy of that span
        self._hosts: dict[int, torch.Tensor] = {}  # id of an NPU tensor -> its stand-in
        # id of what the kernel is given, a stand-in or a CPU tensor -> what the caller gave
        self._of: dict[int, torch.Tensor] = {id(t): t for t in tensors if not is_npu(t)}
        self._roots: dict[int, tuple[NpuTensor, int]] = {}  # host storage -> (tensor on it, first byte)
        self._written: dict[int, NpuTensor] = {}

    def reads(self, t: NpuTensor) -> None:
        has_memory(t)
        key = storage_of(t)._cdata
        first, length = span(t)
        before = self._spans.get(key)
        if before is None or before[0] == before[1]:
            self._spans[key] = (first, first + length)
        elif length:
            self._spans[key] = (min(first, before[0]), max(first + length, before[1]))
        self._owners.setdefault(key, t)

    def writes(self, t: NpuTensor) -> None:
        self._written[id(t)] = t

    def stand_in(self, t: NpuTensor, host: torch.Tensor) -> None:
        self._hosts[id(t)] = host

    def host(self, a: Any) -> Any:
        """The CPU tensor that stands for an NPU tensor; anything else as it is."""
        if not is_npu(a):
            return a
        host = self._hosts.get(id(a))
        if host is None:
            key = storage_of(a)._cdata
            storage = self._copies.get(key)
            first, end = self._spans[key]
            if storage is None:
                storage = self._copies[key] = torch.UntypedStorage(end - first)
                _blocks.copy_out(block_of(a), first, storage.data_ptr(), end - first)
                self._roots[storage._cdata] = (self._owners[key], first)
            host = self._hosts[id(a)] = on_host(a, storage, first)
        self._of[id(host)] = a
        return host

    def mark_parameters(self) -> None:
        """Have the copies require grad where what they stand for does: torch multiplies with those in another way."""
        for t in self._of.values():
            if t.requires_grad and id(t) in self._hosts:
                self._hosts[id(t)].requires_grad_()

    def give_back(self) -> None:
        """Copy what was written to the device."""
        done = set()
        for t in self._written.values():
            host = self._hosts.get(id(t))
            if host is None:
                continue  # the call failed before
            storage = host.untyped_storage()
            _owner, first = self._roots.get(storage._cdata, (None, 0))
            # The stand-in's storage starts at the first byte that the call could see.
            moved = (host.shape, host.stride()) != (t.shape, t.stride())
            if moved or storage._cdata not in self._roots or storage.nbytes() > self._length(t):
                offset = host.storage_offset() + first // t.element_size()
                restride(t, host.shape, host.stride(), offset, first + storage.nbytes())
            if storage._cdata in done:
                continue
            done.add(storage._cdata)
            if storage.nbytes():
                _blocks.copy_in(block_of(t), first, storage.data_ptr(), storage.nbytes())

    def _length(self, t: NpuTensor) -> int:
        first, end = self._spans[storage_of(t)._cdata]
        return end - first

    def adopt(self, out: Any) -> Any:
        """A result of the CPU kernel as an NPU tensor that shares memory as the result does."""
        if not isinstance(out, torch.Tensor):
            return out
        if id(out) in self._of:
            return self._of[id(out)]
        if out.layout is not torch.strided or out.is_nested or out.is_quantized or out.device != _CPU:
            return out  # sparse, nested and quantized results stay torch's own
        storage = out.untyped_storage()
        root = self._roots.get(storage._cdata)
        if root is None:
            whole = out.storage_offset() == 0 and storage.nbytes() == span(out)[1]
            if whole or storage.nbytes() == 0:
                t = empty(out.shape, out.stride(), out.dtype, self.device)
            else:  # part of a larger result, of which there may be other parts
                t = empty((storage.nbytes(),), (1,), torch.uint8, self.device)
            if storage.nbytes():
                _blocks.copy_in(block_of(t), 0, storage.data_ptr(), storage.nbytes())
            self._roots[storage._cdata] = (t, 0)
            if t.dtype is out.dtype and t.shape == out.shape and not view_bits(out):
                return t
            root = (t, 0)
        t, first = root
        return view_of(
            t, out.shape, out.stride(), out.storage_offset() + first // out.element_size(), out.dtype, view_bits(out)
        )


_META = torch.device("meta")


def _as_meta(a: Any) -> Any:
    if not is_npu(a):
        return _META if isinstance(a, torch.device) else a
    return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=_META)


def map_tensors(a: Any, change: Any) -> Any:
    """``change`` of every tensor, in sequences too."""
    if isinstance(a, torch.Tensor):
        return change(a)
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        items = [map_tensors(item, change) for item in a]
        return type(a)(*items) if hasattr(a, "_fields") else type(a)(items)
    return a


def _map_kwargs(kwargs: dict, change: Any) -> dict:
    return {k: _META if k == "device" else map_tensors(v, change) for k, v in kwargs.items()}


for _name, _kernel in NATIVE.items():
    _dispatch.register(_name, "npu", _kernel)


def _layer_norm_backward(
    grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> tuple[Any, Any, Any]:
    """Of 16 bits, the NPU's mean and 1/std are in float32, which torch's CPU kernel takes beside such weights only."""
    of = torch.ops.aten.native_layer_norm_backward.default
    given = next((each.dtype for each in (weight, bias) if each is not None), x.dtype)
    if mean.dtype is x.dtype or given is mean.dtype:
        return of(grad, x, shape, mean, rstd, weight, bias, mask)
    scale = torch.ones(tuple(shape), dtype=mean.dtype) if weight is None else weight.to(mean.dtype)
    first, *others = of(grad, x, shape, mean, rstd, scale, None if bias is None else bias.to(mean.dtype), mask)
    slopes = (None if slope is None else slope.to(given) for slope in others)
    return first, next(slopes), next(slopes)


#: ATen → what stands for it on the host, where torch's CPU kernel does not take tensors as NPUs have them.
_HOST: dict[str, Callable[..., Any]] = {"aten::native_layer_norm_backward": _layer_norm_backward}
