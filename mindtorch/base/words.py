"""Numbers of things, in words; and names of the program's, as they can be shown."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["amounts", "bytes_in_words", "counted", "time_in_words", "visible"]


def counted(number: int | None, what: str, shown: str | None = None) -> str:
    """``1 call``, ``3,000 child processes``; ``some calls`` without a number. `shown`: how the number is written."""
    if number != 1:
        what += "es" if what.endswith("s") else "s"
    return f"{(f'{number:,}' if shown is None else shown) if number is not None else 'some'} {what}"


def bytes_in_words(nbytes: int) -> str:
    """``4.00 MiB``, as torch writes it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def time_in_words(seconds: float) -> str:
    """``17.1 µs``, as tables of reports write it; from a second on in seconds."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def amounts(of: Mapping[str, float]) -> str:
    """Of a machine's or a worker's resources: ``1 CPU, 0.5 GPU, 4.00 GiB of memory``."""
    found = [f"{value:g} {key}" for key, value in of.items() if key != "memory"]
    if of.get("memory"):
        found.append(f"{bytes_in_words(int(of['memory']))} of memory")
    return ", ".join(found) or "nothing"


def visible(text: str, kept: str = "") -> str:
    """Without characters that cannot be seen, or that change how those around them are (U+202E turns what follows
    round, ESC begins a terminal's commands): U+FFFD for each, but for those that are ``kept``."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else "\ufffd" for c in text)
