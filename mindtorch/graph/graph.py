"""`ComputationGraph`: which op made what from what, in program order.

Storage is columns of fixed-width integers, about 25 bytes per node and 8 per edge, because a program may record a
million ops. What repeats (a call with its constants and results, a module, a source line) is kept once. `Node` and
`Edge` are views made when somebody looks. Inputs exist before the ops that read them, so ids are a topological order.

One file: the views are the columns' only readers, and say what each column means.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._ext import context as _context
from ..base.words import counted
from .parts import Call, Edge, Hole, Module, Output, Reading, Segment, View, as_output, constant, output_of
from .producers import Producers

if TYPE_CHECKING:
    from ..engine.execute.tensors import LazyTensor
    from .analysis import Analysis
    from .patterns import Instance

DATA = "genie::data"
MODULE = "genie::module"
KINDS = ("op", "input", "parameter", "module")
SOURCES = (1, 2)  # kinds of nodes that read nothing, by number
CLOSED = 3
PHASES: tuple[str, ...] = _context.PHASES


class Node:
    """View of one node. ``id`` is its place in program order."""

    __slots__ = ("graph", "id")

    def __init__(self, graph: ComputationGraph, id: int) -> None:
        self.graph, self.id = graph, id

    @property
    def call(self) -> Call:
        return self.graph._calls[self.graph._call[self.id]]

    @property
    def op(self) -> str:
        """``aten::add``; ``genie::data`` for inputs and parameters."""
        return self.call.op

    @property
    def kind(self) -> str:
        """``op``, ``input`` (a tensor from outside), ``parameter``, or ``module`` (all it does; see `reduced`)."""
        return KINDS[self.graph._kind[self.id]]

    @property
    def name(self) -> str:
        """Qualified name of the parameter or buffer this is (or, for an op, initializes); else empty."""
        return self.graph._names.get(self.id, "")

    @property
    def number(self) -> bool | int | float | complex | None:
        """What an input of no dimension held when it was first read, where that is known."""
        return self.graph._numbers.get(self.id)

    @property
    def inputs(self) -> tuple[tuple[int, int], ...]:
        """(node id, output index) of each tensor read, in the order of the arguments."""
        return self.graph._inputs_of(self.id)

    @property
    def readings(self) -> tuple[Reading | None, ...]:
        """Of each input, how it lies in the storage of what it is read from; None: as that lies itself.

        After a write to a storage, all that share it are read from the writer.
        """
        g = self.graph
        return tuple(map(g._readings.get, range(g._first[self.id], g._first[self.id + 1])))

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments: constants, and a `Hole` for each tensor."""
        return self.call.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments, as `args`."""
        return self.call.kwargs

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Fresh results first, then the tensors written in place."""
        return self.call.outputs

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the inputs that it writes to, in the order of the `outputs` that stand for them."""
        return self.graph._writes.get(self.id, ())

    @property
    def module_info(self) -> Module:
        return self.graph._modules[self.graph._module[self.id]]

    @property
    def module(self) -> str:
        """Path of the innermost running module, ``GPT2.h.0.attn``; empty outside modules."""
        return self.module_info.path

    @property
    def phase(self) -> str:
        """``forward``, ``backward``, ``optimizer``, ``other`` …, or what an analyzer calls it."""
        return self.graph._said_phases.get(self.id) or _context.phase_name(self.graph._phase[self.id])

    @property
    def location(self) -> tuple[str, int, str] | None:
        """(file, line, function) of the user's line, None if unknown."""
        return self.graph._places[self.graph._place[self.id]]

    @property
    def source(self) -> str:
        """The user's line as ``file:line``; empty if unknown."""
        place = self.location
        return f"{place[0]}:{place[1]}" if place else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.graph is other.graph and self.id == other.id

    def __hash__(self) -> int:
        return hash((id(self.graph), self.id))

    def __repr__(self) -> str:
        reads = ", ".join(f"%{n}.{k}" if k else f"%{n}" for n, k in self.inputs)
        return f"<Node %{self.id} {self.name or self.op}({reads})>"


