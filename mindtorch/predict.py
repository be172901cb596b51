"""What a call will give: sizes, dtype, strides and aliasing of its results, before it runs.

Asked once per distinct call. The extension's own shape rules first, torch's meta kernels next; small calls are also
tried on the kernel itself, which refuses some things that meta functions let through.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _python_dispatch

from . import ops
from ._ext import guards as _guards
from ._ext import lazy as _core
from ._ext import shapes as _shapes
from ._ext.signals import by_signal_handler
from .errors import UnsupportedOperationError
from .lazy_device import device_at
from .ops import conv_layout

log = logging.getLogger("mindtorch.predict")
SIG_WRITES, SIG_RANDOM, SIG_VIEW, SIG_SMALL, SIG_BLIND, SIG_FOLDS = 2, 4, 8, 64, 128, 128  # as in _ext/structs.pxd
_CPU = torch.device("cpu")
# What torch's meta kernels and decompositions raise for inputs they refuse or do not know.
_TORCH_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError)
_shapes.init(torch)
RULES = frozenset(_shapes.names())


# ---- infer -----------------------------------------------------------------------------------------------------------
def infer(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None = None, check: bool = True) -> Any:
    """What the call returns (see _infer); of calls without data also whether an estimate wants to know its values."""
    spec = _infer_once(info, args, kwargs, dispatch, device, check)
    if spec is None or info.name == "genie::manual_seed":
        return spec
    inputs = [_core.meta_of(_core.get_handle(t)) for t in lazy_in([*args, *kwargs.values()])]
    if (device if device is not None else inputs[0][4] if inputs else 0) >= 0:
        return (*spec[:4], spec[4] | SIG_FOLDS) if info.name in _PRODUCTS and _folds(*inputs[:2]) else spec
    return (*spec[:4], spec[4] | _worth_knowing(info.name, info.random, spec, inputs))


_PRODUCTS = frozenset({"aten::matmul", "aten::linear", "aten::linalg_matmul"})


def _folds(a: tuple, b: tuple) -> bool:
    """Does torch's choice between one large product and a batch of small ones depend on whether the small operand
    requires grad? It does with grad mode off, too: ``should_fold`` in ATen/native/LinearAlgebra.cpp."""
    if len(a[1]) == len(b[1]) == 3:
        return bool((a[1][0] == 1) != (b[1][0] == 1))  # a batch of one is taken for a matrix then
    return max(len(a[1]), len(b[1])) >= 3 > min(len(a[1]), len(b[1])) and not (len(a[1]) >= 3 and a[2] is None)


#: Elements up to which integers and booleans without data are computed after all, in estimates: masks, positions and
#: ids of a batch (32 x 2,048), half a megabyte at most.
MOST_KNOWN = 1 << 16
#: The same for floats that come from constants alone (linspace, rates): far fewer are ever read by a program.
MOST_KNOWN_FLOATS = 1 << 12
#: Calls that do not look at the content of their first input.
BLIND = frozenset(f"aten::{name}" for name in (
    "empty_like", "zeros_like", "ones_like", "full_like", "randint_like", "new_empty", "new_empty_strided",
    "new_zeros", "new_ones", "new_full", "zero_", "fill_", "copy_", "random_",
))
#: Calls whose result may follow from one of their inputs alone: what the elements of that one all have to be.
ABSORBING = {
    **dict.fromkeys(("aten::__and__", "aten::bitwise_and", "aten::logical_and"), False),
    **dict.fromkeys(("aten::__or__", "aten::bitwise_or", "aten::logical_or"), True),
}


def _worth_knowing(name: str, random: bool, spec: Any, inputs: list[tuple]) -> int:
    """SIG_SMALL if what the call makes and writes is little enough to be computed once all inputs are known."""
    outs, alias, _ret, written, flags = spec
    made = [o for o, a in zip(outs, alias, strict=True) if a < 0]
    made += [m for m, w in zip(inputs, written, strict=True) if w]
    blind = name in BLIND
    if flags & SIG_VIEW or not made or not all(little(m[0], m[1].numel(), random) for m in made):
        return 0
    if any(m[1].numel() > MOST_KNOWN for m in inputs[blind:]):
        return 0  # a small storage, expanded
    return SIG_SMALL | (SIG_BLIND if blind or (name in ABSORBING and len(inputs) > 1) else 0)


def little(dtype: torch.dtype, numel: int, random: bool = False) -> bool:
    """May an estimate keep the values of such a tensor? Of random draws, only integers."""
    if dtype.is_complex or dtype not in _COMPUTED:
        return False
    return numel <= MOST_KNOWN_FLOATS and not random if dtype.is_floating_point else numel <= MOST_KNOWN


_COMPUTED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
})


def _infer_once(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None, check: bool) -> Any:
    """_infer. What is the same for every float among the arguments is found out once."""
    if device is not None or not check or info.random or not (info.pointwise or info.bumps):
        return _infer(info, args, kwargs, dispatch, device, check)
    shown: list[Any] = []
    if not _without_floats((args, tuple(kwargs.items())), shown):
        return _infer(info, args, kwargs, dispatch, device, check)
    key = (info, dispatch, torch.is_grad_enabled(), *shown)
    found = _same_but_floats.get(key)
    if found is None:
        found = _infer(info, args, kwargs, dispatch, device, check)
        if found is not None:
            if len(_same_but_floats) >= _MOST_REMEMBERED:
                _same_but_floats.clear()
            _same_but_floats[key] = found
    return found


_same_but_floats: dict[tuple, Any] = {}
_MOST_REMEMBERED = 4096


def forget() -> None:
    """Predict afresh from now on (something that results depend on has changed)."""
    _same_but_floats.clear()


def _without_floats(a: Any, shown: list[Any]) -> bool:
    """Append what the argument is, but for the values of floats in it; True when there is one."""
    if isinstance(a, torch.Tensor):
        handle = _core.get_handle(a)
        shown.append(object() if handle is None else (*_core.meta_of(handle), _core.view_bits(handle)))
    elif type(a) is float:
        shown.append(float)
        return True
    elif isinstance(a, (tuple, list)):
        shown.append((type(a), len(a)))
        return sum(_without_floats(item, shown) for item in a) > 0  # all of them, not only up to the first
    else:
        shown.append((type(a), a))  # 1, 1.0 and True are equal
    return False


def _infer(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None, check: bool) -> Any:
    """What the call returns: (outputs, alias, return template, written inputs, flags), or None if unknown.

    outputs: one (dtype, size, stride or None if contiguous, storage offset, device index[, bits]) per fresh tensor.
    check: ask the kernel itself about small calls (see _probe).
    alias: per output the input (in order of appearance) whose storage it shares, -1 for none.
    """
    if info.name == "genie::manual_seed":
        return [], [], (3,), b"", SIG_RANDOM
    inputs: list[torch.Tensor] = []
    written = bytearray()
    for position, a in enumerate(args):
        collect(a, position in info.writes, inputs, written)
    for key, a in kwargs.items():
        collect(a, key in info.writes, inputs, written)
    if kwargs.get("generator") is not None:
        return None
    place = device if device is not None else _core.device_index(inputs[0]) if inputs else 0
    if place < 0:
        check = False  # no kernel will run
        if info.name == "aten::index" and any(_core.meta_of(_core.get_handle(t))[0] is torch.bool for t in inputs[1:]):
            return None  # as many as are true
    eager_row = place >= 0 and (row := ops.row(info.name)) is not None and row.eager
    if device is None and (eager_row or not any(written)) and not info.random and not info.view:
        spec = _infer_by_rule(info, args, kwargs, inputs, written, dispatch)
        if spec is not None:
            return spec if not check or _probe(info, args, kwargs, inputs, spec) else None
    if eager_row:
        return None  # torch's own prediction is known to be wrong
    with quiet():
        metas = [meta_tensor(_core.get_handle(t)) for t in inputs]
        before = [(m.shape, m.stride(), m.storage_offset()) for m in metas]
        holes = iter(metas)
        margs = tuple(_replace(a, holes) for a in args)
        mkwargs = {k: _replace(a, holes) for k, a in kwargs.items()}
        if device is not None:
            mkwargs["device"] = torch.device("meta")
        try:
            out = info.call(*margs, **mkwargs)
        except _TORCH_ERRORS as error:  # torch itself says what is wrong, at the eager run that follows
            if by_signal_handler(error):
                raise
            log.debug("%s: no meta inference: %s", info.name, error)
            return None
        if any((m.shape, m.stride(), m.storage_offset()) != b for m, b in zip(metas, before, strict=True)):
            return None
        if place >= 0:
            out = _asked_for(info, out, args)
        if info.name.startswith("aten::conv") and device_at(place).type != "meta":
            out = conv_layout.laid_out(info.name, out, margs, mkwargs)
        spec = _spec(info, out, metas, written, dispatch, place)
    if spec is None or info.view or not check or (device is not None and not info.random):
        if info.name == "aten::as_strided" and extent(*spec[0][0][1:4]) > extent(
            *_core.meta_of(_core.get_handle(inputs[0]))[1:4]):
            return None  # whether the storage goes on there is not known here
        return spec
    return spec if _probe(info, args, kwargs, inputs, spec) else None


def _asked_for(info: Any, out: Any, args: tuple) -> Any:
    """A backward op's results without those that its ``output_mask`` leaves out: kernels do not make them.

    Torch's meta kernel of batch norm does.
    """
    if not isinstance(out, tuple) or not isinstance(info.func, torch._ops.OpOverload):
        return out
    names = [a.name for a in info.func._schema.arguments]
    at = names.index("output_mask") if "output_mask" in names else len(args)
    return tuple(o if wanted else None for o, wanted in zip(out, args[at], strict=True)) if at < len(args) else out


def _infer_by_rule(info: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor], written: bytearray,
                   dispatch: bool) -> Any:
    """The result by the extension's own shape rules, if the op's family has one."""
    if any(_core.view_bits(_core.get_handle(t)) for t in inputs):
        return None  # torch resolves lazy conjugation and negation first, into copies laid out otherwise
    metas = [_shapes.Meta(tuple(m[1]), m[2] if m[2] is not None else contiguous(m[1]), m[0]) for m in
             (_core.meta_of(_core.get_handle(t)) for t in inputs)]
    holes = iter(metas)
    margs = tuple(_replace(a, holes) for a in args)
    mkwargs = {k: _replace(a, holes) for k, a in kwargs.items()}
    result = _shapes.infer(info.name, margs, mkwargs)
    if result is None:
        return None
    device = _core.device_index(inputs[0]) if inputs else 0
    outs = [(dtype, torch.Size(shape), None if stride == contiguous(shape) else stride, 0, device)
            for shape, stride, dtype in result]
    single = len(outs) == 1
    kind = 1 if dispatch else getattr(torch.return_types, getattr(info.func, "__name__", ""), 1)
    return outs, [-1] * len(outs), None if single else (kind, *range(len(outs))), bytes(written), (
        SIG_WRITES if any(written) else 0)


_PROBE_ELEMENTS = 1 << 14  # up to this size every distinct call is tried
_MOST_ELEMENTS = 1 << 18  # … and those of ops marked `probe`; larger ones run at once rather than twice


def _probe(info: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor], spec: Any) -> bool:
    """Would the kernel itself take this call, and give what was predicted? Asked once per distinct small call.

    Kernels refuse dtypes and arguments that meta functions let through, and a few lay their result out otherwise.
    Refused here means: run it eagerly, so that torch's own error comes at the call (SPEC L9).
    """
    asked = (row := ops.row(info.name)) is not None and row.probe
    metas = [_core.meta_of(_core.get_handle(t)) for t in inputs]
    if info.name == "aten::index":
        asked = not all(_descending(m) for m in metas)  # else torch's prediction of its strides is the kernel's
    elements = sum(m[1].numel() for m in metas) + sum(o[1].numel() for o in spec[0])
    if elements > (_MOST_ELEMENTS if asked else _PROBE_ELEMENTS):
        return not asked
    error: Exception | None = None
    for integer in (0, 1):  # indices may have to be 0, divisors must not be
        with quiet(grad=True):
            values = []
            for t, (dtype, size, stride, _offset, _device) in zip(inputs, metas, strict=True):
                value = torch.empty_strided(size, stride or contiguous(size), dtype=dtype)
                value.fill_(integer if not (dtype.is_floating_point or dtype.is_complex) else 0.5)
                values.append(_core.set_view_bits(value, _core.view_bits(_core.get_handle(t))))
            holes = iter(values)
            cargs = tuple(concrete(a, holes, _CPU) for a in args)
            ckwargs = {k: concrete(a, holes, _CPU) for k, a in kwargs.items()}
            state = torch.default_generator.get_state() if info.random else None
            before = [(v.shape, v.stride(), v.is_conj()) for v in values]
            try:
                out = info.call(*cargs, **ckwargs)
                after = [(v.shape, v.stride(), v.is_conj()) for v in values]  # out= may be resized, or conjugated
                return _as_predicted(out, spec, asked) and after == before
            except torch.linalg.LinAlgError:
                return not asked  # about these values, not about the call
            except _TORCH_ERRORS as e:
                if by_signal_handler(e):
                    raise
                error = e
            finally:
                if state is not None:
                    torch.default_generator.set_state(state)
    log.debug("%s: the kernel refuses the call: %s", info.name, error)
    return False


def _as_predicted(out: Any, spec: Any, asked: bool) -> bool:
    """Has the kernel's result the predicted sizes (`asked`: or any)? Its strides replace the predicted ones."""
    items = out if isinstance(out, (tuple, list)) else (out,)
    ret = spec[2]
    for position, item in enumerate(items):
        code = 0 if ret is None else ret[position + 1] if position + 1 < len(ret) else None
        if code is None or code < 0:
            continue
        dtype, size, _stride, offset, device, *_bits = spec[0][code]
        if not isinstance(item, torch.Tensor) or item.dtype is not dtype or (item.shape != size and not asked):
            return False
        spec[0][code] = (dtype, item.shape, _core.canonical(item.shape, item.stride()), offset, device,
                         _core.view_bits(item))
    return True


