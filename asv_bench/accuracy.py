# ruff: noqa: E501
"""How far off estimates for GPUs are: ``python asv_bench/accuracy.py FOLDER [--fit] [--write docs/ACCURACY.md]``;
``python asv_bench/accuracy.py --only memory energy --write docs/ACCURACY.md`` makes parts of the page anew.

FOLDER holds measurements as `measured.py` and `models.py` read them; anybody can supply such files for a chip of
their own. ``--fit`` fits the factors of `mindtorch/profile/cost/fitted.toml` to them anew. Figures for held-out rows,
chips and models are predicted with factors that were not fitted to them. For the ``cpu`` target: `accuracy_cpu.py`.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import accuracy_page
import measured
import models
import numpy as np
import published_sources
from published_sources import without_silicon

from mindtorch.profile.cost import factors, targets

FITTED = Path(factors.__file__).with_name("fitted.toml")
#: Of whole programs in 16 bits on the A100: joules of an operation on matrix units, by `published_training.py`; what they
#: take of the time of their calls alone: by source, the errors of `published_sources.py` on A100 and H100 were least at
#: 1.13 (build-nanogpt), 1.14 (diffusion-fast), 1.15 (gpt-fast), and above 1.2 (LLM-Foundry).
HALF = {"joules": 1.6e-12, "whole": 1.14}
TENTH = (10, 90)  # of a hundred measurements, those that an interval leaves out on either side
SIZES = 3  # as many of the calls are small, of middle size and large, each with an interval of its own


def quantiles(errors: Any) -> dict[str, float]:
    """A tenth of further measurements is expected below, and above (hence the count of one more)."""
    more = [share * (len(errors) + 1) / 100 - 1 for share in TENTH]
    low, high = np.percentile(errors, [min(max(100 * at / (len(errors) - 1), 0), 100) for at in more])
    return {"low": round(float(min(low, -0.005)), 4), "high": round(float(max(high, 0.005)), 4)}


def log_errors(rows: measured.Rows, given: Mapping[str, float], which: Any) -> Any:
    """log(measured / predicted)"""
    known = {name: given.get(name, value) for name, (value, _) in rows.start.items()}
    return np.log(rows.seconds[which] / rows.predict(rows.chip, known, which))


def by_size(seconds: Any, errors: Any) -> list[list[float]]:
    """Intervals by predicted seconds: [up to, low, high]."""
    edges = [*np.quantile(seconds, np.arange(1, SIZES) / SIZES), np.inf]
    found, least = [], 0.0
    for until in edges:
        mine = quantiles(errors[(seconds >= least) & (seconds < until)])
        found.append([float(f"{until:.3g}"), mine["low"], mine["high"]])
        least = until
    return found


def inside(sizes: list[list[float]], seconds: Any, errors: Any) -> Any:
    """Which errors are within the intervals."""
    which = np.searchsorted([until for until, _, _ in sizes[:-1]], seconds, side="right")
    return (errors >= np.array([low for _, low, _ in sizes])[which]) & (
        errors <= np.array([high for *_, high in sizes])[which]
    )


def fit_kernels(sets: list[measured.Rows]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table of factors, and per set what is said of it."""
    table: dict[str, Any] = {}
    said = []
    for rows in sets:
        whole, part = rows.fitted(slice(None)), measured.by_size(rows)
        errors, within = np.zeros(len(part)), np.zeros(len(part), bool)
        for one in range(measured.PARTS):
            errors[part == one] = log_errors(rows, rows.fitted(part != one), part == one)
        part = measured.by_lot(len(rows.seconds))
        kernel = {name: 0.0 if name.startswith("call_") else value for name, value in whole.items()}
        seconds = rows.predict(rows.chip, kernel, slice(None))
        for one in range(measured.PARTS):
            sizes = by_size(seconds[part != one], errors[part != one])
            within[part == one] = inside(sizes, seconds[part == one], errors[part == one])
        rounded = {name: float(f"{value:.4g}") for name, value in whole.items()}
        place = table.setdefault(rows.chip.key, {}).setdefault(rows.kind, {})
        place[rows.model] = {**rounded, **quantiles(errors), "sizes": by_size(seconds, errors)}
        said.append({
            "rows": rows, "number": len(rows.seconds), "fitted": mean(log_errors(rows, whole, slice(None))),
            "held": mean(errors), "inside": float(within.mean()),
        })  # fmt: skip
        print(f"{rows.chip.key} {rows.kind} {rows.model}: fitted {said[-1]['fitted']:.1%}, held {said[-1]['held']:.1%}")
    return table, said


