"""The tape of lazy tensors as a graph: what was recorded and has not run.

A write makes the writing op the producer of everything that shares the written storage, so edges alone carry the
order that values depend on, and what a tensor needs is what can be reached backwards from it (plus, for random draws,
all draws of the same device before: they take turns with one generator).

The tape does not say which input an output aliases. Views recorded on it alias their first tensor; values that are
already computed are grouped by the storage they really have.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._ext import lazy as _core
from .._ext import tape as _tape
from ..base.errors import LazyTensorError
from ..engine.execute import tensors as _tensors
from ..engine.execute import values
from .graph import DATA, ComputationGraph
from .parts import Call, Hole, Output, constant
from .producers import Source, packed, unpacked

if TYPE_CHECKING:
    from ..engine.execute.tensors import LazyTensor

MAX_TEMPLATE = 256  # inputs that `call_template` takes; beyond, a call's constants are not shown


class Signature(NamedTuple):
    """What is the same for all records of one interned call."""

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
        self.signatures: dict[int, Signature] = {}
        self.maker = array("q")  # by slot: who made the value, packed; 0 = not met yet
        self.root: dict[int, int] = {}  # slot -> slot (or storage, negative) it shares memory with; itself if absent
        self.writer: dict[int, int] = {}  # root -> who wrote to it last, packed

    def run(self) -> None:
        tape, graph = values.tape, self.graph
        maker = self.maker
        slot = 0
        for seq in tape.pending_seqs():
            try:
                sig, module, loc, phase, ins, outs = tape.describe(seq)
            except KeyError:
                continue  # dropped meanwhile: nobody can read what it makes
            known = self.signatures.get(sig)
            if known is None:
                known = self.signatures[sig] = self._signature(sig, len(ins), len(outs))
            for slot in (*ins, *outs):
                if slot >= len(maker):
                    maker.frombytes(bytes(8 * (slot + 1024)))
            sources = [self._source(slot, meta) for slot, meta in zip(ins, known.metas)]
            node = graph._append(known.call, sources, graph._module_by_id(module), graph._place_by_id(loc), phase)
            for position, slot in enumerate(outs):
                maker[slot] = packed(node, position)
                if known.view and ins:
                    self.root[slot] = self.root.get(ins[0], ins[0])
            for position, index in enumerate(known.written):
                root = self.root.get(ins[index], ins[index])
                self.writer[root] = packed(node, known.fresh + position)
            if known.generator >= 0:
                graph._draws[node] = known.generator
        if slot:
            self._publish(slot)

    def _source(self, slot: int, meta: int) -> Source:
        made = self.maker[slot] or self._data(slot, meta)
        if self.writer:
            made = max(made, self.writer.get(self.root.get(slot, slot), 0))  # the later of the two
        return (made >> 32) - 1, made & 0xFFFFFFFF

    def locate(self, tensor: LazyTensor) -> Source:
        """Who makes the value of ``tensor``; what is pending may not mention it at all."""
        handle = tensor._handle
        if handle.slot >= len(self.maker):
            self.maker.frombytes(bytes(8 * (handle.slot + 1 - len(self.maker))))
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
        node = graph._append(graph._intern_call(Call(DATA, (), {}, (_meta_output(meta),))), (), kind=1)
        self.maker[slot] = packed(node, 0)
        return self.maker[slot]

    def _signature(self, sig: int, n_in: int, n_out: int) -> Signature:
        info = _core.sig_info(sig)
        metas = tuple(_core.input_metas(sig))
        args: tuple[Any, ...]
        kwargs: dict[str, Any]
        if n_in <= MAX_TEMPLATE:
            args, kwargs = _core.call_template(sig, tuple(Hole(i) for i in range(n_in)))
        else:
            args, kwargs = ([Hole(i) for i in range(n_in)],), {}
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


def needed_by(part: ComputationGraph, tensors: Sequence[LazyTensor]) -> ComputationGraph:
    """Fill the empty graph ``part`` with what ``tensors`` depend on."""
    for t in tensors:
        if not isinstance(t, _tensors.LazyTensor):
            raise TypeError(f"[from_tensors] expected lazy tensors, got {type(t).__name__}")
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
            part._append(
                whole._call[node],
                sources,
                whole._module[node],
                whole._place[node],
                whole._phase[node],
                whole._kind[node],
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


def _meta_output(meta: int) -> Output:
    return _describe(values.tape.interner.meta(meta))
