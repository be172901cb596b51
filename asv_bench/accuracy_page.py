# ruff: noqa: E501, ISC004
"""The page of `accuracy.py`: errors by family and chip, whole models, published runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import published
import published_energy
import published_hosts
import published_memory
import published_sources
import published_timm
import published_training

from mindtorch.profile.cost import roofline

HEAD = """# How far off estimates are

This page compares `about`, the interval from `about_low_s` to `about_high_s`, and `bound_s` of an estimate
([ESTIMATE.md](ESTIMATE.md#time)) with measurements. One command makes this page from files whose format
`asv_bench/measured.py` describes. With such files for another chip, the same command makes the page and the factors
again:

<!-- not run: it needs the measurements -->
```sh
python asv_bench/accuracy.py FOLDER --fit --write docs/ACCURACY.md
python asv_bench/accuracy.py --only memory energy --write docs/ACCURACY.md    # these parts alone, with the package's factors
```

Errors are means of |predicted / measured − 1|. *Fitted*: rows that the factors were fitted to. *Held out*: each quarter
of the rows by size, from the smallest calls to the largest, predicted with factors fitted to the other three quarters.
*Other chips*: predicted with factors fitted to other chips and the chip's own data sheet. *Inside*: share of held-out
rows within the interval, which was made from other held-out rows; it should be 80 %. *Below the bound*: number of
measurements faster than the bound; it must be 0.

This table shows which data the factors behind each figure were fitted to ("seen"):

| figure | the chip | the source | the kind of model |
|---|---|---|---|
| fitted | seen | seen | seen, the very rows |
| held out, inside | seen | seen | seen, but other sizes: this does not test another source |
| other chips, without the chip | not seen | seen | seen |
| products of models | its own factors, or not seen | seen | not seen: other sizes, in no fit and in no interval |
| without the model | seen | seen | not seen |
| chips and sources that were not seen: *seen* | seen by single operations | not seen, except for two factors of whole programs | not seen |
| chips and sources that were not seen: *not seen* | not seen | as above | not seen |
| training on many cards: a100 | seen | seen: one figure was fitted to the very rows | seen |
| training on many cards: a100-40gb | its twin's factors | seen | seen |
| training on many cards: h100 | seen by single operations, not by programs | seen on another chip | seen on another chip |
| image models: rtx3090 | seen: GeForce's clock and two rules of convolutions were fitted to these rows, which make its interval, too | seen | seen |
| image models: rtx4090, and its further models | not seen | seen on another chip; earlier estimates of these rows were known | seen on another chip |
| image models: later models | 3090 seen; 4090 and 5090 not seen | seen on another chip or of other models; read after the commit of all factors and intervals | not seen |
| hosts that nobody measured | its own factors or those of related chips; the host is the limit | the centre was fitted to the first host, the interval made from nine; four hosts were estimated after that commit | decoding seen |
| published runs | its own factors or those of related chips | not seen, except for two factors of whole programs, and the host (the centre from source 5; source 6 is among the hosts of the interval) | convolutions and compiled code seen |
| peaks of memory | no figure was fitted | no figure was fitted; what sources 3 to 5 show was seen, as their notes say | no figure was fitted |
| energy | not seen: joules follow from H200 and B200, idle power is the chip's own | not seen | not seen: single products were fitted |

The interval of a program with many shapes is made from the errors of whole programs in the section on chips and sources
that were not seen: of those whose chip's operations were fitted, or of those predicted without the chip's factors. The
interval of a few operations is made from the held-out rows; on chips that were not fitted, from the predictions with
other chips' factors, and it is 20 % wider, as those are from the same source.

These data are in no fit and not on this page: H200, L4, whole models on H100, and the rows of every file that were kept
back. The following rows were removed from the files: single-precision kernels that took less than 1.5 times as long as
the fastest call of their kind, and memory streams that took less than three times as long (such rows measure the host);
convolutions (their shapes are missing); attention of a single token; mixtures of experts (`switch*`).
"""


#: Parts of the page that need no measurements of kernels, by name: they are made with the package's factors.
SECTIONS: dict[str, Callable[[], str]] = {
    "training": published_training.section, "images": published_timm.section, "hosts": published_hosts.section,
    "published": published.section,
    "memory": published_memory.section, "energy": published_energy.section,
}  # fmt: skip


def anew(text: str, names: Sequence[str]) -> str:
    """The page, with those of its parts made anew."""
    for name in names:
        made = SECTIONS[name]().strip("\n")
        head = made.partition("\n")[0]
        before, found, after = f"{text}\n".partition(f"{head}\n")
        if not found:
            raise SystemExit(f"the page has no part {head!r}: make it whole")
        _, more, rest = after.partition("\n## ")
        text = f"{before}{made}\n{more}{rest}".rstrip("\n") + "\n"
    return text


def page(
    kernels: list[dict[str, Any]], chips: list[dict[str, Any]], checked: list[dict[str, Any]],
    models: list[dict[str, Any]], errors: list[published_sources.Error],
) -> str:  # fmt: skip
    return "\n".join(
        [
            HEAD, _kernels(kernels, chips), _checks(checked), _models(models), published_sources.section(errors),
            *(section() for section in SECTIONS.values()),
        ]
    )  # fmt: skip


def _kernels(kernels: list[dict[str, Any]], chips: list[dict[str, Any]]) -> str:
    titles = {
        "product": "Matrix products", "attention": "Fused attention, causal", "flash2": "FlashAttention-2 on newer chips",
        "stream": "Operations that stream memory",
    }  # fmt: skip
    kinds = {"half": "bfloat16", "single": "float32"}
    carried = {(c["rows"].chip.key, c["rows"].kind, c["rows"].model): c for c in chips}
    lines = []
    for model, title in titles.items():
        lines += [f"## {title}", "", "| chip | in | rows | fitted | held out | other chips | inside | below the bound |",
                  "|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for said in kernels:
            rows = said["rows"]
            if rows.model != model:
                continue
            other = carried.get((rows.chip.key, rows.kind, rows.model))
            words = (
                ""
                if other is None
                else f"{other['error']:.1%} ({other['source'].partition('from ')[2].removesuffix(' by data sheet')})"
            )
            lines.append(
                f"| {rows.chip.key} | {kinds[rows.kind]} | {said['number']} | {said['fitted']:.1%} | {said['held']:.1%} "
                f"| {words} | {said['inside']:.0%} | {_below(rows)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _checks(said: list[dict[str, Any]]) -> str:
    if not said:
        return ""
    lines = [
        "## Products of models that nothing was fitted to", "",
        "Matrix products in float32 of the sizes that models have: the test rows of the source of the products in float32",
        "above, whose own rows are smaller and odder. *Factors*: whether those of the chip were fitted. The P4 is a chip whose",
        "single products are not supported: its rows for a fit ran at a fifth to a half of the rate of its rows here, as its",
        "cooling had it, so they are in no fit. Whole models (below) run at what its power sustains, as estimated.", "",
        "| chip | operation | factors | rows | error | inside | below the bound |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in said:
        own = "its own" if row["own"] else "other chips'"
        lines.append(
            f"| {row['rows'].chip.key} | {row['op']} | {own} | {len(row['rows'].seconds)} | {row['error']:.1%} "
            f"| {row['inside']:.0%} | {_below(row['rows'])} |"
        )
    return "\n".join([*lines, ""])


def _below(rows: Any) -> int:
    computing = rows.flops / rows.chip.rate("bfloat16" if rows.kind == "half" else "float32", rows.model != "stream")
    moving = np.array([roofline.least_moving(rows.chip, n) for n in rows.nbytes])
    return int((rows.seconds < np.maximum(computing, moving)).sum())


def _models(said: list[dict[str, Any]]) -> str:
    lines = [
        "## Whole models", "",
        "Eager attention in float32, by transformers' own code. *About*: with the package's factors. *Without the",
        "model*: the chip's factor for whole programs is from its other models only. *Without the chip*: everything is from",
        "chips of other silicon.", "",
        "| chip | model | mode | sequence | batch | measured | at least | about | error | without the model "
        "| without the chip |", "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in said:
        model = row["model"]
        off: Callable[[float], str] = lambda seconds, of=model.seconds: f"{seconds / of - 1:+.1%}"  # noqa: E731
        lines.append(
            f"| {model.chip.key} | {model.name} | {model.mode} | {model.seq} | {model.batch} | {model.seconds * 1e3:.0f} ms "
            f"| {row['least'] * 1e3:.0f} ms | {row['about'] * 1e3:.0f} ms | {off(row['about'])} | {off(row['held'])} "
            f"| {off(row['carried'])} |"
        )
    lines += ["", "| chip | models | fitted | without the model | without the chip |", "|---|---|---|---|---|"]
    for chip in [*dict.fromkeys(row["model"].chip.key for row in said), ""]:
        mine = [row for row in said if chip in ("", row["model"].chip.key)]
        means = [
            np.mean([abs(row[key] / row["model"].seconds - 1) for row in mine]) for key in ("about", "held", "carried")
        ]
        lines.append(f"| {chip or 'all'} | {len(mine)} | {' | '.join(f'{value:.1%}' for value in means)} |")
    below = sum(row["model"].seconds < row["least"] for row in said)
    return "\n".join([*lines, "", f"{below} of {len(said)} were faster than the bound.", ""])
