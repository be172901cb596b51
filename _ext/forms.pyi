from collections.abc import Callable
from typing import Any, final

from mindtorch._ext.tape import Tape

@final
class Step:
    call: Callable[..., Any] | None
    same: int
    inputs: tuple[tuple[int, int], ...]
    value: Any
    skips: bool
    def __new__(
        cls,
        call: Callable[..., Any] | None,
        args: tuple[Any, ...] = ...,
        kwargs: dict[str, Any] | None = ...,
        inputs: tuple[tuple[int, int], ...] = ...,
        same: int = ...,
        value: Any = ...,
        skips: bool = ...,
    ) -> Step: ...
    def put(self, position: int, value: Any) -> None: ...

@final
class Form:
    tape: Tape
    n: int
    n_values: int
    runs: int
    notes: dict[str, tuple[int, int]] | None
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def records(self) -> list[tuple[int, bool, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]: ...
    def values(self) -> list[tuple[int, bool]]: ...
    def set(self, steps: dict[int, Step]) -> None: ...

@final
class Forms:
    after: int
    fewest: int
    def __init__(self, improve: Callable[[Form], None], after: int, fewest: int = ..., most: int = ...) -> None: ...
    def forget(self) -> None: ...
    def totals(self) -> dict[str, tuple[int, int]]: ...
