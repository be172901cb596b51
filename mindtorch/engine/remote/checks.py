"""Is a message one that a worker can do? Decided before any of it is done, and without running anything (SPEC R3).

Checked are the form of every request, that functions are in the table, that numbers name what is there by then (the
message's own uploads and results included), that plans are made of calls that are defined, and that tensors lie within
storages whose sizes are known. What calls do to sizes is known when they have run: the worker looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._ext.strides import contiguous, extent, known_extent
from ...base import torch_facts
from . import functions
from .definitions import Definition, Numbers
from .plans import Plan, Step
from .wire import Here, Hole, Reference, WireError

__all__ = ["Checks", "are", "argument", "described", "within"]

_MOST = 1 << 48  # of sizes, strides, offsets: their products stay within what Python and torch take
_MOST_NUMBER = 1 << 62  # of storages
_Plain = (bool, int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.layout, torch.memory_format)


class Checks:
    """What a worker will have when the messages that were checked are done.

    sizes: bytes of each storage, None where only the worker knows. greeted: do the sides know that they are made of
    the same? Nothing is done before.
    """

    def __init__(self) -> None:
        self.greeted = False
        self.definitions: list[Definition] = []
        # And what makes each result that is kept, and how many bytes it takes.
        self.plans: list[tuple[Plan, list[tuple[Step, int]], list[int]]] = []
        self._sizes: dict[int, int | None] = {}
        self.refused: set[int] = set()  # of what is to be run ahead: the base of each

    def message(self, requests: Any) -> list[tuple]:
        """The requests of a message. WireError where a worker must not do it: no other message can be checked then."""
        if not isinstance(requests, list):
            raise WireError(f"expected a list of requests, got {type(requests).__name__}")
        try:
            for request in requests:
                if not isinstance(request, tuple) or not request or request[0] not in _CHECKS:
                    raise WireError(f"expected a list of requests, got {request!r:.80}")
                if not self.greeted and requests[0][0] != "hello":
                    raise WireError(f"expected a hello first, got [{request[0]}]")
                kinds, check = _CHECKS[request[0]]
                are(request[0], request[1:], kinds)
                if check is not None:
                    check(self, *request[1:])
        except WireError:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError, MemoryError, AttributeError) as error:
            raise WireError(f"expected a request, got one that cannot be read: {error}") from error
        return requests

    # ---- storages ----------------------------------------------------------------------------------------------------
    def _new(self, number: int, nbytes: int | None) -> None:
        if not 0 < number < _MOST_NUMBER:
            raise WireError(f"expected the number of a storage, got {number}")
        self._sizes[number] = nbytes

    def _there(self, number: Any) -> int | None:
        """The bytes of a storage that must be there; None: not known."""
        if type(number) is int and number in self._sizes:
            return self._sizes[number]
        raise WireError(f"expected the number of a storage, got {number!r:.40}")

    def made(self, number: int) -> None:
        """A call has made a storage."""
        self._sizes[number] = None

    def _upload(self, number: int, data: bytes) -> None:
        self._new(number, len(data))

    def _reserve(self, number: int, nbytes: int) -> None:
        within("bytes", nbytes, _MOST)
        self._new(number, nbytes)

    def _fill(self, number: int, begin: int, data: bytes) -> None:
        nbytes = self._there(number)
        if not 0 <= begin <= (_MOST if nbytes is None else nbytes - len(data)):  # None: the worker looks itself
            raise WireError(
                f"expected a part of the {nbytes} bytes of storage {number}, got {len(data)} from {begin} on"
            )

    def _file(self, number: int, _path: str, offset: int, nbytes: int, digest: bytes) -> None:
        within("an offset", offset, _MOST)
        within("bytes", nbytes, _MOST)
        if len(digest) != 32:
            raise WireError(f"expected a digest, got {len(digest)} bytes")
        self._new(number, nbytes)

    def gone(self, number: int) -> None:
        """It was not made."""
        self._sizes.pop(number, None)

    def _write(self, number: int, data: bytes) -> None:
        nbytes = self._there(number)
        if nbytes is not None and nbytes != len(data):
            raise WireError(f"expected {nbytes} bytes for storage {number}, got {len(data)}")

    def _copy(self, number: int, source: int) -> None:
        self._new(number, self._there(source))

    def _overwrite(self, number: int, source: int) -> None:
        nbytes, other = self._there(number), self._there(source)
        if None not in (nbytes, other) and nbytes != other:
            raise WireError(f"expected {nbytes} bytes for storage {number}, got {other}")

    def _give(self, number: int, ticket: int) -> None:
        self._there(number)

    def _take(self, number: int, nbytes: int, ticket: int) -> None:
        within("bytes", nbytes, _MOST)
        self._new(number, nbytes)

    def _unpack(self, numbers: list, sizes: list, ticket: int) -> None:
        self._several(numbers)
        self._several(sizes)
        for number, nbytes in zip(numbers, sizes, strict=True):
            self._take(number, nbytes, ticket)

    def _pack(self, numbers: list, ticket: int) -> None:
        for number in numbers:
            self._there(number)

    def _free(self, numbers: list) -> None:
        for number in numbers:
            are("free", (number,), (int,))
            self._sizes.pop(number, None)

    def _several(self, numbers: list) -> None:
        for number in numbers:
            are("the number of a storage", (number,), (int,))

    def _tensor(self, value: Any) -> None:
        nbytes = self._there(described(value))
        _number, dtype, sizes, strides, offset, _bits = value
        if nbytes is not None and known_extent(sizes, strides, offset) * dtype.itemsize > nbytes:
            raise WireError(f"expected a tensor within the {nbytes} bytes of storage {value[0]}, got {value[1:]}")

    # ---- recorded calls ----------------------------------------------------------------------------------------------
    def _define(self, definitions: list) -> None:
        for given in definitions:
            are("a definition", given, (str, tuple, dict, int, bool, tuple, bool, tuple, tuple))
            made = Definition(*given)
            functions.called(made.function)
            holes: list[int] = []
            argument(made.args, holes)
            for name, a in made.kwargs.items():
                if type(name) is not str:
                    raise WireError(f"expected the name of an argument, got {name!r:.40}")
                argument(a, holes)
            if sorted(holes) != list(range(len(holes))):
                raise WireError(f"expected holes in order, got {holes}")
            if not -1 <= made.random < 128:
                raise WireError(f"expected the index of a generator, got {made.random}")
            for hole in made.writes:
                within("a hole", hole, len(holes))
            for output in made.outputs:
                if output is not None:
                    within("an output", output if output >= 0 else -1 - output,
                        len(made.predicted) if output >= 0 else len(holes))  # fmt: skip
            covered = sorted(output for output in made.outputs if output is not None and output >= 0)
            if covered != list(range(len(made.predicted))):
                raise WireError(f"expected results for {len(made.predicted)} outputs, got {made.outputs!r:.80}")
            for predicted in made.predicted:
                are("a prediction", predicted, (torch.dtype, int, bool))
                within("dimensions", predicted[1], 65)
            self.definitions.append(made)

    def _plan(self, records: list, given: list, kept: list) -> None:
        for begins in given:
            are("a tensor's kind", begins, (torch.dtype, int, bool, int))
            within("dimensions", begins[1], 65)
            _view_bits(begins[0], begins[3])
        for record in records:
            if not isinstance(record, tuple) or len(record) < 2 or type(record[1]) is not bool:
                raise WireError(f"expected a record, got {record!r:.80}")
            are("a record", (record[0], *record[2:]), (int,) * (len(record) - 1))
            within("a definition", record[0], len(self.definitions))
            holes: list[int] = []
            made = self.definitions[record[0]]
            argument((made.args, tuple(made.kwargs.values())), holes)
            if len(holes) != len(record) - 2:
                raise WireError(f"expected {len(holes)} tensors for [{made.function}], got {len(record) - 2}")
        are("results", tuple(kept), (int,) * len(kept))
        plan = Plan(self.definitions, records, given, kept)
        makers = [(step, k) for step in plan.steps for k in range(len(step.definition.predicted))]
        self.plans.append((plan, [makers[k] for k in kept], []))

    def _forget(self) -> None:
        self.definitions, self.plans = [], []

    def _run(self, number: int, base: int, positions: bytes, values: bytes, timed: bool) -> None:
        within("a plan", number, len(self.plans))
        self.plans[number][0].change(positions, values)
        self._runs(number, base)

    def _speculate(self, number: int, base: int, positions: bytes, values: bytes) -> None:
        """As `_run`; but what was guessed wrong is refused alone."""
        within("a plan", number, len(self.plans))
        plan = self.plans[number][0]
        plan.change(positions, values)
        try:
            self._runs(number, base)
        except WireError:
            plan.did_not_run()
            self.refused.add(base)
            for k in plan.kept:
                self._new(base + k, None)

    def _runs(self, number: int, base: int) -> None:
        plan, makers, sizes = self.plans[number]
        for value in plan.described():
            self._tensor(value)
        if plan.has_new_sizes():
            sizes[:] = [_predicted(step, plan)[position] for step, position in makers]
        for k, nbytes in zip(plan.kept, sizes, strict=True):
            self._new(base + k, nbytes)

    # ---- the rest ----------------------------------------------------------------------------------------------------
    def _call(self, base: int, given: list, function: str, args: tuple, kwargs: dict, grad: bool, random: int) -> None:
        functions.called(function)
        for value in given:
            self._tensor(value)
        holes: list[int] = []
        argument((args, tuple(kwargs.values())), holes)
        for hole in holes:
            within("a tensor", hole, len(given))
        if not -1 <= random < 128:
            raise WireError(f"expected the index of a generator, got {random}")
        if not 0 < base < _MOST_NUMBER:
            raise WireError(f"expected the number of a storage, got {base}")
        for number, *_ in given:  # it may have been resized
            self._sizes[number] = None

    def _generator(self, index: int, *state: bytes) -> None:
        within("a generator", index, 128)
        for each in state:
            if not torch_facts.is_state(each):
                raise WireError("expected the state of a generator")

    def _seed(self, _seed: int, besides: list) -> None:
        for index in besides:
            are("seed", (index,), (int,))
            within("a generator", index, 128)


def _predicted(step: Step, plan: Plan) -> list[int]:
    """The bytes of each output's storage."""
    numbers = Numbers(plan.ints, plan.floats, step.begin)
    for a in (*step.definition.args, *step.definition.kwargs.values()):
        numbers.fill(a)
    found = []
    for dtype, ndim, told in step.definition.predicted:
        sizes = numbers.several(ndim)
        strides = numbers.several(ndim) if told else contiguous(sizes)
        (offset,) = numbers.several(1)
        if any(not 0 <= n < _MOST for n in (*sizes, *strides, offset)):
            raise WireError(f"expected sizes, strides and an offset of at least 0, got {sizes}, {strides}, {offset}")
        found.append(extent(sizes, strides, offset) * dtype.itemsize)
    return found