def mean(errors: Any) -> float:
    """Mean absolute relative error of the prediction, from log(measured / predicted)."""
    return float(np.abs(np.expm1(-np.asarray(errors))).mean())


def carry(table: dict[str, Any], sets: list[measured.Rows]) -> list[dict[str, Any]]:
    """Predict each chip with what was fitted to the others, and note in the table how far off that is."""
    said = []
    pooled: dict[tuple[str, str], list[Any]] = {}
    for rows in sets:
        with factors.using(without_silicon(table, rows.chip.key)):
            known = factors.of(rows.chip, rows.model, rows.kind)
        if known.source == "a guess":
            continue
        own = table[rows.chip.key][rows.kind][rows.model]
        given = {**known.values, **{name: value for name, value in own.items() if name.startswith("call_")}}
        errors = log_errors(rows, given, slice(None))
        pooled.setdefault((rows.kind, rows.model), []).append(errors)
        said.append({"rows": rows, "source": known.source, "error": mean(errors)})
    for (kind, model), errors in pooled.items():
        place = table.setdefault("carried", {}).setdefault(kind, {})
        place[model] = quantiles(np.concatenate(errors))
    return said


def check(table: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Of products that nothing was fitted to, on chips with factors of their own and on others. What a call took on top
    of its kernel is that of the chip's other rows, else of the other chips."""
    said = []
    for op in ("linear", "bmm"):
        call = f"call_{op}_s"
        others = [kinds["single"]["product"][call] for kinds in table.values() if call in _product(kinds)]
        for rows in measured.checks(folder, op):
            with factors.using(table):
                known = factors.of(rows.chip, "product", "single")
            took = _product(table.get(rows.chip.key, {})).get(call, float(np.median(others)))
            errors = log_errors(rows, {**known.values, call: took}, slice(None))
            alone = rows.predict(rows.chip, {**known.values, "call_linear_s": 0.0, "call_bmm_s": 0.0}, slice(None))
            low, high = np.array([known.doubt(seconds) for seconds in alone]).T
            inside = float(((errors >= low) & (errors <= high)).mean())
            said.append({"rows": rows, "op": op, "own": known.own, "error": mean(errors), "inside": inside})
    return said


def _product(kinds: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = kinds.get("single", {}).get("product", {})
    return found


def _parts(found: list[models.Model], chip: str) -> list[tuple[models.Model, float, float, float]]:
    return [(model, *models.seconds(model, model.chip)) for model in found if model.chip.key == chip]


def _sustained(parts: list[tuple[models.Model, float, float, float]]) -> float:
    return float(np.median([(model.seconds - rest) / matrix for model, matrix, rest, _ in parts]))


def _predicted(part: tuple[models.Model, float, float, float], known: Mapping[str, float]) -> float:
    model, matrix, rest, _ = part
    training = known.get("training", 1.0) if model.mode == "training" else 1.0
    return (known.get("sustained", 1.0) * matrix + rest) * training


def fit_models(table: dict[str, Any], found: list[models.Model]) -> list[dict[str, Any]]:
    """How much of their calls' time whole models take: of products, by chip, from inference; and of everything in
    training, on all chips. What is said of a model was predicted without any row of it, or without any of its chip."""
    for kinds in table.values():
        kinds.get("single", {}).pop("program", None)
    said: list[dict[str, Any]] = []
    chips = list(dict.fromkeys(model.chip.key for model in found))
    with factors.using(table):
        parts = {chip: _parts(found, chip) for chip in chips}
    for chip in chips:
        if run := [part for part in parts[chip] if part[0].mode == "inference"]:
            table.setdefault(chip, {}).setdefault("single", {})["program"] = {"sustained": round(_sustained(run), 4)}
    every = [part for chip in chips for part in parts[chip]]

    def known(chip: str, away: Mapping[str, Any] = table) -> dict[str, float]:
        with factors.using(away):
            return dict(factors.of(targets.find(chip), "program", "single").values)

    factor: dict[str, float] = {"training": _training(every, known)}
    for kinds in table.values():
        if "program" in kinds.get("single", {}):
            kinds["single"]["program"].update(factor)
    for part in every:
        model = part[0]
        others = [p for p in parts[model.chip.key] if p[0].name != model.name and p[0].mode == "inference"]
        without_model = {**known(model.chip.key), **({"sustained": _sustained(others)} if others else {})}
        without_model["training"] = _training([p for p in every if p[0].name != model.name], known)
        said.append({"model": model, "least": part[3], "about": _predicted(part, known(model.chip.key)),
                     "held": _predicted(part, without_model)})  # fmt: skip
    for chip in chips:
        away = without_silicon(table, chip)
        with factors.using(away):
            fresh = _parts(found, chip)
        for part, row in zip(fresh, [r for r in said if r["model"].chip.key == chip], strict=True):
            row["carried"] = _predicted(part, known(chip, away))
    return said


def _training(parts: list[Any], known: Any) -> float:
    found = [
        part[0].seconds / _predicted(part, {**known(part[0].chip.key), "training": 1.0})
        for part in parts
        if part[0].mode == "training"
    ]
    return round(float(np.median(found)), 4) if found else 1.0


def to_toml(table: Mapping[str, Any], folder: Path) -> str:
    """The table as a file."""
    lines = [
        "# Factors of the models of time (products.py, flash.py, streams.py), by chip and number format, and how far off",
        "# they were: low and high are log(measured / predicted) that 10 % of held-out measurements are below and above;",
        "# sizes has them by size, as [up to so many predicted seconds, low, high].",
        "# sustained: what whole models take of their products' predicted time. Made by asv_bench/accuracy.py --fit,",
        f"# {datetime.date.today()}, from public measurements: aiconfigurator (bf16), NeuSight (fp32); see docs/ACCURACY.md.",
        "# Held back, and in no fit: whole chips (H200, L4; whole models of H100) and part of every file.",
    ]
    for chip, kinds in table.items():
        for kind, tables in kinds.items():
            for model, values in tables.items():
                lines += ["", f'["{chip}".{kind}.{model}]']
                lines += [
                    f"{name} = {_number(value)}" for name, value in values.items() if not name.startswith("call_")
                ]
    return "\n".join(lines) + "\n"


def _number(value: Any) -> str:
    return str(value) if isinstance(value, list) else f"{value:.5g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--fit", action="store_true", help="fit the factors again, and write them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page")
    parser.add_argument(
        "--only", nargs="+", choices=accuracy_page.SECTIONS, help="these parts of the page that FILE has"
    )
    args = parser.parse_args()
    if args.only:
        if args.write is None or args.folder is not None or args.fit:
            parser.error("--only makes parts of the page anew that --write names, and needs no FOLDER")
        args.write.write_text(accuracy_page.anew(args.write.read_text(), args.only))
        return
    if args.folder is None:
        parser.error("expected FOLDER, or --only")
    sets, whole = measured.read(args.folder), models.read(args.folder)
    table, kernels = fit_kernels(sets)
    chips = carry(table, sets)
    said = fit_models(table, whole)
    table["a100"]["half"]["program"] = HALF
    errors = published_sources.errors(table)
    published_sources.note(table, errors)
    if args.fit:
        FITTED.write_text(to_toml(table, args.folder))
        print(f"wrote {FITTED}")
    checked = check(table, args.folder)
    with factors.using(table):
        page = accuracy_page.page(kernels, chips, checked, said, errors)
    print(page)
    if args.write:
        args.write.write_text(page)


if __name__ == "__main__":
    main()
