"""Numbers of things, in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int | None, what: str, shown: str | None = None) -> str:
    """``1 call``, ``3,000 child processes``; ``some calls`` without a number. `shown`: how the number is written."""
    if number != 1:
        what += "es" if what.endswith("s") else "s"
    return f"{(f'{number:,}' if shown is None else shown) if number is not None else 'some'} {what}"