def are(what: str, given: Any, kinds: Sequence[type]) -> None:
    """WireError unless these are values of these kinds; object: any."""
    if not isinstance(given, tuple) or len(given) != len(kinds):
        raise WireError(f"[{what}] expected {len(kinds)} values, got {given!r:.80}")
    for value, kind in zip(given, kinds, strict=True):
        if kind is not object and type(value) is not kind and not (kind is tuple and isinstance(value, tuple)):
            raise WireError(f"[{what}] expected {kind.__name__}, got {value!r:.80}")


def described(value: Any) -> int:
    """A tensor as (storage's number, dtype, sizes, strides, offset, MetaBits): that number."""
    are("a tensor", value, (int, torch.dtype, tuple, tuple, int, int))
    number, dtype, sizes, strides, offset, bits = value
    if len(sizes) != len(strides) or len(sizes) > 64:
        raise WireError(f"expected sizes and strides of a tensor, got {value[2:4]!r:.80}")
    _view_bits(dtype, bits)
    for n in (*sizes, *strides, offset):
        if type(n) is not int or not 0 <= n < _MOST:
            raise WireError(f"expected sizes, strides and an offset of at least 0, got {n!r:.40}")
    if known_extent(sizes, strides, offset) >= _MOST:
        raise WireError(f"expected a tensor of fewer elements, got {value[1:]!r:.80}")
    return number  # type: ignore[no-any-return]


