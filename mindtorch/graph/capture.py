"""`capture()`: every op of a program while it runs, as a graph. The program itself is not changed.

Ops are seen at the dispatch level, as the profiler sees them: backward, optimizers, autocast and the threads that begin
meanwhile included; other processes' ops, and the insides of compiled functions, are not. ``detach`` is no node: it
computes nothing and names the same value.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from .. import ops
from .._ext import context as _context
from .._ext import lazy as _core
from ..base.jit_tracing import without_our_modes
from ..base.patching import Patches
from ..base.threads import ThreadWatch
from ..engine.semantics.owners import named_tensors, parameters_put
from ..ops import schema
from .graph import ComputationGraph
from .parts import Call, Hole, Output, Reading, constant, output_of

log = logging.getLogger(__name__)
_DETACH = torch.ops.aten.detach.default


class Modules(Protocol):
    """The outermost modules that were called, with their path ids."""

    def roots(self) -> list[tuple[torch.nn.Module, int]]: ...
    def add_listener(self, listener: Callable[[torch.nn.Module, int], None]) -> None: ...
    def remove_listener(self, listener: Callable[[torch.nn.Module, int], None]) -> None: ...


class Generation(Protocol):
    """What tells prefill and decode."""

    listeners: list[Callable[[int, int], None]]

    def over(self) -> None: ...


class Tracking(Protocol):
    """What knows the running module, phase and line: `mindtorch.engine.semantics`."""

    @property
    def modules(self) -> Modules: ...
    @property
    def generation(self) -> Generation: ...
    def install(self) -> None: ...
    def uninstall(self) -> None: ...


_tracking: Tracking | None = None
_recording: list[Recorder] = []


def set_tracking(tracking: Tracking) -> None:
    """Use ``tracking`` in captures (called once, when mindtorch is imported; imports go one way)."""
    global _tracking
    _tracking = tracking


def tracked_models() -> list[tuple[torch.nn.Module, int]]:
    """The outermost modules that were called, with their path ids."""
    return [] if _tracking is None else _tracking.modules.roots()


class Function:
    """What is the same for all calls of one operator."""

    __slots__ = ("name", "overload", "reads", "views", "writes")

    def __init__(self, func: Any) -> None:
        self.name = ops.op_name(func)
        self.overload = str(func) if isinstance(func, torch._ops.OpOverload) else ""
        tags = getattr(func, "tags", ())
        self.reads = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        self.writes: set[Any] = set()
        self.views = False
        if hasattr(func, "_schema"):  # not a higher-order operator
            names = schema.argument_names(func)
            for which in schema.writes(func):
                self.writes.update((which, names[which]) if isinstance(which, int) else (which, names.index(which)))
            self.views = schema.takes_views(func)


class Beginning(NamedTuple):
    """A call before it is made: its arguments as the graph keeps them, and where its tensors come from."""

    func: Any
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: list[tuple[int, int]]
    readings: list[Reading | None]
    inputs: list[torch.Tensor]


class Named(NamedTuple):
    """A tensor of a model, and the lazy module that makes it in its first call, if it is one of such."""

    ref: weakref.ref[torch.Tensor]
    name: str
    maker: weakref.ref[torch.nn.Module] | None

    def is_made(self) -> bool:
        maker = None if self.maker is None else self.maker()
        return maker is None or not hasattr(maker, "_initialize_hook")  # which the module removes when it is done


class Recorder(TorchDispatchMode):
    """Hands every op on and notes it in ``graph``."""

    supports_higher_order_operators = True

    def __init__(self, graph: ComputationGraph) -> None:
        super().__init__()
        self.graph = graph
        self.functions: dict[Any, Function] = {}
        self.names: dict[int, Named] = {}  # of tensors that no node makes yet
        self.kept: MutableMapping[Any, str] = WeakIdKeyDictionary()  # those that tensors had when they were first met
        self.grown = False  # modules got parameters since the models were looked at
        self.lock = threading.RLock()  # a node is put together in several steps; the op itself runs outside of it
        self.stopped = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled functions stay compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.stopped:  # in a thread that outlived the capture
            return func(*args, **kwargs)
        if any(map(is_lazy, args)):  # parameters without sizes yet, asked for device or dtype: nothing flows
            return func(*args, **kwargs)
        call = self.begins(func, args, kwargs)
        out = func(*args, **kwargs)
        self.ended(call, args, kwargs, out)
        return out

    def begins(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Beginning:
        """Look at a call before it is made: it may change what its arguments are (`resize_`, `set_`, `t_`)."""
        known = self.functions.get(func)
        if known is None:
            known = self.functions[func] = Function(func)
        sources: list[tuple[int, int]] = []
        inputs: list[torch.Tensor] = []
        with self.lock:
            cargs = tuple(self._encode(a, sources, inputs, known.reads) for a in args)
            ckwargs = {key: self._encode(a, sources, inputs, known.reads) for key, a in kwargs.items()}
            readings = [*map(self.graph._producers.reading, inputs)]
        return Beginning(func, known, cargs, ckwargs, sources, readings, inputs)

    def ended(self, call: Beginning, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Note it, with what it gave."""
        with self.lock:
            if call.func is _DETACH:
                # The same value under another name (autograd makes many): the engine does not record it either.
                self.graph._producers.alias(out, call.inputs[0])
            else:
                self._note(call, args, kwargs, out)

    def _encode(self, value: Any, sources: list[tuple[int, int]], inputs: list[torch.Tensor], reads: bool) -> Any:
        if isinstance(value, torch.Tensor):
            sources.append(self._source(value, reads))
            inputs.append(value)
            return Hole(len(sources) - 1)
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            items = [self._encode(item, sources, inputs, reads) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return constant(value)

    def _source(self, tensor: torch.Tensor, reads: bool) -> tuple[int, int]:
        graph = self.graph
        if self.grown and isinstance(tensor, torch.nn.Parameter) and _context.get_module():
            self._look_again()
        found = graph._producers.find(tensor)
        if found is None and reads:
            found = graph._producers.read_from(tensor)  # below a lazy tensor's item() is a plain one's
        if found is None:
            handle = _core.get_handle(tensor)
            if handle is not None and handle.sig:
                found = self._made_before(tensor, handle)
            else:
                found = graph._source_of(tensor)
                if type(tensor) is torch.Tensor and tensor.numel() == 1 and tensor.device.type == "cpu":
                    with _disable_current_modes():  # it is none of the program's reads
                        graph._numbers[found[0]] = tensor.item()
        entry = self.names.get(id(tensor))
        if entry is not None and entry.is_made():
            del self.names[id(tensor)]
            if entry.ref() is tensor and len(graph.nodes[found[0]].outputs) == 1:
                graph._names[found[0]] = entry.name
        return found

    def _made_before(self, tensor: torch.Tensor, handle: Any) -> tuple[int, int]:
        """A lazy tensor whose making this mode did not see: a creation call, or an op before the capture."""
        graph = self.graph
        op = _core.sig_info(handle.sig).name
        record = _core.producer(handle)
        if record is None or record[4]:  # it has inputs of its own, which were not captured: data from outside
            return graph._source_of(tensor)
        args, kwargs = _core.constants(handle)
        call = Call(op, tuple(map(constant, args)), {k: constant(v) for k, v in kwargs.items()}, (output_of(tensor),))
        node = graph._append(
            graph._intern_call(call),
            (),
            graph._module_by_id(handle.module),
            graph._place_by_id(handle.loc),
            handle.phase,
        )
        graph._producers.made(tensor, node, 0)
        return node, 0

    def _note(self, call: Beginning, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        known, inputs = call.function, call.inputs
        graph = self.graph
        written = [t for key, value in (*enumerate(args), *kwargs.items()) if key in known.writes for t in _flat(value)]
        ids = {id(t) for t in written}
        fresh = [t for t in _flat(out) if id(t) not in ids]
        if not fresh and not written and not known.reads:
            return  # a query: nothing flows
        outputs: tuple[Output, ...] = tuple(output_of(t) for t in (*fresh, *written))
        node = graph._append(
            graph._intern_call(Call(known.name, call.args, call.kwargs, outputs, known.overload)),
            call.sources,
            graph._module_by_id(_context.get_module()),
            graph._place_by_id(_context.get_location()),
            _context.get_phase(),
            readings=call.readings,
        )
        if written:
            places = {id(t): place for place, t in reversed([*enumerate(inputs)])}
            graph._writes[node] = tuple(places[id(t)] for t in written)
        producers = graph._producers
        for position, t in enumerate(written, len(fresh)):
            producers.wrote(t, node, position)
        for position, t in enumerate(fresh):
            producers.made(t, node, position, inputs[0] if known.views and inputs else None)
        if known.reads:
            graph._reads.append(node)

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Its step is over, and there are still the gradients that it took."""
        graph = self.graph
        graph._steps.append(len(graph))
        found = map(graph._producers.find, gradients_of(optimizer))
        graph._gradients.update(source for source in found if source is not None)

    # ---- names -------------------------------------------------------------------------------------------------------
    def settled(self, phase: int, was: int) -> None:
        """Ops that were in the phase `was` were in the other one (numbers)."""
        self.graph._phase = self.graph._phase.replace(bytes([was]), bytes([_context.read_as(phase)]))

    def saw_root(
        self, root: torch.nn.Module, path: int, prefix: str = "", kept: MutableMapping[Any, str] | None = None
    ) -> None:
        """An outermost module is called for the first time: from now on its tensors have names.

        prefix: what names begin with; empty: the module's, which another of its class has, too. kept: those that
        tensors had when they were first met, and keep.
        """
        self._name(root, named_tensors(root), prefix or _context.module_path(path), self.kept if kept is None else kept)

    def _look_again(self) -> None:
        """A model may have grown since its first call: what is new in it has a name, too."""
        self.grown = False
        for root, path in tracked_models():
            new = [(name, t) for name, t in named_tensors(root) if t not in self.kept]
            self._name(root, new, _context.module_path(path), self.kept)

    def _name(
        self, root: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], prefix: str,
        kept: MutableMapping[Any, str],
    ) -> None:  # fmt: skip
        graph = self.graph
        for name, tensor in tensors:
            maker = weakref.ref(root.get_submodule(name.rpartition(".")[0])) if is_lazy(tensor) else None
            found = graph._producers.find(tensor) if maker is None else None
            whole = kept.setdefault(tensor, f"{prefix}.{name}")
            if found is None:
                self.names.setdefault(id(tensor), Named(weakref.ref(tensor), whole, maker))
            elif len(graph.nodes[found[0]].outputs) == 1:
                graph._names.setdefault(found[0], whole)


def _flat(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _flat(item)]
    return ()


def gradients_of(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Of the weights that it steps."""
    groups = [] if optimizer is None else optimizer.param_groups
    weights = [p for group in groups for p in group["params"] if isinstance(p, torch.Tensor) and p.is_leaf]
    return [p.grad for p in weights if p.grad is not None]


def stop(graph: ComputationGraph) -> None:
    """Let the capture that fills this graph note nothing more; the program goes on."""
    for recorder in [recorder for recorder in _recording if recorder.graph is graph]:
        recorder.stopped = True


@contextmanager
def _everywhere(recorder: Recorder) -> Iterator[None]:
    _recording.append(recorder)
    patches = Patches(yields=True)
    patches.put(without_our_modes(lambda begins: None))
    try:
        with recorder, ThreadWatch(recorder):
            yield
    finally:
        recorder.stopped = True
        patches.undo()
        _recording.remove(recorder)


@contextmanager
def capture() -> Iterator[ComputationGraph]:
    """Record every torch op within the block, of plain and lazy tensors alike, in this thread and those that it starts.

    Tensors from outside are input nodes; parameters are input nodes of kind ``parameter``, with their qualified name
    once the module that owns them was called. What `torch.jit.trace` runs to trace a function is not recorded.
    """
    graph = ComputationGraph()
    recorder = Recorder(graph)
    tracking = _tracking
    if tracking is None:
        log.warning("no module tracking is installed: the graph has no module paths")
        with _everywhere(recorder):
            yield graph
        return
    tracking.install()
    # What a model was called for before the block is over; tracking may have been on since, for other tensors.
    _context.enter_stage(_context.enter_stage(_context.PHASES.index("other")))
    for root, path in tracking.modules.roots():
        recorder.saw_root(root, path)
    tracking.modules.add_listener(recorder.saw_root)
    tracking.generation.listeners.append(recorder.settled)
    stepped = register_optimizer_step_post_hook(lambda optimizer, *_: recorder.stepped(optimizer))
    try:
        with _everywhere(recorder), parameters_put.told_to(lambda *_: setattr(recorder, "grown", True)):
            yield graph
    finally:
        stepped.remove()
        tracking.generation.over()
        tracking.generation.listeners.remove(recorder.settled)
        tracking.modules.remove_listener(recorder.saw_root)
        tracking.uninstall()
