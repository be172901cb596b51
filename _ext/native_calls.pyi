from typing import Any, final

POINTS: int
TAKES: int
HOLDS: int
NUMBER: int
ADDRESS: int
FLOAT: int
TENSOR: int
NOTHING: int
TUPLE: int
LIST: int
MOST_WORDS: int
MOST_DOUBLES: int
MOST_BYTES: int
MOST_TENSORS: int
MOST_RESULTS: int

def start(call: int, give_up: int, wrap: int, at: int, plain: int, autograd: int, cls: type) -> None: ...

@final
class NativeCall:
    @property
    def nbytes(self) -> int: ...
    @property
    def brief(self) -> bool: ...
    @property
    def in_place(self) -> NativeCall | None: ...
    def __new__(
        cls,
        function: int,
        returns: int,
        n_results: int,
        n_tensors: int,
        n_floats: int,
        words: list[int],
        doubles: list[float],
        constants: bytes,
        patches: list[tuple[int, int, int]],
        brief: bool,
        in_place: NativeCall | None = ...,
    ) -> NativeCall: ...
    def __call__(self, tensors: tuple[Any, ...], floats: tuple[float, ...] = ...) -> list[Any] | None: ...
