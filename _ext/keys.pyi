from collections.abc import Callable
from typing import Any

def init(
    base: type, fast: type, dataless: type, offset: int, is_same_device: Callable[[Any], bool], torch: Any
) -> None: ...
