from collections.abc import Callable
from typing import Any, final

PASS: int
RECORD: int
HANDLER: int
EAGER: int
WRITES: int
RANDOM: int
VIEW: int
FORGOTTEN: int
SMALL: int
BLIND: int
FOLDS: int
TENSOR: int
TUPLE: int
LIST: int
NOTHING: int

@final
class Interner:
    bytes: int
    limit: int
    frozen: int
    def __new__(cls, size_type: type) -> Interner: ...
    def meta(self, mid: int) -> tuple[Any, Any, tuple[int, ...] | None, int, int]: ...
    def forget_calls(self) -> None: ...
    def set_limit(self, limit: int, at_once: int = ...) -> None: ...
    def counts(self) -> tuple[int, int]: ...

@final
class OpInfo:
    func: Any
    call: Any
    replay: Any
    in_place: Any
    fresh: bool
    twin: Any
    name: str
    kind: int
    handler: Any
    at_dispatch: Any
    at_function: Any
    random: bool
    writes: tuple[Any, ...]
    view: bool
    pointwise: bool
    bumps: bool
    short: bool
    of_dtype: str | None
    whole: bool
    copies: bool
    def __init__(
        self,
        func: Any,
        name: str,
        kind: int,
        *,
        call: Callable[..., Any] | None = ...,
        handler: Callable[..., Any] | None = ...,
        random: bool = ...,
        writes: tuple[Any, ...] = ...,
        view: bool = ...,
        pointwise: bool = ...,
        bumps: bool = ...,
        whole: bool = ...,
        copies: bool = ...,
        at_dispatch: Callable[..., Any] | None = ...,
    ) -> None: ...
