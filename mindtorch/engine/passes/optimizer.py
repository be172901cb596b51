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

__all__ = ["ask", "counts", "known_passes", "may_overwrite", "optimizer_on", "set_passes"]

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
    from .direct import DirectCalls
    from .in_place import InPlace
    from .native import NativeCalls

    found = offered("mindtorch.passes", Pass, lambda name, error: _say(f"the entry point {name} is left out", error))
    return (*found, InPlace(), DirectCalls(), NativeCalls(), CommonSubexpressions())


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
    return _native_maker(_used())


@functools.cache
def _native_maker(passes: tuple[Pass, ...]) -> Callable[..., Any] | None:
    from .native import NativeCalls, native_call

    return native_call if any(isinstance(each, NativeCalls) for each in passes) else None


def _used() -> tuple[Pass, ...]:
    return _on_by_themselves() if _chosen is None else _chosen


def ask(info: Any) -> None:
    """A function runs for the first time: let the passes say how it is called from now on."""
    if info not in _functions:
        _functions.add(info)
        _ask(info)


def _ask(info: Any) -> None:
    for each in _used():
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
        form.set(graph.steps)
        form.notes = graph.notes


_optimizers: dict[torch.device, Optimizer] = {}


def optimizer_on(device: torch.device) -> Optimizer:
    """The one for segments that run on `device`."""
    if device not in _optimizers:
        _optimizers[device] = Optimizer(device)
    return _optimizers[device]


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """(pass → calls that ran otherwise because of it, pass → bytes of memory that were not taken because of it)"""
    from .direct import DirectCalls
    from .in_place import InPlace
    from .native import NativeCalls

    direct, overwriting, nbytes, native = calls_otherwise()
    calls = {DirectCalls.name: direct, InPlace.name: overwriting, NativeCalls.name: native}
    saved = {InPlace.name: nbytes}
    for each in _optimizers.values():
        for name, (n, spared) in each.forms.totals().items():
            calls[name] = calls.get(name, 0) + n
            saved[name] = saved.get(name, 0) + spared
    return calls, saved
