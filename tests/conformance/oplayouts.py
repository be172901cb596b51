"""What is predicted of calls on inputs in every layout, without trying the calls on the kernel.

Small calls are tried on the kernel itself before they are recorded, so small samples never see what the engine's rules
and torch's meta kernels say. Here the trial is off (`untried`), and nothing is read: compared with eager is what a lazy
tensor says of itself, forward and backward.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import opcases
import torch
from opcompare import Place, is_lazy, tensors_in
from torch.utils._pytree import tree_flatten, tree_map

import mindtorch
from mindtorch._ext import lazy as _core
from mindtorch.engine.record import predict, trial


def _in_order(t: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same elements; in memory, dimension ``order[0]`` is the outermost."""
    back = sorted(range(t.dim()), key=order.__getitem__)
    return t.permute(order).contiguous().permute(back)


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return _in_order(t, (0, *range(2, t.dim()), 1)) if t.dim() > 2 else _in_order(t, tuple(reversed(range(t.dim()))))


def _transposed(t: torch.Tensor) -> torch.Tensor:
    return _in_order(t, (*range(t.dim() - 2), t.dim() - 1, t.dim() - 2)) if t.dim() > 1 else t


def _sliced(t: torch.Tensor) -> torch.Tensor:
    out = t.new_empty((*t.shape[:-1], 2 * t.shape[-1]))[..., ::2]
    return out.copy_(t)


def _expanded(t: torch.Tensor) -> torch.Tensor:
    return t[:1].expand(t.shape) if t.shape[0] else t


#: Of a tensor of one dimension or more, one with the same sizes.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels-last": _channels_last,
    "transposed": _transposed,
    "reversed": lambda t: _in_order(t, tuple(reversed(range(t.dim())))),
    "sliced": _sliced,
    "expanded": _expanded,
    "mixed": lambda t: _in_order(t, tuple(reversed(range(t.dim())))),  # every other tensor; the rest contiguous
}


@dataclass
class Count:
    """What comparing one entry in one layout gave."""

    entry: str
    layout: str
    calls: int = 0
    differences: list[str] = field(default_factory=list)


@contextlib.contextmanager
def untried(copies: bool = False) -> Iterator[None]:
    """No call is tried as it is, unless all its tensors are empty. `copies`: but copies of other sizes are."""
    _forget()
    with mock.patch.multiple(trial, OWN_SIZE=0, COPIES=copies):
        yield
    _forget()


def _forget() -> None:
    _core.forget_calls()  # what was predicted with the trial on
    predict.forget()


#: Torch's kernels check nothing here: sizes that do not fit damage memory, in eager too.
UNCHECKED = ("_", "native_batch_norm", "lu_unpack")
#: Sizes that samples get beside their own: most have fewer dimensions than channels-last layouts are about.
WIDER = ((2, 8, 6, 4), (2, 4, 3, 6, 4))


