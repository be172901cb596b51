"""The factors of a target's models of time: its own where measurements were fitted, else those of its nearest kin.

`fitted.toml` holds what was fitted, per chip and number format: "half" (two bytes and less, on matrix units) and
"single" (float32 on ordinary units). Another chip takes those of the fitted ones, the more of one the nearer it is by
compute capability (`_kin`); they are shares of its own data sheet's rates. Facts of the data sheet correct them:

- memory: chips with stacked memory (HBM: a capability with a zero behind the dot) and with GDDR are further apart; in
  what streams memory, those whose error correction takes bandwidth and those whose does not;
- matrix units: those of GeForce have half the rate that the silicon's have elsewhere (`_slower_units`); boards of that
  class clock higher than their data sheet (`CLOCK`);
- power: what matrix work reaches for long is at most what the board's power sustains. A multiply-add on ordinary units
  takes some `JOULES` per operation by generation; on matrix units, what the fitted kin of the generation sustains, and
  in a whole program what was fitted to training on A100 (`joules`), times what a generation saves of `JOULES`;
- whole programs: what those in 16 bits take of their calls' time (`whole`) was fitted to chips with stacked memory. It
  is not carried over to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from mindtorch.profile.cost import flash, products, streams, targets
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.toml_files import read

#: Joule per float32 operation at the board's power, by compute capability: 16 nm and 12 nm as P4 and T4 were measured
#: (28 and 17 pJ); newer ones by what a process generation saves (about 0.6 at 7 nm and 0.65 more at 4 nm).
JOULES = {(6, 0): 28e-12, (7, 0): 17e-12, (8, 0): 10e-12, (8, 9): 6.7e-12, (10, 0): 5.5e-12}
#: A chip whose power sustains less of its peak than this is no model for others.
_HUNGRY = 0.8
#: How tired float32 products make a chip of its own kind whose power sustains its peak.
_TIRED = 1.1
#: Seconds of computing after which a board whose power does not sustain its peak is half as slow as it gets.
_SOON = 3e-4
#: By so many generations more, a chip's factors weigh 1/e. So many more away count chips with another kind of memory,
#: and those whose power does not sustain their peak.
_NEAR, _MEMORY, _POWER = 0.5, 2.0, 10.0
#: How far off a data sheet's other memory, clock or board makes what the same silicon lends.
_SHEET = 0.05
#: Matrix units of less than this share of the kin's rate are slower ones, beside as much of everything else.
_SLOWER = 0.75
#: The clock at which GeForce boards run matrix work, of the boost clock of the data sheet, which is an average of games
#: that NVIDIA does not name: fitted to timm's rows of the RTX 3090. The highest that their firmware allows: 2.1 GHz on
#: the RTX 3090, 3.1 GHz on the RTX 4090 ("Max Clocks" of nvidia-smi).
CLOCK, HIGHEST_CLOCK = 1.15, 1.24
#: How a higher clock changes the factors of products and attention: rates grow by it, cycles get shorter.
_CLOCKED = {"efficiency": 1, "feed": 1, "cache": 1, "store": 1, "step": -1, "fill": -1}
#: What another chip by another source is further off: errors of factors that were carried over are from within one
#: source. The middle error of published runs on an RTX 3090 (timm's tables of training and inference).
_SOURCE = 0.2
#: Log-errors (10 % and 90 % of measurements) where nothing is known of a family.
UNKNOWN = (-0.5, 0.5)
_ENDS = (("low", UNKNOWN[0]), ("high", UNKNOWN[1]))
_MODELS: Mapping[str, Any] = {
    "product": products.FACTORS, "attention": flash.FACTORS, "flash2": flash.FACTORS, "stream": streams.FACTORS,
}  # fmt: skip
#: Families that one kind has no measurements of take the other kind's.
_INSTEAD = {("stream", "half"): "single", ("attention", "single"): "half", ("flash2", "single"): "half"}


@dataclass(frozen=True)
class Factors:
    """values: of the model. low, high: log-errors that eight of ten measurements lie within. source: in words.
    sizes: the same by size, as (up to so many predicted seconds, low, high)."""

    values: Mapping[str, float]
    low: float
    high: float
    source: str
    own: bool  # fitted to this very chip
    sizes: tuple[tuple[float, float, float], ...] = ()

    def doubt(self, seconds: float) -> tuple[float, float]:
        """low and high of a call that takes about so long."""
        return next(((low, high) for until, low, high in self.sizes if seconds < until), (self.low, self.high))


@cache
def _read() -> Mapping[str, Any]:
    try:
        return read("fitted.toml")
    except FileNotFoundError:  # before anything was fitted
        return {}


_used: list[Mapping[str, Any]] = []  # instead of the file


def fitted() -> Mapping[str, Any]:
    """{chip: {kind: {model: {factor: value}}}}. Beside the chips, "carried": errors of factors that were carried over;
    "another source": errors of whole programs by a source that no factor of their chip was fitted to; "geforce": errors
    of whole programs on a class of chips of which none was fitted."""
    return _used[-1] if _used else _read()


@contextmanager
def using(table: Mapping[str, Any]) -> Iterator[None]:
    """Another table than the package's, within the block: while it is fitted, and to check it."""
    from mindtorch.profile.cost import op_time

    _used.append(table)
    op_time.forget()
    try:
        yield
    finally:
        _used.pop()
        op_time.forget()


