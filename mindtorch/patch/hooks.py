"""Making torch know the device: creation hooks, `.to()`, module moves (SPEC L1).

`enable()` and `disable()`. Torch's compiled functions stay the objects that they are (`_ext.hooks`); what else is
replaced is an attribute that `disable()` puts back. Torch's slot for a foreign device is claimed when the program
first names one (`claim`); once registered there, the name stays.

One file: what `enable` puts in place and `disable` takes back is beside both.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.modules.module
import torch.utils.dlpack
from torch.fx.experimental import proxy_tensor
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import handle_torch_function
from torch.utils import _device as _torch_device

from .. import npu
from .._ext import hooks as _hooks
from .._ext import lazy as _core
from ..base import config
from ..base.patching import Patch, existing
from ..base.torch_warnings import Caught, say
from ..devices import mode
from ..devices.lazy_device import accelerator_at, place_of
from ..devices.names import device as mindtorch_device
from ..devices.places import ESTIMATED, META, NPU, RECORDED, TORCHS, take, type_of, where
from ..engine.execute import device_copies, tensors, values
from ..engine.record import handlers, predict, unwrapping
from ..engine.record.arguments import to_options
from ..engine.record.meta import MetaTensor, as_meta
from ..engine.record.mixing import SPARSE
from ..engine.tensor import classes
from ..npu import creation as npu_creation
from ..npu import moves as npu_moves
from . import (
    creation,
    dispatch_modes,
    files,
    flags,
    generators,
    held,
    namespace,
    nested,
    processes,
    slot,
    sparse,
    stand_ins,
    tracing,
    transforms,
    uninitialized,
    wrappers,
)
from .module_moves import assign_data, is_opaque, swap_tensors

log = logging.getLogger("mindtorch")


def enable() -> None:
    """Hook torch so that ``device="remote_accelerator[:i]"`` works everywhere. Idempotent."""
    global _torch_to
    if is_enabled():
        return
    npu_is_ours = not npu.stands_aside()  # first: torch_npu claims torch's slot when it is imported
    _hooks.take_numbers(_numbers_ours)
    take("npu", NPU if npu_is_ours else None)
    held.put(_patches())
    _public.update({_hooks.original(function): function for function in (getattr(*place) for place in _MAKERS)})
    _torch_to = _hooks.original(_base.to)
    slot.watch()
    held.put_when_loaded("triton.runtime.jit", _of_triton)
    held.put_when_loaded("torch._dynamo.convert_frame", tracing.of_dynamo)
    held.put_when_loaded("torch.fx.experimental.proxy_tensor", tracing.of_make_fx)
    if npu_is_ours:
        held.put(_of_npus())
        _hooks.take_pinning(True)
    for patching in (processes, classes, uninitialized, tracing, transforms, nested, stand_ins, flags):
        held.put(patching.patches())
    flags.note()
    if config.register_device() == "always" or config.enable_aten_impl():
        slot.claim()
    if config.enable_aten_impl() and not slot.claimed():
        log.warning("GENIE_ENABLE_ATEN_IMPL=1 needs the device's name registered with torch; it is not")


def disable() -> None:
    """Put torch back as it was. Lazy tensors that exist keep working."""
    if is_enabled():
        held.undo()
        tensors.out_of_use()


def is_enabled() -> bool:
    """True while torch is hooked."""
    return (torch.nn.Module, "to") in held


def _patches() -> Iterator[Patch]:
    for owner, name in _MAKERS:
        prepare = creation.with_size if name == "sparse_coo_tensor" else None
        yield owner, name, _hooks.CreationHook(create, name in creation.FROM_DATA, prepare)
    for name in creation.NESTED:
        yield torch.nested, name, _nested_hook(getattr(torch.nested, name))
    methods = {
        "to": _hooks.MoveHook(_to, torch.dtype, torch.device),
        **{name: _hooks.AwayHook(wrappers.away) for name in ("cpu", "cuda")},
        "copy_": _hooks.AcrossHook(wrappers.copy_across),
        "type_as": _hooks.AcrossHook(wrappers.type_as),
        **{name: _hooks.MethodHook(_new_hook(name)) for name in _NEW},
        "_make_subclass": _hooks.SubclassHook(stand_ins.make_subclass),
        "as_subclass": _hooks.AsSubclassHook(classes.any_as_subclass),
        "_make_wrapper_subclass": _hooks.WrapperHook(wrappers.make),
        "data": _hooks.AssignHook(assign_data),
    }
    yield from ((_base, name, asked) for name, asked in methods.items())
    yield torch.utils, "swap_tensors", swap_tensors
    yield torch._utils, "_rebuild_tensor", files.make_rebuild(_torch_rebuild_tensor)
    yield torch.serialization._package_registry, 0, files.package
    # Else make_fx takes what it computes from a lazy input for a constant.
    yield proxy_tensor, "HANDLED_TYPES", (*proxy_tensor.HANDLED_TYPES, *tensors.TYPES)
    yield torch.nn.Module, "to", _module_to
    yield PackedSequence, "to", _packed_sequence_to
    yield torch.nn.Module, "_apply", _module_apply
    yield _torch_device.DeviceContext, "__torch_function__", _device_context
    if not hasattr(torch, tensors.DEVICE_TYPE):
        # torch looks for a device's functions here (checkpoint: the generator's state), also when the slot is not ours.
        yield torch, tensors.DEVICE_TYPE, slot.module


def _of_npus() -> Iterator[Patch]:
    yield torch.Tensor, "npu", _tensor_npu
    yield torch.Tensor, "is_npu", IS_NPU
    yield _base, "pin_memory", _hooks.EveryHook(stand_ins.pin_memory)
    yield _base, "is_pinned", _hooks.EveryHook(stand_ins.is_pinned)
    yield torch.nn.Module, "npu", _module_npu
    yield torch, "npu", npu
    yield from existing(torch.serialization, {"_get_restore_location": files.restore_location})
    for name in stand_ins.AUTOCAST:
        yield torch._C, name, _hooks.NameHook("cpu")


# ---- patched functions -----------------------------------------------------------------------------------------------
_functions = torch._C._VariableFunctions
_base: Any = torch._C.TensorBase
#: Torch's creation functions, and where they are.
_MAKERS = [
    *((_functions, name) for name in (*creation.RECORDED, *creation.EAGER) if hasattr(_functions, name)),
    *((torch._C._fft, name) for name in ("fft_fftfreq", "fft_rfftfreq")),
]
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
#: What ``tensor.is_npu`` is.
IS_NPU = property(lambda t: t.device.type == "npu", doc="True if the tensor is on an NPU.")
_torch_to: Any = _base.to  # its twin, once that is hooked
_torch_rebuild_tensor = torch._utils._rebuild_tensor
_torch_module_to = torch.nn.Module.to
_torch_packed_sequence_to = PackedSequence.to
_torch_module_apply = torch.nn.Module._apply
_torch_context = _torch_device.DeviceContext.__torch_function__
# Torch makes this list once. By now: transformers exchanges torch.linspace while it loads a model.
_torch_device._device_constructors()


_COMPRESSED = SPARSE - {torch.sparse_coo}
_public: dict[Any, Any] = {}  # torch's creation functions by their twins
_function_modes = torch._C._len_torch_function_stack
_modes_on = torch._C._len_torch_dispatch_stack


def create(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if _function_modes() and func in _public and not torch._C._is_torch_function_all_disabled():
        # Modes of the program see the call first, as they see torch's; they are off while it is answered.
        return handle_torch_function(_public[func], (), *args, **kwargs)
    if type(kwargs.get("device")) is int:
        _, kwargs = _numbered((), kwargs)
    place = where(kwargs.get("device"))
    if place is RECORDED and not _modes_on() and (made := creation.plain(func, args, kwargs)) is not None:
        return made
    if place is NPU:
        return unwrapping.lifted(npu_creation.create(func, args, kwargs))
    if kwargs.get("pin_memory") and place is TORCHS:
        return npu_creation.create_pinned(func, args, kwargs)
    if isinstance(kwargs.get("generator"), generators.Generator) and place is not RECORDED:
        return generators.draw(func, args, kwargs)
    if _modes_on():
        shown = dispatch_modes.create_shown(func, args, kwargs, func.__name__ in creation.FROM_DATA)
        if shown is not NotImplemented:
            return shown
    return creation.create(func, args, kwargs)


def _nested_hook(original: Any) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        _, kwargs = _numbered((), kwargs)
        return create(original, args, kwargs) if where(kwargs.get("device")).ours else original(*args, **kwargs)

    return make


def _tensor_npu(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """A copy on an NPU: the thread's current one, or ``device`` (an index, a name, a device)."""
    target = mindtorch_device("npu", device) if device is None or isinstance(device, int) else device
    return self.to(target, non_blocking=non_blocking, **kwargs)


