"""Ops that cannot wait: run now, on computed inputs, with results that are lazy tensors again (SPEC L8)."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from ... import ops
from ..._ext import lazy as _core
from ..._ext.signals import by_signal_handler
from ...base.config import log_intercepts, unsupported
from ...base.errors import UnsupportedOperationError
from ...devices import mode
from ...devices.lazy_device import DEVICE_TYPE
from ...ops.schema import data_dependent, has_out
from . import kernel_sizes
from .arguments import has_no_kernel
from .gradients import on_values
from .meta import as_meta, refuse
from .mixing import SPARSE, common_place, mixed_devices, no_ordinary_cpu_tensor, torchs_meta
from .predict import (
    collect,
    filled,
    infer,
    is_fake,
    knowing_views,
    lazy_in,
    meta_tensor,
    multiplies_inside,
    quiet,
    tensors_in,
)

log = logging.getLogger("mindtorch.intercept")
fallback_counts: dict[str, int] = {}
_counting = threading.Lock()
os.register_at_fork(before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_counting.release)
_META = torch.device("meta")
_runtime: Any = None  # mindtorch.engine.execute.values, which comes later (imports go one way)


def set_runtime(runtime: Any) -> None:
    """Install what materializes values for ops that run eagerly (called once)."""
    global _runtime
    _runtime = runtime


_label: Any = None


def executor() -> Any:
    """What has the values of lazy tensors."""
    return _runtime.executor()


def lists_are_apart() -> bool:
    """May tensors of one list be at several places? See `Executor.lists_apart`."""
    return _runtime.lists_are_apart()


def set_label(label: Any) -> None:
    """Install what lets sparse tensors know that they are on the device (called once, by mindtorch.patch.sparse)."""
    global _label
    _label = label


def labelled(t: torch.Tensor, place: int, given: dict[int, Any] | None = None) -> Any:
    """``t``, which is on the device ``place`` and torch's own; if it is sparse, it knows, and what it was made of."""
    return t if place < 0 else _label(t, place, given=given)


def held(t: torch.Tensor, place: int, no_grad: bool, root: Any = None) -> Any:
    """The tensor of ours on ``place`` that plain ``t`` becomes: where it has data, its memory is the executor's from
    now on. ``root``: the one of ours whose storage it shares.
    """
    return _core.hold(_runtime.executor().adopt([t], place)[0] if place >= 0 else t, place, root, no_grad)


def lift(info: Any, args: tuple, kwargs: dict | None) -> Any:
    """Turn plain CPU tensors among the arguments into lazy constants; None if there is nothing to turn.

    At the dispatch level such tensors come from C++ (scalars, indices it made) or were let through by the device
    check at the function level. Tensors the op writes stay as they are: the op must then run eagerly.
    """
    device = common_place(info, args, kwargs or {})
    new_args = tuple(_turned(a, i in info.writes, device) for i, a in enumerate(args))
    new_kwargs = None if kwargs is None else {k: _turned(a, k in info.writes, device) for k, a in kwargs.items()}
    same = all(map(operator.is_, new_args, args))
    if kwargs is not None and new_kwargs is not None:
        same = same and all(a is new_kwargs[k] for k, a in kwargs.items())
    return None if same else (new_args, new_kwargs)


def _turned(a: Any, write: bool, device: int) -> Any:
    """An argument with lazy constants for its plain CPU tensors; itself when there are none."""
    if isinstance(a, torch.Tensor):
        if (
            device < 0
            and not write
            and a.layout not in SPARSE
            and (_core.get_handle(a) is None or _core.device_index(a) != device)
        ):
            return as_meta(a, device)
        if _core.get_handle(a) is not None or write or type(a) not in (torch.Tensor, torch.nn.Parameter):
            return a
        if a.device.type != "cpu" or no_ordinary_cpu_tensor(a):
            return a
        with quiet():
            value = a.detach().clone().to(executor().device)
        if device >= 0:
            value = executor().adopt_operand(value, device)
        return _core.hold(value, device, None, not a.requires_grad and torch.is_grad_enabled())
    if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
        items = [_turned(item, write, device) for item in a]
        return a if all(map(operator.is_, items, a)) else type(a)(items)
    return a


