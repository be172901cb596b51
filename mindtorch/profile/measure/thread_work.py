"""What each kind of the program's threads did, by stage of the run."""

from __future__ import annotations

import re
import threading

from mindtorch._ext.timeline import Timeline
from mindtorch.profile.report.recording import ThreadWork

__all__ = ["MOST_THREADS", "Threads"]

#: Kinds of threads told apart; a program may start ever new ones.
MOST_THREADS = 32


class _Seen:
    """A thread: its kind, and what was noted of it already."""

    def __init__(self, name: str, timeline: Timeline) -> None:
        self.name, self.timeline = name, timeline
        self.ops = self.ns = 0
        self.stages: set[str] = set()  # in which it ran an op


class Threads:
    def __init__(self) -> None:
        self._found: dict[str, dict[str, ThreadWork]] = {}  # by stage and name
        self._running: dict[int, _Seen] = {}
        self._main: _Seen | None = None

    def begins(self, thread: threading.Thread, timeline: Timeline) -> None:
        """The calling one."""
        self._running[threading.get_ident()] = _Seen(_kind_of(thread.name), timeline)

    def is_running(self) -> bool:
        return threading.get_ident() in self._running

    def ends(self, stage: str) -> None:
        self._note(self._running.pop(threading.get_ident()), stage)

    def stage_ends(self, stage: str, first: Timeline | None) -> None:
        """What threads did since the last call was in that stage. first: of the thread that made the profile."""
        if self._main is None and first is not None:
            self._main = _Seen("main", first)
        for seen in [*([self._main] if self._main else []), *list(self._running.values())]:
            self._note(seen, stage)

    def of(self, stage: str) -> list[tuple[str, ThreadWork]]:
        """The thread that made the profile comes first."""
        return sorted(self._found.get(stage, {}).items(), key=lambda item: item[0] != "main")

    def _note(self, seen: _Seen, stage: str) -> None:
        ops, ns = seen.timeline.n_ops - seen.ops, seen.timeline.op_ns - seen.ns
        if not ops:
            return
        seen.ops, seen.ns = seen.ops + ops, seen.ns + ns
        found = self._found.setdefault(stage, {})
        name = seen.name if seen.name in found or len(found) < MOST_THREADS else "others"
        known = found.get(name, ThreadWork(0, 0, 0))
        found[name] = ThreadWork(known.threads + (stage not in seen.stages), known.ops + ops, known.ns + ns)
        seen.stages.add(stage)


def _kind_of(name: str) -> str:
    """The name of a thread without what numbers it: "Thread-3 (train)" is "train", a pool has one name."""
    function = re.fullmatch(r"Thread-\d+ \((.+)\)", name)
    return function[1] if function else re.sub(r"[-_]\d+(_\d+)?$", "", name)
