"""Numbers of things, in words; and names of the program's, as they can be shown."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["amounts", "bytes_in_words", "counted", "seconds", "three", "visible"]


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


def three(value: float) -> str:
    """Three or four significant digits, never an exponent, for 0 <= value < 10000."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def seconds(value: float | None) -> str:
    """``17.1 µs``, ``3m 05s``."""
    if value is None:
        return ""
    if value < 0:
        return "-" + seconds(-value)
    if value == 0:
        return "0 s"
    if value < 999.5e-9:
        return f"{value * 1e9:.0f} ns"
    if value < 999.5e-6:
        return f"{three(value * 1e6)} µs"
    if value < 0.9995:
        return f"{three(value * 1e3)} ms"
    if value < 999.5:
        return f"{three(value)} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d {hours % 24:02d}h"
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"


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
