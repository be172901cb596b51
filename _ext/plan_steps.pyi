from collections.abc import Callable
from typing import Any, final

from mindtorch._ext.native_calls import NativeCall

@final
class ReadyStep:
    def __new__(
        cls,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: tuple[tuple[int, int], ...],
        outputs: tuple[int, ...],
        dying: tuple[int, ...],
        grad: bool,
        single: bool,
        check: Callable[[Any], Any] | None = ...,
        direct: bool = ...,
        in_place: bool = ...,
        nbytes: int = ...,
        prove: Callable[[list[Any], tuple[float, ...]], NativeCall | None] | None = ...,
    ) -> ReadyStep: ...
    @property
    def native(self) -> NativeCall | None: ...
    def put(self, position: int, value: Any) -> None: ...

@final
class ReadySteps:
    steps: list[ReadyStep | None]
    at: int
    totals: tuple[int, int, int, int]
    def __init__(self, n: int) -> None: ...
    def counted(self) -> tuple[int, int, int, int]: ...
    def run(self, values: list[Any], at: int, set_grad: Callable[[bool], Any], failed: type) -> None: ...
