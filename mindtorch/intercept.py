"""What the compiled interception asks Python: what an op is, what it gives, how to run it when it cannot wait.

The answers are asked for once per function (`describe`) or once per distinct call (`infer`); both are memoized by
the extension, so this file is off the hot path except for ops that run eagerly.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils import _python_dispatch

from . import ops
from ._ext import intern as _intern
from ._ext import lazy as _core
from ._ext import shapes as _shapes
from .config import unsupported
from .errors import UnsupportedOperationError

log = logging.getLogger("mindtorch.intercept")
SIG_WRITES, SIG_RANDOM, SIG_VIEW = 2, 4, 8
_CPU = torch.device("cpu")
# Composite functions that fill tensors or mutate state in ways their schema does not show, or whose replay would
# depend on state that is not part of the call.
_NEVER_WHOLE = frozenset({
    "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::batch_norm", "aten::instance_norm",
    "aten::fractional_max_pool2d", "aten::fractional_max_pool3d",  # draw inside
})
# What torch's meta kernels and decompositions raise for inputs they refuse or do not know.
_TORCH_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError)
_shapes.init(torch)
_RULES = frozenset(_shapes.names())
fallback_counts: dict[str, int] = {}
_runtime: Any = None  # set by mindtorch.tensor: materialize(tensors, reason, written), device(), rng()


def set_runtime(runtime: Any) -> None:
    """Install what materializes values for ops that run eagerly (called once, by mindtorch.tensor)."""
    global _runtime
    _runtime = runtime


# ---- describe --------------------------------------------------------------------------------------------------------
def describe(func: Any, dispatch: bool) -> Any:
    """The OpInfo of a function met for the first time."""
    if isinstance(func, torch._ops.OpOverload):
        return _describe_overload(func)
    name = _name(func)
    if not dispatch and name is not None and _can_record_whole(func, name):
        guard = _default_attention if name == "aten::scaled_dot_product_attention" else None
        return _intern.OpInfo(func, name, _intern.RECORD, handler=guard)
    kind = _intern.EAGER if dispatch else _intern.PASS
    plain_name = str(name or getattr(func, "__name__", "?"))
    in_place = plain_name.endswith("_") and not plain_name.endswith("__") and not plain_name.startswith("aten::_")
    return _intern.OpInfo(func, plain_name, kind, writes=(0,) if in_place and not dispatch else ())


def _default_attention() -> bool:
    # With other kernels chosen (torch.nn.attention.sdpa_kernel), torch itself must pick when the op is recorded.
    return torch._C._get_flash_sdp_enabled() and torch._C._get_math_sdp_enabled()


def _name(func: Any) -> str | None:
    try:
        return ops.op_name(func)
    except (TypeError, ValueError, LookupError):
        return None


def _can_record_whole(func: Any, name: str) -> bool:
    row = ops.row(name)
    if name in _NEVER_WHOLE:
        return False
    if row is not None and (row.writes or (row.eager and name not in _RULES)):
        return False
    if isinstance(func, types.FunctionType) and (
        row is None or func.__name__ not in row.python or func.__name__.startswith("embedding")  # max_norm writes
    ):
        return False
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        return False
    overloads = [getattr(packet, o) for o in packet.overloads()]
    pure = [o for o in overloads if not any(a.is_out for a in o._schema.arguments)]
    return bool(pure) and all(_is_pure(o) for o in pure)


def _is_pure(overload: Any) -> bool:
    """Fresh tensor outputs, no mutation, no random draw, shapes known without data."""
    schema = overload._schema
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return False
    if not schema.returns or not all("Tensor" in str(r.type) for r in schema.returns):
        return False
    return not (_data_dependent(overload) or torch.Tag.nondeterministic_seeded in overload.tags)


def _data_dependent(overload: Any) -> bool:
    return torch.Tag.dynamic_output_shape in overload.tags or torch.Tag.data_dependent_output in overload.tags


def _describe_overload(func: Any) -> Any:
    name = ops.op_name(func)
    row = ops.row(name)
    schema = func._schema
    writes: list[Any] = []
    for position, a in enumerate(schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            writes.append(a.name if a.kwarg_only else position)
    if row is not None:
        writes.extend(w for w in row.writes if w not in writes)
    kind = _intern.RECORD
    mispredicted = row is not None and row.eager and name not in _RULES
    no_kernel = not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
    if mispredicted or no_kernel or _data_dependent(func) or torch.Tag.inplace_view in func.tags:
        kind = _intern.EAGER
    view = not writes and any(r.alias_info is not None for r in schema.returns)
    random = torch.Tag.nondeterministic_seeded in func.tags
    return _intern.OpInfo(func, name, kind, call=func._op, random=random, writes=tuple(writes), view=view)


# ---- infer -----------------------------------------------------------------------------------------------------------
def infer(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None = None, check: bool = True) -> Any:
    """What the call returns: (outputs, alias, return template, written inputs, flags), or None if unknown.

    outputs: one (dtype, size, stride or None if contiguous, storage offset, device index) per fresh tensor.
    check: ask the kernel itself about small calls (see _probe).
    alias: per output the input (in order of appearance) whose storage it shares, -1 for none.
    """
    if info.name == "genie::manual_seed":
        return [], [], (3,), b"", SIG_RANDOM
    inputs: list[torch.Tensor] = []
    written = bytearray()
    for position, a in enumerate(args):
        _collect(a, position in info.writes, inputs, written)
    for key, a in kwargs.items():
        _collect(a, key in info.writes, inputs, written)
    if kwargs.get("generator") is not None:
        return None
    eager_row = (row := ops.row(info.name)) is not None and row.eager
    if device is None and (eager_row or not any(written)) and not info.random and not info.view:
        spec = _infer_by_rule(info, args, kwargs, inputs, written)
        if spec is not None:
            return spec if not check or _probe(info, args, kwargs, inputs, spec) else None
    if eager_row:
        return None  # torch's own prediction is known to be wrong
    with ExitStack() as stack:
        quiet(stack)
        metas = [_meta_tensor(_core.get_handle(t)) for t in inputs]
        before = [(m.shape, m.stride(), m.storage_offset()) for m in metas]
        holes = iter(metas)
        margs = tuple(_replace(a, holes) for a in args)
        mkwargs = {k: _replace(a, holes) for k, a in kwargs.items()}
        if device is not None:
            mkwargs["device"] = torch.device("meta")
        try:
            out = info.call(*margs, **mkwargs)
        except _TORCH_ERRORS as error:  # torch itself says what is wrong, at the eager run that follows
            log.debug("%s: no meta inference: %s", info.name, error)
            return None
        if any((m.shape, m.stride(), m.storage_offset()) != b for m, b in zip(metas, before, strict=True)):
            return None
        device_given = device is not None
        if device is None:
            device = _core.device_index(inputs[0]) if inputs else 0
        spec = _spec(info, out, metas, written, dispatch, device)
    if spec is None or info.view or device_given or not check:
        return spec
    return spec if _probe(info, args, kwargs, inputs, spec) else None


def _infer_by_rule(info: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor], written: bytearray) -> Any:
    """The result by the extension's own shape rules, if the op's family has one."""
    metas = [_shapes.Meta(tuple(m[1]), m[2] if m[2] is not None else _contiguous(m[1]), m[0]) for m in
             (_core.meta_of(_core.get_handle(t)) for t in inputs)]
    holes = iter(metas)
    margs = tuple(_replace(a, holes) for a in args)
    mkwargs = {k: _replace(a, holes) for k, a in kwargs.items()}
    result = _shapes.infer(info.name, margs, mkwargs)
    if result is None:
        return None
    device = _core.device_index(inputs[0]) if inputs else 0
    outs = [(dtype, torch.Size(shape), None if stride == _contiguous(shape) else stride, 0, device)
            for shape, stride, dtype in result]
    single = len(outs) == 1
    return outs, [-1] * len(outs), None if single else (1, *range(len(outs))), bytes(written), (
        SIG_WRITES if any(written) else 0)


_PROBE_ELEMENTS = 1 << 14


def _probe(info: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor], spec: Any) -> bool:
    """Would the kernel itself take this call, and give what was predicted? Asked once per distinct small call.

    Kernels refuse dtypes and arguments that meta functions let through, and a few lay their result out otherwise.
    Refused here means: run it eagerly, so that torch's own error comes at the call (SPEC L9).
    """
    handles = [_core.meta_of(_core.get_handle(t)) for t in inputs]
    if sum(m[1].numel() for m in handles) + sum(o[1].numel() for o in spec[0]) > _PROBE_ELEMENTS:
        return True
    error: Exception | None = None
    for integer in (0, 1):  # indices may have to be 0, divisors must not be
        with ExitStack() as stack:
            quiet(stack, grad=True)
            values = []
            for dtype, size, stride, _offset, _device in handles:
                value = torch.empty_strided(size, stride or _contiguous(size), dtype=dtype)
                values.append(value.fill_(integer if not (dtype.is_floating_point or dtype.is_complex) else 0.5))
            holes = iter(values)
            cargs = tuple(_concrete(a, holes) for a in args)
            ckwargs = {k: _concrete(a, holes) for k, a in kwargs.items()}
            state = torch.default_generator.get_state() if info.random else None
            try:
                out = info.call(*cargs, **ckwargs)
                return _as_predicted(out, spec)
            except torch.linalg.LinAlgError:
                return True  # about these values, not about the call
            except _TORCH_ERRORS as e:
                error = e
            finally:
                if state is not None:
                    torch.default_generator.set_state(state)
    log.debug("%s: the kernel refuses the call: %s", info.name, error)
    return False


def _as_predicted(out: Any, spec: Any) -> bool:
    items = out if isinstance(out, (tuple, list)) else (out,)
    ret = spec[2]
    for position, item in enumerate(items):
        code = 0 if ret is None else ret[position + 1] if position + 1 < len(ret) else None
        if code is None or code < 0 or not isinstance(item, torch.Tensor):
            continue
        dtype, size, _stride, offset, device = spec[0][code]
        if item.dtype is not dtype or item.shape != size:
            return False
        spec[0][code] = (dtype, size, _core.canonical(item.shape, item.stride()), offset, device)
    return True


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    stride, acc = [], 1
    for n in reversed(size):
        stride.append(acc)
        acc *= max(n, 1)
    return tuple(reversed(stride))


def _spec(info: Any, out: Any, metas: list[torch.Tensor], written: bytearray, dispatch: bool, device: int) -> Any:
    items = out if isinstance(out, (tuple, list)) else (out,)
    codes: list[int | None] = []
    outs: list[tuple] = []
    alias: list[int] = []
    storages = {m.untyped_storage()._cdata: i for i, m in reversed(list(enumerate(metas)))}
    for item in items:
        if item is None:
            codes.append(None)
            continue
        if not isinstance(item, torch.Tensor) or item.layout is not torch.strided or item.device.type != "meta":
            return None
        same = next((i for i, m in enumerate(metas) if m is item), None)
        if same is not None:
            codes.append(-1 - same)
            if not dispatch:
                return None
            continue
        shared = storages.get(item.untyped_storage()._cdata, -1)
        if shared >= 0 and not dispatch:
            return None  # a hidden view: torch's autograd must see it, so the dispatch level records it
        codes.append(len(outs))
        alias.append(shared)
        outs.append((item.dtype, item.shape, _core.canonical(item.shape, item.stride()), item.storage_offset(),
                     device))
    flags = SIG_WRITES if any(written) else 0
    if info.random:
        flags |= SIG_RANDOM
    if outs and not flags and all(a >= 0 for a in alias):
        flags |= SIG_VIEW
    if not flags & (SIG_WRITES | SIG_RANDOM) and not outs:
        return None  # nothing to remember: a query
    ret: tuple | None
    if out is None:
        ret = (3,)
    elif isinstance(out, (tuple, list)):
        ret = (1 if isinstance(out, tuple) else 2, *codes)
    else:
        ret = None if codes == [0] else (0, *codes)
    return outs, alias, ret, bytes(written), flags


def _collect(a: Any, write: bool, inputs: list, written: bytearray) -> None:
    for t in lazy_in(a):
        inputs.append(t)
        written.append(write)


def lazy_in(a: Any) -> Iterator[torch.Tensor]:
    """Lazy tensors in an argument, in the order in which the extension encodes them."""
    if isinstance(a, torch.Tensor):
        if _core.get_handle(a) is not None:
            yield a
    elif isinstance(a, (tuple, list)):
        for item in a:
            yield from lazy_in(item)


def _replace(a: Any, holes: Iterator[torch.Tensor]) -> Any:
    if isinstance(a, torch.Tensor):
        return next(holes) if _core.get_handle(a) is not None else a
    if isinstance(a, torch.Size):
        return a
    if isinstance(a, (tuple, list)):
        return type(a)(_replace(item, holes) for item in a)
    return torch.device("meta") if isinstance(a, torch.device) else a


def _meta_tensor(handle: Any) -> torch.Tensor:
    dtype, size, stride, offset, _device = _core.meta_of(handle)
    if stride is None and not offset:
        return torch.empty(size, dtype=dtype, device="meta")
    if stride is None:
        stride = torch.empty(size, device="meta").stride()
    length = 0 if 0 in size else offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return torch.empty(max(length, offset), dtype=dtype, device="meta").as_strided(size, stride, offset)


def quiet(stack: ExitStack, grad: bool = False) -> None:
    """Run torch code of our own: no modes of the user, no autocast, no functorch, normal tensors.

    ``grad``: leave torch's grad mode as it is (the inputs don't require grad, but some kernels look at the mode).
    """
    stack.enter_context(torch._C.DisableTorchFunction())
    if torch._C._len_torch_dispatch_stack():
        stack.enter_context(_python_dispatch._disable_current_modes())
    if torch._C._is_any_autocast_enabled():
        stack.enter_context(torch._C._DisableAutocast())
    if torch._C._functorch.peek_interpreter_stack() is not None:
        stack.enter_context(torch._C._DisableFuncTorch())
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    if not grad:
        stack.enter_context(torch.no_grad())


# ---- when it cannot be recorded --------------------------------------------------------------------------------------
def lift(info: Any, args: tuple, kwargs: dict | None) -> Any:
    """Turn plain CPU tensors among the arguments into lazy constants; None if there is nothing to turn.

    At the dispatch level such tensors come from C++ (scalars, indices it made) or were let through by the device
    check at the function level. Tensors the op writes stay as they are: the op must then run eagerly.
    """
    found = False
    device = 0
    for t in (*lazy_in(list(args)), *lazy_in(list((kwargs or {}).values()))):
        device = _core.device_index(t)
        break

    def turn(a: Any, write: bool) -> Any:
        nonlocal found
        if isinstance(a, torch.Tensor):
            if _core.get_handle(a) is not None or write or type(a) not in (torch.Tensor, torch.nn.Parameter):
                return a
            if a.device.type != "cpu" or a.layout is not torch.strided or a.is_nested:
                return a
            found = True
            with ExitStack() as stack:
                quiet(stack)
                value = a.detach().clone().to(_runtime.device())
            return _core.hold(value, device, None, not a.requires_grad and torch.is_grad_enabled())
        if isinstance(a, (tuple, list)) and not isinstance(a, torch.Size):
            return type(a)(turn(item, write) for item in a)
        return a

    new_args = tuple(turn(a, i in info.writes) for i, a in enumerate(args))
    new_kwargs = None if kwargs is None else {k: turn(a, k in info.writes) for k, a in kwargs.items()}
    return (new_args, new_kwargs) if found else None


def run_eagerly(info: Any, args: tuple, kwargs: dict) -> Any:
    """Run an op now, on computed inputs; its results are lazy tensors again (SPEC L8)."""
    inputs: list[torch.Tensor] = []
    written = bytearray()
    for position, a in enumerate(args):
        _collect(a, position in info.writes, inputs, written)
    for key, a in kwargs.items():
        _collect(a, key in info.writes, inputs, written)
    if info.name not in fallback_counts:
        log.info("%s runs eagerly: it cannot be recorded", info.name)
    fallback_counts[info.name] = fallback_counts.get(info.name, 0) + 1
    before = [t for t, w in zip(inputs, written, strict=True) if w]
    values = _runtime.materialize(inputs, info.name, before, random=info.random)
    with ExitStack() as stack:
        quiet(stack, grad=True)
        if info.random:
            stack.enter_context(_runtime.rng())
        if torch.Tag.inplace_view in getattr(info.func, "tags", ()):
            for t in before:  # another tensor naming the same value must keep its own sizes and strides
                _core.unshare(_core.get_handle(t))
            values = [_core.value(_core.get_handle(t)) for t in inputs]
        holes = iter(values)
        cargs = tuple(_concrete(a, holes) for a in args)
        ckwargs = {k: _concrete(a, holes) for k, a in kwargs.items()}
        try:
            out = info.call(*cargs, **ckwargs)
        except NotImplementedError as error:
            if unsupported() == "zeros":
                return _zeros(info, args, kwargs, error)
            raise UnsupportedOperationError(f"[{info.name}] torch cannot run it on these inputs either: {error}") \
                from error
    # The wrappers are made in the program's own modes: in inference mode they are inference tensors, as in eager.
    wrapper = _Wrapper(inputs, values, _core.device_index(inputs[0]) if inputs else 0, (*args, *kwargs.values()))
    for t in before:
        wrapper.check_metadata(info, t)
    if info.name == "aten::_pack_padded_sequence":
        return wrapper.wrap(out[0]), out[1]  # torch wants the batch sizes on the CPU
    return wrapper.wrap(out)


def _zeros(info: Any, args: tuple, kwargs: dict, error: Exception) -> Any:
    spec = infer(info, args, kwargs, True, check=False)
    if spec is None:
        raise UnsupportedOperationError(f"[{info.name}] {error}; its result's shape is unknown too") from error
    log.warning("[%s] %s; returning zeros (GENIE_UNSUPPORTED=zeros)", info.name, error)
    made = [_core.hold(torch.zeros(o[1], dtype=o[0], device=_runtime.device()), o[4], None, True) for o in spec[0]]
    return made[0] if spec[2] is None else tuple(made)


def _concrete(a: Any, holes: Iterator[torch.Tensor]) -> Any:
    if isinstance(a, torch.Tensor):
        return next(holes) if _core.get_handle(a) is not None else a
    if isinstance(a, torch.Size):
        return a
    if isinstance(a, (tuple, list)):
        return type(a)(_concrete(item, holes) for item in a)
    if isinstance(a, torch.device) and same_device(a):
        return _runtime.device()
    return a


class _Wrapper:
    """Turns the results of an eager run into lazy tensors that share storage as the results do."""

    def __init__(self, inputs: list[torch.Tensor], values: list[torch.Tensor], device: int, args: tuple) -> None:
        self.device = device
        self.same: dict[int, Any] = {id(a): a for a in args if isinstance(a, torch.Tensor)}  # plain out=, copy_ target
        self.same.update((id(v), t) for t, v in zip(inputs, values, strict=True))
        self.roots = {_storage_key(v): t for t, v in zip(inputs, values, strict=True)}

    def wrap(self, out: Any) -> Any:
        if isinstance(out, torch.Tensor):
            if id(out) in self.same:
                return self.same[id(out)]
            if out.device != _runtime.device() or out.layout is not torch.strided or out.is_nested:
                return out  # meta, another device, sparse, nested: stays torch's own
            key = _storage_key(out)
            lazy = _core.hold(out, self.device, self.roots.get(key), False)
            self.roots.setdefault(key, lazy)
            return lazy
        if isinstance(out, (tuple, list)):
            items = [self.wrap(item) for item in out]
            return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
        return out

    def check_metadata(self, info: Any, t: torch.Tensor) -> None:
        handle = _core.get_handle(t)
        value = _core.value(handle)
        _dtype, size, stride, offset, _device = _core.meta_of(handle)
        if (value.shape, value.storage_offset()) == (size, offset) and (
            _core.canonical(value.shape, value.stride()) == stride
        ):
            return
        _core.set_meta(handle, value)
        if value.numel() <= size.numel() and torch.Tag.inplace_view in info.func.tags:
            with torch._C._DisableTorchDispatch():  # sizes and strides of the C++ side; autograd knows the view op
                torch.ops.aten.as_strided_.default(t, value.shape, value.stride(), value.storage_offset())
        else:
            # Not within the storage that C++ believes in: give it another one.
            fresh = _core.hold(value, self.device, t, True)
            with torch._C.DisableTorchFunctionSubclass():
                torch._C.TensorBase.data.__set__(t, fresh)  # type: ignore[attr-defined]


def _storage_key(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout is torch.strided else id(t)


# ---- small callbacks -------------------------------------------------------------------------------------------------
def same_device(device: torch.device) -> bool:
    """Below Python a lazy tensor's device reads as ``cpu``; ours by name means the same."""
    return device.type in ("cpu", "remote_accelerator")


