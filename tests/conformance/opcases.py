"""What is compared: the entries of torch's operator database, their sample inputs, and the ways to call them."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from exempt import NOT_IN_INFERENCE_MODE, values_compared
from opcompare import (
    DEVICE,
    Place,
    aliasing,
    concrete,
    is_lazy,
    same_bits,
    tensor_differences,
    tensors_in,
    tree_differences,
)
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_map

import mindtorch

# For every entry and every error torch looks on the stack for a test case of its own, which is not there, and reads the
# source of every frame to do so: under pytest that took nine tenths of the time of making samples.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

DTYPES = (torch.float32, torch.int64, torch.bool, torch.float64, torch.bfloat16, torch.complex64)


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


__all__ = [
    "DEVICE",
    "DTYPES",
    "ENTRIES",
    "Outcome",
    "aliasing",
    "compare",
    "compare_errors",
    "dtypes_of",
    "same_bits",
    "tensor_differences",
    "tree_differences",
]

ENTRIES = {entry_name(op): op for op in op_db}


def dtypes_of(op: Any) -> list[torch.dtype]:
    return [d for d in DTYPES if op.supports_dtype(d, "cpu")]


@dataclass
class Outcome:
    """What comparing one entry in one dtype gave."""

    entry: str
    dtype: str
    calls: int = 0
    raised: int = 0  # calls that eager refuses, too
    differences: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)  # of the function called without gradients
    recorded: bool = True  # … and none of those calls fell back
    inferable: bool = True  # torch's meta device takes every one of those calls


@dataclass(frozen=True)
class Way:
    """One way to call an entry."""

    name: str
    call: Callable[..., Any]
    grad: bool = False
    writes: bool = False
    out: str = ""
    mode: Callable[[], Any] | None = None  # with inputs that require grad although nothing is to be remembered
    gaps: bool = False  # the inputs are not contiguous


def ways(op: Any, dtype: torch.dtype) -> list[Way]:
    found = [Way("function", op.op)]
    if op.method_variant is not None:
        found.append(Way("method", op.method_variant))
    if op.operator_variant is not None:
        found.append(Way("operator", op.operator_variant))
    if op.inplace_variant is not None:
        found.append(Way("in-place", op.inplace_variant, writes=True))
    if op.inplace_operator_variant is not None:
        found.append(Way("in-place operator", op.inplace_operator_variant, writes=True))
    if op.supports_out:
        found += [Way("out=", op.op, out="same"), Way("out= of size 0", op.op, out="empty")]
    if op.supports_autograd and op.supports_dtype(dtype, "cpu") and (dtype.is_floating_point or dtype.is_complex):
        found.append(Way("gradient", op.op, grad=True))
        if op.inplace_variant is not None and op.supports_inplace_autograd:
            found.append(Way("in-place gradient", op.inplace_variant, grad=True, writes=True))
        found.append(Way("no_grad", op.op, grad=True, mode=torch.no_grad))
        if entry_name(op) not in NOT_IN_INFERENCE_MODE:
            found.append(Way("inference_mode with gaps", op.op, grad=True, mode=torch.inference_mode, gaps=True))
    found.append(Way("with gaps", op.op, gaps=True))
    return found


def samples(op: Any, dtype: torch.dtype, most: int | None) -> list[Any]:
    """The entry's sample inputs, or `most` of them evenly spread over the list."""
    torch.manual_seed(0)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    made = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    creates = any("device" in sample.kwargs for sample in made)
    for sample in made if creates else ():
        if not tensors_in((sample.input, sample.args, sample.kwargs)):
            sample.kwargs["device"] = "cpu"  # a creation function: it becomes the lazy device on that side
    if most is None or len(made) <= most:
        return made
    return [made[i * len(made) // most] for i in range(most)]


def with_other_numbers(sample: Any) -> None:
    """Let its floats be others, which are long in binary, in tensors and besides them; shapes and integers stay."""

    def other(a: Any) -> Any:
        if isinstance(a, torch.Tensor) and a.layout is torch.strided and not (a.is_quantized or a.is_nested):
            storage = a.untyped_storage()
            if (a.is_floating_point() or a.is_complex()) and storage._cdata not in seen:
                seen.add(storage._cdata)
                torch.empty(0, dtype=a.dtype).set_(storage, 0, (storage.nbytes() // a.itemsize,)).mul_(_TIMES)
        return a * _TIMES if isinstance(a, (float, complex)) else a

    seen: set[int] = set()
    with torch.no_grad():
        sample.input, sample.args, sample.kwargs = tree_map(other, (sample.input, sample.args, sample.kwargs))


_TIMES = 0.9371


def compare(
    name: str, dtype: torch.dtype, most: int | None = None, most_ways: int | None = None, turns: int = 1
) -> Outcome:
    """Run one entry in one dtype, eager and lazy, over its samples. `most`: limit of samples; `most_ways`: samples
    for ways other than the plain function and its gradient; `turns`: how often each, with other floats each time."""
    op = ENTRIES[name]
    outcome = Outcome(name, str(dtype).removeprefix("torch."))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples(op, dtype, most)):
            for way in ways(op, dtype):
                if most_ways is not None and number >= most_ways and way.name not in ("function", "gradient"):
                    continue
                if way.gaps and any(t.layout is not torch.strided for t in tensors_in((sample.input, sample.args))):
                    continue
                case = sample.noncontiguous() if way.gaps else copy.copy(sample)
                if turns > 1:  # a copy, which the next way does not see
                    case.input, case.args, case.kwargs = Place(False, True)((case.input, case.args, case.kwargs))
                for turn in range(turns):
                    if turn:
                        with_other_numbers(case)
                    for why in _case(outcome, way, case):
                        outcome.differences.append(f"{way.name} #{number}{f', turn {turn}' * (turns > 1)}: {why}")
    return outcome


def compare_errors(name: str) -> Outcome:
    """Run an entry's error inputs: both sides must refuse them alike."""
    op = ENTRIES[name]
    outcome = Outcome(name, "errors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for number, error in enumerate(op.error_inputs("cpu")):
            for why in _case(outcome, Way("function", op.op), error.sample_input):
                outcome.differences.append(f"error input #{number}: {why}")
    return outcome


# ---- one call --------------------------------------------------------------------------------------------------------
class Run:
    """One call on one side, with what it gave or raised."""

    def __init__(self, way: Way, sample: Any, lazy: bool, out: Any = None) -> None:
        place = Place(lazy, way.grad)
        first, args, kwargs = place((sample.input, sample.args, dict(sample.kwargs)))
        self.inputs = tensors_in((first, args, kwargs))
        self.result: Any = None
        self.error: Exception | None = None
        if way.out:
            kwargs["out"] = place(out)
        if way.writes and way.grad:
            first = first.clone()
        torch.manual_seed(0)
        fallbacks = dict(mindtorch.stats()["fallbacks"]) if lazy else {}
        try:
            with way.mode() if way.mode else torch.set_grad_enabled(way.grad):
                self.result = way.call(first, *args, **kwargs)
        except Exception as error:
            self.error = error
        self.fallbacks = Counter(mindtorch.stats()["fallbacks"]) - Counter(fallbacks) if lazy else Counter()
        self.late: Exception | None = None
        if lazy and self.error is None:
            try:
                for t in (*tensors_in(self.result), *self.inputs):
                    concrete(t)
            except mindtorch.MaterializationError as error:
                self.late = error

    def gradients(self, sample: Any) -> list[Any] | None:
        """Gradients of everything differentiable, with fixed incoming gradients; None if there are none."""
        processed = sample.output_process_fn_grad(self.result)
        outputs = [t for t in tensors_in(processed) if t.requires_grad and t.layout is torch.strided]
        inputs = [t for t in self.inputs if t.requires_grad]
        if not outputs or not inputs:
            return None
        generator = torch.Generator().manual_seed(1)
        incoming = []
        for t in outputs:
            g = torch.randn(t.shape, dtype=t.dtype, generator=generator)
            incoming.append(g.to(t.device) if is_lazy(t) else g)
        torch.manual_seed(2)
        return list(torch.autograd.grad(outputs, inputs, incoming, allow_unused=True))


def _case(outcome: Outcome, way: Way, sample: Any) -> Iterator[str]:
    out = None
    if way.out:
        out = _out_for(way, sample)
        if out is None:
            return
    eager = Run(way, sample, lazy=False, out=out)
    lazy = Run(way, sample, lazy=True, out=out)
    outcome.calls += 1
    if eager.error is not None:
        outcome.raised += 1
        yield from _error_differences(eager.error, lazy)
        return
    if way.name == "function":
        outcome.fallbacks.update(lazy.fallbacks)
        outcome.recorded = outcome.recorded and not lazy.fallbacks
        outcome.inferable = outcome.inferable and _meta_takes(way, sample)
    if lazy.error is not None:
        yield f"raises {_describe(lazy.error)}"
        return
    if lazy.late is not None:
        yield f"raises when read {_describe(lazy.late)}"
        return
    values = values_compared(outcome.entry, sample.kwargs)
    yield from tree_differences(eager.result, lazy.result, values)
    for i, (x, y) in enumerate(zip(eager.inputs, lazy.inputs, strict=True)):
        for why in _input_differences(x, y) if values else ():
            yield f"input {i} afterwards: {why}"
    expected = aliasing(eager.inputs, tensors_in(eager.result))
    got = aliasing(lazy.inputs, tensors_in(lazy.result))
    if expected != got:
        yield f"aliasing {got}, eager {expected}"
    if way.grad and not way.mode and values:
        yield from _gradient_differences(eager, lazy, sample)


def _out_for(way: Way, sample: Any) -> Any:
    plain = Run(Way("", way.call), sample, lazy=False)
    if plain.error is not None or not isinstance(plain.result, (torch.Tensor, tuple, list)):
        return None
    if any(
        not isinstance(t, torch.Tensor) or t.layout is not torch.strided
        for t in (plain.result if isinstance(plain.result, (tuple, list)) else [plain.result])
    ):
        return None

    def target(t: torch.Tensor) -> torch.Tensor:
        if way.out == "empty":
            return torch.empty(0, dtype=t.dtype)
        return torch.zeros_like(t, memory_format=torch.contiguous_format)

    if isinstance(plain.result, torch.Tensor):
        return target(plain.result)
    kind = list if isinstance(plain.result, list) else tuple
    return kind(target(t) for t in plain.result)


def _input_differences(x: torch.Tensor, y: torch.Tensor) -> Iterator[str]:
    if is_lazy(y):
        yield from tensor_differences(x, y)
    elif x.layout is torch.strided and not x.is_quantized and not x.is_nested:
        why = same_bits(x, y)
        if why:
            yield why


def _error_differences(expected: Exception, lazy: Run) -> Iterator[str]:
    got = lazy.error or lazy.late
    if got is None:
        yield f"does not raise, eager {_describe(expected)}"
        return
    if lazy.error is None and got.__cause__ is not None:
        got = got.__cause__  # about the values: known only when it runs
    if not isinstance(got, type(expected)):
        yield f"raises {_describe(got)}, eager {_describe(expected)}"


def _gradient_differences(eager: Run, lazy: Run, sample: Any) -> Iterator[str]:
    error: Exception | None = None
    try:
        expected = eager.gradients(sample)
    except Exception as e:
        error = e
    try:
        got = lazy.gradients(sample)
        if error is not None:
            yield f"backward does not raise, eager {_describe(error)}"
    except Exception as e:
        if error is None or not isinstance(e, type(error)):
            yield f"backward raises {_describe(e)}, eager {'does not' if error is None else _describe(error)}"
        return
    if error is not None:
        return
    if (expected is None) != (got is None):
        yield f"gradients {'none' if got is None else 'some'}, eager {'none' if expected is None else 'some'}"
        return
    for i, (x, y) in enumerate(zip(expected or [], got or [], strict=True)):
        if x is None or y is None:
            if x is not y:
                yield f"gradient {i}: {'none' if y is None else 'some'}, eager {'none' if x is None else 'some'}"
            continue
        try:
            for why in tensor_differences(x, y):
                yield f"gradient {i}: {why}"
        except mindtorch.MaterializationError as e:
            yield f"gradient {i}: raises when read {_describe(e)}"


def _meta_takes(way: Way, sample: Any) -> bool:
    def move(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return a.detach().to("meta")
        return torch.device("meta") if isinstance(a, torch.device) else a

    try:
        args, kwargs = tree_map(move, ((sample.input, *sample.args), dict(sample.kwargs)))
        with torch.no_grad():
            way.call(*args, **kwargs)
    except Exception:
        return False
    return True


def _describe(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
