from collections.abc import Callable
from typing import final

from mindtorch._ext.collect import Collector

@final
class Look:
    collector: Collector | None
    def __init__(self, skipped: tuple[str, ...], waits: dict[tuple[str, str], int]) -> None: ...
    def look(self) -> None: ...

@final
class HostLook:
    ns: dict[int, int]
    def __init__(self, position: Callable[[], int], skipped: tuple[str, ...], thread: int) -> None: ...
    def look(self) -> None: ...
