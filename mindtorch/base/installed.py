"""Folders that packages are installed into: what is in them is none of the program's own."""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["NAMES", "folders"]

NAMES = ("site-packages", "dist-packages")


def folders() -> tuple[str, ...]:
    """Those that modules are found in now, absolute: by their names, or as pip keeps its notes there, too, as after
    ``pip install --target``. The folder of the script and the current one are the program's, with whatever is in
    them."""
    own = (sys.path[0] if sys.path else "", os.path.dirname(sys.argv[0]) if sys.argv else "")
    return _folders(tuple(sys.path), frozenset(os.path.abspath(path) for path in (*own, os.curdir)))


@functools.lru_cache(maxsize=8)
def _folders(paths: tuple[str, ...], own: frozenset[str]) -> tuple[str, ...]:
    found = [os.path.abspath(path) for path in paths if path]
    return tuple(dict.fromkeys(path for path in found if os.path.basename(path) in NAMES or
                               (path not in own and _has_notes(path))))  # fmt: skip


def _has_notes(path: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(path))
    except OSError:  # a zip file, or nothing
        return False
