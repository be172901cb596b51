from collections.abc import Callable
from typing import Any

def init(
    base: type, fast: type, dataless: type, offset: int, is_same_device: Callable[[Any], bool], torch: Any
) -> None: ...
def set_others(
    ask: Callable[[Any, Any, Any, tuple, Any], Any], strangers: Callable[[Any, tuple, dict[str, Any]], Any]
) -> None: ...
def class_asks_first() -> None: ...
