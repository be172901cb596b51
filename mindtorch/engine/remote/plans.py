"""A segment as the worker knows it: calls in order, and the numbers that they had last (SPEC R1, R3)."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch

from ..._ext.plan_steps import ReadySteps
from ..._ext.strides import contiguous
from .. import passes
from . import functions
from .definitions import Definition, Numbers, floats_in, numbers_in
from .wire import Here, Reference, WireError

__all__ = ["Plan", "Step", "is_constant"]


def is_constant(a: Any) -> bool:
    """Is an argument the same for any tensors and any device? Numbers that change are put in beforehand."""
    if isinstance(a, (tuple, list)):
        return all(map(is_constant, a))
    return not isinstance(a, (Reference, Here, slice))


class Step:
    """One call of a plan.

    inputs: indices into the tensors that the plan begins with and, after those, the outputs so far; dying: of all
    those, the ones that nothing needs after it. ``args``, ``kwargs``, ``predicted`` (dtype, sizes, strides or None when
    contiguous, offset of each output) have the numbers of the run in them, and References for tensors. ``aliases``: may
    outputs be on memory of others? ``tensors``: (position, index) of those that are an argument; ``nested``, ``named``:
    where what else is no constant is. ``first``: index of the first output. ``as_told``: were its outputs, when it last
    ran here, as predicted?
    """

    __slots__ = (
        "aliases", "args", "as_told", "begin", "call", "definition", "dying", "first", "grad", "inputs", "kwargs",
        "named", "nested", "predicted", "tensors",
    )  # fmt: skip

    def __init__(self, definition: Definition, grad: bool, inputs: tuple[int, ...], begin: int, first: int) -> None:
        self.definition, self.grad, self.inputs, self.begin, self.first = definition, grad, inputs, begin, first
        self.call = functions.called(definition.function)
        self.aliases = functions.may_alias(definition.function)
        plain = {at: a.index for at, a in enumerate(definition.args) if isinstance(a, Reference) and not a.tracked}
        self.tensors = tuple(plain.items())
        self.nested = tuple(at for at, a in enumerate(definition.args) if at not in plain and not is_constant(a))
        self.named = tuple(name for name, a in definition.kwargs.items() if not is_constant(a))
        self.dying: tuple[int, ...] = ()
        self.as_told = False
        self.args: tuple = ()
        self.kwargs: dict[str, Any] = {}
        self.predicted: list[tuple] = []

    def fill(self, ints: memoryview[int], floats: memoryview[float]) -> None:
        """Put in the numbers of this run."""
        numbers = Numbers(ints, floats, self.begin)
        made = self.definition
        self.args = numbers.fill(made.args)
        self.kwargs = {name: numbers.fill(a) for name, a in made.kwargs.items()}
        self.predicted = []
        for dtype, ndim, told in made.predicted:
            sizes = numbers.several(ndim)
            strides = numbers.several(ndim) if told else None
            self.predicted.append((dtype, sizes, strides, *numbers.several(1)))


class Plan:
    """Records: (definition, was grad mode on, inputs …), an input being 2 i for tensor i of ``given``, 2 i + 1 for
    output i. given: (dtype, dimensions, are its strides told, MetaBits) of the tensors to begin with; kept: the outputs
    that get storages.
    """

    def __init__(
        self,
        definitions: Sequence[Definition],
        records: Sequence[tuple],
        given: Sequence[tuple[torch.dtype, int, bool, int]],
        kept: Sequence[int],
    ) -> None:
        self.given, self.kept = given, kept
        self.steps: list[Step] = []
        self.aliased: set[int] = set()  # tensors that calls take whose outputs may be on memory of others
        at, outputs = len(given), 0
        floats: list[int] = []
        last: dict[int, int] = {}
        for k, (number, grad, *inputs) in enumerate(records):
            if not 0 <= number < len(definitions):
                raise WireError(f"expected a definition in 0..{len(definitions) - 1}, got {number}")
            indices = tuple(len(given) + (i >> 1) if i & 1 else i >> 1 for i in inputs)
            if any(not 0 <= i >> 1 < (outputs if i & 1 else len(given)) for i in inputs):
                raise WireError(f"expected inputs among {len(given)} tensors and {outputs} outputs, got {inputs}")
            definition = definitions[number]
            step = Step(definition, grad, indices, at, len(given) + outputs)
            self.steps.append(step)
            if step.aliases:
                self.aliased.update(indices)
            floats += [at + n for n in floats_in(definition)]
            for i in indices:
                last[i] = k
            for i in range(outputs, outputs + len(definition.predicted)):
                last[len(given) + i] = k
            outputs += len(definition.predicted)
            at += numbers_in(definition)
        if not all(0 <= k < outputs for k in kept):
            raise WireError(f"expected results among {outputs} outputs, got {kept}")
        staying = {len(given) + k for k in kept}
        dying: dict[int, list[int]] = {}
        for i, k in last.items():
            if i not in staying:
                dying.setdefault(k, []).append(i)
        for k, indices_dying in dying.items():
            self.steps[k].dying = tuple(indices_dying)
        self._begins = [step.begin for step in self.steps]
        self._firsts = [step.first for step in self.steps]
        self._end = at
        self._given_at: list[int] = []  # where the numbers of each begin, but that of its storage
        self._described: list[tuple | None] = [None] * len(given)
        for _dtype, ndim, told, _bits in given:
            self._given_at.append(at)
            at += ndim * (1 + told) + 1
        self._stale = set(range(len(self.steps)))
        self._floats = bytearray(at)  # 1: of a float among arguments
        for n in floats:
            self._floats[n] = 1
        self.ready = ReadySteps(len(self.steps))
        self._sizes_are_new = True
        self._in_use: tuple | None = None
        self._numbers = bytearray(8 * at)
        self.ints, self.floats = memoryview(self._numbers).cast("q"), memoryview(self._numbers).cast("d")

    def change(self, positions: bytes, values: bytes) -> None:
        """Let the numbers at these places (4 bytes each) be others (8 bytes each)."""
        if len(positions) % 4 or len(positions) * 2 != len(values):
            raise WireError(f"expected 4 and 8 bytes for each number, got {len(positions)} and {len(values)}")
        n = len(self.ints)
        for at, value in zip(memoryview(positions).cast("I"), memoryview(values).cast("q"), strict=True):
            if at >= n:
                raise WireError(f"expected the place of a number in 0..{n - 1}, got {at}")
            self.ints[at] = value
            self._sizes_are_new |= at >= len(self.given) and not self._floats[at]
            if at < len(self.given):
                self._described[at] = None
            elif at < self._end:
                k = bisect.bisect_right(self._begins, at) - 1
                self._stale.add(k)
            else:
                self._described[bisect.bisect_right(self._given_at, at) - 1] = None

    def numbers(self) -> bytes:
        """All of them, as they are now."""
        return bytes(self._numbers)

    def has_new_sizes(self) -> bool:
        """Has a number changed since this was last asked, but floats of calls, and which storages it begins with?"""
        found, self._sizes_are_new = self._sizes_are_new, False
        return found

    def fill(self) -> bool:
        """Put the numbers of this run into the calls. Does it repeat the last one, but for floats and storages?

        What was made ready is put right, or forgotten.
        """
        repeats = not self.has_new_sizes()
        if repeats and (in_use := (passes.in_use(), passes.native_prover())) != self._in_use:  # made ready by others
            self.ready.steps[:] = [None] * len(self.steps)
            self._in_use = in_use
        if not repeats:
            self.ready.steps[:] = [None] * len(self.steps)
        for k in self._stale:
            step, ready = self.steps[k], self.ready.steps[k]
            step.fill(self.ints, self.floats)
            if ready is not None:
                for position, value in enumerate((*step.args, *step.kwargs.values())):
                    if type(value) is float:
                        ready.put(position, value)
        self._stale.clear()
        return repeats

    def did_not_run(self) -> None:
        """What was made ready may be of another run than the last that came to its end."""
        self._sizes_are_new = True
        self.ready.steps[:] = [None] * len(self.steps)

    def maker(self, value: int) -> Step | None:
        """The call that makes a value; None for what is there before."""
        k = bisect.bisect_right(self._firsts, value) - 1
        return self.steps[k] if value >= len(self.given) else None

    def described(self) -> list[tuple]:
        """The tensors to begin with: (storage's number, dtype, sizes, strides, offset, MetaBits)."""
        return [self._describe(k) if found is None else found for k, found in enumerate(self._described)]

    def _describe(self, k: int) -> tuple:
        dtype, ndim, told, bits = self.given[k]
        numbers = Numbers(self.ints, self.floats, self._given_at[k])
        sizes = numbers.several(ndim)
        strides = numbers.several(ndim) if told else contiguous(sizes)
        found = self._described[k] = (self.ints[k], dtype, sizes, strides, *numbers.several(1), bits)
        return found
