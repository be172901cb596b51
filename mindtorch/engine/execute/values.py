"""The values of lazy tensors: the executor that has them, and what makes recorded calls run (SPEC L9, R1)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ..._ext import tape as _tape
from ..._ext.guards import Quiet
from ...base import config
from ...base.errors import LazyTensorError, MaterializationError, SessionLost, UsageError
from ..record import meta
from . import around_segments, triggers
from .base import Executor
from .pace import Pace

#: What was recorded and has not run.
tape = _tape.Tape(_intern.Interner(torch.Size), config.max_pending_ops(), max_waiting=config.max_pending_bytes())
lock = threading.RLock()
# A child has only the thread that forked: no other one may be in the middle of a run then, and keep the lock for good.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
_META = torch.device("meta")  # the place of values that are elsewhere
_executor: Executor | None = None
_before_change: list[Callable[[], None]] = []
_default_executor: Callable[[], Executor] | None = None


def set_executor(executor: Executor | None) -> Executor | None:
    """Use another executor; returns the previous one, None if none was used yet. ``None``: the default one.

    The previous one first runs pending operations; an error in them is raised when the value is read. Computed values
    and generator states move to the new one. UsageError if it is not an executor: nothing changes then.
    """
    global _executor
    if executor is not None:
        _check(executor)
    with lock:
        previous = _executor
        if previous is None:
            if executor is not None:
                _seed_as_torch(executor)
            _executor = executor
            return None
        with suppress(SessionLost):  # what can still be computed is pending, and the next one's
            _settle("executor change")
        for call in _before_change:
            with suppress(MaterializationError):  # fails where it is asked for
                call()
        if executor is None and previous.place == _META and _default_executor is not None:
            executor = _default_executor()  # now: values are to be handed over
        if executor is not None and executor is not previous:
            try:
                executor.set_generators(*previous.generators())
            except SessionLost:  # the states are gone
                _seed_as_torch(executor)
            if _META in (previous.place, executor.place):
                _hand_over(previous, executor)
        _executor = executor
    return previous


def before_change(call: Callable[[], None]) -> None:
    """Call this before another executor takes over, while the one in use has the values."""
    _before_change.append(call)


def begin_again(executor: Executor) -> None:
    """In a process that was forked, whose values are in a session of its parent's: use ``executor`` from here on."""
    global _executor
    _executor = executor


def asked_for() -> bool:
    """Has the user said which executor is to run recordings, in the environment or by setting one that is elsewhere?"""
    return config.executor_was_asked_for() or (_executor is not None and _executor.place == _META)


def get_executor() -> Executor:
    """The current executor: the one that was set, else the one that ``GENIE_EXECUTOR`` names."""
    with lock:
        return executor()


def _check(executor: object) -> None:
    if not isinstance(executor, Executor):
        raise UsageError(f"[set_executor] expected an Executor, got {type(executor).__name__}")
    for name in ("device", "place"):
        found = getattr(executor, name, None)
        if not isinstance(found, torch.device):
            raise UsageError(
                f"[set_executor] expected {type(executor).__name__}.{name} to be a torch.device, got {found!r}"
            )


def _hand_over(previous: Executor, executor: Executor) -> None:
    """What was computed goes with the tensors that name it; what failed there has failed here."""
    plain: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    failed: list[tuple[int, torch.Tensor, MaterializationError]] = []
    for slot, value in _core.computed():
        try:
            plain.append((slot, value, previous.fetch([value], whole=True)[0]))
        except MaterializationError as error:
            failed.append((slot, value, error))
    values = executor.adopt([t for _, _, t in plain])
    for slot, old, failure in failed:
        _core.exchange(slot, old, failure)
    for (slot, old, _), value in zip(plain, values, strict=True):
        _core.exchange(slot, old, value)


def set_default_executor(make: Callable[[], Executor]) -> None:
    """What to make when the first segment runs and no executor was set."""
    global _default_executor
    _default_executor = make


def executor() -> Executor:
    """The executor in use."""
    global _executor
    if _executor is None:
        if _default_executor is None:
            raise LazyTensorError("no executor is installed: import mindtorch itself, not one of its modules")
        with lock:  # two threads may need the first one at once
            if _executor is None:
                made = _default_executor()
                _seed_as_torch(made)
                _executor = made
    return _executor


def _seed_as_torch(executor: Executor) -> None:
    """Have its generators begin where torch's own did: elsewhere each time, unless the program says where.

    By a message, as all that a worker is told, so that who stands in for a lost one draws the same.
    """
    with Quiet():  # of torch's own generator
        executor.seed(torch.initial_seed())


