"""Numbers at the limits of dtypes in the place of every number that an operator takes: small ones first, as a program's
first calls have them, and then those that a dtype does not hold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from opcases import ENTRIES, Outcome, Way, samples
from opcompare import Place, concrete, tensors_in, tree_differences

import mindtorch
from mindtorch.ops import schema

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool,
    torch.float8_e4m3fn, torch.complex64, torch.complex32,
)  # fmt: skip
#: The first that any dtype holds; then the last that one holds and the next one, the same as floats and negative; the
#: size of a tensor, which is not to be taken for one.
NUMBERS: tuple[int | float, ...] = (
    1, 1.0, 0.5, 0, 0.0, -0.5, -1, -1.0, 100.0, 127, 127.0, 128, 128.0, -128.0, -129, -129.0, 255.0, 256, 256.0, 448.0,
    480.0, 1e4, 32767.0, 32768.0, 65504.0, 65520.0, 70000, 1e9, -1e9, 2**31 - 1, 2**31, 2.0**31, -(2.0**31) - 1,
    2**53 + 1, 2**63 - 1, -(2**63), 2.0**63, 3e38, 3.5e38, -3.5e38, 1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip
_NUMBER = {"number", "Optional[number]", "float", "Optional[float]"}
#: What their numbers say is how much memory they take, or how long.
SIZED = {
    "arange", "linspace", "logspace", "linspace.tensor_overload", "logspace.tensor_overload",
    "special.laguerre_polynomial_l", "special.legendre_polynomial_p",
}  # fmt: skip
#: Named here, as their operators have numbers, while their functions or samples have none.
WITHOUT = {
    "std.unbiased", "std_mean.unbiased", "var.unbiased", "var_mean.unbiased", "linalg.lstsq.grad_oriented",
    "nn.functional.batch_norm.without_cudnn",
}  # fmt: skip
LARGE = 70_000  # elements of tensors that are not tried as they are
AT_LARGE = (1, 1.0, -1.0, 128.0, LARGE, 65520.0, 1e9, -1e9, 2**31, -3.5e38, math.inf)


def places(name: str) -> list[tuple[int, str, bool]]:
    """(position, name, only by name) of each argument of the entry that may be a number, by the operator's schemas."""
    op = ENTRIES[name]
    found: dict[str, tuple[int, str, bool]] = {}
    for aten in {f"aten::{op.name}", f"aten::{op.aten_name}", f"aten::{op.name.replace('.', '_')}"}:
        if not hasattr(torch.ops.aten, aten.removeprefix("aten::")):
            continue
        for overload in schema.overloads(aten):
            for position, argument in enumerate(overload._schema.arguments):
                if position and str(argument.type) in _NUMBER:
                    found.setdefault(argument.name, (position, argument.name, argument.kwarg_only))
    return sorted(found.values())


def _draws(name: str) -> bool:
    names = {f"aten::{ENTRIES[name].name}", f"aten::{ENTRIES[name].name}_"}
    known = [n for n in names if hasattr(torch.ops.aten, n.removeprefix("aten::"))]
    return any(torch.Tag.nondeterministic_seeded in o.tags for n in known for o in schema.overloads(n))


def with_number(sample: Any, place: tuple[int, str, bool], number: float, others: Sequence[Any] | None = None) -> Any:
    """The sample with this number in that place; `others`: with these in the place of its other arguments."""
    position, name, by_name = place
    args, kwargs = tuple(sample.args) if others is None else tuple(others), dict(sample.kwargs)
    if by_name or name in kwargs or position > len(args):
        kwargs[name] = number
    else:
        args = (*args[: position - 1], number, *args[position:])
    return type(sample)(sample.input, args=args, kwargs=kwargs)


def others_beside(sample: Any, place: tuple[int, str, bool], way: Way) -> Sequence[Any] | None:
    """What has to be beside a number for torch's function in Python to take it. None: there is no such thing."""
    numbers = [1.0 if isinstance(a, torch.Tensor) else a for a in sample.args]
    for others in (sample.args, numbers, ()):
        if not isinstance(
            _Call(way, with_number(sample, place, 1.0, others), False, torch.manual_seed).error, TypeError
        ):
            return tuple(others)
    return None