def widened(sample: Any, size: tuple[int, ...]) -> Any:
    """The sample with other sizes for its input, and for whatever is of the same. None if it has no input to widen.

    Not every operator takes it: what eager refuses, we have to refuse.
    """
    first = sample.input
    if not isinstance(first, torch.Tensor) or first.layout is not torch.strided or not first.numel() or not first.dim():
        return None

    def leaf(a: Any) -> Any:
        if not isinstance(a, torch.Tensor) or a.shape != first.shape or a.is_conj() or a.is_neg():
            return a
        flat = a.detach().reshape(-1)
        repeated = flat.repeat(math.prod(size) // flat.numel() + 1)[: math.prod(size)]
        return repeated.reshape(size).requires_grad_(a.requires_grad)

    made = copy.copy(sample)
    made.input, made.args, made.kwargs = tree_map(leaf, (first, sample.args, dict(sample.kwargs)))
    return made


def in_layout(sample: Any, layout: str) -> Any:
    """A sample's tensors laid out anew; its values may be others (``expanded``)."""
    seen = 0

    def leaf(a: Any) -> Any:
        nonlocal seen
        if not isinstance(a, torch.Tensor) or a.layout is not torch.strided or not a.dim() or a.is_quantized:
            return a
        seen += 1
        if (layout == "mixed" and seen % 2 == 0) or a.is_conj() or a.is_neg():
            return a
        return LAYOUTS[layout](a.detach()).requires_grad_(a.requires_grad)

    with torch.no_grad():
        return tree_map(leaf, (sample.input, sample.args, dict(sample.kwargs)))


def _samples(name: str, dtype: torch.dtype, most: int | None, wide: int | None) -> list[Any]:
    op = opcases.ENTRIES[name]
    made = opcases.samples(op, dtype, None)
    chosen = [
        made if n is None or len(made) <= n else [made[i * len(made) // n] for i in range(n)] for n in (most, wide)
    ]
    if name.startswith(UNCHECKED):
        return chosen[0]
    return [*chosen[0], *filter(None, (widened(s, size) for s in chosen[1] for size in WIDER))]


_few = functools.cache(_samples)  # making them takes longer than comparing some of them


def compare(name: str, dtype: torch.dtype, layout: str, most: int | None = None, wide: int | None = None) -> Count:
    """One entry's samples in one layout, with and without gradients. `most`, `wide`: how many of them, as they are and
    with other sizes; None: all."""
    op = opcases.ENTRIES[name]
    count = Count(name, layout)
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = _few(name, dtype, most, wide) if most is not None else _samples(name, dtype, most, wide)
        for number, sample in enumerate(made):
            laid = in_layout(sample, layout)
            for grad in (False, True) if differentiable else (False,):
                count.calls += 1
                sides = [_Side(op, laid, sample, lazy, grad) for lazy in (False, True)]
                count.differences += [f"#{number}{' gradient' if grad else ''}: {why}" for why in _differences(*sides)]
    return count


class _Side:
    """One call on one side: what it gave or raised, and the gradients of what went in."""

    def __init__(self, op: Any, laid: Any, sample: Any, lazy: bool, grad: bool) -> None:
        first, args, kwargs = Place(lazy, grad)(laid)
        self.inputs = tensors_in((first, args, kwargs))
        self.result: Any = None
        self.gradients: Any = None
        self.error: Exception | None = None
        torch.manual_seed(0)
        try:
            with torch.set_grad_enabled(grad):
                self.result = op.op(first, *args, **kwargs)
            if grad:
                self._backward(sample)
        except Exception as error:
            self.error = error

    def _backward(self, sample: Any) -> None:
        outputs = [
            t
            for t in tensors_in(sample.output_process_fn_grad(self.result))
            if t.requires_grad and t.layout is torch.strided
        ]
        inputs = [t for t in self.inputs if t.requires_grad]
        if outputs and inputs:
            incoming = [torch.ones_like(t) for t in outputs]
            self.gradients = torch.autograd.grad(outputs, inputs, incoming, allow_unused=True)

    def read(self) -> Exception | None:
        """The error that comes when all is read."""
        try:
            for t in tensors_in((self.result, self.gradients, self.inputs)):
                if is_lazy(t):
                    t.materialize()
        except mindtorch.MaterializationError as error:
            return error
        return None


def _differences(eager: _Side, lazy: _Side) -> Iterator[str]:
    if eager.error is not None:
        if lazy.error is None and (late := lazy.read()) is not None and late.__cause__ is not None:
            if not _about_values(late.__cause__, eager.inputs):
                yield f"late: {_words(late.__cause__)}, eager at the call {_words(eager.error)}"
        elif not isinstance(lazy.error, type(eager.error)):
            yield f"{_words(lazy.error)}, eager {_words(eager.error)}"
        return
    if lazy.error is not None:
        yield f"raises {_words(lazy.error)}"
        return
    for what, expected, got in (("", eager.result, lazy.result), ("gradient ", eager.gradients, lazy.gradients)):
        e, e_spec = tree_flatten(expected)
        g, g_spec = tree_flatten(got)
        if e_spec != g_spec:
            yield f"{what}structure {g_spec}, eager {e_spec}"
        for i, (x, y) in enumerate(zip(e, g, strict=False)):
            if isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested and facts(x) != facts(y):
                yield f"{what}[{i}] {facts(y)}, eager {facts(x)}"


#: Of what torch says about values: on a lazy device, that comes when they are known.
ABOUT_VALUES = ("pivots passed to lu_unpack must", "segment_reduce(): Expected all rows")
ABOUT_MASKS = "shape mismatch: value tensor"


def _about_values(error: BaseException, inputs: list[torch.Tensor]) -> bool:
    if isinstance(error, (IndexError, torch.linalg.LinAlgError)) or str(error).startswith(ABOUT_VALUES):
        return True
    return str(error).startswith(ABOUT_MASKS) and any(t.dtype is torch.bool for t in inputs)


def facts(t: torch.Tensor) -> tuple[Any, ...]:
    return (t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), t.is_conj(), t.is_neg(), t.requires_grad)


def _words(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return "no error" if error is None else f"{type(error).__name__}: {lines[0][:160] if lines else ''}"
