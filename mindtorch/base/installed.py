"""Folders that packages are installed in: those with the usual names, and others that pip has filled."""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["NAMES", "folders"]

NAMES = ("site-packages", "dist-packages")


def folders() -> tuple[str, ...]:
    """Those on ``sys.path``, absolute, with a separator at the end.

    ``pip install --target`` fills any folder. The current one, and that of the program, are none nevertheless: some
    programs have their packages beside their own files.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {_current(), *(os.path.dirname(os.path.abspath(path)) for path in (main, *sys.argv[:1]) if path)}
    return _among(tuple(str(path) for path in sys.path if path), frozenset(own))


@functools.lru_cache(maxsize=8)
def _among(paths: tuple[str, ...], own: frozenset[str]) -> tuple[str, ...]:
    found = (os.path.abspath(path) for path in paths)
    return tuple(dict.fromkeys(
        os.path.join(path, "") for path in found
        if os.path.basename(path) in NAMES or (path not in own and _is_filled(path))
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