def _descending(meta: tuple) -> bool:
    """Do the strides of a tensor that is not empty never grow from one dimension to the next?"""
    stride = meta[2] or ()
    return 0 not in meta[1] and all(a >= b for a, b in itertools.pairwise(stride))


def extent(size: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> int:
    """How many elements of its storage such a tensor reaches; stride None: contiguous."""
    if 0 in size:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride or contiguous(size), strict=True))


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor of this size."""
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
                     device, _core.view_bits(item)))
    flags = SIG_WRITES if any(written) else 0
    if info.random and device >= 0:
        flags |= SIG_RANDOM
    if outs and not flags and all(a >= 0 for a in alias):
        flags |= SIG_VIEW
    if not flags & SIG_WRITES and not info.random and not outs:
        return None  # nothing to remember: a query
    ret: tuple | None
    if out is None:
        ret = (3,)
    elif isinstance(out, (tuple, list)):
        named = isinstance(out, tuple) and type(out) is not tuple and not dispatch  # torch.return_types.max …
        ret = (type(out) if named else 1 if isinstance(out, tuple) else 2, *codes)
    else:
        ret = None if codes == [0] else (0, *codes)
    return outs, alias, ret, bytes(written), flags


def collect(a: Any, write: bool, inputs: list, written: bytearray) -> None:
    for t in lazy_in(a):
        inputs.append(t)
        written.append(write)


def lazy_in(a: Any) -> Iterator[torch.Tensor]:
    """Lazy tensors in an argument, in the order in which the extension encodes them."""
    return (t for t in tensors_in(a) if _core.get_handle(t) is not None)


def tensors_in(a: Any) -> Iterator[torch.Tensor]:
    """Tensors in an argument, in that order."""
    if isinstance(a, torch.Tensor):
        yield a
    elif isinstance(a, (tuple, list)):
        for item in a:
            yield from tensors_in(item)


def _replace(a: Any, holes: Iterator[torch.Tensor]) -> Any:
    if isinstance(a, torch.Tensor):
        return next(holes) if _core.get_handle(a) is not None else a
    if isinstance(a, torch.Size):
        return a
    if isinstance(a, (tuple, list)):
        return type(a)(_replace(item, holes) for item in a)
    return torch.device("meta") if isinstance(a, torch.device) else a


def meta_tensor(handle: Any) -> torch.Tensor:
    """Torch's own meta tensor that looks like the tensor of ours with this handle."""
    return meta_like(_core.meta_of(handle), _core.view_bits(handle))