def lists_are_apart() -> bool:
    """Does the executor in use have no one place for a list of tensors?"""
    return _executor is not None and _executor.lists_apart


def _run(segment: Any, reason: str) -> None:
    if len(segment):
        triggers.run(tape, executor(), segment, reason)


def materialize(
    tensors: Sequence[Any], reason: str, written: Sequence[Any] = (), generator: int | None = None
) -> list[Any]:
    """Compute lazy tensors; returns what stands for their values. ``reason`` is counted in ``stats()["triggers"]``.

    ``written``: tensors whose storage is about to be written; ``generator``: device index that is about to draw.
    """
    handles = [t._handle for t in tensors]
    if any(_core.device_index(t) < 0 for t in tensors):
        meta.refuse(reason)
    with lock:
        if _overdue:
            raise _overdue.pop(0)
        _run(_core.segment(handles, [t._handle for t in written]), reason)
        if generator is not None:
            _run(_core.rng_segment(generator), reason)
        values = [_core.value(handle) for handle in handles]
        if any(value is None for value in values):
            raise MaterializationError("no segment has computed this value")
        around_segments.lend(values, reason)
    return values


def read(tensors: Sequence[Any], reason: str, whole: bool = False) -> list[torch.Tensor]:
    """The values of lazy tensors as plain tensors, not to be written to; ``whole``: which share storage as those do."""
    global _awaited
    for refuse in refusing:
        refuse(tensors, reason)
    with lock:
        there = executor()
        begun, waits = time.perf_counter_ns(), there.waits
        _awaited = True
        try:
            values = materialize(tensors, reason)
        finally:
            _awaited = False
        found = there.fetch(values, whole)
        if there.place == _META:
            triggers.waited(begun, there.waits - waits)
        left = there.overlaps and go_on()
        if there.ahead:
            _pace.read(tape.n_recorded, left)
        return found


_awaited = False
#: Each is asked before a program's read, and raises if these tensors have no value that it may see.
refusing: list[Callable[[Sequence[Any], str], object]] = []


def is_awaited() -> bool:
    """Does the program wait for what the segment computes that is submitted now?"""
    return _awaited


def go_on() -> bool:
    """Let what a live tensor can see begin where it runs, while the program goes on. The caller holds ``lock``.

    Returns whether there was any.
    """
    if not tape.n_pending:
        return False
    _run_visible("overlap")
    try:
        executor().begin()
    except MaterializationError as error:  # of what had begun before
        if error.lost_write:
            _overdue.append(error)
    return True


_pace = Pace()


def stepped() -> None:
    """An optimizer's step has ended: what it has written may begin where it runs, if nobody will ask for it now."""
    if _executor is not None and _executor.ahead:
        with lock:
            if _pace.step(tape.n_recorded):
                go_on()


def flush(reason: str) -> None:
    """Compute everything that a live tensor needs."""
    with lock:
        _run(_core.segment_all(), reason)
        executor().finish()
        _core.sweep()  # what is left had no visible effect


def passed() -> None:
    """A backward pass has ended: it may begin where it runs, before what comes after it is recorded."""
    if _executor is not None and _executor.early:
        with lock:
            if _pace.passed(tape.n_pending):
                go_on()


_overdue: list[MaterializationError] = []


def _run_visible(reason: str) -> MaterializationError | None:
    """Run everything that a live tensor can see. Returns why that stays pending: for want of memory.

    What fails here fails where its values are asked for; that something was not written is said at the next read of
    anything.
    """
    while len(segment := _core.segment_all()):
        pending = tape.n_pending
        try:
            _run(segment, reason)
        except MaterializationError as error:
            if tape.n_pending == pending:
                return error
            if segment.lost_write or error.lost_write:
                _overdue.append(error)
    return None


def settle(reason: str) -> None:
    """As flush(), before something changes that kernels look at. The caller holds ``lock``.

    What fails here fails where its values are asked for, as it would have without the change.
    """
    stays = _settle(reason)
    if stays is not None:
        raise stays


def _settle(reason: str) -> MaterializationError | None:
    """The same; returns why something stays pending."""
    stays = _run_visible(reason)
    try:
        executor().finish()
    except MaterializationError as error:  # it is kept, and told where its values are asked for
        if error.lost_write:
            _overdue.append(error)
    if stays is None:
        _core.sweep()
    return stays


def draw(reason: str) -> None:
    """Run all pending random draws, so that the generators stand where the program is."""
    with lock:
        for index in tape.generators():
            _run(_core.rng_segment(index), reason)


tape.on_limit = lambda: flush("limit")
tape.on_draws = lambda: draw("unread draws")
