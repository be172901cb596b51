"""How far off whole programs are by sources that no factor was fitted to: the interval that an estimate tells.

Each published program is estimated twice: with the package's factors, and without those of its chip's silicon. Errors
of the first are of a chip that was seen and a source that was not; those of the second are of neither.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import published
import published_energy
import published_timm
import published_training
from estimates import by_tables

from mindtorch.profile.cost import factors, targets

SOURCES = {
    published.NVIDIA: "NVIDIA, ResNet-50", published.LECTURE: "build-nanogpt, GPT-2",
    published.GPT_FAST: "gpt-fast, decoding", published.DIFFUSION: "diffusion-fast, SDXL",
}  # fmt: skip
TENTH = 10  # of a hundred measurements, those that an interval leaves out on either side
_FEW = 4  # sources
_WIDER = tuple(n / 100 for n in range(51))  # log-errors by which an interval may get wider


class Program(NamedTuple):
    """kind: of the numbers that most of it computes in, "half" or "single". seconds: published, of a step. among: where
    a source has both, "inference" or "training"."""

    source: str
    kind: str
    target: str
    seconds: float
    text: str
    among: str = ""

    @property
    def chip(self) -> str:
        number, _, chip = self.target.partition("x")
        return chip if number.isdigit() else self.target


class Error(NamedTuple):
    """log: of measured / predicted. seen: whether the prediction used factors of the silicon."""

    source: str
    kind: str
    chip: str
    seen: bool
    log: float
    among: str = ""


def programs() -> list[Program]:
    """All but those that show the host's time, which was fitted to them, and those that a figure was fitted to."""
    found = []
    for run in published.RUNS:
        if run.source in SOURCES and _runs(run.needs):
            kind = "single" if "float32" in run.what else "half"
            found.append(Program(SOURCES[run.source], kind, run.chip, run.seconds, run.program))
    for row in published_energy.ROWS:
        if _runs(row.needs) and (row.source == 1 or row.batch == 1):
            source, kind = ("Zeus, training", "single") if row.source == 1 else ("ML.ENERGY, diffusion", "half")
            found.append(Program(source, kind, row.chip, row.seconds, row.program))
    for each in published_training.ROWS:
        if each.chip != "a100":
            found.append(Program("LLM-Foundry, MPT", "half", f"{each.cards}x{each.chip}", each.seconds, each.program))
    for one in published_timm.RUNS if published_timm.installed() else ():
        if one.table.chip not in published_timm.CHECKS and not one.group:
            among = "training" if one.table.training else "inference"
            found.append(Program("timm, image models", "half", one.table.chip, one.seconds, one.program, among))
    return found


def _runs(needs: str) -> bool:
    return not needs or importlib.util.find_spec(needs) is not None


def without_silicon(table: Mapping[str, Any], chip: str) -> dict[str, Any]:
    """The table without all chips of the same silicon, but for what whole programs in 16 bits take: that is of all
    chips, and nearly the same without any one of its sources."""
    known, target = targets.shipped(), targets.find(chip)
    found: dict[str, Any] = {}
    for key, kinds in table.items():
        if key not in known or not factors.twins(known[key], target):
            found[key] = kinds
        elif "program" in kinds.get("half", {}):
            found[key] = {"half": {"program": kinds["half"]["program"]}}
    return found


def errors(table: Mapping[str, Any]) -> list[Error]:
    """Of every program; of those whose silicon the table knows in these numbers, twice."""
    found = []
    for program in programs():
        away = without_silicon(table, program.chip)
        seen = any(
            "product" in kinds.get(program.kind, {}) for key, kinds in table.items() if kinds is not away.get(key)
        )
        totals = by_tables(program.target, program.text, {"away": away, **({"own": table} if seen else {})})
        for name, t in totals.items():
            off = float(np.log(program.seconds / t["about_s"]))
            found.append(Error(program.source, program.kind, program.chip, name == "own", off, program.among))
        print(*program[:3], *(f"{error.log:+.3f}" for error in found[-len(totals) :]), flush=True)
    return found


def interval(found: Sequence[Error]) -> dict[str, float]:
    """Log-errors that eight of ten programs of a further source are within: those that a tenth of the rows is below,
    and above, and by how much wider they must be to hold for each source, on the mean, where they are of the others.
    """
    low, high = _tenths(found)
    more = next((more for more in _WIDER if _covered(found, more) >= (100 - 2 * TENTH) / 100), _WIDER[-1])
    return {"low": round(low - more, 4), "high": round(high + more, 4)}


def _tenths(found: Iterable[Error]) -> tuple[float, float]:
    """Each source counts as much, however many rows it has."""
    rows = sorted(found, key=lambda one: one.log)
    number = {one.source: sum(other.source == one.source for other in rows) for one in rows}
    weight = np.array([1 / number[one.source] for one in rows])
    at = (np.cumsum(weight) - weight / 2) / weight.sum() * 100
    low, high = np.interp([TENTH, 100 - TENTH], at, [one.log for one in rows])
    return float(min(low, -0.005)), float(max(high, 0.005))


