from collections.abc import Callable
from typing import Any

RULES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]

def in_place(args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any: ...
