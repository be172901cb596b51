from collections.abc import Callable
from typing import Any

RULES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]
