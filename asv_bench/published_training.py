"""Published training in 16 bits on many cards beside its estimate: ``python asv_bench/published_training.py``.

LLM-Foundry's tables of MPT models (scripts/train/benchmarking/README.md): FSDP, bfloat16, up to 128 cards of machines
with eight. The joules of an operation (`accuracy.HALF`) were fitted to the rows of the A100 with 80 GB; the others were
first estimated after the commit of that fit, and are among the errors that `whole` there is from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import published_programs as programs
from estimates import estimated

#: layers, width, heads
MODELS = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
AGAIN, KEPT, PURE = True, False, True  # activations are computed again, or kept; gradients are reduced in bfloat16, too
#: More batches of a step than these are estimated as these.
_PARTS = 3


class Row(NamedTuple):
    """tokens: published, of all cards in a second."""

    model: str
    length: int
    cards: int
    chip: str
    batch: int
    parts: int
    tokens: int
    again: bool
    pure: bool = False

    @property
    def program(self) -> str:
        layers, width, heads = MODELS[self.model]
        return programs.MPT.format(
            layers=layers, width=width, heads=heads, **self._replace(parts=self.estimated)._asdict()
        )

    @property
    def estimated(self) -> int:
        """Batches of the step that is estimated."""
        return min(self.parts, _PARTS)

    @property
    def seconds(self) -> float:
        """Of so many batches, as published."""
        return self.batch * self.estimated * self.length * self.cards / self.tokens


ROWS = [
    Row(*row)
    for row in (
        ("125m", 2048, 8, "a100", 32, 2, 1133901, KEPT),
        ("125m", 512, 8, "a100", 128, 2, 1325455, KEPT),
        ("350m", 1024, 8, "a100", 64, 2, 518504, KEPT),
        ("760m", 2048, 8, "a100", 24, 2, 259472, KEPT),
        ("1b", 2048, 8, "a100", 14, 4, 164109, KEPT),
        ("1b", 512, 8, "a100", 56, 4, 185186, KEPT),
        ("3b", 1024, 8, "a100", 20, 6, 92643, KEPT),
        ("7b", 2048, 8, "a100", 6, 2, 37130, KEPT),
        ("7b", 1024, 8, "a100", 64, 2, 34857, AGAIN),
        ("13b", 2048, 8, "a100", 2, 3, 18097, KEPT),
        ("13b", 1024, 8, "a100", 40, 3, 18647, AGAIN),
        ("30b", 1024, 8, "a100", 6, 21, 7571, AGAIN),
        ("30b", 512, 8, "a100", 12, 21, 7739, AGAIN),
        ("70b", 2048, 128, "a100-40gb", 4, 1, 48194, AGAIN, PURE),
        ("70b", 2048, 64, "a100-40gb", 2, 1, 17672, AGAIN, PURE),
        ("30b", 2048, 128, "a100-40gb", 6, 1, 110803, AGAIN, PURE),
        ("30b", 2048, 32, "a100-40gb", 4, 1, 27431, AGAIN, PURE),
        ("13b", 2048, 128, "a100-40gb", 16, 1, 252444, AGAIN, PURE),
        ("13b", 2048, 16, "a100-40gb", 10, 1, 31900, AGAIN, PURE),
        ("7b", 2048, 128, "a100-40gb", 18, 1, 463749, AGAIN, PURE),
        ("7b", 2048, 16, "a100-40gb", 16, 1, 58322, AGAIN, PURE),
        ("3b", 2048, 128, "a100-40gb", 6, 1, 1220885, KEPT, PURE),
        ("3b", 2048, 16, "a100-40gb", 5, 1, 156013, KEPT, PURE),
        ("1b", 2048, 64, "a100-40gb", 10, 1, 1216104, KEPT, PURE),
        ("1b", 2048, 16, "a100-40gb", 8, 1, 305372, KEPT, PURE),
        ("760m", 2048, 32, "a100-40gb", 12, 1, 948745, KEPT, PURE),
        ("350m", 2048, 64, "a100-40gb", 18, 1, 3372118, KEPT, PURE),
        ("125m", 2048, 128, "a100-40gb", 26, 1, 15863837, KEPT, PURE),
        ("125m", 2048, 16, "a100-40gb", 26, 1, 2088560, KEPT, PURE),
        ("70b", 2048, 64, "h100", 8, 4, 66523, AGAIN),
        ("70b", 2048, 32, "h100", 2, 16, 28242, AGAIN),
        ("30b", 2048, 32, "h100", 14, 3, 73860, AGAIN),
        ("30b", 2048, 16, "h100", 10, 3, 36209, AGAIN),
        ("30b", 2048, 8, "h100", 3, 21, 16022, AGAIN),
        ("30b", 1024, 8, "h100", 6, 21, 16672, AGAIN),
        ("13b", 2048, 64, "h100", 2, 1, 307209, KEPT),
        ("13b", 2048, 8, "h100", 2, 1, 38336, KEPT),
        ("13b", 1024, 8, "h100", 40, 3, 44019, AGAIN),
        ("7b", 2048, 8, "h100", 6, 1, 85144, KEPT),
        ("7b", 1024, 8, "h100", 64, 2, 81628, AGAIN),
        ("3b", 2048, 64, "h100", 6, 3, 1441663, KEPT),
        ("3b", 1024, 8, "h100", 20, 6, 216369, KEPT),
        ("3b", 512, 8, "h100", 40, 6, 223721, KEPT),
        ("1b", 2048, 64, "h100", 20, 1, 2841754, KEPT),
        ("1b", 1024, 8, "h100", 18, 4, 391287, KEPT),
        ("1b", 512, 8, "h100", 56, 4, 418201, KEPT),
        ("760m", 2048, 32, "h100", 24, 1, 2175091, KEPT),
        ("760m", 512, 8, "h100", 96, 2, 669998, KEPT),
    )
]
HEAD = """## Training on many cards