def note_fallback(name: str) -> None:
    """Count a call that runs now because it cannot be recorded; the first of each op is logged.

    Not to a program that logs on its own account, unless asked: its log is the same as without us.
    """
    with _counting:
        calls = fallback_counts.get(name, 0)
        fallback_counts[name] = calls + 1
    if not calls:
        level = logging.INFO if log_intercepts() else logging.DEBUG
        log.log(level, "%s runs eagerly: it cannot be recorded", name)


def run_eagerly(info: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op now, on computed inputs; its results are lazy tensors again (SPEC L8)."""
    if (fake := next(filter(is_fake, tensors_in([*args, *kwargs.values()])), None)) is not None:
        return _in_fake_mode(fake.fake_mode, info, args, kwargs)
    if any(torchs_meta(t) or _core.device_index(t) < 0 for t in tensors_in([*args, *kwargs.values()])):
        mixed_devices(info, args, kwargs)
        args, kwargs = lift(info, args, kwargs) or (args, kwargs)
    if mode.now.estimate is not None:
        inputs = lazy_in([*args, *kwargs.values()])
        if inputs and _core.device_index(inputs[0]) < 0:
            return mode.now.estimate.run(info, args, kwargs, inputs, _run_eagerly)
    return _run_eagerly(info, args, kwargs)


def _in_fake_mode(fakes: Any, info: Any, args: tuple, kwargs: dict) -> Any:
    """The call in the mode of the tensors without data that it mixes with ours: ours become such tensors, too, where
    the mode takes what has data: a module's attribute, while the module is exported."""
    if not fakes.allow_non_fake_inputs:
        device = lazy_in([*args, *kwargs.values()])[0].device
        raise AssertionError(
            f"[{info.name}] Please convert all Tensors to FakeTensors first or instantiate FakeTensorMode with "
            f"'allow_non_fake_inputs': found one on {device} beside FakeTensors"
        )

    def faked(t: torch.Tensor) -> torch.Tensor:
        return t if _core.get_handle(t) is None else fakes.from_tensor(t, static_shapes=True)  # type: ignore[no-any-return]

    args, kwargs = tree_map_only(torch.Tensor, faked, (args, kwargs))
    return info.func(*args, **kwargs)


#: The program's generators on the device, by the C++ object: below Python another object may stand for it.
generators: weakref.WeakValueDictionary[int, torch.Generator] = weakref.WeakValueDictionary()


def check_generator(given: Any) -> None:
    """Raise torch's own error unless ``given`` may draw on the device: a generator of it, or None."""
    if isinstance(given, torch.Generator) and given._cdata not in generators:  # type: ignore[attr-defined]
        if mode.now.meets is not None and given.device.type == executor().device.type:
            return  # the program knows of one device, and its numbers are what it draws
        raise RuntimeError(f"Expected a '{DEVICE_TYPE}' device type for generator but found '{given.device.type}'")


def _run_eagerly(info: Any, args: tuple, kwargs: dict) -> Any:
    inputs, written = collect(info, args, kwargs)
    for t in tensors_in([*args, *kwargs.values()]):
        if getattr(type(t), "_settle", None) is not None:
            t._settle()  # type: ignore[attr-defined]
    index = _core.device_index(inputs[0]) if inputs else 0
    note_fallback(info.name)
    before = [t for t, w in zip(inputs, written, strict=True) if w]
    executor = None if index < 0 else _runtime.executor()
    device = _META if executor is None else executor.place
    values = _values_of(info, args, kwargs, inputs, before, index)
    with quiet(grad=True) as inside:
        if index >= 0 and not before and not torch.is_grad_enabled() and multiplies_inside(info.name):
            values = [
                v.detach().requires_grad_() if t.requires_grad else v for t, v in zip(inputs, values, strict=True)
            ]
            inside.also(knowing_views())
        is_op = isinstance(info.func, torch._ops.OpOverload)
        if is_op and (torch.Tag.inplace_view in info.func.tags or has_out(info.func)):
            for t in before:  # what else names or views the same value must keep its own sizes and strides
                _core.unshare(_core.get_handle(t))
            if index >= 0:
                values = [_core.value(_core.get_handle(t)) for t in inputs]
        if executor is not None:
            own = [v for v, w in zip(values, written, strict=True) if w]
            executor.gather(values, own, index if info.random else None)
        storages = {_storage_key(v): t for t, v in zip(inputs, values, strict=True)}
        cargs, ckwargs = filled(args, kwargs, values, device)
        failure: Exception | None = None
        try:
            if executor is None:
                out = info.call(*cargs, **ckwargs)
            else:
                out = executor.call(info, cargs, ckwargs, index if info.random else None)
        except Exception as error:  # noqa: BLE001 - raised below
            _check_failure(info, error, index < 0, not is_op or data_dependent(info.func))
            if isinstance(error, NotImplementedError) and has_no_kernel(error):
                return _zeros(info, args, kwargs, error)
            failure = error
    if before and not (torch.is_grad_enabled() and all(_core.needs_no_grad(_core.get_handle(t)) for t in inputs)):
        for t in before:
            _core.may_require_grad(_core.get_handle(t))
    # The wrappers are made in the program's own modes: in inference mode they are inference tensors, as in eager.
    wrapper = _Wrapper(inputs, values, index, device, (*args, *kwargs.values()))
    for t in before:
        wrapper.check_storage(t, storages)
        wrapper.check_metadata(t)  # a kernel resizes ``out=`` before it refuses the rest
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # it knows this frame, and this frame it: what both hold would wait for the collector
    if index >= 0 and ops.about(info.name).as_seen:
        kernel_sizes.saw(info, args, kwargs, out)
    if info.name == "aten::_pack_padded_sequence":
        sizes = out[1] if executor is None else executor.fetch([out[1]])[0]
        return wrapper.wrap(out[0]), sizes  # torch wants them on the CPU
    return wrapper.wrap(out)


def _values_of(
    info: Any, args: tuple, kwargs: dict, inputs: list[Any], before: list[Any], index: int
) -> list[torch.Tensor]:
    """What the op runs on: computed values, or torch's meta tensors where there are none. before: what it writes."""
    if index >= 0:
        if info.random:
            for a in (*args, *kwargs.values()):
                check_generator(a)
        return _runtime.materialize(inputs, info.name, before, index if info.random else None)  # type: ignore[no-any-return]
    named = {**dict(enumerate(args)), **kwargs}
    if not all(t.is_meta or _core.device_index(t) < 0 for t in tensors_in([named.get(w) for w in info.writes])):
        refuse(info.name)  # what has data cannot be written from here
    return [meta_tensor(_core.get_handle(t)) for t in inputs]


def _check_failure(info: Any, error: Exception, sized: bool, depends: bool) -> None:
    """Raise what says more than the op's own error. sized: without data; depends: its result's sizes do, on values."""
    if not isinstance(error, NotImplementedError):
        if sized and depends and not by_signal_handler(error):
            refuse(info.name)
    elif sized and not depends:
        text = str(error).splitlines()[0]
        raise UnsupportedOperationError(f"[{info.name}] torch cannot infer its result: {text}") from error
    elif sized:
        refuse(info.name)
    elif has_no_kernel(error) and unsupported() != "zeros":
        raise UnsupportedOperationError(f"[{info.name}] torch cannot run it on these inputs either: {error}") from error


def run_whole(info: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op that must not be taken apart, and could not be recorded whole; NotImplemented if torch may do it."""
    row = ops.row(info.name)
    if row is None or not _alone():
        return NotImplemented
    if not row.whole:
        return with_values_backward(info, args, kwargs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in lazy_in([*args, *kwargs.values()])):
        return NotImplemented  # torch itself takes the other way then, as it does for a tensor subclass
    if row.tag == "matmul" and kwargs.get("out") is None:
        return NotImplemented  # torch knows best how; only into out= it wants more of a wrapper than ours have
    return run_eagerly(info, args, kwargs)


def _alone() -> bool:
    """No mode, transform, tangent or autocast stands between the call and the kernel."""
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def with_values_backward(info: Any, args: tuple, kwargs: dict) -> Any:
    if not _alone() or "out" in kwargs or (info.writes == (0,) and args[0]._is_view()):
        return NotImplemented
    asked: Any = (args, *kwargs.values())
    if info.name.startswith("aten::masked_fill"):
        asked = (args[2:], kwargs.get("value"))  # only the gradient for the value has another formula
    elif ops.about(info.name).over_all and len(asked) + len(args) > 2:
        return NotImplemented  # only those over all elements have
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in lazy_in(asked)):
        return NotImplemented
    if any(_core.device_index(t) < 0 for t in lazy_in([*args, *kwargs.values()])):
        return NotImplemented  # without data there are no last bits that could differ

    def call() -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return info.func(*args, **kwargs)

    return on_values(call, _runtime, info.name)


def _zeros(info: Any, args: tuple, kwargs: dict, error: Exception) -> Any:
    spec = infer(info, args, kwargs, True, check=False)
    if spec is None:
        raise UnsupportedOperationError(f"[{info.name}] {error}; its result's shape is unknown too") from error
    log.warning("[%s] %s; returning zeros (GENIE_UNSUPPORTED=zeros)", info.name, error)
    device = _runtime.executor().device
    made = [held(torch.zeros(o[1], dtype=o[0], device=device), o[4], True) for o in spec[0]]
    return made[0] if spec[2] is None else tuple(made)


class _Wrapper:
    """Turns the results of an eager run into lazy tensors that share storage as the results do."""

    def __init__(
        self, inputs: list[torch.Tensor], values: list[torch.Tensor], place: int, device: torch.device, args: tuple
    ) -> None:
        self.place = place
        self.device = device
        self.values = {id(t): v for t, v in zip(inputs, values, strict=True)}
        self.same: dict[int, Any] = {id(a): a for a in args if isinstance(a, torch.Tensor)}  # plain out=, copy_ target
        self.same.update((id(v), t) for t, v in zip(inputs, values, strict=True))
        self.roots = {_storage_key(v): t for t, v in zip(inputs, values, strict=True)}

    def wrap(self, out: Any) -> Any:
        if isinstance(out, torch.Tensor):
            if id(out) in self.same:
                return self.same[id(out)]
            if out.device != self.device or out.layout is not torch.strided or out.is_nested or out.is_quantized:
                # Meta, another device, nested, quantized: stays torch's own. So does what is sparse, with its place.
                return labelled(out, self.place, self.roots)
            key = _storage_key(out)
            lazy = _core.hold(out, self.place, self.roots.get(key), False)
            self.roots.setdefault(key, lazy)
            return lazy
        if isinstance(out, (tuple, list)):
            items = [self.wrap(item) for item in out]
            return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
        return out

    def check_storage(self, t: torch.Tensor, before: dict[int, torch.Tensor]) -> None:
        """``set_`` gave ``t`` another storage: from now on it aliases whatever has that one."""
        handle = _core.get_handle(t)
        value = self.values[id(t)]
        root = before.get(_storage_key(value))
        if root is None or not _core.same_root(handle, _core.get_handle(root)):
            _core.rebind(handle, _core.get_handle(self._replace(t, value, root)))
            handle.no_grad = False  # to autograd it may still be a view of what it was

    def check_metadata(self, t: torch.Tensor) -> None:
        handle = _core.get_handle(t)
        value = self.values[id(t)]
        _dtype, size, stride, offset, _device = _core.meta_of(handle)
        same_bits = _core.view_bits(value) == _core.view_bits(handle)
        same_layout = (value.shape, value.storage_offset()) == (size, offset) and (
            _core.canonical(value.shape, value.stride()) == stride
        )
        if same_layout and same_bits:
            return
        _core.set_meta(handle, value)
        if not same_bits:
            torch._C._set_conj(t, value.is_conj())  # lu_solve leaves ``out=`` conjugated
            torch._C._set_neg(t, value.is_neg())
        if not same_layout:
            self._replace(t, value, t)

    def _replace(self, t: torch.Tensor, value: torch.Tensor, root: Any) -> Any:
        fresh = _core.hold(value, self.place, root, True)
        with torch._C.DisableTorchFunctionSubclass():
            torch._C.TensorBase.data.__set__(t, fresh)  # type: ignore[attr-defined]
        return fresh


def _storage_key(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout is torch.strided else id(t)
