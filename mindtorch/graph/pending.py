"""The tape of lazy tensors as a graph: what was recorded and has not run.

A write makes the writing op the producer of everything that shares the written storage, so edges alone carry the
order that values depend on, and what a tensor needs is what can be reached backwards from it (plus, for random draws,
all draws of the same device before: they take turns with one generator).

The tape does not say which input an output aliases. Views recorded on it alias their first tensor; values that are
already computed are grouped by the storage they really have.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._ext import context, ledger
from .._ext import lazy as _core
from .._ext import tape as _tape
from .._ext.strides import contiguous
from ..base.errors import LazyTensorError
from ..engine.execute import tensors as _tensors
from ..engine.execute import values
from ..ops import op_name
from .graph import DATA, ComputationGraph
from .parts import Call, Hole, Output, Reading, constant, output_of
from .producers import Source, packed, unpacked

if TYPE_CHECKING:
    from ..engine.execute.tensors import LazyTensor


class Signature(NamedTuple):
    """What is the same for all records of one interned call, with the same floats."""

    call: int
    metas: tuple[int, ...]
    written: tuple[int, ...]  # inputs that are overwritten
    fresh: int  # outputs that are not overwritten inputs
    view: bool
    generator: int  # index of the device whose generator it draws from; -1: it draws nothing


class Builder:
    """One pass over the pending records."""

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.signatures: dict[tuple[int, tuple[float, ...]], Signature] = {}
        self.maker = array("q")  # by slot: who made the value, packed; 0 = not met yet
        self.root: dict[int, int] = {}  # slot -> slot (or storage, negative) it shares memory with; itself if absent
        self.writer: dict[int, int] = {}  # root -> who wrote to it last, packed
        self.wrote: dict[int, int] = {}  # root -> metadata of what was written then

    def run(self) -> None:
        tape = values.tape
        slot = 0
        for seq in tape.pending_seqs():
            try:
                sig, module, loc, phase, ins, outs = tape.describe(seq)
                floats = tape.floats(seq)
            except KeyError:
                continue  # dropped meanwhile: nobody can read what it makes
            self.add(sig, module, loc, phase, ins, outs, floats)
            slot = max((slot, *ins, *outs))
        if slot:
            self._publish(slot)

    def add(self, sig: int, module: int, loc: int, phase: int, ins: Sequence[int], outs: Sequence[int],
            floats: tuple[float, ...] = ()) -> None:  # fmt: skip
        """The next record: ids of module and line, slots of its tensors, the floats that its call leaves open."""
        graph, maker = self.graph, self.maker
        known = self.signatures.get((sig, floats))
        if known is None:
            known = self.signatures[sig, floats] = self._signature(sig, len(ins), len(outs), floats)
        if (most := max((*ins, *outs), default=0)) >= len(maker):
            self.room(most)
        sources = [self._source(slot, meta) for slot, meta in zip(ins, known.metas)]
        readings = list(map(self._reading, ins, known.metas, sources)) if self.writer else ()
        node = graph._append(
            known.call, sources, graph._module_by_id(module), graph._place_by_id(loc), phase, readings=readings
        )
        for position, slot in enumerate(outs):
            maker[slot] = packed(node, position)
            if known.view and ins:
                self.root[slot] = self.root.get(ins[0], ins[0])
            else:
                self.root.pop(slot, None)
                self.writer.pop(slot, None)
        if known.written:
            graph._writes[node] = known.written
        for position, index in enumerate(known.written):
            root = self.root.get(ins[index], ins[index])
            self.writer[root] = packed(node, known.fresh + position)
            self.wrote[root] = known.metas[index]
        if known.generator >= 0:
            graph._draws[node] = known.generator

    def room(self, slot: int) -> None:  # for slots up to that one
        if slot >= len(self.maker):
            self.maker.frombytes(bytes(8 * (slot + 1024 - len(self.maker))))

    def _reading(self, slot: int, meta: int, made: Source) -> Reading | None:
        """How it lies in what was written, if that lies otherwise."""
        root = self.root.get(slot, slot)
        if self.writer.get(root) != packed(*made) or self.wrote[root] == meta:
            return None
        dtype, size, strides, offset, _ = values.tape.interner.meta(meta)
        return Reading(offset, tuple(size), contiguous(size) if strides is None else tuple(strides), dtype)

    def _source(self, slot: int, meta: int) -> Source:
        made = self.maker[slot] or self._data(slot, meta)
        if self.writer:
            made = max(made, self.writer.get(self.root.get(slot, slot), 0))  # the later of the two
        return (made >> 32) - 1, made & 0xFFFFFFFF

    def locate(self, tensor: LazyTensor) -> Source:
        """Who makes the value of ``tensor``; what is pending may not mention it at all."""
        handle = tensor._handle
        self.room(handle.slot)
        return self._source(handle.slot, handle.meta)

    def _data(self, slot: int, meta: int) -> int:
        """A value that was computed before."""
        graph = self.graph
        try:
            value = _core.value(_core.wrap_slot(slot, meta)._handle)
        except LazyTensorError:  # its op failed: reading what depends on it says so again
            value = None
        if value is not None and value.layout is torch.strided:
            self.root[slot] = -value.untyped_storage()._cdata
            written = self.writer.get(self.root[slot])
            if written:  # through another tensor that shares the storage
                self.maker[slot] = written
                return written
        node = graph._append(graph._intern_call(data_call(meta)), (), kind=1)
        self.maker[slot] = packed(node, 0)
        return self.maker[slot]

    def _signature(self, sig: int, n_in: int, n_out: int, floats: tuple[float, ...]) -> Signature:
        info = _core.sig_info(sig)
        metas = tuple(_core.input_metas(sig))
        args, kwargs = _core.call_template(sig, tuple(Hole(i) for i in range(n_in)), None, floats)
        writes = info.writes or ()
        written: list[int] = []
        for key, value in (*enumerate(args), *kwargs.items()):
            if key in writes:
                written += _holes(value)
        outputs = [_describe(_core.sig_output_meta(sig, k)) for k in range(n_out)]
        outputs += [_meta_output(metas[i]) for i in written]
        call = Call(info.name, tuple(_keep(a) for a in args), {k: _keep(v) for k, v in kwargs.items()}, tuple(outputs))
        return Signature(
            self.graph._intern_call(call),
            metas,
            tuple(written),
            n_out,
            _core.sig_is_view(sig),
            _core.sig_generator(sig),
        )

    def _publish(self, slot: int) -> None:
        """Let the graph find lazy tensors that exist now; handles made later may name other values."""
        until = _tape.newest_id()
        if self.writer:
            for slot, made in enumerate(self.maker):
                if made:
                    self.maker[slot] = max(made, self.writer.get(self.root.get(slot, slot), 0))
        self.graph._producers.know_slots(self.maker, until)


def build(graph: ComputationGraph) -> ComputationGraph:
    """Fill an empty graph with everything pending."""
    with values.lock, _kept_calls():
        Builder(graph).run()
    return graph


@contextmanager
def _kept_calls() -> Iterator[None]:
    # The builder keeps ids of calls across records; another thread, or a finalizer, may record meanwhile.
    _core.keep_calls(True)
    try:
        yield
    finally:
        _core.keep_calls(False)


class Unrecorded(NamedTuple):
    """A call without a record, between records. position: where the log of calls was when it began."""

    position: int
    call: Call
    module: int
    loc: int
    phase: int
    inputs: tuple[tuple[int, int], ...]  # (slot, metadata id)
    outputs: tuple[int, ...]  # slots
    written: tuple[int, ...]  # inputs, by number

    @classmethod
    def of(cls, position: int, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Unrecorded:
        """Of a call of tensors that record; it is over. info: the OpInfo of an overload."""
        inputs: list[tuple[int, int]] = []

        def encode(value: Any) -> Any:
            handle = _core.get_handle(value)
            if handle is not None:
                inputs.append((handle.slot, handle.meta))
                return Hole(len(inputs) - 1)
            if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
                return type(value)(encode(item) for item in value)
            return constant(value)

        cargs = tuple(map(encode, args))
        ckwargs = {key: encode(value) for key, value in kwargs.items()}
        given = {slot for slot, _ in inputs}
        results = out if isinstance(out, (tuple, list)) else (out,)
        made = [t for t in results if (h := _core.get_handle(t)) is not None and h.slot not in given]
        written = [
            i for key, value in (*enumerate(cargs), *ckwargs.items()) if key in info.writes for i in _holes(value)
        ]
        outputs = [*map(output_of, made), *(_meta_output(inputs[i][1]) for i in written)]
        call = Call(op_name(info.func), cargs, ckwargs, tuple(outputs), str(info.func))
        slots = tuple(_core.get_handle(t).slot for t in made)
        return cls(
            position, call, context.get_module(), context.get_location(), context.get_phase(), tuple(inputs), slots,
            tuple(written),
        )  # fmt: skip


class LogBuilder(Builder):
    """The same of a log (`_ext.ledger.follow`), whose records have run: what is not made there is data from outside.

    names: of weights and buffers, by slot. gradients: slots of such. positions: of each op, where it began in the log.
    """

    def __init__(self, graph: ComputationGraph, names: Mapping[int, str], gradients: Iterable[int] = ()) -> None:
        super().__init__(graph)
        self.names, self.gradients = names, set(gradients)
        self.positions: dict[int, int] = {}
        self.numbers: dict[int, bool | int | float | complex] = {}  # by slot, of those that are data

    def read(self, log: bytes, unrecorded: Sequence[Unrecorded] = (),
             numbers: Sequence[tuple[int, int, bool | int | float | complex]] = ()) -> None:  # fmt: skip
        """numbers: (position, slot, number) of tensors that were made of one, in program order."""
        words = array("I", log)
        at, others, made = 0, list(reversed(unrecorded)), list(reversed(numbers))
        while at < len(words):
            if words[at] == ledger.NO_CALL:
                slot = words[at + 1]  # used for another value
                if slot < len(self.maker):
                    self.maker[slot] = 0
                self.root.pop(slot, None)
                self.writer.pop(slot, None)
                self.numbers.pop(slot, None)
                self.gradients.discard(slot)
                at += 2
                continue
            position, sig, module, loc, phase, n_in, n_out = words[at : at + 7]
            while made and made[-1][0] <= position:
                _, slot, number = made.pop()
                self.numbers[slot] = number
            while others and others[-1].position < position:
                self._add_unrecorded(others.pop())
            middle, end = at + 7 + n_in, at + 7 + n_in + n_out
            if n_out or self._acts(sig, n_in):
                self.add(sig, module, loc, phase & 0xFF, words[at + 7 : middle], words[middle:end])
                self.positions[len(self.graph) - 1] = position
            at = end
        while others:
            self._add_unrecorded(others.pop())

    def _acts(self, sig: int, n_in: int) -> bool:
        """Does a call that gives nothing new do something else? Dropout in evaluation gives what it got."""
        known = self.signatures.get((sig, ())) or self._signature(sig, n_in, 0, ())
        self.signatures[sig, ()] = known
        return bool(known.written) or known.generator >= 0

    def _add_unrecorded(self, made: Unrecorded) -> None:
        graph = self.graph
        self.room(max((*(slot for slot, _ in made.inputs), *made.outputs), default=0))
        sources = [self._source(slot, meta) for slot, meta in made.inputs]
        node = graph._append(
            graph._intern_call(made.call), sources, graph._module_by_id(made.module), graph._place_by_id(made.loc),
            made.phase, readings=[self._reading(*each, source) for each, source in zip(made.inputs, sources)],
        )  # fmt: skip
        for position, slot in enumerate(made.outputs):
            self.maker[slot] = packed(node, position)
            self.root.pop(slot, None)
        if made.written:
            graph._writes[node] = made.written
        for position, index in enumerate(made.written, len(made.outputs)):
            slot, meta = made.inputs[index]
            root = self.root.get(slot, slot)
            self.writer[root], self.wrote[root] = packed(node, position), meta
        self.positions[node] = made.position

    def _data(self, slot: int, meta: int) -> int:
        graph = self.graph
        name = self.names.get(slot)
        node = graph._append(graph._intern_call(data_call(meta)), (), kind=1 if name is None else 2)
        if name is not None:
            graph._names[node] = name
        graph._gradients.update([(node, 0)] if slot in self.gradients else ())
        if slot in self.numbers:
            graph._numbers[node] = self.numbers[slot]
        self.maker[slot] = packed(node, 0)
        return self.maker[slot]


def needed_by(part: ComputationGraph, tensors: Sequence[LazyTensor]) -> ComputationGraph:
    """Fill the empty graph ``part`` with what ``tensors`` depend on."""
    for t in tensors:
        if not isinstance(t, _tensors.LazyTensor):
            raise TypeError(f"[from_tensors] expected recorded tensors, got {type(t).__name__}")
    whole = type(part)()
    with values.lock, _kept_calls():
        builder = Builder(whole)
        builder.run()
        targets = [builder.locate(t) for t in tensors]
    needed = bytearray(len(whole))
    for node, _ in targets:
        needed[node] = 1
    drawing: set[int] = set()  # generators that a needed draw, met further back, takes numbers from
    for node in range(len(whole) - 1, -1, -1):  # inputs have smaller ids, so one pass backwards finds all
        generator = whole._draws.get(node)
        if generator in drawing:
            needed[node] = 1
        if needed[node]:
            if generator is not None:
                drawing.add(generator)
            for source in whole._source[whole._first[node] : whole._first[node + 1]]:
                needed[source] = 1
    names = whole._names
    number = array("I", bytes(4 * len(whole)))
    for node in range(len(whole)):
        if needed[node]:
            number[node] = len(part)
            first, last = whole._first[node], whole._first[node + 1]
            sources = [(number[s], k) for s, k in zip(whole._source[first:last], whole._output[first:last])]
            if node in names:
                part._names[len(part)] = names[node]
            if node in whole._writes:
                part._writes[len(part)] = whole._writes[node]
            if node in whole._draws:
                part._draws[len(part)] = whole._draws[node]
            part._append(
                whole._call[node],
                sources,
                whole._module[node],
                whole._place[node],
                whole._phase[node],
                whole._kind[node],
                whole.nodes[node].readings,
            )
    part._calls, part._known_calls = whole._calls, whole._known_calls
    part._modules, part._known_modules = whole._modules, whole._known_modules
    part._places, part._known_places = whole._places, whole._known_places
    slots = array("q", bytes(8 * len(whole._producers._slots)))
    for slot, code in enumerate(whole._producers._slots):
        made = unpacked(code)
        if made is not None and needed[made[0]]:
            slots[slot] = packed(number[made[0]], made[1])
    part._producers.know_slots(slots, whole._producers._slots_until)
    part.outputs = tuple((number[n], k) for n, k in targets)
    for t, (node, k) in zip(tensors, part.outputs):
        part._producers.made(t, node, k)
    return part


def _holes(value: Any) -> list[int]:
    if isinstance(value, Hole):
        return [value.index]
    return [i for item in value for i in _holes(item)] if isinstance(value, (tuple, list)) else []


def _keep(value: Any) -> Any:
    if isinstance(value, Hole):
        return value
    if isinstance(value, (tuple, list)) and _holes(value):
        return type(value)(_keep(item) for item in value)
    return constant(value)


def _describe(meta: tuple) -> Output:
    dtype, size, _stride, _offset, device = meta
    return Output(tuple(size), dtype, f"{_tensors.DEVICE_TYPE}:{device}")


def data_call(meta: int) -> Call:
    """Of a tensor from outside."""
    return Call(DATA, (), {}, (_meta_output(meta),))


def _meta_output(meta: int) -> Output:
    return _describe(values.tape.interner.meta(meta))