def meta_like(facts: tuple[Any, ...], bits: int = 0) -> torch.Tensor:
    """Torch's own meta tensor of which these are the facts: (dtype, size, stride or None, offset, place)."""
    dtype, size, stride, offset, _place = facts
    with torch._C.DisableTorchFunction():  # in an estimate, torch.empty makes ours
        if stride is None and not offset:
            made = torch.empty(size, dtype=dtype, device="meta")
        else:
            length = max(extent(size, stride, offset), offset)
            made = torch.empty(length, dtype=dtype, device="meta").as_strided(size, stride or contiguous(size), offset)
    return _core.set_view_bits(made, bits) if bits else made


def wrapped(t: torch.Tensor) -> bool:
    """True for the tensors of a torch.func transform or of torch's older vmap: what they stand for is inside."""
    return torch._C._functorch.is_functorch_wrapped_tensor(t) or torch._C._dispatch_keys(t).has(_BATCHED)


_BATCHED = torch._C._parse_dispatch_key("Batched")


def taken_apart(name: str, row: Any) -> bool:
    """Is this composite op, which inference mode hands down whole, to be taken apart? What torch makes of others (an
    LSTM) depends on what kind of tensors it is handed."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    apart = row is not None and row.tag in ("view", "data movement", "matmul")
    return apart and has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


def decompose(func: Any, args: tuple, kwargs: dict) -> Any:
    """What torch's C++ code makes of a composite op; ``func.decompose`` has Python formulas with other last bits."""
    made_above = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView")
    with torch._C.DisableTorchFunctionSubclass(), nullcontext() if made_above else knowing_views():
        return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def multiplies_inside(name: str) -> bool:
    """Is this op made of products with its weights, which torch takes another way where those require grad?"""
    return (row := ops.row(name)) is not None and row.tag == "rnn"


