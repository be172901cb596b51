"""Lines of the user's program, as errors and reports name them."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from .._ext import context as _context
from .errors import NPUError

__all__ = ["current", "facts", "here", "named", "text_of"]


def text_of(location: int) -> str:
    """``file:line`` of a location id; empty when nobody knows it."""
    where = _context.location(location)
    return f"{where[0]}:{where[1]}" if where else ""


def current() -> str:
    """``file:line`` that the program is on; empty when nobody knows it."""
    return text_of(_context.get_location())


def here() -> str:
    """`` (file:line)`` of the line that the program is on, to put into an error; empty when nobody knows it."""
    where = current()
    return f" ({where})" if where else ""


def named(operation: str, call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``; an NPU's error in it says that it was ``operation``, and the line that the program is on."""
    try:
        return call(*args)
    except NPUError as error:
        error.called(operation, current())
        raise


def facts(where: tuple[str, int, str] | None) -> dict[str, Any]:
    """file, line, function and source (text of the line) for a report; empty and 0 when the line is not known."""
    file, line, function = where or ("", 0, "")
    return {"file": file, "line": line, "function": function, "source": linecache.getline(file, line).strip()}