def _found(key: str, model: str, kind: str) -> tuple[str, Mapping[str, Any]] | None:
    table = fitted().get(key, {}).get(kind, {}).get(model)
    return None if table is None else (key, table)


def of(target: Target, model: str, kind: str, among: str = "") -> Factors:
    """model: "product", "attention", "flash2" (FlashAttention-2, where "attention" is a newer one), "stream" or
    "program" (whole ones); kind: "half" or "single"; among: of a program, "inference" or "training"; "": unknown."""
    given = target.factors.get(f"{kind}_{model}")
    if isinstance(given, Mapping):
        return _factors(given, model, kind, "measured on the machine", True)
    found = _of(target, model, _INSTEAD.get((model, kind), kind))
    return _of_another_source(found, target, kind, among) if model == "program" else found


def _of(target: Target, model: str, kind: str) -> Factors:
    own = _found(target.key, model, kind)
    if own is not None:
        return _factors(own[1], model, kind, f"fitted to measurements of {target.key}", True)
    kin = _kin(target, model, kind)
    if not kin:
        return Factors(_begin(model, kind), *UNKNOWN, "a guess", False)
    values = _mean(target, kin, kind)
    if kind == "half" and "efficiency" in values:
        _slower_units(values, target, kin)
    if "efficiency" in values:
        _power(values, target, kin[0], kind)
    if "joules" in values:
        values["joules"] *= joules(target.capability) / joules(kin[0].chip.capability)
        if not stacked(target):
            values.pop("whole", None)
        return _factors(values, model, kind, f"extrapolated from {kin[0].chip.key} by power", False)
    doubt = fitted().get("carried", {}).get(kind, {}).get(model, {})
    known, further = (values, _SHEET) if twins(target, kin[0].chip) else (doubt, _SOURCE)
    for name, beyond in _ENDS:
        values[name] = math.hypot(known.get(name, beyond), further) * math.copysign(1, beyond)
    names = " and ".join([", ".join(one.chip.key for one in kin[:-1]), kin[-1].chip.key][len(kin) == 1 :])
    return _factors(values, model, kind, f"extrapolated from {names} by data sheet", False)