def ways(op: Any) -> Iterator[Way]:
    yield Way("function", op.op)
    if op.inplace_variant is not None:
        yield Way("in-place", op.inplace_variant, writes=True)


def compare(name: str, dtype: torch.dtype, most: int, numbers: tuple[float, ...] = NUMBERS) -> Outcome:
    """Call one entry with every number in every place; `most`: samples of it."""
    op = ENTRIES[name]
    outcome = Outcome(name, str(dtype).removeprefix("torch."))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples(op, dtype, most)):
            for where in places(name):
                for way in ways(op):
                    _in_turn(outcome, f"{way.name} #{number}", way, where, sample, numbers)
    return outcome


def compare_large(name: str, dtype: torch.dtype, numbers: tuple[float, ...] = AT_LARGE) -> Outcome:
    """The same on a tensor of so many elements that a copy is tried in its place; of element-wise functions."""
    op = ENTRIES[name]
    outcome = Outcome(name, str(dtype).removeprefix("torch."))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, dtype, 8):
            given = [sample.input, *sample.args, *sample.kwargs.values()]
            shape = getattr(sample.input, "shape", None)
            if shape is None or any(t.shape != shape or t.layout is not torch.strided for t in tensors_in(given)):
                continue

            def large(a: Any) -> Any:
                return a.detach().reshape(-1)[:1].expand(LARGE).clone() if isinstance(a, torch.Tensor) else a

            if not sample.input.numel():
                continue
            made = type(sample)(large(sample.input), args=tuple(map(large, sample.args)), kwargs=sample.kwargs)
            for where in places(name):
                _in_turn(outcome, "large", Way("function", op.op), where, made, numbers)
            break
    return outcome


class _Call:
    """One call on one side: what it gave, or raised, then or when it was read."""

    def __init__(self, way: Way, sample: Any, lazy: bool, seed: Callable[[int], Any]) -> None:
        first, args, kwargs = Place(lazy, False)((sample.input, sample.args, dict(sample.kwargs)))
        self.result: Any = None
        self.error: Exception | None = None
        self.late = False
        seed(0)
        try:
            with torch.no_grad():
                self.result = way.call(first, *args, **kwargs)
        except Exception as error:
            self.error = error
        try:
            for t in tensors_in(self.result) if lazy else ():
                concrete(t)
        except mindtorch.MaterializationError as error:
            self.error, self.late = error, True

    def __str__(self) -> str:
        kind, words = type(self.error).__name__, str(self.error).splitlines()[:1]
        return "nothing" if self.error is None else f"{'when read: ' * self.late}{kind}: {''.join(words)[:200]}"


def _in_turn(
    outcome: Outcome, what: str, way: Way, where: tuple[int, str, bool], sample: Any, numbers: tuple[float, ...]
) -> None:
    # torch's function tells all devices, and notes each time who asked: twice the time of all the rest.
    seed = torch.manual_seed if _draws(outcome.entry) else torch.default_generator.manual_seed
    others = others_beside(sample, where, way)
    for number in numbers if others is not None else ():
        given = with_number(sample, where, number, others)
        eager = _Call(way, given, lazy=False, seed=seed)
        outcome.calls += 1
        outcome.raised += eager.error is not None
        lazy = _Call(way, given, lazy=True, seed=seed)
        outcome.differences += [f"{what} {where[1]}={number!r}: {why}" for why in _differences(eager, lazy)]


def _differences(eager: _Call, lazy: _Call) -> Iterator[str]:
    if lazy.late or (eager.error is None) != (lazy.error is None):
        yield f"raises {lazy}; eager: {eager}"
    elif eager.error is None:
        yield from tree_differences(eager.result, lazy.result, True)
    elif not isinstance(lazy.error, type(eager.error)):
        yield f"raises {lazy}; eager: {eager}"