class ComputationGraph:
    """Ops, what they read and where they came from (SPEC L10). Empty; filled by `add_operation`.

    ``ComputationGraph.pending()``: what the tape of lazy tensors has recorded but not run.
    ``ComputationGraph.from_tensors(a, b)``: the part of it that the values of ``a`` and ``b`` depend on.
    ``mindtorch.capture()``: every op of a program while it runs.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._known_calls: dict[Any, int] = {}
        self._call = array("I")
        self._module = array("I")
        self._place = array("I")
        self._phase = bytearray()
        self._kind = bytearray()
        self._first = array("Q", [0])  # node i's inputs are _source[_first[i]:_first[i + 1]]
        self._source = array("I")
        self._output = array("I")
        self._readings: dict[int, Reading] = {}  # by position in _source
        self._names: dict[int, str] = {}
        self._numbers: dict[int, bool | int | float | complex] = {}  # what inputs of no dimension held when first read
        self._modules: list[Module] = [Module((), ())]
        self._known_modules: dict[Any, int] = {"": 0, 0: 0}
        self._models_apart = False  # modules of two models are two, though they have the same names
        self._places: list[tuple[str, int, str] | None] = [None]
        self._known_places: dict[Any, int] = {None: 0, 0: 0}
        self._reads: list[int] = []  # ids of the nodes that read data
        self._writes: dict[int, tuple[int, ...]] = {}  # inputs that nodes write to; none where a node is not in it
        self._steps: list[int] = []  # how many nodes there were when an optimizer's step ended
        self._gradients: set[tuple[int, int]] = set()  # (node, output) of what an optimizer took for its weights'
        self._draws: dict[int, int] = {}  # pending random draws: node id -> device whose generator they use
        self._producers = Producers()
        self.outputs: tuple[tuple[int, int], ...] = ()  # (node id, output index) of what was asked for
        self._said_phases: dict[int, str] = {}  # in place of the recorded ones, see `describe`
        self.patterns: tuple[Instance, ...] | None = None  # what an analyzer says; None: nobody was asked
        self._whole: ComputationGraph | None = None  # of a part of a graph (`reduced`)
        self.left_out: dict[str, Any] = {}  # what `reduced` was asked to leave out, and how much that was

    # ---- from the tape -----------------------------------------------------------------------------------------------
    @classmethod
    def pending(cls) -> ComputationGraph:
        """Everything recorded on lazy tensors that has not run yet, in program order."""
        from .pending import build

        return build(cls())

    @classmethod
    def from_tensors(cls, *tensors: LazyTensor) -> ComputationGraph:
        """The pending ops that the values of ``tensors`` need: producers, writes to their storage, random draws before.

        ``outputs`` names them. Looks at the whole pending tape once: O(pending ops).
        """
        from .pending import needed_by

        return needed_by(cls(), tensors)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ComputationGraph:
        """The graph that `to_dict` described. ValueError if it is not one, or of a later schema."""
        from .export import from_dict

        return from_dict(cls(), data)

    # ---- building ----------------------------------------------------------------------------------------------------
    def add_operation(
        self,
        name: str,
        inputs: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[Any] = (),
        module: str = "",
        phase: str = "other",
        location: tuple[str, int, str] | None = None,
    ) -> Node:
        """Append an op. ``inputs`` and ``kwargs`` may hold nodes, (node, output index), tensors and constants.

        outputs: one ``(shape, dtype, device)`` or tensor per result; the graph then knows that this node made these
        tensors.
        """
        if phase not in PHASES:
            raise ValueError(f"[add_operation] expected a phase in {PHASES}, got {phase!r}")
        sources: list[tuple[int, int]] = []
        args = tuple(self._argument(value, sources) for value in inputs)
        named = {key: self._argument(value, sources) for key, value in (kwargs or {}).items()}
        call = Call(name, args, named, tuple(as_output(o) for o in outputs))
        node = self._append(
            self._intern_call(call),
            sources,
            self._intern_module(module),
            self._intern_place(location),
            PHASES.index(phase),
        )
        for position, value in enumerate(outputs):
            if isinstance(value, torch.Tensor):
                self._producers.made(value, node, position)
        return Node(self, node)

    def get_or_create_node(self, value: Any) -> Node:
        """The node that makes a tensor (lazy or plain), or node number ``value``.

        A tensor that no node makes is data from outside: it gets an input node.
        """
        if isinstance(value, Node) and value.graph is self:
            return value
        if isinstance(value, torch.Tensor):
            return Node(self, self._source_of(value)[0])
        if isinstance(value, int) and not isinstance(value, bool):
            return self.nodes[value]
        raise TypeError(f"[get_or_create_node] expected a tensor or a node id, got {type(value).__name__}")

    def _argument(self, value: Any, sources: list[tuple[int, int]]) -> Any:
        if isinstance(value, torch.Tensor):
            sources.append(self._source_of(value))
            return Hole(len(sources) - 1)
        if isinstance(value, Node):
            value = (value, 0)
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Node):
            node, output = value
            if node.graph is not self:
                raise ValueError(f"[add_operation] expected nodes of this graph, got {node} of another")
            if not 0 <= output < max(1, len(node.outputs)):
                raise IndexError(f"[add_operation] {node} has {len(node.outputs)} outputs, got index {output}")
            sources.append((node.id, output))
            return Hole(len(sources) - 1)
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(self._argument(item, sources) for item in value)
        return constant(value)

    def _source_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        found = self._producers.find(tensor)
        if found is None:
            kind = 2 if isinstance(tensor, torch.nn.Parameter) else 1
            found = self._append(self._intern_call(Call(DATA, (), {}, (output_of(tensor),))), (), kind=kind), 0
            self._producers.made(tensor, *found)
        return found

    # ---- columns -----------------------------------------------------------------------------------------------------
    def _inputs_of(self, node: int) -> tuple[tuple[int, int], ...]:
        first, last = self._first[node], self._first[node + 1]
        if last == first + 1:
            return ((self._source[first], self._output[first]),)
        return tuple(zip(self._source[first:last], self._output[first:last]))

    def _append(
        self,
        call: int,
        sources: Sequence[tuple[int, int]],
        module: int = 0,
        place: int = 0,
        phase: int = 0,
        kind: int = 0,
        readings: Sequence[Reading | None] = (),
    ) -> int:
        node = len(self._first) - 1
        if len(self._call) > node:
            self._drop_rest()
        self._call.append(call)
        self._module.append(module)
        self._place.append(place)
        # What a candidate is will be told (`Recorder.settled`).
        self._phase.append(phase if phase == _context.CANDIDATE else _context.read_as(phase))
        self._kind.append(kind)
        if readings:
            self._readings.update((i, each) for i, each in enumerate(readings, len(self._source)) if each is not None)
        for source, output in sources:
            self._source.append(source)
            self._output.append(output)
        self._first.append(len(self._source))  # from here on there is this node
        return node

    def _drop_rest(self) -> None:
        """Of a node that a signal handler cut short: the program went on without it."""
        for column in (self._call, self._module, self._place, self._phase, self._kind):
            del column[len(self) :]
        inputs = self._first[-1]
        del self._source[inputs:], self._output[inputs:]
        for position in [i for i in self._readings if i >= inputs]:
            del self._readings[position]

    def _intern_call(self, call: Call) -> int:
        # By text: constants may be unhashable, and 1, 1.0 and True are equal but not the same call.
        key = (call.op, repr(call.args), repr(call.kwargs), call.outputs, call.overload)
        index = self._known_calls.get(key)
        if index is None:
            self._calls.append(call)  # first: a signal handler may raise in between, here as below
            index = self._known_calls[key] = len(self._calls) - 1
        return index

    def _intern_module(self, path: str, classes: tuple[str, ...] = ()) -> int:
        index = self._known_modules.get(path)
        if index is None:
            names = tuple(path.split("."))
            self._modules.append(Module(names, classes or ("",) * len(names)))
            index = self._known_modules[path] = len(self._modules) - 1
        return index

    def _module_by_id(self, id: int) -> int:
        """As `_intern_module`, from a path id of ``_ext.context``; such ids never change their meaning."""
        index = self._known_modules.get(id)
        if index is None:
            classes: list[str] = []
            up = id
            while up:
                classes.append(_context.path_class(up))
                up = _context.path_parent(up)
            path = _context.module_path(id)
            if self._models_apart:
                self._known_modules.pop(path, None)
            index = self._known_modules[id] = self._intern_module(path, tuple(reversed(classes)))
        return index

    def _intern_place(self, place: tuple[str, int, str] | None) -> int:
        index = self._known_places.get(place)
        if index is None:
            self._places.append(place)
            index = self._known_places[place] = len(self._places) - 1
        return index

    def _place_by_id(self, id: int) -> int:
        index = self._known_places.get(id)
        if index is None:
            index = self._known_places[id] = self._intern_place(_context.location(id))
        return index

    # ---- looking -----------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        """Number of nodes, inputs and parameters included."""
        return len(self._first) - 1

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes in program order; ``nodes[i].id == i``."""
        return View(self.__len__, lambda i: Node(self, i))

    @property
    def edges(self) -> Sequence[Edge]:
        """One edge per tensor read, grouped by reader."""
        return View(lambda: self._first[-1], self._edge)

    def _edge(self, i: int) -> Edge:
        target = bisect_right(self._first, i) - 1
        return Edge(self._source[i], self._output[i], target, i - self._first[target])

    def get_execution_order(self) -> list[Node]:
        """All nodes in program order: each comes after the nodes that it reads."""
        return list(self.nodes)

    @property
    def segments(self) -> list[Segment]:
        """Maximal runs between points where the program read a value (``item``, a data-dependent shape).

        Everything pending on the tape is one segment: a read would run it.
        """
        found: list[Segment] = []
        start = 0
        for reader in self._reads:
            found.append(Segment(len(found), start, reader + 1, Node(self, reader).op))
            start = reader + 1
        if start < len(self):
            found.append(Segment(len(found), start, len(self), ""))
        return found

    def count(self, kind: str) -> int:
        """How many nodes are of ``kind`` (``op``, ``input``, ``parameter``)."""
        return self._kind.count(KINDS.index(kind), 0, len(self))

    def __repr__(self) -> str:
        ops = self.count("op")
        counts = ((ops, "op"), (len(self) - ops, "input"), (len(self.edges), "edge"))
        return f"<ComputationGraph: {', '.join(counted(n, what) for n, what in counts)}>"

    def reduced(
        self, modules: Sequence[str] = (), depth: int | None = None, until: int | None = None
    ) -> ComputationGraph:
        """A graph of a part of this one; `left_out` says what is not in it.

        modules: keep only what runs in modules whose path matches one of these patterns (``h.*.attn``, with or without
            the outermost class), and in modules below; what it reads from elsewhere becomes inputs. UsageError if none
            matches.
        depth: number of levels of modules to open (counted from the matched ones, if any); what is deeper is one node
            per stretch.
        until: nodes up to this id only.
        """
        from .reduce import reduced

        return reduced(self, modules, depth, until)

    def describe(self, said: Analysis) -> None:
        """From now on, show an analyzer's result: its patterns and, if it gives any, its phases of operations."""
        self.patterns = tuple(said.patterns)
        self._said_phases = dict(said.phase_of)

    # ---- exports -----------------------------------------------------------------------------------------------------
    def to_networkx(self) -> Any:
        """A ``networkx.MultiDiGraph``: node attributes as in `to_dict`, edges keyed by the reader's input index."""
        from .export import to_networkx

        return to_networkx(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of plain values, see `mindtorch.graph.export`; `from_dict` reads it."""
        from .export import to_dict

        return to_dict(self)

    def to_json(self) -> str:
        """`to_dict` as JSON text, one node per line; the same graph always gives the same text."""
        from .export import to_json

        return to_json(self)

    def to_dot(self, init: bool = False) -> str:
        """Graphviz source: a cluster per module, parameters dashed. init: with the ops that make parameters."""
        from .dot import to_dot

        return to_dot(self, init)

    def to_networkx_json(self) -> str:
        """JSON text that ``networkx.node_link_graph`` reads, see `mindtorch.graph.export`."""
        from .export import to_networkx_json

        return to_networkx_json(self)

    def to_svg(
        self, *, title: str = "", beside: Sequence[tuple[str, ComputationGraph]] = (), init: bool = False,
        depth: int | None = None, focus: str = "",
    ) -> str:  # fmt: skip
        """A picture, see `mindtorch.graph.picture.boxes` for what is drawn.

        title: what ran. beside: titles and graphs to show side by side with this one.
        """
        from .svg import to_svg

        return to_svg(self, title=title, beside=beside, init=init, depth=depth, focus=focus)

    def to_html(
        self, *, title: str = "", beside: Sequence[tuple[str, ComputationGraph]] = (), init: bool = False,
        depth: int | None = None, focus: str = "",
    ) -> str:  # fmt: skip
        """The same as a page for a browser, in which boxes open."""
        from .html import to_html

        return to_html(self, title=title, beside=beside, init=init, depth=depth, focus=focus)

    def to_text(self, width: int = 80, init: bool = False) -> str:
        """A tree by phase and module, at most ``width`` columns wide; repeated parts are shown once.

        init: show the ops that make parameters, which otherwise are one line.
        """
        from .text import to_text

        return to_text(self, width, init)
