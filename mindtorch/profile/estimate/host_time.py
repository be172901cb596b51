"""The program's own time in an estimate: what it does beside ops, measured on the machine that it is estimated on.

An estimate knows what the accelerator takes, and how long the host takes to launch that. Not how long the program's own
Python takes there: an environment that it steps, a tokenizer, images that it decodes. Here it takes what it takes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from mindtorch._ext import context, ledger
from mindtorch._ext.looking import HostLook
from mindtorch._ext.sampler import Sampler
from mindtorch.base import sourceline
from mindtorch.engine.record.meta import SCALAR
from mindtorch.engine.semantics import installed_folders, skipped_prefixes
from mindtorch.profile.estimate import kernel_limits
from mindtorch.profile.measure.iterations import ends_within

_LINES = 5  # told
_IDLE = 10**6  # ns without running, of a thread that could run: less is what two clocks differ by
_SEEN_FROM = 12e-3  # seconds: two looks that follow each other are at most half of that apart (`_ext/sampler.pyx`)
_active: list[HostTime] = []


class HostTime:
    """Within the block the calling thread is looked at. stages: ns by location, of each stage that `ends` named."""

    def __init__(self) -> None:
        self.stages: dict[str, Counter[int]] = {}
        self.workers: Counter[str] = Counter()  # ns of what workers of DataLoaders would have done, by stage
        self._seen: Counter[int] = Counter()  # ns by location, in the stage that has not ended
        self._loaded = 0  # ns of workers in it

    def __enter__(self) -> HostTime:
        self._queue, self._garbage = _Queue(), _Garbage()
        look = HostLook(
            ledger.position,
            skipped_prefixes(),
            threading.get_ident(),
            installed_folders(),
            lambda: self._queue.waited() + self._garbage.ns,
            sourceline.STANDARD,
        )
        self._look = look
        self.sampler = Sampler(self._look.look)
        self.sampler.free()
        self.sampler.start()
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in _active:  # else this is a forked child
            _active.remove(self)
        self.sampler.stop()
        self._queue.close()
        self._garbage.close()

    def ends(self, stage: str) -> None:
        """What was seen since the last call belongs to that stage."""
        self.loads(True)
        self.stages.setdefault(stage, Counter()).update(self._seen)
        self._seen.clear()
        self.workers[stage] += self._loaded
        self._loaded = 0

    def loads(self, begins: bool) -> None:
        """What a worker of a DataLoader would do begins, or has ended."""
        if begins:
            self._seen.update(self._look.ns)
        else:
            self._loaded += sum(self._look.ns.values())
        self._look.ns.clear()

    def facts(self, stage: str) -> dict[str, Any]:
        """Seconds, those of DataLoaders' workers apart, and the lines that took most of them; how long the program must
        be at something of its own at a time to be seen."""
        by_line: Counter[tuple[str, int, str] | None] = Counter()
        for place, ns in self.stages.get(stage, Counter()).items():
            by_line[context.location(place)] += ns
        return {
            "here_s": sum(by_line.values()) / 1e9,
            "seen_from_s": _SEEN_FROM,
            "workers_s": self.workers[stage] / 1e9,
            "lines": [{**sourceline.facts(where), "self_s": ns / 1e9} for where, ns in by_line.most_common(_LINES)],
        }


class _Garbage:
    """How long Python has searched for garbage: mostly among what an estimate remembers."""

    def __init__(self) -> None:
        self.ns = self._began = 0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "stop" and self._began:
            self.ns += now - self._began
        self._began = now

    def close(self) -> None:
        if self._note in gc.callbacks:  # else the program has emptied the list
            gc.callbacks.remove(self._note)


class _Queue:
    """How long the calling thread has waited for a processor: another program had it. Linux counts that by thread, once
    the thread runs again; until then, one that could run and does not is waiting."""

    def __init__(self) -> None:
        self._clock = -1
        if hasattr(time, "pthread_getcpuclockid"):  # not on Windows
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        folder = f"/proc/self/task/{threading.get_native_id()}"
        self._files = [_opened(f"{folder}/{name}") for name in ("schedstat", "stat")]
        self._told = self._early = 0  # ns: so far; of these, what Linux has not counted yet
        self._last: _Look | None = None

    def waited(self) -> int:
        """Nanoseconds so far; 0 where nobody counts them."""
        try:
            found = self._look()
        except (OSError, ValueError, IndexError):  # not Linux; or the program has closed files that it did not open
            return 0
        last, self._last = self._last, found
        if last is None:
            self._told = found.counted
            return self._told
        counted = found.counted - last.counted
        waited, idle = max(counted - self._early, 0), found.at - last.at - (found.ran - last.ran)
        if found.could_run and idle > _IDLE:
            waited = max(waited, idle)
        self._early = max(self._early + waited - counted, 0) if found.could_run else 0
        self._told += waited
        return self._told

    def _look(self) -> _Look:
        counted = int(os.pread(self._files[0], 80, 0).split()[1])
        state = os.pread(self._files[1], 400, 0).rpartition(b")")[2].split()[0]  # after its name, which may have spaces
        return _Look(time.perf_counter_ns(), time.clock_gettime_ns(self._clock), counted, state == b"R")

    def close(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files = [-1, -1]


class _Look(NamedTuple):
    """at: when, ns. ran, counted: ns that the thread has run, and has waited, as far as Linux has counted that."""

    at: int
    ran: int
    counted: int
    could_run: bool


def _opened(file: str) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def reads_of(marks: Sequence[int], began: int, stretches: Sequence[tuple[int, int]]) -> Counter[int]:
    """How often iterations waited for a value of the device, by location; `marks`: their ends, as positions.

    What came before the first one began, or after the last one, says nothing of them. From one end to the next there is
    all of an iteration: what follows a step is otherwise the next one's. Where the program's first iteration begins is
    not known: of what was read before its end, and after the last one's, so much is its own as the others read at the
    same line, at most.
    """
    ends = ends_within(marks, stretches)
    numbers: dict[tuple[str, int, str] | None, int] = {}  # a place has several, as it is reached by several ways

    def between(since: int, until: int) -> Counter[int]:
        return Counter(
            numbers.setdefault(context.location(where), where)
            for at, where in kernel_limits.reads() if (since < at or not since) and at <= until
        )  # fmt: skip

    if len(ends) < 2:
        until = ends[-1] if ends else stretches[-1][1]
        return Counter(
            where for at, where in kernel_limits.reads()
            if (began < at or not began) and at <= until and any(first <= at <= last for first, last in stretches)
        )  # fmt: skip
    before = max((mark for mark in marks if mark < ends[0]), default=None)
    if before is not None:
        return between(before, ends[-1])
    found, first = between(ends[0], ends[-1]), between(began, ends[0]) + between(ends[-1], stretches[-1][1])
    for where, calls in found.items():
        found[where] += min(first[where], calls / (len(ends) - 1))  # type: ignore[assignment]
    return found


def reading(calls: Any) -> Any:
    """Which of the calls of the log read a value of the device: the note of one is the last thing before it is read."""
    found = np.zeros(len(calls), bool)
    found[[at - 1 for at, _where in kernel_limits.reads() if 0 < at <= len(calls)]] = True
    notes = [sig for sig in np.unique(calls["sig"]).tolist() if ledger.named(sig) == SCALAR]
    return found & np.isin(calls["sig"], notes)


def _before_fork() -> None:
    for host in list(_active):
        host.sampler.pause()


os.register_at_fork(before=_before_fork, after_in_child=_active.clear)