This table compares LLM-Foundry's published times for training MPT models with FSDP in bfloat16 with the estimate of a
program that does the same (`asv_bench/published_training.py`). One figure was fitted to the rows of the A100 with 80
GB: 1.6 pJ for an operation on its matrix units, so 400 W sustain 80 % of the peak. The figure for H100 follows from
what newer transistors save. The rows of the other two chips were first estimated after the commit of that fit; later,
their errors were among those by which programs in 16 bits take 14 % more than their calls (see published runs). Rows
with longer sequences are left out, because they ran FlashAttention's first version, which takes up to twice as long as
torch's. The estimate uses torch's loss; the published runs used a fused one.
"""
TABLE = [
    "| model | cards | sequence | batch | activations | published | at least | about | interval | error |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def section() -> str:
    """The part of the page."""
    lines, found = [HEAD, *TABLE], list[dict[str, Any]]()
    for row in ROWS:
        t = estimated(f"{row.cards}x{row.chip}", row.program)
        error, inside = t["about_s"] / row.seconds - 1, t["about_low_s"] <= row.seconds <= t["about_high_s"]
        interval = f"{t['about_low_s']:.3g}–{t['about_high_s']:.3g} s{'' if inside else ' (outside)'}"
        found.append({"chip": row.chip, "error": error, "inside": inside, "below": row.seconds < t["bound_s"]})
        lines.append(
            f"| {row.model} | {row.cards} {row.chip} | {row.length} | {row.estimated} × {row.batch} "
            f"| {'computed again' if row.again else 'kept'} | {row.seconds:.3g} s | {t['bound_s']:.3g} s "
            f"| {t['about_s']:.3g} s | {interval} | {error:+.1%} |"
        )
    lines += ["", "| chip | rows | mean error | inside | below the bound |", "|---|---|---|---|---|"]
    for chip in dict.fromkeys(row.chip for row in ROWS):
        own = [each for each in found if each["chip"] == chip]
        mean, inside = (sum(map(abs, (each[key] for each in own))) / len(own) for key in ("error", "inside"))
        lines.append(f"| {chip} | {len(own)} | {mean:.1%} | {inside:.0%} | {sum(each['below'] for each in own)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(section())
