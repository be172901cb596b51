"""What a call will give: sizes, dtype, strides and aliasing of its results, before it runs.

Asked once per distinct call. The extension's own shape rules first, torch's meta kernels next, put right where the
kernels are known to lay results out otherwise; then the call is tried on the kernel itself, large ones on a small copy
(trial): it refuses some things that meta functions let through.

One file: the ways to an answer, in the order in which they are tried.
"""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from typing import Any

import torch

from ... import ops
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ..._ext import shapes as _shapes
from ..._ext.keys import same_device
from ..._ext.operands import without_floats
from ..._ext.signals import by_signal_handler
from ..._ext.strides import contiguous, extent, overlapping
from ...base import torch_facts
from ...base.errors import UnsupportedOperationError
from ...base.torch_warnings import Caught, say
from ...devices import mode
from ...devices.lazy_device import device_at
from ...ops.cpu_layouts import REFUSED, laid_out
from ...ops.schema import has_out
from . import kernel_sizes, trial
from .arguments import (
    TORCH_ERRORS,
    collect,
    filled,
    lazy_in,
    meta_like,
    meta_tensor,
    quiet,
    tensors_in,
)

__all__ = [
    "RULES", "check_movable", "collect", "decompose", "filled", "forget", "infer",
    "knowing_views", "lazy_in", "meta_like", "meta_tensor", "multiplies_inside", "quiet", "same_device", "taken_apart",
    "tensors_in",
]  # fmt: skip

log = logging.getLogger("mindtorch.predict")
_shapes.init(torch)
RULES = frozenset(_shapes.names())
_META = torch.device("meta")


# ---- infer -----------------------------------------------------------------------------------------------------------
def infer(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None = None, check: bool = True) -> Any:
    """What the call returns (see _infer); of calls without data also whether an estimate wants to know its values."""
    if mode.now.estimate is not None:
        mode.now.estimate.check(info, args, kwargs)
    with Caught() as caught:
        spec = _infer_once(info, args, kwargs, dispatch, device, check, caught)
    if spec is None or info.name == "genie::manual_seed":
        caught.drop()  # it runs now, and says it itself
        return spec
    if caught.messages:
        spec = (*spec[:4], spec[4] | _intern.FORGOTTEN)  # it may warn next time, too
        say(caught.messages)
    inputs = [_core.meta_of(_core.get_handle(t)) for t in lazy_in([*args, *kwargs.values()])]
    if (device if device is not None else inputs[0][4] if inputs else 0) >= 0:
        return (*spec[:4], spec[4] | _intern.FOLDS) if ops.about(info.name).folds and _folds(*inputs[:2]) else spec
    return (*spec[:4], spec[4] | _worth_knowing(info.name, info.random, spec, inputs))


def _folds(a: tuple, b: tuple) -> bool:
    """Does torch's choice between one large product and a batch of small ones depend on whether the small operand
    requires grad? It does with grad mode off, too: ``should_fold`` in ATen/native/LinearAlgebra.cpp."""
    if len(a[1]) == len(b[1]) == 3:
        return bool((a[1][0] == 1) != (b[1][0] == 1))  # a batch of one is taken for a matrix then
    return max(len(a[1]), len(b[1])) >= 3 > min(len(a[1]), len(b[1])) and not (len(a[1]) >= 3 and a[2] is None)


#: Elements up to which integers and booleans without data are computed after all, in estimates: masks, positions, ids
#: of a batch, and which experts its tokens choose (65,536 tokens, two of eight); eight megabytes at most.
MOST_KNOWN = 1 << 20
#: The same for floats that come from constants alone (linspace, rates): far fewer are ever read by a program.
MOST_KNOWN_FLOATS = 1 << 12


def _worth_knowing(name: str, random: bool, spec: Any, inputs: list[tuple]) -> int:
    """`SMALL` if what the call makes and writes is little enough to be computed once all inputs are known."""
    outs, alias, _ret, written, flags = spec
    made = [o for o, a in zip(outs, alias, strict=True) if a < 0]
    made += [m for m, w in zip(inputs, written, strict=True) if w]
    row = ops.about(name)
    if ops.decision_ops.asked(name, outs or made) and not flags & _intern.VIEW:
        return _intern.SMALL | _intern.BLIND  # of any size
    if flags & _intern.VIEW or not made or not all(little(m[0], m[1].numel(), random) for m in made):
        return 0
    if any(m[1].numel() > MOST_KNOWN for m in inputs[row.blind :]):
        return 0  # a small storage, expanded
    absorbs = row.absorbing is not None and outs and len(inputs) > 1
    places = name == "aten::scatter_"  # of unknown places the first are taken
    part = name in ops.decision_ops.PADDING and not made[0][0].is_floating_point  # of what it gives is known
    return _intern.SMALL | (_intern.BLIND if row.blind or absorbs or places or part else 0)


