"""Who uses a cluster, on a terminal (SPEC C9)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mindtorch.base.words import amounts, counted, visible

__all__ = ["lines"]


def lines(sessions: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Iterator[str]:
    """One for each program, one for each of its workers, and one for those that it waits for."""
    names = {node["id"]: node["name"] for node in nodes}
    for session in sessions:
        yield ""
        yield (
            f"{visible(session['user'])}: {visible(session['program'])}, process {session['process']} on "
            f"{visible(session['host'])}, since {_at(session['started'])}"
        )
        for worker in session["workers"]:
            yield (
                f"  {amounts(worker['resources'])} on {names.get(worker['node'], worker['address'])} "
                f"({worker['node']}), process {worker['process']}, since {_at(worker['started'])}"
            )
        waits = session["waits_for"]
        if waits:
            yield f"  waits for resources for {counted(len(waits), 'worker')}, each with {amounts(waits[0])}"


def _at(seconds: float) -> str:
    """Of this machine's clock; the day where it is another one."""
    then = time.localtime(seconds)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)
