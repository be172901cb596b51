"""What a measured run cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unseen(compiled: int, children: Mapping[str, int], threads: bool) -> list[dict[str, Any]]:
    """What ran and is in none of the figures."""
    found: list[dict[str, Any]] = []
    if compiled:
        found.append({"what": "compiled function", "count": compiled})
    if children:
        found.append({"what": "child process", "count": sum(children.values())})
    if threads:
        found.append({"what": "thread", "count": None})
    return found