def knowing_views() -> Any:
    """Inside ``__torch_dispatch__``, as outside: what is made in the block as a view is known to be one, and requires
    grad where its base does."""
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def check_movable(t: torch.Tensor, kind: str) -> None:
    """Raise unless ``t`` has data that can be copied to a device of type ``kind``."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(t, fake.FakeTensor):
        # While a function is compiled: torch.compile then ends its graph here, and runs the call when its time comes.
        raise fake.UnsupportedOperatorException(torch.ops.aten._to_copy.default)
    if t.layout is not torch.strided or t.is_nested or t.is_quantized:
        layout = "nested" if t.is_nested else "quantized" if t.is_quantized else str(t.layout)
        raise UnsupportedOperationError(f"[to] {kind} holds dense strided tensors, got a {layout} one")


#: ``with quiet():`` torch code of our own; see there.
quiet = _guards.Quiet
_guards.init(torch, _python_dispatch._disable_current_modes)


def concrete(a: Any, holes: Iterator[torch.Tensor], device: torch.device) -> Any:
    """The argument with computed tensors in its holes, and the executor's device for ours."""
    if isinstance(a, torch.Tensor):
        return next(holes) if _core.get_handle(a) is not None else a
    if isinstance(a, torch.Size):
        return a
    if isinstance(a, (tuple, list)):
        return type(a)(concrete(item, holes, device) for item in a)
    if isinstance(a, torch.device) and same_device(a):
        return device
    return a


def same_device(device: torch.device) -> bool:
    """Below Python a lazy tensor's device reads as ``cpu``; ours by name means the same."""
    return device.type in ("cpu", "remote_accelerator")
