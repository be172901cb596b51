from collections.abc import Callable
from typing import final

@final
class Sampler:
    error: BaseException | None
    looks: int
    running: bool
    def __new__(cls, look: Callable[[], None]) -> Sampler: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