def _module_npu(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Move the module to an NPU: the thread's current one, or ``device`` (an index, a name, a device)."""
    return self.to(mindtorch_device("npu", device) if device is None or isinstance(device, int) else device)


def _numbers_ours() -> bool:
    """Whether a bare integer means a device of ours: an NPU, or a recording one once torch's slot is claimed."""
    return mode.now.estimate is None and (npu.is_the_accelerator() or slot.claimed())


def _numbered(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments of ``.to(...)``, or by name alone, a bare integer among them as the device of ours that it means."""
    given = args[0] if args else kwargs.get("device")
    return npu_moves.numbered(args, kwargs) if type(given) is int and _numbers_ours() else (args, kwargs)


def _target(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The device that a ``.to(...)`` call names: ours, another one, or None."""
    first = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    if isinstance(first, (str, torch.device, mindtorch_device)):
        return first
    if isinstance(first, torch.Tensor):
        with torch._C.DisableTorchFunction():  # no call of the program's: function modes are not told
            return first.device
    found = accelerator_at(first) if isinstance(first, int) and not isinstance(first, bool) else None
    return kwargs.get("device") if found is None else found


def _below(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's own method. Torch finds what it hands to ``__torch_function__`` by name, and would find our hook.

    That goes for function modes, too (``with torch.device(...)``): they would call the hook with these arguments.
    """
    with torch._C.DisableTorchFunction():
        return original(*args, **kwargs)


def _ask(method: Any, original: Any, device: Any, self: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Let classes and modes of the program have their say first; `original` is torch's own `method`."""
    if isinstance(device, mindtorch_device) or type_of(device) in (tensors.DEVICE_TYPE, "npu"):  # it may not know
        return handle_torch_function(method, (self, *args, *kwargs.values()), self, *args, **kwargs)
    return original(self, *args, **kwargs)  # asks them, once it has read the arguments: it refuses wrong ones


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _numbered(args, kwargs)
    target = _target(args, kwargs)
    if classes.has_own_function(self, (*args, *kwargs.values())):
        return _ask(torch.Tensor.to, _torch_to, target, self, *args, **kwargs)
    if target is not None and isinstance(self, MetaTensor):
        return MetaTensor.to(self, *args, **kwargs)  # its class's own method, called as torch.Tensor's
    place = where(target)
    if place is not NPU and wrappers.crosses(self, target):
        device = tensors.torch_device(tensors.index_of(target)) if place is RECORDED else torch.device(str(target))
        if self.device == device:
            return _stay(self, target, args, kwargs)
        return wrappers.moved(self, device, *to_options(args, kwargs))
    recorded = _core.get_handle(self) is not None or (unwrapping.hides(self) and place.has_data)
    if recorded and target is None:
        return _stay(self, target, args, kwargs)
    return _MOVES[place](self, recorded, target, args, kwargs)


def _to_npu(self: torch.Tensor, recorded: bool, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return npu_moves.to(self, args, kwargs)


def _to_torchs(self: torch.Tensor, recorded: bool, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if not recorded or not isinstance(target, (str, int, torch.device, mindtorch_device)):  # torch refuses that
        return _torch_to(self, *args, **kwargs)
    device, options = torch.device(str(target)), to_options(args, kwargs)
    if _modes_on() and wrappers.shows(self, target):
        tensors.on_device()
        return wrappers.moved(self, device, *options)
    return tensors.to_plain(self, device, "to", *options)


def _to_meta(self: torch.Tensor, recorded: bool, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if recorded or not namespace.speaks():
        return _to_torchs(self, recorded, target, args, kwargs)
    dtype = to_options(args, kwargs)[0]
    return as_meta(self if dtype is None else _torch_to(self, dtype), place_of(target))


def _in_estimate(self: torch.Tensor, recorded: bool, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if recorded or target is None or torch._C._is_torch_function_all_disabled():
        return _to_torchs(self, recorded, target, args, kwargs)
    if self.layout in _COMPRESSED:  # stays torch's own, as what operations make of this kind
        return _torch_to(self, to_options(args, kwargs)[0] or self.dtype, copy=True)
    if unwrapping.wrapped(self) and place_of(target) == place_of(self.device):  # it is around one of ours
        return _below(_torch_to, self, to_options(args, kwargs)[0] or self.dtype)
    return as_meta(self, place_of(self.device)).to(*args, **kwargs)


def _to_recorded(self: torch.Tensor, recorded: bool, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    index = tensors.index_of(target)
    if index == unwrapping.index_inside(self):
        return _stay(self, target, args, kwargs)
    if predict.is_fake(self) and self.device == tensors.torch_device(index):  # a compiler's, and there already
        return _torch_to(self, *args, **kwargs)
    dtype, non_blocking, memory_format = to_options(args, kwargs)
    if _modes_on() and wrappers.shows(self, target):
        tensors.on_device()
        return wrappers.moved(self, tensors.torch_device(index), dtype, non_blocking, memory_format)
    if predict.stays_torchs_own(self):
        # As what operations make of this kind. A copy, as every move.
        return sparse.label(_torch_to(self, values.executor().device, dtype or self.dtype, copy=True), index)
    changes = dtype is not None or memory_format is not torch.preserve_format
    if recorded and device_copies.moves(self):
        self = _below(_torch_to, self, dtype=dtype, memory_format=memory_format) if changes else self
        return device_copies.copied(self, index)
    plain = tensors.to_plain(self, "cpu", "to") if recorded else self
    return tensors.from_plain(_torch_to(plain, dtype=dtype, memory_format=memory_format) if changes else plain, index)


#: What ``.to(...)`` does, by the place that is named.
_MOVES = {RECORDED: _to_recorded, ESTIMATED: _in_estimate, META: _to_meta, NPU: _to_npu, TORCHS: _to_torchs}


def _stay(self: torch.Tensor, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    # It is already there: what remains is dtype, copy, memory format. C++ knows it as a CPU tensor.
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].dtype, *args[1:])
    elif args and target is not None and args[0] is target:
        args = ("cpu", *args[1:])
    if "tensor" in kwargs:
        kwargs = {**kwargs, "dtype": kwargs["tensor"].dtype}
    return _below(_torch_to, self, *args, **{k: v for k, v in kwargs.items() if k not in ("device", "tensor")})


def _new_hook(name: str) -> Any:
    factory = getattr(torch, {"new_tensor": "tensor"}.get(name, name.removeprefix("new_")))

    def hook(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _, kwargs = _numbered((), kwargs)
        device = kwargs.get("device")
        if classes.has_own_function(self, (*args, *kwargs.values())):
            return _ask(getattr(torch.Tensor, name), original, device, self, *args, **kwargs)
        lazy = is_opaque(self)
        place = where(device)
        if device is not None and unwrapping.hides(self) and place is not RECORDED:
            like = torch.empty(0, dtype=self.dtype) if name == "new_tensor" else self.new_empty((0,))
            return original(like.to(device), *args, **kwargs)  # vmap maps what it makes, too
        if place is RECORDED and lazy and tensors.index_of(device) == _core.device_index(self):
            kwargs, device, place = {k: v for k, v in kwargs.items() if k != "device"}, None, TORCHS  # where it is
        named = place in (RECORDED, NPU) or (place is META and not lazy and namespace.speaks())
        pinned = kwargs.get("pin_memory") and not lazy and mode.now.estimate is None
        if named or (pinned and self.device.type == "cpu"):
            if kwargs.get("dtype") is None:
                kwargs["dtype"] = self.dtype
            if self.layout is not torch.strided and name != "new_tensor" and kwargs.get("layout") is None:
                kwargs["layout"] = self.layout
            if name not in ("new_tensor", "new_full", "new_empty_strided") and len(args) > 1:
                args = (args,)
            return _made_new(original, _hooks.original(factory), args, kwargs)
        if lazy and device is not None and not place.has_data:
            with predict.quiet():  # made where it is to be: what is moved there would have memory here, too
                like = torch.empty(0, dtype=self.dtype, device="meta")
            there = _core.hold(like, place_of(device, anywhere=True), None, True)
            return hook(original, there, *args, **{**kwargs, "device": None})
        if lazy and device is not None:
            return _below(original, torch.empty(0, dtype=self.dtype, device="cpu"), *args, **kwargs)
        if lazy and name == "new_tensor":
            given = {"dtype": self.dtype, **kwargs, "device": self.device}
            return _made_new(original, _hooks.original(factory), args, given)
        if not lazy:
            return original(self, *args, **kwargs)
        out = _below(original, self, *args, **kwargs)
        if kwargs.get("requires_grad"):
            handlers.may_have_history(out)  # set in C++, after the tensor was made
        return out

    return hook


def _made_new(original: Any, factory: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What a method such as ``new_zeros`` makes. Of a tensor, ``new_tensor`` warns in words of its own."""
    if factory.__name__ != "tensor" or not isinstance(args[0] if args else kwargs.get("data"), torch.Tensor):
        return create(factory, args, kwargs)
    creation.say_of_a_copy(lambda nothing: original(nothing, nothing))
    with Caught() as caught:
        made = create(factory, args, kwargs)
    say([found for found in caught.messages if "sourceTensor" not in str(found.message)])
    return made


@functools.wraps(_torch_module_to)
def _module_to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _numbered(args, kwargs)
    target = _target(args, kwargs)
    place = where(target)
    if place is ESTIMATED and args and type(args[0]) is int:
        args = (target, *args[1:])
    like = args[0] if args else kwargs.get("tensor")
    if place is ESTIMATED and isinstance(like, torch.Tensor):  # C++ reads where its data is
        args, kwargs = (target, like.dtype, *args[1:]), {k: v for k, v in kwargs.items() if k != "tensor"}
    sized = place is ESTIMATED and type_of(target) == "npu"
    if not (sized or place in (RECORDED, NPU)):
        return _torch_module_to(self, *args, **kwargs)
    dtype, non_blocking, memory_format = to_options(args, kwargs)
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}")
    device: Any = mindtorch_device(target)
    if place is NPU:
        device = mindtorch_device("npu", npu_moves.index_of(target))
    elif not sized:
        device = tensors.torch_device(tensors.index_of(target))
        if _function_modes():
            torch._C._nn._parse_to(device, dtype, non_blocking)  # which modes of the program see

    def convert(t: torch.Tensor) -> torch.Tensor:
        # As torch: the dtype is for floating-point tensors, the memory format for images and volumes.
        wanted = dtype if t.is_floating_point() or t.is_complex() else None
        if memory_format is not torch.preserve_format and t.dim() in (4, 5):
            return t.to(device, wanted, non_blocking, memory_format=memory_format)
        return t.to(device, wanted, non_blocking)

    return self._apply(convert)


@functools.wraps(_torch_packed_sequence_to)
def _packed_sequence_to(self: PackedSequence, *args: Any, **kwargs: Any) -> PackedSequence:
    args, kwargs = _numbered(args, kwargs)
    if where(_target(args, kwargs)) is not NPU:
        return _torch_packed_sequence_to(self, *args, **kwargs)
    data = self.data.to(*args, **kwargs)
    if data is self.data:
        return self
    # The batch sizes stay on the CPU.
    order = (None if t is None else t.to(data.device) for t in (self.sorted_indices, self.unsorted_indices))
    return type(self)(data, self.batch_sizes, *order)


def _of_triton(jit: Any) -> Iterator[Patch]:
    from .triton_kernels import refused  # few programs launch with it

    return refused(jit)


@functools.wraps(_torch_module_apply)
def _module_apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> Any:
    return uninitialized.apply(self, fn, recurse, _torch_module_apply)


def _device_context(self: Any, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
    # `with torch.device("remote_accelerator")`: the mode hands torch's own function the device, past the hooks.
    kwargs = kwargs or {}
    place = where(self.device)
    ours = place.ours or (place is META and namespace.speaks())
    if ours and func in _torch_device._device_constructors() and kwargs.get("device") is None:
        return create(_hooks.original(func), args, {**kwargs, "device": self.device})
    return _torch_context(self, func, types, args, kwargs)
