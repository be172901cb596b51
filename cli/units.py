"""Numbers as people read them: ``12.3 ms``, ``474.9 MiB``, ``80.1 G``. Every result fits in eight columns."""

from __future__ import annotations

from mindtorch.base.words import counted, seconds, three

__all__ = ["amount", "assumption", "bytes_text", "count", "counted", "joules", "number", "percent", "seconds", "work"]


def assumption(value: object) -> str:
    """An assumed value in few digits: float32's 1e-12 is 9.999999960041972e-13 in full."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def amount(value: float | None, zero: str = "") -> str:
    """With a decimal prefix: 80.1 G. ``zero`` stands for nothing."""
    if not value:
        return zero
    for limit, factor, prefix in (
        (999.5, 1, ""), (999.5e3, 1e3, " k"), (999.5e6, 1e6, " M"), (999.5e9, 1e9, " G"), (999.5e12, 1e12, " T"),
        (999.5e15, 1e15, " P"),
    ):  # fmt: skip
        if abs(value) < limit:
            return f"{value:.0f}" if factor == 1 else three(value / factor) + prefix
    return three(value / 1e18) + " E"


def number(value: float | None, zero: str = "") -> str:
    """As `amount`, of things that are counted: 8.03 B parameters, not G."""
    return amount(value, zero).replace(" G", " B")


def work(value: float | None, unit: str) -> str:
    """``241 GFLOP``, ``48 FLOP``."""
    text = amount(value, "0")
    return f"{text}{unit}" if " " in text else f"{text} {unit}"


def joules(value: float | None) -> str:
    """``312 J``, ``45.1 mJ``, ``2.31 kJ``; an energy of days of training has a prefix, too."""
    if not value:
        return "0 J"
    for limit, factor, prefix in ((999.5e-9, 1e9, "n"), (999.5e-6, 1e6, "µ"), (0.9995, 1e3, "m")):
        if value < limit:
            return f"{three(value * factor)} {prefix}J"
    return f"{three(value)} J" if value < 999.5 else work(value, "J")


def bytes_text(value: float | None, zero: str = "") -> str:
    if not value:
        return zero
    for power, prefix in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")):
        scaled = value / 1024**power
        if abs(scaled) < 999.5 or prefix == "EiB":
            return f"{scaled:.0f} B" if power == 0 else f"{three(scaled)} {prefix}"
    raise AssertionError


def count(value: int | None) -> str:
    """Exact with thousands separators up to a million, then with a prefix."""
    if value is None:
        return ""
    return f"{value:,}" if value < 1_000_000 else number(value)


def percent(part: float | None, whole: float | None) -> str:
    """``42.1``, ``<0.1`` for what is there but small, empty for nothing."""
    if not part or not whole:
        return ""
    share = 100 * part / whole
    if share < 0.05:
        return "<0.1" if share > 0 else ""
    return f"{share:.1f}" if share < 99.95 else f"{share:.0f}"