def _of_another_source(found: Factors, target: Target, kind: str, among: str) -> Factors:
    """With the interval of whole programs. Those of a user are by none of the sources of the fit: so the errors are of
    published programs that had no part in it; where the silicon had none either, of predictions from other chips. Where
    no chip of a class was fitted, training and inference are off in different directions."""
    chips = (targets.shipped()[key] for key in fitted() if key in targets.shipped() and _found(key, "product", kind))
    which = "another source" if any(twins(target, chip) for chip in chips) else "carried"
    doubt = fitted().get(which, {}).get(kind, {}).get("program", {})
    if which == "carried" and geforce(target):
        doubt = fitted().get("geforce", {}).get(kind, {}).get("program", doubt)
    low, high = doubt.get(among) or [doubt.get(name, beyond) for name, beyond in _ENDS]
    if which == "carried" and kind == "half" and geforce(target):  # `CLOCK` is one board's
        low, high = (math.copysign(math.hypot(end, _SHEET), end) for end in (low, high))
    return replace(found, low=float(low), high=float(high))


def _begin(model: str, kind: str) -> dict[str, float]:
    """Where a fit begins."""
    start = products.SINGLE if (model, kind) == ("product", "single") else _MODELS.get(model, {})
    return {name: value for name, (value, _) in start.items()}


def _factors(table: Mapping[str, Any], model: str, kind: str, source: str, own: bool) -> Factors:
    values = _begin(model, kind)
    values.update({k: float(v) for k, v in table.items() if isinstance(v, (int, float))})
    sizes = tuple((float(until), float(low), float(high)) for until, low, high in table.get("sizes", ()))
    return Factors(values, values.pop("low", UNKNOWN[0]), values.pop("high", UNKNOWN[1]), source, own, sizes)


class _Kin(NamedTuple):
    chip: Target
    table: Mapping[str, Any]
    weight: float


def _kin(target: Target, model: str, kind: str) -> list[_Kin]:
    """The fitted chips that lend their factors, the nearest one first.

    Products and attention take a mean over the chips, as each has oddities of its own; the nearer one is by
    generation (on matrix units by its kind of memory, too; in float32 where power sustains the peak), the more it
    weighs. One of the same capability is the same silicon: it lends alone. So does the nearest one for what streams
    memory, and for whole programs: among equals the newer one, then the one with the nearest bandwidth.
    """
    found = []
    for key, kinds in fitted().items():
        table = kinds.get(kind, {}).get(model) if key in targets.shipped() else None
        if table is None:
            continue
        other = targets.shipped()[key]
        apart = abs(_generation(other) - _generation(target))
        stream = model == "stream"
        if (stream and _checked(other) != _checked(target)) or (kind == "half" and stacked(other) != stacked(target)):
            apart += _MEMORY
        if kind == "single" and model != "stream" and _sustains(other) < _HUNGRY:
            apart += _POWER  # what it reaches is its power's, not its silicon's
        near = (apart, -_generation(other), abs(other.memory_bandwidth - target.memory_bandwidth))
        found.append((near, _Kin(other, table, math.exp(-apart / _NEAR))))
    found.sort(key=lambda one: one[0])
    kin = [one[1] for one in found]
    same = bool(kin) and kin[0].chip.capability == target.capability
    return kin[:1] if same or model in ("stream", "program") else kin


def _mean(target: Target, kin: list[_Kin], kind: str) -> dict[str, float]:
    """Of each factor the geometric mean. In float32, the edge of a tile costs the more, the more lanes wait for it."""
    whole = sum(one.weight for one in kin)
    values = {}
    for name in kin[0].table.keys() - {"sizes"}:
        given = [(one.weight / whole, float(one.table[name])) for one in kin if name in one.table]
        values[name] = math.exp(sum(w * math.log(v) for w, v in given)) if all(v > 0 for _, v in given) else given[0][1]
    if kind == "single" and "edge" in values:
        lanes = sum(one.weight / whole * math.log(_lanes(one.chip)) for one in kin)
        values["edge"] *= _lanes(target) / math.exp(lanes)
    return values


def _lanes(target: Target) -> float:
    """Multiply-adds of float32 in a clock of one multiprocessor."""
    return target.rate("float32", False) / (2 * target.clock_hz * target.processors)