# Functions that take tensors of two devices on purpose; lengths and batch sizes belong on the CPU in torch.
_CROSS_DEVICE = frozenset({
    "copy_", "set_", "requires_grad_", "retain_grad_", "to", "type_as", "__getitem__", "__setitem__", "set_data",
    "index", "index_put", "index_put_", "data",
    "grad", "_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru", "rnn_tanh", "rnn_relu", "ctc_loss",
    "tensor_split",
})


def mixed_devices(info: Any, args: tuple, kwargs: dict | None) -> None:
    """Refuse operands on different devices as torch does: 0-dim CPU tensors join anything (SPEC D4)."""
    if info.name.removeprefix("aten::") in _CROSS_DEVICE:
        return
    first = ""
    for a in (*args, *(kwargs or {}).values()):
        for t in a if isinstance(a, (tuple, list)) else (a,):
            if not isinstance(t, torch.Tensor):
                continue
            handle = _core.get_handle(t)
            if handle is None and (t.dim() == 0 or _no_ordinary_cpu_tensor(t)):
                continue
            here = f"remote_accelerator:{_core.device_index(t)}" if handle is not None else str(t.device)
            if not first:
                first = here
            elif here != first:
                raise RuntimeError(
                    f"[{info.name}] Expected all tensors to be on the same device, but found at least two devices, "
                    f"{first} and {here}!"
                )


def _no_ordinary_cpu_tensor(t: torch.Tensor) -> bool:
    # Sparse and nested results of eager runs stay torch's own; functorch's wrappers may have a lazy tensor inside.
    return t.is_nested or t.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(t)


def show_log() -> None:
    """Make the log visible also in a program that does not set up logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def on_record(name: str, args: tuple) -> None:
    """GENIE_LOG_INTERCEPTS=1: one line per captured op."""
    log.info("captured %s", name)
