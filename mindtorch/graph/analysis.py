"""What a segment means: the interface of analyzers, and which one is asked (SPEC L13, L5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .. import graph as graph_package
from .._ext import lazy as _core
from .._ext.signals import by_signal_handler
from ..base.errors import LazyTensorError, UsageError
from ..engine.execute import values
from ..engine.record.arguments import quiet as plainly
from .graph import ComputationGraph
from .patterns import Instance

__all__ = ["Analysis", "Analyzer", "Group", "describe", "get_analyzer", "hints", "plainly", "set_analyzer"]

_LARGE = 100_000  # nodes of a graph that is not kept until it is asked about again


@dataclass(frozen=True)
class Group:
    """Nodes that had better run on one device, since they share what else would have to move.

    kind: ``weights`` (parameters and buffers that they read), ``cache`` (what outlives the segment and grows or is
    written in it), ``activations`` (memory made in the segment, and written to after it was first filled). nbytes: of
    what they share; names: of it, where it has any.
    """

    kind: Literal["weights", "cache", "activations"]
    nodes: frozenset[int]
    nbytes: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Analysis:
    """An analyzer's result for a segment, by ids of the graph's nodes.

    phases: operations by phase. patterns: verified blocks, such as attention. target: the accelerator that the bounds
    are for. seconds: expected time, by bound of the operations (``compute``, ``memory``, ``launch``); bounds: the bound
    of each operation. flops, nbytes: computed; read and written. not_cacheable: why a cache cannot keep the segment's
    values; empty if it can. recomputable: operations whose result can be recomputed from their inputs. together: see
    `Group`. failed: patterns of other packages whose search failed, and why. phase_of: operations that `genie graph`
    shows in a phase other than the recorded one.
    """

    phases: Mapping[str, int]
    patterns: tuple[Instance, ...]
    target: str
    seconds: Mapping[str, float]
    bounds: Mapping[int, str]
    flops: int
    nbytes: int
    not_cacheable: str
    recomputable: frozenset[int]
    together: tuple[Group, ...]
    failed: Mapping[str, Exception] = field(default_factory=dict)
    phase_of: Mapping[int, str] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The most frequent phase of the operations; empty if there are none."""
        return max(self.phases, key=self.phases.__getitem__, default="")

    @property
    def bound(self) -> str:
        """The bound of most of the time; empty if no operation takes time."""
        return max(self.seconds, key=self.seconds.__getitem__, default="")

    @property
    def cacheable(self) -> bool:
        """Whether a cache can keep the segment's values."""
        return not self.not_cacheable

    def hints(self, node: int) -> dict[str, Any]:
        """Of one operation: ``pattern`` (empty: none), ``bound``, ``recomputable``, ``together`` (kinds of groups that
        it is in), and of its segment ``cacheable``, ``segment_phase``, ``segment_bound``.
        """
        return {
            "pattern": next((each.pattern for each in self.patterns if node in each.nodes), ""),
            "bound": self.bounds.get(node, ""),
            "recomputable": node in self.recomputable,
            "together": sorted({group.kind for group in self.together if node in group.nodes}),
            "cacheable": self.cacheable,
            "segment_phase": self.phase,
            "segment_bound": self.bound,
        }


class Analyzer(ABC):
    """Analyzes segments. Derive from it, and pass an instance to `set_analyzer`."""

    @abstractmethod
    def analyze(self, graph: ComputationGraph) -> Analysis:
        """Analyze a segment that is going to run or has run. Must not compute or change anything of the program."""


_analyzer: Analyzer | None = None
_own: Analyzer | None = None  # mindtorch's


class _Asked(NamedTuple):
    """What was last said of all that was pending, and when."""

    when: tuple[Any, ...]
    graph: ComputationGraph
    said: Analysis


_last: _Asked | None = None


def set_analyzer(analyzer: Analyzer | None) -> Analyzer | None:
    """Use another analyzer of segments; None: mindtorch's own. Returns the previous one, None if none was used yet.

    UsageError if it is not an analyzer: nothing changes then.
    """
    global _analyzer, _last
    if analyzer is not None and not isinstance(analyzer, Analyzer):
        raise UsageError(f"[set_analyzer] expected an Analyzer, got {type(analyzer).__name__}")
    previous, _analyzer, _last = _analyzer, analyzer, None
    return previous


def get_analyzer() -> Analyzer:
    """The analyzer in use."""
    global _analyzer, _own
    if _analyzer is None:
        make = graph_package.make_analyzer
        if make is None:
            raise LazyTensorError("no analyzer is installed: import mindtorch itself, not one of its modules")
        _analyzer = _own = _own or make()
    return _analyzer


def describe(graph: ComputationGraph) -> None:
    """Have a graph show what the user's analyzer says of it; with none it shows patterns of its own.

    UsageError where the analyzer raises, or says something else than an `Analysis`.
    """
    analyzer = _analyzer
    if analyzer is None or analyzer is _own:
        return
    name = type(analyzer).__name__
    try:
        with plainly():
            said = analyzer.analyze(graph)
    except Exception as error:
        if by_signal_handler(error):
            raise
        raise UsageError(f"[analyzer] {name}.analyze raised {type(error).__name__}: {error}") from error
    if not isinstance(said, Analysis):
        raise UsageError(f"[analyzer] expected an Analysis from {name}.analyze, got {type(said).__name__}")
    graph.describe(said)


def hints(tensor: Any) -> dict[str, Any]:
    """`Analysis.hints` of what makes a tensor on ``remote_accelerator``; nothing of one that is computed.

    Its segment is all that is pending. That is looked at once, until something else is recorded or run.
    """
    global _last
    handle = _core.get_handle(tensor)
    if handle is None or _core.device_index(tensor) < 0 or not handle.pending:
        return {}
    with values.lock:
        tape, analyzer = values.tape, get_analyzer()
        when = (tape.tail, tape.n_pending, tape.n_executed, analyzer)
        asked = _last
        if asked is None or asked.when != when:
            from .pending import build

            graph = build(ComputationGraph())
            with plainly():
                said = analyzer.analyze(graph)
            asked = _Asked(when, graph, said)
            _last = asked if len(graph) < _LARGE else None
        found = asked.graph._producers.find(tensor)
    return {} if found is None else asked.said.hints(found[0])
