"""Lines of the user's program, as errors and reports name them, and the folders whose lines are none of its own."""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

from .._ext import context as _context
from .errors import NPUError

__all__ = ["INSTALLED", "STANDARD", "current", "facts", "here", "installed", "named", "text_of"]


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


#: Folders that hold packages, whatever the path.
INSTALLED = ("site-packages", "dist-packages")


def _standard() -> tuple[str, ...]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefixes = (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)
    found = (os.path.join(prefix, sub, version) for prefix in prefixes for sub in ("lib", sys.platlibdir))
    return tuple(folder + os.sep for folder in dict.fromkeys((os.path.dirname(os.__file__), *found)))


#: Folders of the standard library, with a separator at the end. (`sysconfig` takes longer to load than all of these.)
STANDARD = _standard()


def installed() -> tuple[str, ...]:
    """Those on ``sys.path``, absolute, with a separator at the end.

    ``pip install --target`` fills any folder. The current one, and that of the program, are none nevertheless: some
    programs have their packages beside their own files.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {_current(), *(os.path.dirname(os.path.abspath(path)) for path in (main, *sys.argv[:1]) if path)}
    return _with_packages(tuple(str(path) for path in sys.path if path), frozenset(own))


@functools.lru_cache(maxsize=8)
def _with_packages(paths: tuple[str, ...], own: frozenset[str]) -> tuple[str, ...]:
    found = (os.path.abspath(path) for path in paths)
    return tuple(dict.fromkeys(
        os.path.join(path, "") for path in found
        if os.path.basename(path) in INSTALLED or (path not in own and _is_filled(path))
    ))  # fmt: skip


def _is_filled(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:  # a zip file, or nothing
        return False


def _current() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