def little(dtype: torch.dtype, numel: int, random: bool = False) -> bool:
    """May an estimate keep the values of such a tensor? Of random draws, only integers."""
    if dtype.is_complex or dtype not in _COMPUTED:
        return False
    return numel <= MOST_KNOWN_FLOATS and not random if dtype.is_floating_point else numel <= MOST_KNOWN


_COMPUTED = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


def _infer_once(
    info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None, check: bool, caught: Caught
) -> Any:
    """_infer. What is the same for every float among the arguments, and warns of nothing, is found out once."""
    if device is not None or not check or info.random or not (info.pointwise or info.bumps):
        return _infer(info, args, kwargs, dispatch, device, check)
    floats, shown = without_floats(args, kwargs)
    if not floats:
        return _infer(info, args, kwargs, dispatch, device, check)
    order = sorted(set(floats))
    key = (info, dispatch, torch.is_grad_enabled(), *shown, *map(order.index, floats))
    found = _same_but_floats.get(key)
    if found is None:
        found = _infer(info, args, kwargs, dispatch, device, check)
        if found is not None and not caught.messages:
            if len(_same_but_floats) >= _MOST_REMEMBERED:
                _same_but_floats.clear()
            _same_but_floats[key] = found
    return found


_same_but_floats: dict[tuple, Any] = {}
_MOST_REMEMBERED = 4096


def forget() -> None:
    """Predict afresh from now on (something that results depend on has changed)."""
    _same_but_floats.clear()
    kernel_sizes.forget()
    trial.forget()


def _infer(info: Any, args: tuple, kwargs: dict, dispatch: bool, device: int | None, check: bool) -> Any:
    """What the call returns: (outputs, alias, return template, written inputs, flags), or None if unknown.

    outputs: one (dtype, size, stride or None if contiguous, storage offset, device index[, bits]) per fresh tensor.
    check: ask the kernel itself, too (see trial).
    alias: per output the input (in order of appearance) whose storage it shares, -1 for none.
    """
    if info.name == "genie::manual_seed":
        return [], [], (_intern.NOTHING,), b"", _intern.RANDOM
    inputs, written = collect(info, args, kwargs)
    if kwargs.get("generator") is not None or _refusable(info.name, args, kwargs, inputs):
        return None
    if info.name.endswith("empty_strided") and _negative((*args, kwargs.get("stride"))):
        return None  # torch's meta kernel makes other strides of them
    facts = [(*_core.meta_of(h), _core.view_bits(h)) for h in map(_core.get_handle, inputs)]

    def predicted(args: tuple, kwargs: dict, facts: list[tuple]) -> Any:
        return _predicted(info, args, kwargs, facts, written, dispatch, device)

    spec = predicted(args, kwargs, facts)
    place = device if device is not None else facts[0][4] if facts else 0
    if spec is None or info.view or not check or place < 0:
        return spec
    if device is not None and not info.random and trial.numbers(info).isdisjoint((*range(len(args)), *kwargs)):
        return spec  # nothing but sizes and a dtype
    return spec if trial.passes(info, args, kwargs, facts, spec, predicted) else None


