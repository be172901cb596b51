"""What the program is told when Ray raises: one sentence each, of the text that Ray has for it."""

from __future__ import annotations

import re

__all__ = ["DAEMON", "ERROR", "ended", "last_line", "refused"]

#: What a reply begins with that is none, but says why.
ERROR = b"\xff"
#: The broker's exit code when one of Ray's daemons has ended.
DAEMON = 3


def refused(error: BaseException) -> str:
    """Why something was not begun."""
    text = last_line(str(error))
    if type(error).__name__ == "OutOfMemoryError":  # its text is a page of advice, without the figures
        return "not enough memory on the node for a worker"
    if text.startswith("Failed to connect"):
        text += " (a wrong RAY_AUTH_TOKEN has the same effect)"
    return text if isinstance(error, (TimeoutError, ConnectionError)) and text else f"{type(error).__name__}: {text}"


def ended(error: Exception, process: int, node: str) -> str:
    """How a worker ended, of what Ray raised for its answer."""
    who = f"the worker (process {process} on node {node[:8]})"
    text = str(error)
    kind = type(error).__name__
    if isinstance(error, ConnectionError):
        return f"{who} {text}"
    if kind == "OutOfMemoryError" or "running low on memory" in text or "memory usage threshold" in text:
        found = re.search(r"([\d.]+[GM]B) used / ([\d.]+[GM]B) limit", text)
        of = f" ({found[1]} of {found[2]} used)" if found else ""
        return f"{who} was killed because its node was low on memory{of}"
    if kind == "ActorUnavailableError" and "timed out" in text:
        return f"{who} cannot be reached: the network to its node was cut, or the node has ended"
    if kind in ("ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"):
        if "its node has died" in text or "node is dead" in text:
            return f"{who} ended because its node died"
        if "Exit code: " in text and (code := re.search(r"Exit code: (\d+)", text)) is not None:
            return f"{who} ended with exit code {code[1]}"
        return f"{who} has ended: it was killed (SIGKILL, SIGTERM), or crashed"
    return f"{who} failed for a reason that mindtorch does not recognize: {kind}: {last_line(text)}"


def last_line(text: str) -> str:
    """What Ray's texts end with is the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
