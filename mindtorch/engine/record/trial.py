"""Would the kernel take a call, and lay its results out as predicted? Asked of the kernel, once per distinct call.

Kernels refuse dtypes and arguments that meta functions let through, and a few lay their results out otherwise. Small
calls are tried as they are. Of large ones a small copy is: other sizes, in the same relations to each other, with the
same order of strides (shrink). It is predicted in the same way as the call itself, so that what the kernel does with
the copy says how far that prediction can be trusted.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch

from ... import ops
from ..._ext import lazy as _core
from ..._ext.signals import by_signal_handler
from ..._ext.strides import contiguous
from ...base.torch_warnings import Caught
from . import shrink
from .arguments import TORCH_ERRORS, filled, quiet

log = logging.getLogger("mindtorch.predict")
OWN_SIZE = 1 << 14  # up to so many elements a call is tried as it is
MOST = 1 << 18  # … where the row says `probe`, or no copy will do; of the former, larger ones run at once, not twice
COPIES = True  # are larger ones tried on a copy?
#: LAPACK counts pivots from 1, believes them, and writes before the matrix where one is 0.
_FROM_ONE = frozenset(f"aten::{name}" for name in ("linalg_ldl_solve", "linalg_lu_solve", "lu_solve", "lu_unpack"))
_CPU = torch.device("cpu")
_RELAID = object()
Predict = Callable[[tuple, dict, "list[tuple]"], Any]


def passes(info: Any, args: tuple, kwargs: dict, facts: list[tuple], spec: Any, predict: Predict) -> bool:
    """May the call be recorded as predicted (`spec`, whose strides are put right)? Else it has to run now, so that
    torch's own error comes at the call (SPEC L9).

    facts: what our tensors among the arguments are; predict: the prediction for other arguments and facts.
    """
    asked = ops.about(info.name).probe
    if info.name == "aten::index":
        asked = not all(_descending(f) for f in facts)  # else torch's prediction of its strides is the kernel's
    elements = sum(f[1].numel() for f in facts) + sum(o[1].numel() for o in spec[0])
    if elements <= (MOST if asked else OWN_SIZE):
        return _passes_as_it_is(info, args, kwargs, facts, spec, asked)
    if asked or not COPIES:
        return not asked
    verdict = _on_copies(info, args, kwargs, facts, spec, predict, elements > MOST)
    if verdict is None and elements <= MOST:
        return _passes_as_it_is(info, args, kwargs, facts, spec, False)
    return verdict is not False


def numbers(info: Any) -> frozenset[int | str]:
    """Where numbers are among the arguments with which such a call is recorded, and no sizes (`schema.numbers`)."""
    found = ops.schema.numbers(info.name)
    if isinstance(info.call, functools.partial):  # `handlers.made_like`: size, strides and dtype in a tensor's place
        found = frozenset(n + 2 if isinstance(n, int) else n for n in found)
    return found


def forget() -> None:
    """Try all copies afresh (something that results depend on has changed)."""
    _verdicts.clear()


# ---- on the kernel ---------------------------------------------------------------------------------------------------
def _run(info: Any, args: tuple, kwargs: dict, facts: list[tuple]) -> Any:
    """What the kernel gives for such arguments, or the error that it raises. _RELAID: it changes inputs' layouts."""
    for integer in (1,) if info.name in _FROM_ONE else (0, 1):  # indices may have to be 0, divisors must not be
        with quiet(grad=True):
            values = []
            for dtype, size, stride, _offset, _place, bits in facts:
                value = torch.empty_strided(size, stride or contiguous(size), dtype=dtype)
                value.fill_(integer if not (dtype.is_floating_point or dtype.is_complex) else 0.5)
                values.append(_core.set_view_bits(value, bits))
            cargs, ckwargs = filled(args, kwargs, values, _CPU)
            state = torch.default_generator.get_state() if info.random else None
            before = [(v.shape, v.stride(), v.is_conj()) for v in values]
            try:
                out = info.call(*cargs, **ckwargs)
                after = [(v.shape, v.stride(), v.is_conj()) for v in values]  # out= may be resized, or conjugated
                return out if after == before else _RELAID
            except TORCH_ERRORS as e:
                if by_signal_handler(e):
                    raise
                error: Exception = e
                if isinstance(e, torch.linalg.LinAlgError):
                    break  # about these values, not about the call
            finally:
                if state is not None:
                    torch.default_generator.set_state(state)
    log.debug("%s: the kernel refuses the call: %s", info.name, error)
    return error


