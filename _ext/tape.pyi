from collections.abc import Callable
from typing import Any, final

from mindtorch._ext.intern import Interner

@final
class Handle:
    id: int
    slot: int
    meta: int
    sig: int
    module: int
    loc: int
    phase: int
    steps: int
    no_grad: bool
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def pending(self) -> bool: ...

@final
class Tape:
    interner: Interner
    head: int
    tail: int
    n_pending: int
    n_recorded: int
    n_executed: int
    n_dropped: int
    bytes_records: int
    max_pending: int
    waiting: int
    max_waiting: int
    retain: bool
    on_limit: Callable[[], None] | None
    on_draws: Callable[[], None] | None
    def __new__(
        cls, interner: Interner, max_pending: int = ..., retain: bool = ..., max_waiting: int = ...
    ) -> Tape: ...
    def generators(self) -> list[int]: ...
    def counters(self) -> dict[str, int]: ...
    def pending_seqs(self) -> list[int]: ...
    def describe(self, seq: int) -> tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]: ...
    def floats(self, seq: int) -> tuple[float, ...]: ...

def newest_id() -> int: ...
