from typing import final

from mindtorch._ext.collect import Collector

@final
class Look:
    collector: Collector | None
    def __init__(self, skipped: tuple[str, ...]) -> None: ...
    def look(self) -> None: ...