def _passes_as_it_is(info: Any, args: tuple, kwargs: dict, facts: list[tuple], spec: Any, asked: bool) -> bool:
    out = _run(info, args, kwargs, facts)
    if isinstance(out, torch.linalg.LinAlgError):
        return not asked
    if out is _RELAID or isinstance(out, Exception):
        return False
    for code, item in _results(out, spec):
        dtype, size, _stride, offset, device, *_bits = spec[0][code]
        if not isinstance(item, torch.Tensor) or item.dtype is not dtype or (item.shape != size and not asked):
            return False
        spec[0][code] = (
            dtype,
            item.shape,
            _core.canonical(item.shape, item.stride()),
            offset,
            device,
            _core.view_bits(item),
        )
    return True


def _results(out: Any, spec: Any) -> list[tuple[int, Any]]:
    """(number of the predicted output, what the kernel gave for it) of the outputs that are fresh."""
    items = out if isinstance(out, (tuple, list)) else (out,)
    ret = spec[2]
    codes = [0] if ret is None else ret[1:]
    return [(code, item) for code, item in zip(codes, items, strict=False) if code is not None and code >= 0]


def _descending(fact: tuple) -> bool:
    """Do the strides of a tensor that is not empty never grow from one dimension to the next?"""
    stride = fact[2] or ()
    return 0 not in fact[1] and all(a >= b for a, b in itertools.pairwise(stride))


# ---- on copies -------------------------------------------------------------------------------------------------------
_UNFIT, _REFUSED, _AS_PREDICTED = "unfit", "refused", "as predicted"
#: What trying a copy showed: one of these, or the strides of those results that were predicted wrongly.
_Verdict = Any
_verdicts: dict[tuple, _Verdict] = {}
_MOST_REMEMBERED = 4096


def _on_copies(
    info: Any, args: tuple, kwargs: dict, facts: list[tuple], spec: Any, predict: Predict, large: bool
) -> bool | None:
    """Whether the kernel takes copies of the call as predicted; None if that is not known.

    A copy may be refused for its sizes (13 channels in 4 groups): then others are tried, which keep more of them. Of
    calls that are not too large for it, the call itself is.
    """
    refused = False
    for sargs, skwargs, sfacts in shrink.copies(args, kwargs, facts, MOST, numbers(info)):
        with Caught() as caught:
            verdict = _try(info, sargs, skwargs, sfacts, predict)
        caught.drop()  # it names sizes of the copy; the prediction of the call itself has warned
        if verdict == _AS_PREDICTED:
            return True
        refused = refused or verdict == _REFUSED
        if refused and not large:
            return None
        if isinstance(verdict, dict):
            return _relay(spec, verdict) if large else None
    return False if refused else None


def _try(info: Any, args: tuple, kwargs: dict, facts: list[tuple], predict: Predict) -> _Verdict:
    shown: list[Any] = []
    shrink.show((args, tuple(kwargs.items())), shown)
    key = (info, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *facts, *shown)
    try:
        found = _verdicts.get(key)
    except TypeError:  # an argument that cannot be hashed
        return _judge(info, args, kwargs, facts, predict)
    if found is None:
        found = _judge(info, args, kwargs, facts, predict)
        if len(_verdicts) >= _MOST_REMEMBERED:
            _verdicts.clear()
        _verdicts[key] = found
    return found


def _judge(info: Any, args: tuple, kwargs: dict, facts: list[tuple], predict: Predict) -> _Verdict:
    spec = predict(args, kwargs, facts)
    if spec is None or sum(o[1].numel() for o in spec[0]) > MOST:
        return _UNFIT
    out = _run(info, args, kwargs, facts)
    if isinstance(out, torch.linalg.LinAlgError):
        return _AS_PREDICTED
    if out is _RELAID or isinstance(out, Exception):
        return _REFUSED
    other: dict[int, tuple] = {}
    for code, item in _results(out, spec):
        dtype, size, stride, _offset, _place, *bits = spec[0][code]
        if not isinstance(item, torch.Tensor) or item.dtype is not dtype or item.shape != size:
            return _REFUSED
        if _core.view_bits(item) != (bits[0] if bits else 0):
            return _REFUSED
        if item.stride() != (stride or contiguous(size)):
            other[code] = (tuple(size), item.stride())
    return other or _AS_PREDICTED


def _relay(spec: Any, other: dict[int, tuple]) -> bool:
    """Give the results the order of strides that the copy's have. False if those are not those of a dense tensor."""
    for code, (small, stride) in other.items():
        dtype, size, _stride, *rest = spec[0][code]
        laid = shrink.dense(small, stride, tuple(size))
        if laid is None:
            return False
        spec[0][code] = (dtype, size, _core.canonical(size, laid), *rest)
    return True
