"""The factors of a target's models of time: its own where measurements were fitted, else those of its nearest kin.

`fitted.toml` holds what was fitted, per chip and number format: "half" (two bytes and less, on matrix units) and
"single" (float32 on ordinary units). Another chip takes the factors of the fitted one that is nearest by compute
capability; they are shares of its own data sheet's rates. Two facts of the data sheet correct them:

- memory: chips with stacked memory (HBM: capabilities with a zero behind the dot) and chips with GDDR take the factors
  of their own kind, where there are any;
- power: the efficiency of matrix work is at most what the board's power sustains. A multiply-add on ordinary units
  takes some `JOULES` per operation by generation; on matrix units, what the fitted kin of the generation sustains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mindtorch.profile.cost import flash, products, streams
from mindtorch.profile.cost.targets import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Joule per float32 operation at the board's power, by compute capability: 16 nm and 12 nm as P4 and T4 were measured
#: (35 and 17 pJ); newer ones by what a process generation saves (about 0.6 at 7 nm and 0.65 more at 4 nm).
JOULES = {(6, 0): 35e-12, (7, 0): 17e-12, (8, 0): 10e-12, (8, 9): 6.7e-12, (10, 0): 5.5e-12}
#: A chip whose power sustains less of its peak than this is no model for others.
_HUNGRY = 0.8
#: Log-errors (10 % and 90 % of measurements) where nothing is known of a family.
UNKNOWN = (-0.5, 0.5)
_MODELS: Mapping[str, Any] = {"product": products.FACTORS, "attention": flash.FACTORS, "stream": streams.FACTORS}
#: Families that one kind has no measurements of take the other kind's.
_INSTEAD = {("stream", "half"): "single", ("attention", "single"): "half", ("program", "half"): "single"}


@dataclass(frozen=True)
class Factors:
    """values: of the model. low, high: log-errors that eight of ten measurements lie within. source: in words."""

    values: Mapping[str, float]
    low: float
    high: float
    source: str
    own: bool  # fitted to this very chip


@cache
def _read() -> Mapping[str, Any]:
    path = Path(__file__).with_name("fitted.toml")
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


_used: list[Mapping[str, Any]] = []  # instead of the file


def fitted() -> Mapping[str, Any]:
    """{chip: {kind: {model: {factor: value}}}}, and "carried": errors of factors that were carried over."""
    return _used[-1] if _used else _read()


@contextmanager
def using(table: Mapping[str, Any]) -> Iterator[None]:
    """Another table than the package's, within the block: while it is fitted, and to check it."""
    from mindtorch.profile.cost import about

    _used.append(table)
    about.forget()
    try:
        yield
    finally:
        _used.pop()
        about.forget()


def _found(key: str, model: str, kind: str) -> tuple[str, Mapping[str, Any]] | None:
    table = fitted().get(key, {}).get(kind, {}).get(model)
    return None if table is None else (key, table)


def of(target: Target, model: str, kind: str) -> Factors:
    """model: "product", "attention", "stream" or "program" (whole ones); kind: "half" or "single"."""
    given = target.factors.get(f"{kind}_{model}")
    if isinstance(given, Mapping):
        return _factors(target, given, model, "measured on the machine", True)
    kind = _INSTEAD.get((model, kind), kind)
    own = _found(target.key, model, kind)
    if own is not None:
        return _factors(target, own[1], model, f"fitted to measurements of {target.key}", True)
    kin = _kin(target, model, kind)
    if kin is None:
        begin = {name: value for name, (value, _) in _MODELS.get(model, {}).items()}
        return Factors(begin, *UNKNOWN, "a guess", False)
    key, table = kin
    from mindtorch.profile.cost import targets

    values = dict(table)
    if "efficiency" in values:
        values["efficiency"] = min(values["efficiency"], _powered(target, targets.known()[key], values, kind))
    doubt = fitted().get("carried", {}).get(kind, {}).get(model, {})
    values.update({name: doubt[name] for name in ("low", "high") if name in doubt})
    return _factors(target, values, model, f"carried over from {key} by data sheet", False)


def _factors(target: Target, table: Mapping[str, Any], model: str, source: str, own: bool) -> Factors:
    values = {name: value for name, (value, _) in _MODELS.get(model, {}).items()}
    values.update({k: float(v) for k, v in table.items() if isinstance(v, (int, float))})
    return Factors(values, values.pop("low", UNKNOWN[0]), values.pop("high", UNKNOWN[1]), source, own)


def _kin(target: Target, model: str, kind: str) -> tuple[str, Mapping[str, Any]] | None:
    """The nearest fitted chip and its table, if possible one with the same kind of memory, and whose power sustains its
    peak. Of equals, the newer one, then the one with the nearest bandwidth."""
    from mindtorch.profile.cost import targets

    best = None
    for key, kinds in fitted().items():
        table = kinds.get(kind, {}).get(model) if key in targets.known() else None
        if table is None:
            continue
        other = targets.known()[key]
        apart = abs(_generation(other) - _generation(target))
        if (model == "stream" or kind == "half") and _stacked(other) != _stacked(target):
            apart += 10
        if kind == "single" and model != "stream" and _sustains(other) < _HUNGRY:
            apart += 10  # what it reaches is its power's, not its silicon's
        far = (apart, -_generation(other), abs(other.memory_bandwidth - target.memory_bandwidth))
        if best is None or far < best[0]:
            best = far, key, table
    return None if best is None else best[1:]


def _generation(target: Target) -> float:
    return target.capability[0] + target.capability[1] / 10


def _stacked(target: Target) -> bool:
    return target.capability[1] == 0 or target.capability[0] >= 9


def _sustains(target: Target) -> float:
    """The share of its float32 peak that its board's power lets it have for long."""
    known = max((at for at in JOULES if at <= target.capability), default=(6, 0))
    return target.power_w / JOULES[known] / target.rate("float32", True)


def _powered(target: Target, kin: Target, values: Mapping[str, float], kind: str) -> float:
    """The share of its peak rate that the board's power sustains."""
    if not target.power_w:
        return 1.0
    if kind == "single":
        return _sustains(target)
    if target.capability != kin.capability or not kin.power_w:
        return 1.0
    sustained = values["efficiency"] * kin.rate("bfloat16", True) / kin.power_w
    return max(sustained * target.power_w / target.rate("bfloat16", True), 0.1)
