from collections.abc import Callable
from typing import Any

from mindtorch._ext.tape import Tape

def is_laid_out(
    make: Callable[[], Any],
    changes: list[Callable[[Any], Any]],
    address: Callable[[Any], int],
    storage_address: Callable[[Any], int],
) -> bool: ...
def start(tape: Tape, fast: type, dataless: type, offset: int) -> None: ...
def keep(on: bool) -> None: ...
def kept() -> int: ...