def _covered(found: Iterable[Error], more: float) -> float:
    """The mean over the sources of `inside`; 1 where there is one."""
    rows = list(found)
    shares = [inside(rows, source, more) for source in {one.source for one in rows}]
    return float(np.mean([1.0 if share is None else share for share in shares]))


def inside(rows: Iterable[Error], source: str, more: float) -> float | None:
    """The share of a source's rows within an interval that is from the others; None where there are none."""
    every = list(rows)
    mine, others = ([one for one in every if (one.source == source) is same] for same in (True, False))
    if not others:
        return None
    low, high = _tenths(others)
    return float(np.mean([low - more <= one.log <= high + more for one in mine]))


def pool(found: Iterable[Error], kind: str, seen: bool) -> list[Error]:
    """The errors that an interval is made from: of few sources, those with factors of the silicon and without."""
    both = [one for one in found if one.kind == kind]
    rows = [one for one in both if one.seen is seen]
    return rows if len({one.source for one in rows}) >= _FEW else both


def of_class(found: Iterable[Error], name: str) -> list[Error]:
    """The errors on GeForce, of which no chip was fitted, or those on the other chips."""
    return [one for one in found if factors.geforce(targets.find(one.chip)) is (name == "geforce")]


def note(table: dict[str, Any], found: Sequence[Error]) -> None:
    """Put the intervals into the table."""
    for name, seen in (("another source", True), ("carried", False), ("geforce", False)):
        for kind in ("half", "single"):
            if rows := pool(of_class(found, name), kind, seen):
                place: dict[str, Any] = interval(rows)
                for among in dict.fromkeys(one.among for one in rows if one.among):
                    ends = interval([one for one in rows if one.among == among])
                    place[among] = list(ends.values())
                table.setdefault(name, {}).setdefault(kind, {})["program"] = place


HEAD = """## Chips and sources that were not seen

Every published program of this page whose host is not the limit was estimated again without any factor of its chip's
silicon (*not seen*). No factor of a kernel is from these sources. Two factors of whole programs are: the power of the
A100's matrix units, from LLM-Foundry's rows on the A100 with 80 GB, which are left out here; and what 16-bit programs
take of the time of their calls alone, from four sources that ran them on A100 and H100: any three of them give nearly
the same. *Inside*: share of the rows within an interval made from the errors of the other sources, each of which counts
as much; it should be 80 %. In float32, there are few sources: errors of both kinds make one interval. No GeForce was
fitted, so that class has intervals of its own: those of its only source, on the RTX 3090, one for inference, which is
estimated too slow there, and one for training. The section on image models compares them with rows of the RTX 4090.

| numbers | chip | source | chips | rows | mean error | inside |
|---|---|---|---|---|---|---|
"""


def section(found: Sequence[Error]) -> str:
    """The part of the page."""
    lines = []
    for kind, numbers in (("half", "16 bits"), ("single", "float32")):
        for seen, chip in ((True, "seen"), (False, "not seen"), (False, "GeForce, not seen")):
            those = of_class(found, "geforce" if chip.startswith("GeForce") else "")
            rows = [one for one in those if (one.kind, one.seen) == (kind, seen)]
            shares = []
            for source in dict.fromkeys(one.source for one in rows):
                mine = [one for one in rows if one.source == source]
                share = _left_out(mine, [one for one in pool(those, kind, seen) if one.source != source])
                shares += [] if share is None else [share]
                chips = ", ".join(dict.fromkeys(one.chip for one in mine))
                said = "" if share is None else f"{share:.0%}"
                lines.append(f"| {numbers} | {chip} | {source} | {chips} | {len(mine)} | {_mean(mine)} | {said} |")
            if rows:
                low, high = (np.expm1(end) for end in interval(pool(those, kind, seen)).values())
                words = f"all: interval {low:+.0%} to {high:+.0%} of the estimate"
                for among in dict.fromkeys(one.among for one in rows if one.among):
                    ends = interval([one for one in rows if one.among == among])
                    words += f"; {among} {np.expm1(ends['low']):+.0%} to {np.expm1(ends['high']):+.0%}"
                share = f"{np.mean(shares):.0%}" if shares else ""
                lines.append(f"| {numbers} | {chip} | {words} | | {len(rows)} | {_mean(rows)} | {share} |")
    return HEAD + "\n".join(lines) + "\n"


def _left_out(rows: list[Error], others: list[Error]) -> float | None:
    """The share of a source's rows within the interval that the others make, of whatever width that has."""
    if not others:
        return None
    ends = interval(others)
    return float(np.mean([ends["low"] <= one.log <= ends["high"] for one in rows]))


def _mean(rows: list[Error]) -> str:
    return f"{np.mean([abs(np.expm1(-one.log)) for one in rows]):.1%}"
