"""`register_segment_hook`: to be told of each piece of the recording that has run, with what it held (SPEC L14)."""

from __future__ import annotations

import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch.utils.hooks import RemovableHandle

from .._ext import context
from .._ext import lazy as _core
from .._ext import tape as _tape
from .._ext.encoder import Encoded, encode
from .._ext.signals import by_signal_handler
from ..engine.execute import around_segments, local, values
from ..engine.semantics.owners import named_tensors
from . import analysis
from .analysis import Analysis
from .capture import tracked_models
from .graph import ComputationGraph
from .patterns import Instance, find_patterns
from .pending import Builder, data_call
from .producers import packed

__all__ = ["SegmentRun", "register_segment_hook"]

_hooks: OrderedDict[int, Callable[[SegmentRun], None]] = OrderedDict()
_telling = False


def register_segment_hook(hook: Callable[[SegmentRun], None]) -> RemovableHandle:
    """Call ``hook`` with a `SegmentRun` whenever a segment of the recording on ``remote_accelerator`` has run.

    It is called in the program's thread, before the read that ran the segment returns. If it raises, mindtorch warns,
    and the program goes on. Segments that the hook itself runs call no hook. Returns torch's handle: its ``remove()``,
    or the end of a ``with`` block over it, removes the hook. TypeError if it is not callable.
    """
    if not callable(hook):
        raise TypeError(f"[register_segment_hook] expected a function of a SegmentRun, got {type(hook).__name__}")
    handle = _Handle(_hooks)
    with values.lock:
        _hooks[handle.id] = hook
        around_segments.listener = _listen
    return handle


class _Handle(RemovableHandle):
    def remove(self) -> None:
        with values.lock:
            super().remove()
            if not _hooks:
                around_segments.listener = None


class SegmentRun:
    """A segment of the recording that has run.

    trigger: why it ran (``item``, ``print``, ``limit`` …, as in ``mindtorch.stats()["triggers"]``); line: the program's
    line that this came from, ``file:line``, empty if unknown. seconds: time that it took; if recordings run elsewhere,
    the time of its operations there. cached: True if its values came from a `mindtorch.cache` and nothing ran. error:
    why it ended early, else empty. ops: number of operations by name; bytes: size of all their results; phases,
    modules: number of operations by phase and by module path.
    """

    def __init__(self, trigger: str, line: str, encoded: Encoded) -> None:
        self.trigger, self.line = trigger, line
        self.seconds = 0.0
        self.cached = False
        self.error = ""
        origins = [encoded.origin(k) for k in range(len(encoded))]
        self.ops: dict[str, int] = dict(Counter(origin[0] for origin in origins))
        self.bytes = int(encoded.nbytes)
        self.phases: dict[str, int] = dict(Counter(context.phase_name(origin[4]) for origin in origins))
        self.modules: dict[str, int] = dict(Counter(context.module_path(origin[2]) for origin in origins))
        self._encoded = encoded
        # Values would live on: what is asked of them later is which of them share memory.
        self._given = [(root, value.untyped_storage()._cdata) for value, root in encoded.given]
        self._until = _tape.newest_id()

    def _let_go(self) -> None:
        self._encoded.given.clear()

    @cached_property
    def graph(self) -> ComputationGraph:
        """The segment as a graph: what it began with are inputs, or parameters with their names."""
        graph = ComputationGraph()
        _Builder(graph, self._encoded, self._given, _names(self._until)).read()
        return graph

    @cached_property
    def analysis(self) -> Analysis:
        """What the analyzer in use says of it (`mindtorch.set_analyzer`)."""
        return analysis.get_analyzer().analyze(self.graph)

    @cached_property
    def patterns(self) -> list[Instance]:
        """The blocks in it that are proven to be one, such as attention."""
        with analysis.plainly():
            return [each for each in find_patterns(self.graph) if not each.refused]

    def __repr__(self) -> str:
        n = sum(self.ops.values())
        return f"<SegmentRun: {n} operations for {self.trigger}, {self.seconds * 1e3:.3f} ms>"


def _listen(executor: Any, segment: Any, reason: str, run: around_segments.Submit) -> None:
    global _telling
    if _telling:
        run(segment)
        return
    place = context.location(context.get_location())
    told = SegmentRun(reason, f"{place[0]}:{place[1]}" if place else "", encode(segment))
    hits = around_segments.counts["cache_hits"]
    elsewhere: list[int] = []
    try:
        with _timed(elsewhere) if executor.place.type == "meta" else _timed(None):
            began = time.perf_counter()
            try:
                run(segment)
                if executor.place.type == "cuda":  # where it has only been begun
                    executor.sync()
            finally:
                told.seconds = time.perf_counter() - began
    except BaseException as error:
        told.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        if executor.place.type == "meta":
            told.seconds = sum(elsewhere) / 1e9
        told.cached = around_segments.counts["cache_hits"] > hits
        told._let_go()
        _telling = True
        try:
            _tell(told)
        finally:
            _telling = False


@contextmanager
def _timed(found: list[int] | None) -> Iterator[None]:
    """Have the executor tell how long each operation took: only then does it wait for them."""
    if found is None:
        yield
        return

    def note(_name: str, _module: int, _phase: int, _location: int, start: int, end: int) -> None:
        found.append(end - start)

    local.add_op_observer(note)
    try:
        yield
    finally:
        local.remove_op_observer(note)


def _tell(told: SegmentRun) -> None:
    for hook in list(_hooks.values()):
        try:
            hook(told)
        except Exception as error:
            if by_signal_handler(error):
                raise
            name = getattr(hook, "__qualname__", repr(hook))
            warnings.warn(
                f"[register_segment_hook] {name} raised {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2
            )


class _Builder(Builder):
    """The same of a segment that was written down. Its slots are numbers of ours: what it begins with, then outputs."""

    def __init__(
        self, graph: ComputationGraph, encoded: Encoded, given: list[tuple[int, int]], names: dict[int, str]
    ) -> None:
        super().__init__(graph)
        self.encoded, self.given, self.names = encoded, given, names

    def read(self) -> None:
        encoded, first = self.encoded, 1 + len(self.given)
        outputs = first
        for k in range(len(encoded)):
            _name, sig, module, loc, phase = encoded.origin(k)
            ins = [first + (i >> 1) if i & 1 else 1 + (i >> 1) for i in encoded.inputs(k)]
            outs = range(outputs, outputs + _core.sig_outputs(sig))
            outputs += len(outs)
            self.add(sig, module, loc, phase, ins, outs, encoded.floats(k))

    def _data(self, slot: int, meta: int) -> int:
        graph = self.graph
        root, storage = self.given[slot - 1]
        self.root[slot] = -storage
        written = self.writer.get(-storage)
        if written:
            self.maker[slot] = written
            return written
        name = self.names.get(root)
        node = graph._append(graph._intern_call(data_call(meta)), (), kind=1 if name is None else 2)
        if name is not None:
            graph._names[node] = name
        self.maker[slot] = packed(node, 0)
        return self.maker[slot]


def _names(until: int) -> dict[int, str]:
    """Names of parameters and buffers by slot of their storage, of tensors that there were then."""
    found: dict[int, str] = {}
    for model, path in tracked_models():
        prefix = context.module_path(path)
        for name, tensor in named_tensors(model):
            handle = _core.get_handle(tensor)
            if handle is not None and handle.id <= until:
                found.setdefault(_core.root_slot(handle), f"{prefix}.{name}")
    return found
