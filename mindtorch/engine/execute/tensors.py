"""LazyTensor: a torch.Tensor whose values are computed when somebody reads them.

The C++ side of a lazy tensor is a wrapper with device ``cpu`` and no data, so autograd, autocast and the C++ argument
checks work natively; ``.device`` is overridden on the class. The engine's handle sits in a slot (LazyTensor objects
that calls return) or beside the object (LazyParameter, which must have the object layout of ``torch.nn.Parameter`` so
that ``Module.to`` can keep a parameter's identity).

One file: the two classes, and what torch is told of them, are one answer to what a tensor is.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ..._ext import attributes as _attributes
from ..._ext import function_entries as _entries
from ..._ext import hooks as _hooks
from ..._ext import intercept as _intercept
from ..._ext import intern as _intern
from ..._ext import kept_wrappers as _wrappers
from ..._ext import keys as _keys
from ..._ext import lazy as _core
from ..._ext import shortcuts as _shortcuts
from ..._ext import view_chains as _view_chains
from ..._ext.guards import NoGrad, Unseen
from ...base import config, torch_facts
from ...base.torch_warnings import listen
from ...devices.lazy_device import BELOW, DEVICE_TYPE, device_at, index_of, torch_device  # noqa: F401
from ...devices.places import BY_TYPE, RECORDED, where
from ..record import eager, handlers, intercept, meta, predict, unwrapping
from ..tensor import classes, queues
from ..tensor.recorded import RecordedTensor, answered_by, formatted, show
from . import around_segments, values
from .mapped_files import note_file

_base = torch._C.TensorBase
_dispatch_modes = torch._C._len_torch_dispatch_stack


class LazyTensor(RecordedTensor):
    """A tensor on ``remote_accelerator``. Reads (``item``, ``cpu``, ``numpy``, ``print``, ``bool`` …) compute it."""

    @property
    def materialized(self) -> bool:
        """True once the value has been computed."""
        return not self._handle.pending

    @property
    def concrete_value(self) -> torch.Tensor | None:
        """The executor's tensor, None while pending. It may not be a copy: do not write to it."""
        value = _core.value(self._handle)
        if value is None:
            return None
        around_segments.lend([value], "concrete_value")
        return values.executor().fetch([value])[0]

    def materialize(self) -> torch.Tensor:
        """Compute the value now and return it as a plain tensor (the executor's own: do not write to it)."""
        return values.read([self], "materialize")[0]

    # ---- reads -------------------------------------------------------------------------------------------------------
    def item(self) -> Any:  # type: ignore[override]
        return values.read([self], "item")[0].item()

    def tolist(self) -> Any:
        return values.read([self], "tolist")[0].tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if self.requires_grad and torch.is_grad_enabled() and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self._handle is not None and _core.view_bits(self._handle) and not force:
            self.materialize().numpy()  # torch refuses conjugated and negated views, in its own words
        return _copy_out(self, "numpy").numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:  # type: ignore[override]
        if _dispatch_modes():
            return self.to("cpu", memory_format=memory_format)  # which they see
        return to_plain(self, "cpu", "cpu", memory_format=memory_format)

    def cuda(self, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return to_plain(self, "cuda" if device is None else device, "cuda")

    def __bool__(self) -> bool:
        return bool(values.read([self], "bool")[0])

    def __int__(self) -> int:
        return int(self._converted("int"))

    def __float__(self) -> float:
        return float(self._converted("float"))

    def _converted(self, reason: str) -> torch.Tensor:
        value = values.read([self], reason)[0]
        return value.detach().requires_grad_() if self.requires_grad else value  # of which torch warns

    def __complex__(self) -> complex:
        return complex(values.read([self], "complex")[0].item())

    def __index__(self) -> int:
        return values.read([self], "index")[0].__index__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return formatted(self, values.read([self], "print")[0])

    def __format__(self, spec: str) -> str:
        return format(self.detach().item(), spec) if self.dim() == 0 else object.__format__(repr(self), spec)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return _copy_out(self, "dlpack").__dlpack__(*args, **kwargs)

    def __dlpack_device__(self) -> Any:
        self.is_pinned()  # torch asks, too, and modes of the program see it
        with Unseen():
            return torch.empty(0).__dlpack_device__()

    def data_ptr(self) -> int:
        return values.executor().address(values.materialize([self], "data_ptr")[0])

    def untyped_storage(self) -> Any:
        values.materialize([self], "storage", [self])  # what reads it has read it, whatever becomes of the storage
        return self._lent(values.read([self], "storage", whole=True)[0].untyped_storage())

    def storage(self) -> Any:
        plain = values.read([self], "storage", whole=True)[0]
        storage = self._lent(plain.untyped_storage())
        if storage is not plain.untyped_storage():
            with Unseen(), NoGrad():
                plain = torch.empty(0, dtype=self.dtype, device="cpu").set_(storage)  # type: ignore[call-overload]
        return plain.storage()

    def _lent(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if values.executor().place.type == "meta":  # a copy, which is to say whom it is of
            from . import lent_storages

            start = self.data_ptr() - self.storage_offset() * self.element_size() if self.numel() else 0
            shared = values.executor().home(storage) != storage._cdata
            storage = lent_storages.lend(storage, values.materialize([self], "storage")[0].untyped_storage(), shared)
            storage.data_ptr = lambda: start  # type: ignore[method-assign]
        return handlers.lend_storage(self, storage)

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # torch hands this method to no __torch_function__
            given = handlers.set_sources(self, args, kwargs)
            return _base.set_(self, *args, **kwargs) if given is None else _base.set_(self, *given)

    def new(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Torch's old constructor: ``new()``, ``new(sizes)``, ``new(data)``, ``new(tensor)``."""
        device = kwargs.pop("device", self.device)
        if where(device) is not RECORDED:
            raise RuntimeError(
                f"legacy constructor expects device type: {DEVICE_TYPE} but device type: {device} was passed"
            )
        given = (*args, *kwargs.values())
        with Unseen():
            plain = torch.empty(0, dtype=self.dtype, device="cpu")  # whatever the default device is
        if len(given) == 1 and _core.get_handle(given[0]) is not None:
            plain.new(torch.empty(0, dtype=given[0].dtype, device="cpu"))  # refuses another dtype, in torch's words
            return given[0].detach()
        plain = plain.new(*args, **kwargs)
        with Unseen():
            return from_plain(plain, index_of(device))

    def _copied(self, memo: dict) -> Any:
        # Torch clones parameters, and copies the whole storage of other tensors.
        simple = isinstance(self, torch.nn.Parameter) or _core.is_alone(self._handle)
        return self.detach().clone() if simple else _copy_with_storage(self, memo)

    @queues.told_at_the_other_end
    def __reduce_ex__(self, protocol: Any) -> Any:
        # A saved lazy tensor loads as a plain one (SPEC L7).
        with Unseen():
            (value,) = values.read([self], "pickle", whole=True)  # what shares memory is saved as sharing it
            plain = classes.as_saved(self, value.detach() if value.device.type == "cpu" else value.cpu())
            if where("cuda") is RECORDED and plain.layout is torch.strided:
                setattr(plain.untyped_storage(), SAVED_FROM, f"cuda:{self.device.index}")
        return plain.__reduce_ex__(protocol)


#: An attribute of a storage that is being saved: what the program calls its device, where that is a name of torch's.
SAVED_FROM = "_mindtorch_saved_from"


class LazyParameter(LazyTensor, torch.nn.Parameter):
    """What ``Module.to("remote_accelerator")`` turns a module's parameter into, in place."""


_FastLazyTensor: Any = classes.family(LazyTensor, LazyParameter)

TYPES = (LazyTensor, _FastLazyTensor, LazyParameter)


# ---- whether there are any, and who wants to know --------------------------------------------------------------------
_tracking: Any = None
_tracked = False


def set_tracking(tracking: Any) -> None:
    """Hand in what attributes ops to modules: install() is called just before the first lazy tensor is made."""
    global _tracking
    _tracking = tracking


def in_use() -> None:
    """A lazy tensor is about to be made."""
    global _tracked
    if not _tracked:
        with values.lock:  # other threads wait
            if not _tracked:
                listen()
                _tracking.install()
                _tracked = True


_claim: Callable[[], Any] | None = None


def set_claim(claim: Callable[[], Any]) -> None:
    """Hand in what tells torch of the device: called once, just before the first tensor on it is made."""
    global _claim
    _claim = claim


def on_device() -> None:
    """A tensor on ``remote_accelerator`` is about to be made."""
    global _claim
    claim = _claim
    if claim is not None:
        claim()  # other threads wait in it
        _claim = None


def out_of_use() -> None:
    """Leave torch's modules alone again, until the next lazy tensor is made."""
    global _tracked
    if _tracked:
        _tracked = False
        _tracking.uninstall()


# ---- moves -----------------------------------------------------------------------------------------------------------
def _copy_out(t: LazyTensor, reason: str) -> torch.Tensor:
    """The value as a plain CPU tensor that shares nothing with the engine's."""
    value = values.read([t], reason)[0]
    with Unseen(), NoGrad():
        out = value.to("cpu")
        return out.clone() if out is value else out


def _copy_with_storage(t: LazyTensor, memo: dict) -> Any:
    """A copy of a tensor that shares its storage, or takes part of it: the whole storage is copied, once per memo."""
    value = values.materialize([t], "deepcopy")[0]
    key = ("mindtorch storage", value.untyped_storage()._cdata)
    index = _core.device_index(t)
    with torch._C.DisableTorchFunction():
        if key not in memo:
            memo[key] = _core.hold(values.executor().copied_storage(value), index, None, True)
        storage = _core.value(_core.get_handle(memo[key])).untyped_storage()
        made = value.new_empty(0).set_(storage, value.storage_offset(), value.shape, value.stride())
        return _core.hold(_core.set_view_bits(made, _core.view_bits(value)), index, memo[key], True)


class _ToPlain(torch.autograd.Function):
    """Differentiable read: lazy → plain; the gradient goes back as a lazy tensor."""

    @staticmethod
    def forward(t: Any, reason: str) -> torch.Tensor:
        return _copy_out(t, reason)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.set_materialize_grads(False)  # as torch's own moves: what is undefined stays that
        ctx.index, ctx.reason = unwrapping.index_inside(inputs[0]), inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if grad is None else from_plain(grad, ctx.index), None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, _reason: None) -> Any:  # type: ignore[override]
        return _ToPlain.apply(tangent, ctx.reason)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, t: Any, reason: str) -> Any:
        return _ToPlain.apply(t, reason), in_dims[0]


class _FromPlain(torch.autograd.Function):
    """Differentiable upload: plain → lazy; the gradient comes back as a plain tensor."""

    @staticmethod
    def forward(t: torch.Tensor, index: int) -> Any:
        return _upload(t, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.device, ctx.index = inputs[0].device, inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: LazyTensor | None) -> Any:  # type: ignore[override]
        if grad is not None and (_core.get_handle(grad) is not None or unwrapping.wrapped(grad)):
            return to_plain(grad, ctx.device, "backward"), None
        return None if grad is None else grad.to(ctx.device), None  # made by torch

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _index: None) -> Any:  # type: ignore[override]
        return _FromPlain.apply(tangent, ctx.index)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, t: torch.Tensor, index: int) -> Any:
        return _FromPlain.apply(t, index), in_dims[0]