def _view_bits(dtype: torch.dtype, bits: int) -> None:
    within("bits", bits, 4)
    if bits & 1 and not dtype.is_complex:
        raise WireError(f"expected a complex dtype for a conjugated tensor, got {dtype}")


def within(what: str, number: Any, end: int) -> None:
    """WireError unless it is an int from 0 up to, and without, ``end``."""
    if type(number) is not int or not 0 <= number < end:
        raise WireError(f"expected {what} in 0..{end - 1}, got {number!r:.40}")


def argument(a: Any, holes: list[int]) -> None:
    """An argument, whose references go into ``holes``."""
    if isinstance(a, Reference):
        holes.append(a.index)
    elif isinstance(a, (tuple, list)):
        for item in a:
            argument(item, holes)
    elif isinstance(a, slice):
        argument((a.start, a.stop, a.step), holes)
    elif not isinstance(a, (*_Plain, Hole, Here, torch.device)):
        raise WireError(f"expected an argument, got {type(a).__name__}")


#: For each request the kinds of what is in it, and what is checked besides.
_CHECKS: dict[str, tuple[Sequence[type], Callable[..., Any] | None]] = {
    "call": ((int, list, str, tuple, dict, bool, int), Checks._call),
    "copy": ((int, int), Checks._copy),
    "define": ((list,), Checks._define),
    "digest": ((list,), Checks._several),
    "fetch": ((tuple,), Checks._tensor),
    "file": ((int, str, int, int, bytes), Checks._file),
    "forget": ((), Checks._forget),
    "fill": ((int, int, bytes), Checks._fill),
    "free": ((list,), Checks._free),
    "get_generators": ((), None),
    "get_state": ((int,), Checks._generator),
    "give": ((int, int), Checks._give),
    "hello": ((object,), None),  # which looks itself
    "machine": ((), None),
    "overwrite": ((int, int), Checks._overwrite),
    "pack": ((list, int), Checks._pack),
    "plan": ((list, list, list), Checks._plan),
    "reserve": ((int, int), Checks._reserve),
    "run": ((int, int, bytes, bytes, bool), Checks._run),
    "seed": ((int, list), Checks._seed),
    "seen": ((int,), None),
    "set_state": ((int, bytes), Checks._generator),
    "settings": ((list,), None),
    "small": ((list,), Checks._several),
    "speculate": ((int, int, bytes, bytes), Checks._speculate),
    "storage": ((int,), Checks._there),
    "sync": ((), None),
    "take": ((int, int, int), Checks._take),
    "undo": ((int,), None),
    "unpack": ((list, list, int), Checks._unpack),
    "upload": ((int, bytes), Checks._upload),
    "write": ((int, bytes), Checks._write),
}
