"""What comparisons with unknown values say in an estimate: what they say of the number that is assumed (SPEC C4).

That number is finite, so ``isfinite`` is True, and a loop that waits for convergence ends. Of a result only one value
is known, that of all its elements, however many there are: they come from one number.

One file: what comparisons say, and which rows masks keep, is noted of the same tensors.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..._ext import intercept as _intercept
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ...devices import mode
from ...engine.record.predict import MOST_KNOWN, little
from ...ops import about
from ...ops.decision_ops import ARITHMETIC, NUMBERS, REDUCING, ROUTING
from . import assumptions, partly_known, waiting_loops

__all__ = [
    "TO_SPARSE", "balanced", "decide", "draw", "elements", "install", "keeps", "lose", "meet", "read", "rows",
    "uniform", "uniform_of",
]  # fmt: skip

_LAYERS = 256  # of a model, at most
VOCABULARY = 1000  # candidates: so many are tokens, not experts
_equal = WeakIdKeyDictionary()  # results of comparisons with unknown values that say which integers are equal
_rows = WeakIdKeyDictionary()  # masks of which a part is unknown: which rows they keep where that part keeps all
_kept = WeakIdKeyDictionary()  # unknown masks that have kept all rows
_balanced = False


@contextmanager
def balanced(on: bool) -> Iterator[None]:
    """Whether choices among unknown scores are taken to choose all alike as often: the routing of tokens to experts."""
    global _balanced
    before, _balanced = _balanced, on
    try:
        yield
    finally:
        _balanced = before
        partly_known.forget()
        _equal.clear()
        _rows.clear()
        _kept.clear()


def install() -> None:
    """Have torch's ``cov`` and ``istft`` answered here, which refuse weights, and windows, whose sum is 0, so unknown
    ones are taken to be 1; and ``quantile``, which makes a tensor of a number."""
    if _answered:
        return
    for func in (torch.cov, torch.Tensor.cov, torch.istft, torch.Tensor.istft):
        _answered[func] = functools.partial(_with_ones, func)
    for func in (torch.quantile, torch.Tensor.quantile, torch.nanquantile, torch.Tensor.nanquantile):
        _answered[func] = functools.partial(_of_a_tensor, func)
    for func, handler in _answered.items():
        _intercept.register(func, _intern.OpInfo(func, f"aten::{func.__name__}", _intern.HANDLER, handler=handler))


_answered: dict[Any, Callable[..., Any]] = {}  # functions, and what answers them here


def _of_a_tensor(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """C++ makes a tensor of the number that says which quantile, of which nothing is known; of this one it is."""
    x = args[0] if args else kwargs.get("input")
    q = args[1] if len(args) > 1 else kwargs.get("q")
    if mode.now.estimate is None or not isinstance(x, torch.Tensor) or not isinstance(q, (int, float)):
        return NotImplemented
    q = torch.tensor(q, dtype=x.dtype, device=x.device)
    return func(x, q, *args[2:], **{name: value for name, value in kwargs.items() if name not in ("input", "q")})


_weighing = threading.local()


def _with_ones(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    if mode.now.estimate is None or getattr(_weighing, "now", False):
        return NotImplemented
    _weighing.now = True
    try:
        with assumptions.instead(1):
            return func(*args, **kwargs)
    finally:
        _weighing.now = False


def uniform(t: Any) -> Any:
    """The value of all elements of ``t`` where it came from a comparison with unknown values, else None."""
    return _core.decided(_core.get_handle(t))


def read(t: Any, what: str) -> Any:
    """What the program is told of ``t``, by ``what`` it asks: as `uniform`, but no number that is not positive, as it
    may take the logarithm."""
    found = uniform(t)
    return None if isinstance(found, float) and found <= 0 and what != "bool" else found


def _say(t: Any, value: Any) -> bool:
    """All elements of ``t`` are taken for ``value``, if it is no part of what is not."""
    return _core.decide(_core.get_handle(t), value)


def keeps(name: str, t: Any) -> Any:
    """The value of all elements of ``t`` for an op whose result may have as many rows as it has true elements.

    An unknown mask keeps all rows: a program that keeps none has nothing left to do. So does one by thresholds, and
    none of the unknown numbers is 0 that are made sparse, or looked through for those that are not. What an unknown
    integer is equal to stays decided: of all experts, or classes, it is one.
    """
    dtype = _core.meta_of(_core.get_handle(t))[0]
    masks = dtype in _MASKS or name in TO_SPARSE or name == "aten::nonzero"
    if masks and about(name).sizes_from_values and name not in _COUNTING and t not in _equal:
        if dtype is torch.bool:
            _kept[t] = True
        return True if dtype is torch.bool else 1
    return uniform(t)


def elements(name: str, inputs: list[Any], missing: list[Any]) -> int:
    """How many unknown elements decide what the call says; -1: one of each tensor, as all of them are alike."""
    if name in _WHETHER_ALIKE and len(missing) == len(inputs) and len({t.shape for t in inputs}) == 1:
        return -1
    return sum(t.numel() for t in missing)


_WHETHER_ALIKE = frozenset({"aten::allclose", "aten::equal"})


def sizes(name: str, t: Any) -> bool:
    """Does the size of what the op gives follow from what ``t`` holds, or what the program does next? Of what is
    indexed by a mask it does not, nor of probabilities whose targets have lengths."""
    dtype = _core.meta_of(_core.get_handle(t))[0]
    if name in _BY_MASK:
        return dtype in _MASKS
    if name in _WHETHER_ALIKE:
        return True
    return about(name).sizes_from_values or not (dtype.is_floating_point or dtype.is_complex)


def meet(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> None:
    """Before a call is computed: note which rows the mask keeps that it makes; take unknown places for the first."""
    _combine(call, info, inputs, results, values)
    if info.name in partly_known.NAMES:
        _in_part(call, info, inputs, results, values)
    if info.name == "aten::scatter_" and len(inputs) == 2 and values[1] is None:
        _at_the_first(call, info, inputs, values)


def _at_the_first(call: int, info: Any, inputs: list[Any], values: list[Any]) -> None:
    """Where a number is written at unknown places of nothing (`one_hot`), they are the first ones, in order."""
    into, places = inputs
    if values[0] is None or values[0].any() or not places.dim() or places.numel() > MOST_KNOWN:
        return
    dim = _core.call_template(call, tuple(inputs))[0][1] % places.dim()
    order = [-1 if i == dim else 1 for i in range(places.dim())]
    found = assumptions.full(places, info.name) + torch.arange(places.shape[dim], device="cpu").view(order)
    values[1] = found.clamp(max=into.shape[dim] - 1)


def _combine(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> None:
    """Note which rows a mask keeps that is made of known masks and unknown ones: thresholds, that keep all of them.

    In a ``while``, what is not in a mask that has kept all rows keeps none: non-maximum suppression goes round until
    nothing is left.
    """
    if info.name in _NOT and results and inputs[0] in _kept and waiting_loops.in_while():
        _rows[results[0]] = torch.zeros(results[0].shape, dtype=torch.bool, device="cpu")
        return
    if info.name not in _COMBINING or not results or any(t.dtype is not torch.bool for t in (*inputs, *results)):
        return
    some = any(v is not None and not _is_uniform(v) for v in values) and None in values
    if not any(t in _rows for t in inputs) and not some:
        return
    if all(little(t.dtype, t.numel()) and t.numel() <= MOST_KNOWN for t in (*inputs, *results)):
        whole = [_rows_of(t, value) for t, value in zip(inputs, values, strict=True)]
        made = _on(call, info, whole)
        if made.shape == results[0].shape:
            _rows[results[0]] = made.contiguous()


def _in_part(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> None:
    """Note what follows of integers of which a part is known: of the result, or which rows it keeps."""
    run = functools.partial(_on, call, info)
    partly_known.note(info.name, inputs, results, values, run)
    found = partly_known.equal(info.name, inputs, values, run)
    if found is not None and results and found.shape == results[0].shape:
        _rows[results[0]] = found.contiguous()


def _rows_of(t: Any, value: torch.Tensor | None) -> torch.Tensor:
    if (found := _rows.get(t)) is not None or value is not None:
        return value if found is None else found  # type: ignore[return-value]
    return torch.full(t.shape, bool(uniform(t)) if t in _equal else True, device="cpu")


_COMBINING = frozenset(f"aten::{name}" for name in (
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ "
    "__xor__ mul"
).split())  # fmt: skip


_NOT = frozenset({"aten::logical_not", "aten::bitwise_not"})


def rows(t: Any, op: str, value: torch.Tensor | None) -> torch.Tensor | None:
    """What ``t`` is for an op whose result has as many rows as it has true elements; ``value``: what it is otherwise,
    and for other ops (`op` may be "")."""
    if not op or t.dtype is not torch.bool or (found := _rows.get(t)) is None or not about(op).sizes_from_values:
        return value
    assumptions.full(t, op, uniform(t) if t in _equal else True, operand=True)
    return found  # type: ignore[no-any-return]


_BY_MASK = frozenset({"aten::index", "aten::masked_select"})
_MASKS = frozenset({torch.bool, torch.uint8})
#: From dense to sparse: what is not 0 is stored.
TO_SPARSE = frozenset(f"aten::{of}to_sparse{kind}" for of in ("", "_") for kind in ("", "_csr", "_csc", "_bsr", "_bsc"))
_COUNTING = frozenset({"aten::bincount", "aten::repeat_interleave", "aten::_unique2"})  # their input is no mask


def uniform_of(t: Any, source: Any) -> None:
    """``t`` is a copy of ``source``."""
    if (found := uniform(source)) is not None:
        _say(t, found)
    if source in _equal:
        _equal[t] = True


def draw(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> bool:
    """A single number that is drawn between two bounds is taken for the middle; one of two for the likelier one. False
    where the call draws no floating-point numbers.

    By such a number programs leave out layers, one time in ten: they are there, then. So they are where `uniform_`
    draws one for each of them.
    """
    made = results[0] if results else inputs[0]
    if not made.dtype.is_floating_point:
        return False
    if not results:
        lose(made)
    each = info.name == "aten::uniform_" and made.dim() == 1 and made.numel() <= _LAYERS
    if (made.numel() == 1 or each) and assumptions.number() is None:
        _drawn(call, info, inputs, made, values)
    return True


def _drawn(call: int, info: Any, inputs: list[Any], made: Any, values: list[Any]) -> None:
    (_, *args), kwargs = _core.call_template(call, tuple(inputs), torch.device("cpu"))
    if "bernoulli" not in info.name:
        low, high = 0.0, 1.0
        if "uniform" in info.name:
            low = args[0] if args else kwargs.get("from", low)
            high = args[1] if len(args) > 1 else kwargs.get("to", high)
        middle = (low + high) / 2
        if middle > 0 and math.isfinite(middle):  # weights are drawn around 0
            _say(made, middle)
        return
    likely = kwargs.get("p", args[0] if args else None)
    if not isinstance(likely, (int, float)):
        likely = uniform(inputs[-1]) if values[-1] is None else values[-1].item()
    if likely is not None and _core.is_root(_core.get_handle(made)):
        number = float(likely >= 0.5)
        assumptions.note(made, info.name, number)
        _core.keep(_core.get_handle(made), torch.full(made.shape, number, dtype=made.dtype, device="cpu"))


def lose(t: Any) -> None:
    """Something that nobody knows was written to ``t``."""
    _core.lose(_core.get_handle(t))
    _rows.pop(t, None)
    _kept.pop(t, None)


def decide(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> bool:
    """Note what the call gives, some of whose ``inputs`` are not known (None in ``values``); True: all is noted."""
    made = results[0] if results else inputs[0]
    if info.name in NUMBERS and made.dtype.is_floating_point:
        if all(t.numel() == 1 for t in (made, *inputs)) and (len(inputs) > 1 or info.name not in REDUCING):
            return _calculate(call, info, inputs, made, values)
    elif info.name in ARITHMETIC and made.dtype is not torch.bool:
        return _carry(call, info, inputs, results, values)
    if results:
        _decide(call, info, inputs, results, values)
    return False


def _decide(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> None:
    if info.name == "aten::isin":
        _say(results[0], False)  # a token that nobody knows is none of the special ones
        return
    if info.name in ROUTING and (info.name != "aten::max" or len(results) == 2):
        _route(call, info, inputs, results)
        return
    if any(isinstance(where, int) for where in info.writes):
        return
    if any(t in _equal for t in inputs) or (
        info.name in ("aten::eq", "aten::ne") and not any(t.dtype.is_floating_point for t in inputs)
    ):
        _equal[results[0]] = True
    found = [uniform(t) for t in inputs]
    if info.name in CARRYING and all(f is None for f in found):
        return
    if any(v is not None and not _is_uniform(v) for v in values):
        _keep_decided(call, info, inputs, results, values, found)
        return
    numbers = []
    for t, value, known in zip(inputs, values, found, strict=True):
        if value is not None:
            numbers.append(value[(0,) * value.dim()])
            continue
        dtype = _core.meta_of(_core.get_handle(t))[0]
        number = assumptions.value_of(dtype) if known is None else known
        numbers.append(torch.full((), number, dtype=dtype, device="cpu"))
    count = inputs[0].numel() // max(results[0].numel(), 1)
    if found == [None] and _is_of_a_token(info, inputs[0], results[0]):
        _say(results[0], info.name == "aten::ne")
    elif info.name in REDUCING:
        _say(results[0], _reduced(info.name, numbers[0].item(), count, results[0].dtype))
    else:
        _say(results[0], _on(call, info, numbers).item())


def _carry(call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any]) -> bool:
    """Go on with integers that comparisons with unknown values decided, else a loop that counts by them has no end.

    What comes of them and of one known number is decided, too: True. Beside others, they join the ``values``.
    """
    found = [uniform(t) for t in inputs]
    if any(v is None and f is None for v, f in zip(values, found, strict=True)):
        return False
    into = inputs[0] if info.name.endswith("_") else None
    part = into is not None and values[0] is not None and not _core.is_root(_core.get_handle(into))
    counts = info.name.startswith("aten::cumsum") and found[0]
    if not part and not counts and all(v is None or _is_uniform(v) for v in values):
        numbers = [
            torch.full((), f, dtype=t.dtype, device="cpu") if v is None else v[(0,) * v.dim()]
            for t, v, f in zip(inputs, values, found, strict=True)
        ]
        value = found[0] if info.name.startswith("aten::cumsum") else _on(call, info, [n.clone() for n in numbers])
        return _say(results[0] if into is None else into, int(value))
    if all(little(t.dtype, t.numel()) for t in (*inputs, *results)) and not (into is not None and values[0] is None):
        for i, t in enumerate(inputs):
            values[i] = assumptions.full(t, info.name, found[i], operand=True) if values[i] is None else values[i]
    return False


def _calculate(call: int, info: Any, inputs: list[Any], made: Any, values: list[Any]) -> bool:
    """Go on with a single number that is no integer: a solver's time, and its step by unknown errors.

    What is not finite, as quotients by what is 0, stays unknown.
    """
    numbers = []
    for t, value in zip(inputs, values, strict=True):
        found = uniform(t) if value is None else value.item()
        numbers.append(torch.full((), assumptions.value_of(t.dtype) if found is None else found, dtype=t.dtype))
    number = _on(call, info, numbers).item()
    return math.isfinite(number) and _say(made, number)


def _is_of_a_token(info: Any, t: Any, result: Any) -> bool:
    """Is it one unknown integer that is compared with a number, as generation looks for the token that ends it? It is
    none of those that the program looks for, as in `isin`; of experts, or classes, there are masks, of all rows."""
    whole = not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype is torch.bool)
    return whole and not result.dim() and info.name in ("aten::eq", "aten::ne")


#: These decide nothing: what is known of their input is known of their result.
CARRYING = frozenset({"aten::_to_copy", "aten::mean"})


def _is_uniform(value: torch.Tensor) -> bool:
    if not value.numel() or value.numel() > MOST_KNOWN:
        return False
    return value.numel() == 1 or bool((value == value[(0,) * value.dim()]).all())


def _keep_decided(
    call: int, info: Any, inputs: list[Any], results: list[Any], values: list[Any], found: list[Any]
) -> None:
    """Of a comparison with many known values there are many results: labels, say, with unknown predictions."""
    result = results[0]
    if info.name in REDUCING or not little(result.dtype, result.numel()):
        return
    if any(t.numel() > MOST_KNOWN for t in inputs):
        return
    whole = [
        assumptions.full(t, info.name, known, operand=True) if value is None else value
        for t, value, known in zip(inputs, values, found, strict=True)
    ]
    made = _on(call, info, whole)
    if made.shape == result.shape and made.dtype is result.dtype:
        _core.keep(_core.get_handle(result), made.contiguous())


def _on(call: int, info: Any, values: list[torch.Tensor]) -> torch.Tensor:
    args, kwargs = _core.call_template(call, tuple(values), torch.device("cpu"))
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    made: torch.Tensor = info.call(*args, **kwargs)
    return made


def _reduced(name: str, value: Any, count: int, dtype: torch.dtype) -> Any:
    if name == "aten::all":
        return bool(value) or not count
    if name == "aten::any":
        return bool(value) and count > 0
    if name not in ("aten::sum", "aten::count_nonzero"):  # of the largest, say
        return value
    total = count * (bool(value) if name == "aten::count_nonzero" else value)
    if dtype.is_complex:
        return complex(total)
    return float(total) if dtype.is_floating_point else int(total)


_DISTINCT = frozenset({"aten::topk", "aten::multinomial"})


def _route(call: int, info: Any, inputs: list[Any], results: list[Any]) -> None:
    """Choose among unknown scores: all candidates in turn where there are as many choices, as a balanced router sends
    tokens to experts. Of fewer, those that are chosen together are the first ones, each once: experts of a token.

    Of a vocabulary it is the token in the middle, and those behind it: the first ones, and the last, are those that pad
    and end sequences.
    """
    chosen = results[-1]
    if chosen.dtype is not torch.int64 or not inputs[0].dim() or not chosen.numel():
        return
    args, kwargs = _core.call_template(call, tuple(inputs))
    where = 2 if info.name == "aten::topk" else 1
    dim = kwargs.get("dim", args[where] if len(args) > where else -1)
    if info.name == "aten::multinomial" or not isinstance(dim, int) or isinstance(dim, bool):
        dim = -1
    length = inputs[0].shape[dim]
    each = chosen.shape[dim] if chosen.dim() == inputs[0].dim() else 1  # how many of each row
    together = each if info.name in _DISTINCT else 1
    middle = length // 2 if not _balanced and length >= VOCABULARY else 0
    if middle and (together == 1 or chosen.numel() > MOST_KNOWN):
        _say(chosen, middle)
        return
    choices = chosen.numel() // each * together
    in_turn = _balanced or (not middle and choices >= length and (together > 1 or info.name != "aten::multinomial"))
    if not _balanced and (chosen.numel() > MOST_KNOWN or not (in_turn or 1 < together <= length)):
        return
    if not _balanced:
        first = f"{middle} … {middle + together - 1}"
        assumptions.note(chosen, info.name, f"0 … {length - 1} in turn" if in_turn else first)
    rows = torch.arange(chosen.numel() // each, device="cpu")[:, None]
    made = (middle + rows * together * in_turn + torch.arange(each, device="cpu")) % max(length, 1)
    if chosen.dim() == inputs[0].dim():  # several of each row
        moved = [n for i, n in enumerate(chosen.shape) if i != dim % chosen.dim()]
        value = made.view(*moved, each).movedim(-1, dim)
    else:
        value = made.view(chosen.shape)
    _core.keep(_core.get_handle(chosen), value.contiguous())
