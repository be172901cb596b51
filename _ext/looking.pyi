from collections.abc import Callable
from typing import final

from mindtorch._ext.collect import Collector

class _Looking:
    def look(self) -> None: ...

@final
class Look(_Looking):
    collector: Collector | None
    def __init__(
        self,
        skipped: tuple[str, ...],
        waits: dict[tuple[str, str], int],
        loads: tuple[str, str],
        library: tuple[str, ...],
        packages: tuple[str, ...],
    ) -> None: ...

@final
class HostLook(_Looking):
    ns: dict[int, int]
    def __init__(
        self,
        position: Callable[[], int],
        skipped: tuple[str, ...],
        thread: int,
        installed: tuple[str, ...],
        lost: Callable[[], int],
        library: tuple[str, ...],
    ) -> None: ...
