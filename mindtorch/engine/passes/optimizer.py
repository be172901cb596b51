"""The optimization engine (SPEC L13): what a repeated segment runs in place of what was recorded."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..._ext.forms import Form, Forms
from ..._ext.replay import calls_otherwise
from ..._ext.signals import by_signal_handler
from ...base.errors import UsageError
from ...base.plugins import offered
from .optimizer_pass import Pass
from .segment_graph import SegmentGraph

__all__ = [
    "add_again",
    "add_elsewhere",
    "ask",
    "choose",
    "chosen",
    "counts",
    "forget_settings",
    "in_use",
    "known_passes",
    "may_overwrite",
    "native_maker",
    "native_prover",
    "optimizer_on",
    "repeatable",
    "rest_on_settings",
    "set_passes",
]

AFTER = 4  # times that a segment has to come before passes look at it
_chosen: tuple[Pass, ...] | None = None
_failed: dict[str, Exception] = {}  # passes that raised are not asked again
_functions: set[Any] = set()  # those that passes were asked about


@functools.cache
def known_passes() -> tuple[Pass, ...]:
    """Those of the entry points ``mindtorch.passes``, then ours: in the order in which they see a segment.

    An entry point that gives none is warned of and left out.
    """
    from .common_subexpressions import CommonSubexpressions
    from .constant_folding import ConstantFolding
    from .copy_elimination import CopyElimination
    from .direct import DirectCalls
    from .in_place import InPlace
    from .native import NativeCalls
    from .recompute import Recompute

    found = offered("mindtorch.passes", Pass, lambda name, error: _say(f"the entry point {name} is left out", error))
    on_graphs = CommonSubexpressions(), ConstantFolding(), CopyElimination()
    return (*found, InPlace(), DirectCalls(), NativeCalls(), Recompute(), *on_graphs)


def _say(what: str, error: Exception) -> None:
    warnings.warn(f"[passes] {what}: {type(error).__name__}: {error}", stacklevel=2)


def set_passes(passes: Iterable[Pass | str] | None) -> tuple[Pass, ...]:
    """Use these passes (instances, or names of known ones), in this order; None: the default ones.

    Returns the previous ones. UsageError if one is not a pass: nothing changes then.
    """
    global _chosen
    before = _used()
    if passes is not None:
        names = {known.name: known for known in known_passes()}
        made = []
        for given in passes:
            found = names.get(given) if isinstance(given, str) else given
            if not isinstance(found, Pass) or not found.name:
                raise UsageError(f"[set_passes] expected a Pass or one of {', '.join(names)}, got {given!r}")
            made.append(found)
        _chosen = tuple(made)
    else:
        _chosen = None
    _failed.clear()
    for info in _functions:
        info.replay, info.in_place, info.fresh = info.call, None, False
        _ask(info)
    for each in _optimizers.values():
        each.forms.forget()
    return before


def chosen() -> list[str] | None:
    """Names of the passes that `set_passes` was given; None: the default ones are used."""
    return None if _chosen is None else [each.name for each in _chosen]


def choose(names: list[str] | None) -> None:
    """Use what a program uses elsewhere, as far as it is known here."""
    known = {each.name for each in known_passes()}
    set_passes(None if names is None else [name for name in names if name in known])


@functools.cache
def _on_by_themselves() -> tuple[Pass, ...]:
    return tuple(each for each in known_passes() if each.on)


@functools.cache
def _some(passes: tuple[Pass, ...], hook: str) -> bool:
    """Has one of them this method?"""
    return any(getattr(type(each), hook) is not getattr(Pass, hook) for each in passes)


def may_overwrite() -> bool:
    """May some results take the memory of an input?"""
    return _some(_used(), "function")


def native_maker() -> Callable[..., Any] | None:
    """What makes interned calls that do without Python; None: nothing."""
    return _native_makers(_used())[0]


def native_prover() -> Callable[..., Any] | None:
    """The same for any calls, see `native.proven_call`."""
    return _native_makers(_used())[1]


@functools.cache
def _native_makers(passes: tuple[Pass, ...]) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    from .native import NativeCalls, native_call, proven_call

    return (native_call, proven_call) if any(isinstance(each, NativeCalls) for each in passes) else (None, None)


def in_use() -> tuple[Pass, ...]:
    """The passes that are asked about functions, in their order: another tuple after each change."""
    return _of_functions(_used())


@functools.cache
def _of_functions(passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return tuple(each for each in passes if type(each).function is not Pass.function)


def _used() -> tuple[Pass, ...]:
    return _on_by_themselves() if _chosen is None else _chosen


def ask(info: Any) -> None:
    """A function runs for the first time: let the passes say how it is called from now on."""
    if info not in _functions:
        _functions.add(info)
        _ask(info)


def _ask(info: Any) -> None:
    for each in in_use():
        _attempt(each, functools.partial(each.function, info))


def _attempt(each: Pass, what: Callable[[], None]) -> bool:
    """Did it go well? A pass that raises is not asked again."""
    if each.name in _failed:
        return False
    try:
        what()
    except Exception as error:
        if by_signal_handler(error):
            raise
        _failed[each.name] = error
        _say(f"{each.name} is no longer used", error)
        return False
    return True


class Optimizer:
    """What is known of segments that run on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forms = Forms(self.improve, AFTER)
        self.on_settings = False  # does what is known rest on torch's settings?

    def in_use(self) -> Forms | None:
        """What is known of segments; None where no pass looks at them."""
        return self.forms if _some(_used(), "run") else None

    def improve(self, form: Form) -> None:
        """Let the passes say what segments of this form run."""
        graph = SegmentGraph(form, self.device)
        for each in _used():
            steps, notes = dict(graph.steps), dict(graph.notes)
            if not _attempt(each, functools.partial(each.run, graph)):
                graph.steps, graph.notes = steps, notes
        self.on_settings |= graph.on_settings
        form.set(graph.steps)
        form.notes = graph.notes