def _upload(t: torch.Tensor, index: int) -> Any:
    in_use()
    on_device()
    predict.check_movable(t, DEVICE_TYPE)
    with predict.quiet():
        value = t.detach().to(values.executor().device, copy=True)
    if values.executor().place.type == "meta":
        note_file(value, t)
    return eager.held(value, index, torch.is_grad_enabled())


def _has_rules(t: torch.Tensor) -> bool:
    """May there be a gradient or a tangent, or is it what a transform made?"""
    return (t.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0 or unwrapping.wrapped(t)


def from_plain(t: torch.Tensor, index: int) -> Any:
    """A lazy tensor with a copy of plain tensor ``t``; differentiable."""
    if (below := unwrapping.below(t)) is not None:
        return below(lambda t: from_plain(t, index), t)
    made = _FromPlain.apply(t, index) if _has_rules(t) else _upload(t, index)
    return unwrapping.traced(made) if _dispatch_modes() else made


def to_plain(
    t: Any,
    device: Any,
    reason: str,
    dtype: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
) -> torch.Tensor:
    """A plain tensor on ``device`` with the value of lazy ``t``; differentiable."""
    if torch.device(device).type == "meta":
        out = meta.relocate(t, device)
        return out if dtype is None else out.to(dtype)
    if (below := unwrapping.below(t)) is not None:
        return below(lambda t: to_plain(t, device, reason, dtype, non_blocking, memory_format), t)
    if _has_rules(t):
        out = _ToPlain.apply(t, reason)
    else:
        out = _copy_out(t, reason)
    if torch.device(device).type == "cpu" and dtype is None and memory_format is torch.preserve_format:
        return out
    return out.to(device=device, dtype=dtype, non_blocking=non_blocking, memory_format=memory_format)


# ---- wiring ----------------------------------------------------------------------------------------------------------
_BINARY = {
    **{f"__{name}__": getattr(torch.Tensor, name) for name in "add sub mul matmul lt le gt ge eq ne".split()},
    "__truediv__": torch.Tensor.div,
    "__pow__": torch.Tensor.pow,
    "__and__": torch.Tensor.bitwise_and,
    "__or__": torch.Tensor.bitwise_or,
    "__xor__": torch.Tensor.bitwise_xor,
}
#: Methods that are recorded without the detour over `__torch_function__`.
_METHODS = (
    "add sub mul div mm bmm pow neg abs exp log sqrt rsqrt square relu sigmoid tanh sum mean softmax log_softmax"
).split()
#: Methods that come to the same each time, a view, a write or a copy where one is needed: see `_ext/shortcuts.pyx`.
_SHORT = (
    "to contiguous float double half bfloat16 long int bool view reshape t transpose permute unsqueeze squeeze expand "
    "flatten select narrow swapaxes movedim "
    "add_ sub_ mul_ div_ zero_ fill_ clamp_ addcmul_ addcdiv_ lerp_ sqrt_ neg_ exp_ pow_ masked_fill_"
).split()
_REFLECTED = {"__radd__": torch.Tensor.add, "__rmul__": torch.Tensor.mul}


def _install() -> None:
    dataless = meta._FastMetaTensor
    offset = _core.init(
        main_tape=values.tape,
        base=RecordedTensor,
        fast=_FastLazyTensor,
        dataless=dataless,
        slotted=classes.Slotted,
        dataless_places=BELOW,
        torch=torch,
        maker=_hooks.twin(torch.Tensor._make_wrapper_subclass),
    )  # type: ignore[attr-defined]
    _keys.init(RecordedTensor, _FastLazyTensor, dataless, offset, BY_TYPE, RECORDED, torch)
    torch_facts.read_state()
    _intercept.init(intercept, torch)
    _intercept.set_shorten(_entries.shorten)
    torch_facts.shorten_rules()
    _view_chains.init(torch)
    with Unseen():
        laid_out = torch_facts.tensors_laid_out()
    if laid_out and torch_facts.wrappers_tried():
        _wrappers.start(values.tape, _FastLazyTensor, dataless, offset)
        atexit.register(_wrappers.keep, False)
    elif not laid_out:
        torch_facts.lost["the layout of tensors"] = "each recorded tensor is a new object, which takes twice as long"
    _attributes.init(torch, DeviceContext, device_at, intercept.give_nodes)
    eager.set_runtime(values)
    for func, handler in handlers.table().items():
        name = getattr(func, "__name__", "?").partition(".")[0]
        copies, view = func is _base.type_as, name == "tensor_split"
        info = _intern.OpInfo(func, f"aten::{name}", _intern.HANDLER, handler=handler, copies=copies, view=view)
        _intercept.register(func, info)
    for name in show(LazyTensor):
        func = getattr(torch.Tensor, name)
        _intercept.register(func, _intern.OpInfo(func, f"torch::{name}", _intern.HANDLER, handler=answered_by(name)))
    for func, info in handlers.shape_only():
        _intercept.register(func, info)
    for name, func in _BINARY.items():
        setattr(RecordedTensor, name, _intercept.make_binary(func, getattr(torch.Tensor, name)))
    for name, func in _REFLECTED.items():
        # The scalar is on the left: x + t and t + x are the same call in torch, too.
        setattr(RecordedTensor, name, _intercept.make_binary(func, getattr(torch.Tensor, name)))
    for name in _METHODS:
        setattr(RecordedTensor, name, _entries.make_method(getattr(torch.Tensor, name)))
    wrapper = _hooks.twin(torch.Tensor._make_wrapper_subclass)(_FastLazyTensor, (2, 3))
    if laid_out and torch_facts.views_made(wrapper):
        _shortcuts.start_with(torch)
        for name in _SHORT:
            setattr(RecordedTensor, name, _entries.make_short(getattr(torch.Tensor, name)))
        _entries.shorten_subscript(_FastLazyTensor, torch.Tensor.__getitem__)
    RecordedTensor.__neg__ = _intercept.make_operator(torch.Tensor.neg, torch.Tensor.__neg__)  # type: ignore[method-assign]
    convert = meta.MetaTensor._as_dtype
    meta.MetaTensor._as_dtype = _intercept.make_operator(torch.Tensor.to, convert, whole=False)  # type: ignore[method-assign]
    RecordedTensor.__hash__ = torch.Tensor.__hash__  # type: ignore[method-assign]
    if config.log_intercepts():
        intercept.show_log()
        _intercept.set_logging(True)


_install()
