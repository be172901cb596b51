from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import Self

from mindtorch._ext.balance import Balance
from mindtorch._ext.labels import Labels
from mindtorch._ext.opinfo import Op, Runs
from mindtorch._ext.rowtable import RowTable
from mindtorch._ext.sampler import Sampler
from mindtorch._ext.timeline import SpanLog, Timeline

def now_ns() -> int: ...

class Collector:
    cost_in: int
    cost_out: int
    cost_module: int
    @property
    def dropped_events(self) -> int: ...
    overhead: int
    imported: int
    compiled: int
    balance: Balance
    order: dict[int, int]
    sig_ops: list[Op | None]
    sig_flops: list[tuple[int, int] | None]
    sig_works: list[Any]
    def keep_apart(
        self,
        function_modes: Callable[[], int],
        functions_seen: Callable[[], bool],
        no_functions: Callable[[], Any],
        below_autograd: Callable[[], bool],
        fake: type,
        symbolic: Callable[[Any], bool],
        parts: Callable[[Any], Iterable[Any]],
    ) -> None: ...
    weigh: Callable[[Any, tuple[Any, ...], dict[str, Any] | None, Any], Any] | None
    noted: Any
    enabled: bool
    other_thread: bool
    backward: bool
    runs: dict[str, Runs]
    loads: dict[int, int]
    plain_ops: int
    lazy_ops: int
    lazy_runs: int
    lazy_devices: int
    mark_error: BaseException | None
    first: Timeline | None
    n_ops: int
    failed: int
    started: int
    stopped: int
    first_op: int
    def __new__(
        cls,
        describe: Callable[[Any], Op],
        count: Callable[[Any, tuple[Any, ...], dict[str, Any] | None, Any], tuple[int, int] | None],
        tensor_type: type,
        on_mark: Callable[[str, int, int], None],
        max_events: int = ...,
        synchronize: Callable[[Any], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> Self: ...
    def start(self, at: int = 0) -> None: ...
    def stop(self) -> None: ...
    def join(self, at: int = 0) -> Timeline: ...
    def leave(self) -> None: ...
    def compiling(self, begins: bool) -> None: ...
    def disable(self) -> None: ...
    def set_aside(self) -> bool: ...
    def resume(self) -> None: ...
    def aside(self, since: int) -> None: ...
    labels: Labels
    sampler: Sampler
    def timelines(self) -> list[tuple[int, Timeline]]: ...
    def seen_at(self, here: Timeline, place: int, waits: int) -> None: ...
    def take_waits(self) -> dict[tuple[int, int], int]: ...
    lines: bool
    synchronize: Callable[[Any], None] | None
    spans: SpanLog
    table: RowTable
    threads: dict[int, Timeline]
    def up_to(self, at: int) -> None: ...
    def take_rows(self) -> list[tuple[int, ...]]: ...
    def begin_import(self, installed: bool, nested: bool) -> None: ...
    def end_import(self, installed: bool = False) -> None: ...
    def split(self, at: int) -> tuple[list[tuple[int, ...]], int, int, dict[int, int], dict[int, int]]: ...
    def made(self, tensor: Any) -> None: ...
    def dispatch(
        self, func: Any, types: Any, args: tuple[Any, ...] = ..., kwargs: dict[str, Any] | None = None
    ) -> Any: ...
    def ran(self, name: str, module: int, phase: int, location: int, start: int, end: int) -> None: ...
    def event_count(self) -> int: ...
    def events(self) -> bytes: ...
    def event(self, index: int) -> tuple[int, int, int, int, int, int, int, int, int]: ...

def ignore(kind: str, now: int, which: int) -> None: ...
