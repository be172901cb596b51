"""How long this process could run and no processor was free: what other programs cost it (SPEC C5)."""

from __future__ import annotations

import os

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_THREADS = "/proc/self/task"


class RunQueue:
    """By Linux's ``schedstat`` of each thread; elsewhere nothing is known, and all is 0."""

    def __init__(self) -> None:
        self.waited = 0  # ns since this was made: of each time between two looks, of the thread that waited longest
        self.known = resource is not None and os.path.exists(f"{_THREADS}/{os.getpid()}/schedstat")
        self._switches = -1
        self._last: dict[str, int] = {}
        self.look()
        self.waited = 0

    def look(self) -> int:
        """What `waited` is now. Without a switch from one thread to another since the last look nothing has waited:
        on a machine that is idle it costs one call of the system."""
        if not self.known:
            return 0
        used = resource.getrusage(resource.RUSAGE_SELF)
        if (switches := used.ru_nvcsw + used.ru_nivcsw) != self._switches:
            self._switches, longest = switches, 0
            for thread in os.listdir(_THREADS):
                try:
                    with open(f"{_THREADS}/{thread}/schedstat", "rb") as file:
                        now = int(file.read().split()[1])
                except (OSError, IndexError):  # it has ended
                    continue
                longest = max(longest, now - self._last.get(thread, 0))
                self._last[thread] = now
            self.waited += longest
        return self.waited
