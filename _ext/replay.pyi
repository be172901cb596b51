from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from mindtorch._ext.forms import Forms
from mindtorch._ext.native_calls import NativeCall
from mindtorch._ext.tape import Tape

@final
class Segment:
    tape: Tape
    lost_write: bool
    random: bool
    wanted: dict[int, Any] | None
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __len__(self) -> int: ...
    def run(
        self,
        device: Any,
        verify: Callable[[int, int, Any], Any],
        on_error: Callable[[int, Exception], Exception],
        set_grad: Callable[[bool], None],
        generator: Any,
        states: dict[int, Any],
        observer: Callable[[int, int, int], None] | None = ...,
        forms: Forms | None = ...,
        in_place: bool = ...,
        native: Callable[[int, list[Any], tuple[float, ...]], NativeCall | None] | None = ...,
    ) -> None: ...
    def close(self) -> None: ...
    @property
    def next(self) -> int | None: ...
    def settle(
        self,
        values: dict[int, Any],
        asked: list[tuple[list[Any], list[Any]]] | None = ...,
        writes: list[tuple[Any, Any]] | None = ...,
        states: dict[int, Any] | None = ...,
        ends: dict[int, Any] | None = ...,
    ) -> None: ...
    def parts(self) -> list[tuple[int, Segment]]: ...
    def part(self, positions: Iterable[int]) -> Segment: ...
    def instructions(self) -> Iterator[tuple[str, int, tuple[int, ...], tuple[int, ...]]]: ...

def fail_dependents(tape: Tape, seq: int, slots: Iterable[int], failure: BaseException) -> None: ...
def calls_otherwise() -> tuple[int, int, int, int]: ...
def native_after(times: int) -> int: ...
