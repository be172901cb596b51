from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

def ask(torch: Any) -> None: ...
def start(
    library: str,
    find: Callable[[str], int],
    keyed: list[AbstractContextManager[Any]],
    no_grad: AbstractContextManager[Any],
    with_function_mode: AbstractContextManager[Any],
    without_classes: AbstractContextManager[Any],
) -> tuple[bool, bool, bool, bool]: ...
def stop() -> None: ...