def matrix_flops(target: Target) -> float:
    """Of 16-bit numbers, in a clock of one multiprocessor."""
    return target.rate("bfloat16", True) / (target.clock_hz * target.processors)


def _slower_units(values: dict[str, float], target: Target, kin: list[_Kin]) -> None:
    """GeForce's matrix units have half the rate of the silicon's (accumulating in float32), beside memory, caches and
    schedulers that have not: what a tile takes on top of its multiply-adds weighs as much less, and power is left."""
    whole = sum(one.weight for one in kin)
    lent = math.exp(sum(one.weight / whole * math.log(matrix_flops(one.chip)) for one in kin))
    rate = matrix_flops(target) / lent
    if rate > _SLOWER or stacked(target) or stacked(kin[0].chip):
        return
    for name in ("edge", "small_head", "small_block"):
        if name in values:
            values[name] *= rate
    if "edge" in values:
        values["efficiency"] = max(values["efficiency"], 1.0)
    else:  # attention, whose other work stays
        values["efficiency"] = 1 / (1 + (1 / values["efficiency"] - 1) * rate)
    if geforce(target):
        _clocked(values, target, rate)


def _clocked(values: dict[str, float], target: Target, rate: float) -> None:
    """On boards of GeForce, slower units leave power, so clocks stay high. Memory has no check bits, so products read
    it as fast as `streams` do. rate: of the matrix units, of the kin's: addresses of convolutions cost as much less."""
    if "tired" in values:
        values["tired"] = values["spent"] = 1.0
        values["memory"] = max(values["memory"], of(target, "stream", "half").values["elementwise"])
        values["addresses"] = rate
    for name in _CLOCKED.keys() & values.keys():
        values[name] *= CLOCK ** _CLOCKED[name]


def twins(target: Target, other: Target) -> bool:
    """The same silicon with another memory, or on another board."""
    return (target.capability, target.processors) == (other.capability, other.processors)


def _generation(target: Target) -> float:
    return target.capability[0] + target.capability[1] / 10


def stacked(target: Target) -> bool:
    """Whether its memory is stacked beside the chip (HBM). Of the generations whose capability ends in a zero, the one
    of RTX 50 has GDDR."""
    major, minor = target.capability
    return major < 12 and (minor == 0 or major >= 9)


def geforce(target: Target) -> bool:
    """Whether it is of a class that differs from all fitted chips: slower matrix units, no error correction."""
    return not target.ecc and not stacked(target)


def _checked(target: Target) -> bool:
    """Whether check bits of error correction take some of the bandwidth: GDDR has them among the data, stacked memory
    beside it, GeForce's none."""
    return target.ecc and not stacked(target)


def _sustains(target: Target) -> float:
    """The share of its float32 peak that its board's power lets it have for long."""
    return target.power_w / joules(target.capability) / target.rate("float32", True)


def joules(capability: tuple[int, int]) -> float:
    """Of a float32 operation on ordinary units, by generation."""
    return JOULES[max((at for at in JOULES if at <= capability), default=(6, 0))]


def _power(values: dict[str, float], target: Target, nearest: _Kin, kind: str) -> None:
    """What the board's power sustains: in float32 what lasts is slower, on matrix units everything."""
    kin = nearest.chip
    if not target.power_w:
        return
    if kind == "single" and "tired" in values:
        large = values["efficiency"] / (1 + values["edge"] / 64)  # in tiles of 128 by 128
        own = nearest.table["tired"] if target.capability == kin.capability else _TIRED
        values["tired"] = values["spent"] = max(own, large / _sustains(target))
        if _sustains(target) < _HUNGRY:
            values["soon_s"] = _SOON
    elif target.capability == kin.capability and kin.power_w:
        sustained = values["efficiency"] * kin.rate("bfloat16", True) / kin.power_w
        powered = max(sustained * target.power_w / target.rate("bfloat16", True), 0.1)
        values["efficiency"] = min(values["efficiency"], powered)
