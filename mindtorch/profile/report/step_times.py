"""How times of repeated steps of two runs compare, on machines that are busy with other programs, too (SPEC C5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = 5  # that tell how far times of one run are apart
#: Seconds: an estimate gives each line its share of the waiting in whole nanoseconds.
SHARED = 2.5e-9
_FENCE = 1.5
_LEAST = 0.05  # of a step: two processes differ by some per cent with where their memory lies
_BUSY = 0.1  # of a step: so much waiting for a processor is told


def figure(before: float | None, after: float | None) -> dict[str, Any]:
    """before, after, their difference, and the ratio; None where there was nothing before."""
    old, new = before or 0, after or 0
    return {"before": old, "after": new, "difference": new - old, "ratio": new / old if old else None}


def timed(before: list[float], after: list[float]) -> dict[str, Any]:
    """Medians, and whether they differ by more than equal steps do: their fences (Tukey's) are apart. Both: the
    quartiles of their steps."""
    fences = [(low - _FENCE * (high - low), high + _FENCE * (high - low)) for low, _, high in (before, after)]
    beyond = fences[0][1] < fences[1][0] or fences[1][1] < fences[0][0]
    return {**figure(before[1], after[1]), "beyond_noise": beyond, "fences": fences}


def of_steps(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Of a step of measured runs, from the ``steps`` of their reports.

    Beyond noise is what is so without the time in which steps waited for a processor. A busy machine slows down what
    runs, too, by what processors share: so medians have to differ by 5 %, and by the share of the time that the busier
    run waited (``waited``).
    """
    found = timed(before["quartiles_s"], after["quartiles_s"])
    running = [each.get("running_quartiles_s") or each["quartiles_s"] for each in (before, after)]
    walls = [each["quartiles_s"][1] for each in (before, after)]
    waited = max(1 - alone[1] / wall if wall else 0.0 for alone, wall in zip(running, walls, strict=True))
    alone = timed(*running)
    apart = abs(alone["difference"]) > (_LEAST + waited) * min(alone["before"], alone["after"])
    same = alone["difference"] * found["difference"] > 0
    return {
        **found,
        "beyond_noise": alone["beyond_noise"] and apart and same,
        "fences": alone["fences"],
        "waited": waited,
    }


def busy(times: Mapping[str, Any]) -> str:
    """What to say of `of_steps`, where there was a busy machine."""
    if times["waited"] <= _BUSY:
        return ""
    waited, least = (f"{100 * share:.0f} %" for share in (times["waited"], _LEAST + times["waited"]))
    text = f"the machine was busy: for up to {waited} of their time, steps waited for a processor"
    return f"{text}, so differences below {least} are not reported"
