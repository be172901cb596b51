"""What one read runs, as passes see it: calls in program order, the values that they read and give (SPEC L13).

Only segments that repeat themselves are looked at, once for each form; what a pass changes holds for every segment of
the form. A change that the graph cannot prove to keep eager's bits is refused (`Unproven`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.forms import Form, Step

__all__ = ["Input", "Number", "RecordedCall", "SegmentGraph", "Unproven", "Value"]


class Unproven(Exception):
    """A change that might show; its text says how."""


class Input(int):
    """In a call's arguments: its input of this number."""


class Number(int):
    """In a call's arguments: its float of this number, which may change each time."""


@dataclass
class Value:
    """A tensor that a segment reads or makes.

    storage: number of the value that owns its storage, its own if that is new. maker: number of the call, -1: it was
    there before. kept: may it be read when all has run? readers: numbers of the calls that read it, one for each time.
    meta_id: equal ones mean equal metadata, lazy conjugation included; 0: calls saw it with several.
    """

    number: int
    storage: int
    kept: bool
    maker: int = -1
    meta: tuple[Any, ...] = ()
    meta_id: int = -1
    readers: list[int] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.meta[0]
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meta[1])

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        count = self.dtype.itemsize
        for n in self.shape:
            count *= n
        return count


@dataclass
class RecordedCall:
    """One call. ``args``, ``kwargs`` have an `Input` where a tensor goes, a `Number` for a float that may change.

    function: what is called; overload: what the program or autograd called, which that stands for.
    metas: (dtype, sizes, strides or None when contiguous, offset, device index) of the inputs, as the call saw them;
    meta_ids: their numbers.
    floats: what each `Number` stands for: equal floats of a segment are one number, whichever they are.
    written: numbers of the inputs that it writes. view: its outputs are on its input's storage. single: it gives one
    new tensor and nothing else.
    """

    number: int
    sig: int
    overload: Any
    function: Any
    op: str
    grad: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    metas: tuple[tuple[Any, ...], ...]
    meta_ids: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    floats: tuple[int, ...]
    written: tuple[int, ...]
    view: bool
    random: bool
    single: bool

    @property
    def pure(self) -> bool:
        """Does it only return values?"""
        return not (self.written or self.random)


