"""The files of figures that lie beside these modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TOMLDecodeError", "parsed", "read"]

TOMLDecodeError = tomllib.TOMLDecodeError


def parsed(path: Path) -> dict[str, Any]:
    """A file's tables. OSError, UnicodeDecodeError or TOMLDecodeError where it has none."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read(name: str) -> dict[str, Any]:
    """The tables of the file of that name here."""
    return parsed(Path(__file__).with_name(name))
