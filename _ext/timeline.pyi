from collections.abc import Callable
from typing import final

EVENT: list[tuple[str, str]]
SPAN: list[tuple[str, str]]
OP: int
ENTER: int
EXIT: int
PHASE: int
RECORD: int
RUN: int
LABEL: int

@final
class Timeline:
    depth: int
    number: int
    n_ops: int
    op_ns: int

@final
class EventLog:
    n: int
    most: int
    dropped: int
    def __init__(self, most: int) -> None: ...
    def as_bytes(self) -> bytes: ...
    def event(self, index: int) -> tuple[int, int, int, int, int, int, int, int, int]: ...

@final
class SpanLog:
    n: int
    def keep(self, most: int, full: Callable[[], object] | None) -> None: ...
    def take(self) -> tuple[bytes, int]: ...
