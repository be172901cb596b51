from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

OPERATORS: dict[str, tuple[int, str]]
OTHERS: tuple[str, ...]

def start(
    find: Callable[[str], int], plain: Any, wrapper: Any, below_autograd: AbstractContextManager[Any], catch: int
) -> bool: ...
def made(base: Any, name: str, args: tuple[Any, ...], cls: type) -> Any: ...
def facts(plain: Any) -> tuple[int, int, int, int] | None: ...