class SegmentGraph:
    """Calls, values, and what passes have changed.

    calls, values: by number. writes: storage → numbers of the calls that write to it.
    """

    def __init__(self, form: Form, device: torch.device) -> None:
        self.values = [Value(n, storage, kept) for n, (storage, kept) in enumerate(form.values())]
        self.calls: list[RecordedCall] = []
        self.writes: dict[int, list[int]] = {}
        self.on: dict[int, list[int]] = {}  # storage → values on it
        for number, (sig, grad, inputs, outputs, floats) in enumerate(form.records()):
            call = _call(form, number, sig, grad, inputs, outputs, floats, device)
            self.calls.append(call)
            for value, meta, meta_id in zip(inputs, call.metas, call.meta_ids, strict=True):
                read = self.values[value]
                read.readers.append(number)
                read.meta = read.meta or meta
                read.meta_id = meta_id if read.meta_id in (-1, meta_id) else 0
            for place, (value, meta_id) in enumerate(zip(outputs, _core.output_metas(sig), strict=True)):
                self.values[value].maker = number
                self.values[value].meta = _core.sig_output_meta(sig, place)
                self.values[value].meta_id = meta_id
            for place in call.written:
                self.writes.setdefault(self.values[inputs[place]].storage, []).append(number)
        for each in self.values:
            self.on.setdefault(each.storage, []).append(each.number)
        self.notes: dict[str, tuple[int, int]] = {}  # pass → (calls that it changed, bytes not taken)
        self.steps: dict[int, Step] = {}
        self.alike: dict[int, int] = {}  # value → the one whose tensor it has
        self.on_settings = False  # do changes rest on settings of torch that calls do not name?

    # ---- what passes ask ---------------------------------------------------------------------------------------------
    def version(self, value: int, before: int) -> int:
        """How often its storage is written before a call."""
        return sum(number < before for number in self.writes.get(self.values[value].storage, ()))

    def is_changed(self, call: RecordedCall) -> bool:
        return call.number in self.steps

    # ---- what passes change ------------------------------------------------------------------------------------------
    def replace(
        self, call: RecordedCall, function: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any]
    ) -> None:
        """Run ``function(*args, **kwargs)`` instead of the call; the pass must ensure that the result is the same."""
        step = prepared(function, tuple(args), kwargs, len(call.inputs))
        if step is None:
            raise Unproven("tensors, or numbers that change, within lists")
        self.steps[call.number] = step

    def share(self, call: RecordedCall, value: int) -> None:
        """Do not run the call: its result is this value, bit for bit; the pass must ensure that."""
        out = self._only_result(call)
        source = self.values[value]
        if source.maker >= call.number or source.meta_id != out.meta_id or not source.meta_id:
            raise Unproven("the value comes later, or has another memory layout")
        if (step := self.steps.get(source.maker)) is not None and step.skips:
            raise Unproven("the value is not computed")
        if out.kept:
            raise Unproven("the program may write to one and see it in the other")
        if call.view:
            if source.storage != out.storage:
                raise Unproven("they are views of other storages")
        else:
            until = max(out.readers, default=call.number)
            if self.on[out.number] != [out.number]:
                raise Unproven("there are views of it")
            written = self.writes.get(source.storage, ())
            if any(source.maker < n <= until for n in written) or self.writes.get(out.number):
                raise Unproven("one of them is written")
        self.steps[call.number] = Step(None, same=value)
        self.alike[out.number] = value

    def fold(self, call: RecordedCall, result: torch.Tensor) -> None:
        """Do not run the call: its result is this tensor each time; the pass must ensure that, and that nobody else
        has the tensor but as the result of calls that make views of each other.
        """
        out = self._only_result(call)
        if any(self.values[n].kept for n in self.on[out.storage]):
            raise Unproven("the program may write to it")
        if self.writes.get(out.storage):
            raise Unproven("it is written")
        self.steps[call.number] = Step(None, value=result)

    def skip(self, call: RecordedCall) -> None:
        """Do not run the call: no call needs its result any more; the pass must ensure that it could not fail."""
        out = self._only_result(call)
        if out.kept or any(map(self.reads, out.readers, [out.number] * len(out.readers))):
            raise Unproven("its result is needed")
        if any(step.call is None and step.value is None and not step.skips and step.same == out.number
               for step in self.steps.values()):  # fmt: skip
            raise Unproven("it is another call's result")
        self.steps[call.number] = Step(None, skips=True)

    def reads(self, number: int, value: int) -> bool:
        """Does what runs for a call read this input?"""
        step, call = self.steps.get(number), self.calls[number]
        if step is None:
            return True
        return step.call is not None and any(
            call.inputs[k] == value for _position, k in step.inputs if k < len(call.inputs)
        )

    def _only_result(self, call: RecordedCall) -> Value:
        if not call.single or not call.pure:
            raise Unproven("it does more than return one tensor")
        (number,) = call.outputs
        return self.values[number]


def prepared(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: int) -> Step | None:
    """A call made ready, of so many inputs; None where these, or floats that change, are within lists."""
    given: list[tuple[int, int]] = []
    for position, value in enumerate((*args, *kwargs.values())):
        if isinstance(value, Input):
            given.append((position, int(value)))
        elif isinstance(value, Number):
            given.append((position, inputs + int(value)))
        elif isinstance(value, (tuple, list)) and _has_inputs(value):
            return None
    return Step(function, args, kwargs, tuple(given))


def _has_inputs(value: Any) -> bool:
    return isinstance(value, (Input, Number)) or (isinstance(value, (tuple, list)) and any(map(_has_inputs, value)))


def _call(form: Form, number: int, sig: int, grad: bool, inputs: tuple[int, ...], outputs: tuple[int, ...],
          floats: tuple[int, ...], device: torch.device) -> RecordedCall:  # fmt: skip
    info = _core.sig_info(sig)
    holes, numbers = tuple(map(Input, range(len(inputs)))), tuple(map(Number, range(len(floats))))
    args, kwargs = _core.call_template(sig, holes, device, numbers)
    return RecordedCall(
        number,
        sig,
        info.func,
        info.call,
        info.name,
        grad,
        inputs,
        outputs,
        tuple(map(form.tape.interner.meta, _core.input_metas(sig))),
        tuple(_core.input_metas(sig)),
        args,
        kwargs,
        floats,
        _core.sig_written(sig),
        _core.sig_is_view(sig),
        _core.sig_generator(sig) >= 0,
        len(outputs) == 1 and _core.sig_returns(sig) is None,
    )
