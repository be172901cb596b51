from collections.abc import Callable
from typing import Any

def hear(beginning: bytes, tell: Callable[[str, tuple[Any, ...]], object]) -> None: ...
