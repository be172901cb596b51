"""How long this process could run and no processor was free: what other programs cost it (SPEC C5)."""

from __future__ import annotations

import os

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_THREADS = "/proc/self/task"


class RunQueue:
    """By Linux's ``schedstat`` of each thread; elsewhere nothing is known, and all is 0.

    Between two looks, what counts is the thread that waited longest, of those that computed at all: at least a tenth of
    what the one did that computed most. Others, such as those that only look at times, may wait without harm.
    """

    def __init__(self) -> None:
        self.known = resource is not None and os.path.exists(f"{_THREADS}/{os.getpid()}/schedstat")
        self.waited = 0  # ns since this was made
        self._switches = -1
        self._last: dict[str, tuple[int, int]] = {}  # by thread: ns that it ran, and that it waited
        self.look()
        self.waited = 0

    def look(self) -> int:
        """What `waited` is now. Without a switch from one thread to another since the last look nothing has waited:
        on a machine that is idle it costs one call of the system."""
        if not self.known:
            return 0
        used = resource.getrusage(resource.RUSAGE_SELF)
        if (switches := used.ru_nvcsw + used.ru_nivcsw) != self._switches:
            self._switches = switches
            since = []
            for thread in os.listdir(_THREADS):
                try:
                    with open(f"{_THREADS}/{thread}/schedstat", "rb") as file:
                        ran, waited = map(int, file.read().split()[:2])
                except (OSError, ValueError):  # it has ended
                    continue
                before = self._last.get(thread, (0, 0))
                since.append((ran - before[0], waited - before[1]))
                self._last[thread] = ran, waited
            most = max((ran for ran, _ in since), default=0)
            self.waited += max((waited for ran, waited in since if ran >= most / 10), default=0)
        return self.waited