_optimizers: dict[torch.device, Optimizer] = {}


def rest_on_settings() -> bool:
    """Does what passes changed rest on torch's settings?"""
    return any(each.on_settings for each in _optimizers.values())


def forget_settings() -> None:
    """A setting of torch has changed: what passes changed by it is found anew."""
    for each in _optimizers.values():
        if each.on_settings:
            each.forms.forget()
            each.on_settings = False


def optimizer_on(device: torch.device) -> Optimizer:
    """The one for segments that run on `device`."""
    if device not in _optimizers:
        _optimizers[device] = Optimizer(device)
    return _optimizers[device]


_elsewhere = [0, 0, 0, 0]  # as `calls_otherwise` counts them, of remote executors
_again = 0  # calls that ran on more than one worker


def repeatable() -> frozenset[str]:
    """Names of the operators that several workers may run, each for itself, in place of a transfer."""
    from .recompute import REPEATABLE, Recompute

    return REPEATABLE if any(isinstance(each, Recompute) for each in _used()) else frozenset()


def add_again(calls: int) -> None:
    """So many calls ran on one more worker."""
    global _again
    _again += calls


def add_elsewhere(direct: int, in_place: int, nbytes: int, native: int) -> None:
    """A worker ran so many calls by a shorter way, so many in place, and so many without Python."""
    for k, n in enumerate((direct, in_place, nbytes, native)):
        _elsewhere[k] += n


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """(pass → calls that ran otherwise because of it, pass → bytes of memory that were not taken because of it)"""
    from .direct import DirectCalls
    from .in_place import InPlace
    from .native import NativeCalls
    from .recompute import Recompute

    direct, overwriting, nbytes, native = calls_otherwise()
    there = _elsewhere
    calls = {
        DirectCalls.name: direct + there[0],
        InPlace.name: overwriting + there[1],
        NativeCalls.name: native + there[3],
        Recompute.name: _again,
    }
    saved = {InPlace.name: nbytes + there[2]}
    for each in _optimizers.values():
        for name, (n, spared) in each.forms.totals().items():
            calls[name] = calls.get(name, 0) + n
            saved[name] = saved.get(name, 0) + spared
    return calls, saved
