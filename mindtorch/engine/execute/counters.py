"""``mindtorch.stats()``: what the engine did, as a plain dict (SPEC L15)."""

from __future__ import annotations

from typing import Any

from ..._ext import context as _context
from ..._ext import intercept as _intercept
from ..._ext import shortcuts as _shortcuts
from ...base import torch_facts
from .. import passes
from ..record import eager
from . import around_segments, triggers, values

more: dict[str, dict[str, int]] = {}  # what layers above count: name of the count -> op -> calls
_zero: dict[str, Any] = {}


def _totals() -> dict[str, Any]:
    c = values.tape.counters()
    whole, dispatched = _intercept.counts()
    return {
        "ops_recorded": c["recorded"],
        "ops_executed": c["executed"] - triggers.idle,
        "ops_dropped": c["dropped"],
        "ops_fallback": sum(eager.fallback_counts.values()),
        "recorded_whole": whole,
        "recorded_at_dispatch": dispatched,
        "segments": triggers.segments,
        **around_segments.counts,
    }


def _by_key() -> dict[str, dict[str, int]]:
    changed, saved = passes.counts()
    return {
        "triggers": triggers.reasons,
        "trigger_lines": triggers.lines(),
        "fallbacks": eager.fallback_counts,
        "not_cacheable": around_segments.refused,
        "passes": changed,
        "bytes_saved": saved,
        **more,
    }


def stats() -> dict[str, Any]:
    """What the engine did since the start, or since ``reset_stats()``.

    ``ops_recorded``, ``ops_executed``, ``ops_dropped`` (never run: nothing could read the result), ``ops_fallback``
    (run eagerly because they cannot be recorded; ``fallbacks``: op → calls), ``recorded_whole`` /
    ``recorded_at_dispatch`` (level of interception), ``segments`` (materializations that ran something), ``triggers``
    (reason → count; a reason is the method that read, or the op that could not be recorded), ``trigger_lines``
    (``file:line`` of the program → count; beyond 1,000 places ``(other lines)``), ``passes`` (pass of the optimization
    engine → calls that it changed), ``bytes_saved`` (pass → bytes that were not allocated because of it),
    ``npu_native`` / ``npu_staged`` (op → calls on NPU tensors that the NPU ran itself / that went through the CPU),
    ``cache_hits`` / ``cache_misses`` (segments whose values were in a `mindtorch.cache` / were computed and kept
    there), ``not_cacheable`` (reason why values were not kept → segments). Current state: ``cache_bytes`` (bytes that
    the cache in use holds), ``ops_pending``, ``values`` (live values), ``bytes_held`` (every table of the engine, in
    bytes; not the user's tensors), ``bytes_per_op`` (``bytes_held`` per pending op), ``record_bytes`` (size of one
    record), ``torch_lost`` (names inside torch that the installed release lacks → the consequence; empty on releases
    that mindtorch knows).
    """
    now = _totals()
    out = {k: v - _zero.get(k, 0) for k, v in now.items()}
    for name, counts in _by_key().items():
        then = _zero.get(name, {})
        out[name] = {k: v - then.get(k, 0) for k, v in counts.items() if v > then.get(k, 0)}
    c = values.tape.counters()
    held = c["bytes_held"] + _context.table_bytes() + _shortcuts.remembered()[1]
    out.update(
        cache_bytes=0 if around_segments.keeper is None else around_segments.keeper.nbytes,
        ops_pending=c["pending"],
        values=c["values"],
        bytes_held=held,
        bytes_per_op=held / c["pending"] if c["pending"] else 0.0,
        record_bytes=c["record_bytes"],
        torch_lost=dict(torch_facts.lost),
    )
    return out


def reset_stats() -> None:
    """Start counting from 0. State (pending ops, bytes) stays."""
    triggers.forget_places()
    _zero.clear()
    _zero.update(_totals())
    for name, counts in _by_key().items():
        _zero[name] = dict(counts)