def _refusable(name: str, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> bool:
    """May the kernel refuse this call for what is in its inputs? What programs catch has to come at the call."""
    rule = ops.about(name).refuses
    return rule is not None and any(_core.device_index(t) >= 0 for t in inputs) and rule(args, kwargs)


def _negative(args: tuple) -> bool:
    """Is there a negative number in the last list of numbers, which is that of the strides?"""
    numbers = [a for a in args if isinstance(a, (tuple, list))]
    return any(isinstance(n, int) and n < 0 for a in numbers[-1:] for n in a)


def _predicted(
    info: Any, args: tuple, kwargs: dict, facts: list[tuple], written: bytes, dispatch: bool, device: int | None
) -> Any:
    """What the call would return (see _infer) if our tensors among the arguments were as these facts say.

    facts: for each of them (dtype, size, stride or None if contiguous, storage offset, device index, bits).
    """
    place = device if device is not None else facts[0][4] if facts else 0
    if place < 0 and info.name == "aten::index" and any(f[0] is torch.bool for f in facts[1:]):
        return None  # as many as are true
    if place >= 0 and any(w and overlapping(f[1], f[2]) for f, w in zip(facts, written, strict=True)):
        return None  # nearly every kernel refuses to write where elements share memory
    eager_row = place >= 0 and ops.about(info.name).eager
    if device is None and (eager_row or not any(written)) and not info.random and not info.view:
        spec = _by_rule(info, args, kwargs, facts, written, dispatch)
        if spec is not None:
            return spec
    if eager_row:
        return kernel_sizes.like(info, args, kwargs, facts)  # torch's own prediction is known to be wrong
    with quiet():
        metas = [meta_like(f, f[5]) for f in facts]
        before = [(m.shape, m.stride(), m.storage_offset()) for m in metas] if info.writes or kwargs else []
        margs, mkwargs = filled(args, kwargs, metas, _META, any_device=True)
        if device is not None:
            mkwargs["device"] = _META
        try:
            if mkwargs and _resizes(info, margs, mkwargs):
                return None  # the kernel says so, in its own words and to the caller
            out = info.call(*margs, **mkwargs)
            if place >= 0:
                out = _asked_for(info, out, args)
            if device_at(place).type != "meta":
                out = laid_out(info.name, out, margs, mkwargs)
        except TORCH_ERRORS as error:  # torch itself says what is wrong, at the eager run that follows
            if by_signal_handler(error):
                raise
            log.debug("%s: no meta inference: %s", info.name, error)
            return None
        if out is REFUSED or any(
            (m.shape, m.stride(), m.storage_offset()) != b for m, b in zip(metas, before, strict=False)
        ):
            return None
        spec = _spec(info, out, metas, written, dispatch, place)
    if spec is not None and info.name == "aten::as_strided" and extent(*spec[0][0][1:4]) > extent(*facts[0][1:4]):
        return None  # whether the storage goes on there is not known here
    return spec


def _resizes(info: Any, margs: tuple, mkwargs: dict[str, Any]) -> bool:
    """Would the call give elements of ``out=`` another shape? Torch warns then; its prediction in other words."""
    has_others = isinstance(info.func, torch._ops.OpOverload) and has_out(info.func)  # values=, indices=
    outs = {k: a for k, a in mkwargs.items() if k == "out" or (has_others and k in info.writes)}
    if not any(t.numel() for t in tensors_in([*outs.values()])):
        return False
    fresh = {
        k: a.new_empty(0) if isinstance(a, torch.Tensor) else type(a)(t.new_empty(0) for t in a)
        for k, a in outs.items()
    }
    info.call(*margs, **{**mkwargs, **fresh})
    return any(
        t.numel() and t.shape != new.shape
        for t, new in zip(tensors_in([*outs.values()]), tensors_in([*fresh.values()]), strict=True)
    )


def _asked_for(info: Any, out: Any, args: tuple) -> Any:
    """A backward op's results without those that its ``output_mask`` leaves out: kernels do not make them.

    Torch's meta kernel of batch norm does.
    """
    if not isinstance(out, tuple) or not isinstance(info.func, torch._ops.OpOverload):
        return out
    names = ops.schema.argument_names(info.func)
    at = names.index("output_mask") if "output_mask" in names else len(args)
    return tuple(o if wanted else None for o, wanted in zip(out, args[at], strict=True)) if at < len(args) else out


def _by_rule(info: Any, args: tuple, kwargs: dict, facts: list[tuple], written: bytes, dispatch: bool) -> Any:
    """The result by the extension's own shape rules, if the op's family has one."""
    if info.name not in RULES or any(f[5] for f in facts):
        return None  # torch resolves lazy conjugation and negation first, into copies laid out otherwise
    metas = [_shapes.Meta(tuple(f[1]), f[2] if f[2] is not None else contiguous(f[1]), f[0]) for f in facts]
    margs, mkwargs = filled(args, kwargs, metas, _META, any_device=True)
    result = _shapes.infer(info.name, margs, mkwargs)
    if result is None:
        return None
    device = facts[0][4] if facts else 0
    outs = [
        (dtype, torch.Size(shape), None if stride == contiguous(shape) else stride, 0, device)
        for shape, stride, dtype in result
    ]
    single = len(outs) == 1
    named = None  # operators called by name give plain tuples
    if not dispatch and not isinstance(info.func, torch._ops.OpOverloadPacket):
        named = getattr(torch.return_types, getattr(info.func, "__name__", ""), None)
    return (
        outs,
        [-1] * len(outs),
        None if single else (named or _intern.TUPLE, *range(len(outs))),
        written,
        (_intern.WRITES if any(written) else 0),
    )


def _spec(info: Any, out: Any, metas: list[torch.Tensor], written: bytes, dispatch: bool, device: int) -> Any:
    items = out if isinstance(out, (tuple, list)) else (out,)
    codes: list[int | None] = []
    outs: list[tuple] = []
    alias: list[int] = []
    places = {id(m): i for i, m in reversed(list(enumerate(metas)))}
    storages = {m.untyped_storage()._cdata: i for i, m in reversed(list(enumerate(metas)))}
    for item in items:
        if item is None:
            codes.append(None)
            continue
        if not isinstance(item, torch.Tensor) or item.layout is not torch.strided or item.device.type != "meta":
            return None
        same = places.get(id(item))
        if same is not None:
            codes.append(-1 - same)
            if not dispatch:
                return None
            continue
        shared = storages.get(item.untyped_storage()._cdata, -1)
        if not dispatch and (shared >= 0 or item._is_view()):
            return None  # a hidden view: torch's autograd must see it, so the dispatch level records it
        if shared < 0 and extent(item.shape, item.stride(), item.storage_offset()) * item.dtype.itemsize >= 1 << 63:
            return None  # there is no such memory, of which torch's meta kernels do not always tell
        codes.append(len(outs))
        alias.append(shared)
        outs.append(
            (
                item.dtype,
                item.shape,
                _core.canonical(item.shape, item.stride()),
                item.storage_offset(),
                device,
                _core.view_bits(item),
            )
        )
    flags = _intern.WRITES if any(written) else 0
    if info.random and device >= 0:
        flags |= _intern.RANDOM
    if outs and not flags and all(a >= 0 for a in alias):
        flags |= _intern.VIEW
    if not flags & _intern.WRITES and not info.random and not outs:
        return None  # nothing to remember: a query
    ret: tuple | None
    if out is None:
        ret = (_intern.NOTHING,)
    elif isinstance(out, (tuple, list)):
        named = isinstance(out, tuple) and type(out) is not tuple and not dispatch  # torch.return_types.max …
        ret = (type(out) if named else _intern.TUPLE if isinstance(out, tuple) else _intern.LIST, *codes)
    else:
        ret = None if codes == [0] else (_intern.TENSOR, *codes)
    return outs, alias, ret, written, flags


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
    row = ops.about(name)
    return row.tag == "rnn" and not row.as_seen  # those are one kernel each


def knowing_views() -> Any:
    """Inside ``__torch_dispatch__``, as outside: what is made in the block as a view is known to be one, and requires
    grad where its base does."""
    if torch_facts.VIEW_KEYS & torch_facts.lost.keys():
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def stays_torchs_own(t: torch.Tensor) -> bool:
    """Sparse, nested and quantized tensors: calls with them and lazy tensors run eagerly."""
    return t.layout is not torch.strided or t.is_nested or t.is_quantized


def is_fake(t: Any) -> bool:
    """Is this a compiler's tensor without data?"""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(t, fake.FakeTensor)


def check_movable(t: torch.Tensor, kind: str) -> None:
    """Raise unless ``t`` has data that can be copied to a device of type ``kind``."""
    if is_fake(t):
        # While a function is compiled: torch.compile then ends its graph here, and runs the call when its time comes.
        raise sys.modules["torch._subclasses.fake_tensor"].UnsupportedOperatorException(torch.ops.aten._to_copy.default)
    if stays_torchs_own(t):
        layout = "nested" if t.is_nested else "quantized" if t.is_quantized else str(t.layout)
        raise UnsupportedOperationError(f"[to] {kind} holds dense strided tensors, got a {layout} one")
