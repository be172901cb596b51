"""The factors of `mindtorch/profile/cost/collectives.toml`, fitted on measurements of NCCL.

    python asv_bench/collectives.py collectives.csv

Columns of the file: gpu, collective (all_gather, reduce_scatter, all_reduce, alltoall), gpus (2, 4 or 8), elements of
16 bits, ms. Prints, for each accelerator and collective, the line for the file and how far off the model is on fifths
of the rows that were held out from the fit.
"""

from __future__ import annotations

import csv
import sys
from typing import Any

import numpy as np

from mindtorch.profile.cost.collectives import on_wire

_KINDS = {"alltoall": "all_to_all"}
_SIZES = (2, 4, 8)


def model(factors: Any, ranks: Any, wire: Any) -> Any:
    """Seconds, as `mindtorch.profile.cost.collectives` has them; factors are logarithms."""
    latency = np.exp(factors[0]) + np.exp(factors[1]) * np.log2(ranks)
    moved = wire / np.exp(factors[3:][(np.log2(ranks) - 1).astype(int)])
    return latency + 2 * np.exp(factors[2]) * np.sqrt(latency * moved) + moved


def fit(ranks: Any, wire: Any, seconds: Any) -> Any:
    """The factors of least relative error, by Levenberg's and Marquardt's method from several ramps."""
    best, least = None, np.inf
    for ramp in (-3.0, -1.0, 0.0):
        rates = [np.log(max(1e9, (wire / seconds)[ranks == n].max())) for n in _SIZES]
        factors = np.array([np.log(5e-6), np.log(3e-6), ramp, *rates])
        off, damping = _off(factors, ranks, wire, seconds), 1e-2
        while damping < 1e8:
            weight = 1 / np.sqrt(np.abs(off) + 0.02)  # outliers count less
            steps = 1e-5 * np.eye(len(factors))
            slopes = np.stack([(_off(factors + s, ranks, wire, seconds) - off) / 1e-5 for s in steps], 1)
            scaled = slopes * weight[:, None]
            change = np.linalg.solve(scaled.T @ scaled + damping * np.eye(len(factors)), scaled.T @ (off * weight))
            after = _off(factors - change, ranks, wire, seconds)
            if np.abs(after).mean() < np.abs(off).mean() * (1 - 1e-9):
                factors, off, damping = factors - change, after, damping / 2
            else:
                damping *= 3
        if np.abs(off).mean() < least:
            best, least = factors, np.abs(off).mean()
    return best


def _off(factors: Any, ranks: Any, wire: Any, seconds: Any) -> Any:
    return np.log(model(factors, ranks, wire) / seconds)


def main(path: str) -> None:
    with open(path, newline="") as file:
        table = list(csv.DictReader(file))
    held_out: list[float] = []
    for gpu, kind in sorted({(row["gpu"], row["collective"]) for row in table}):
        mine = [row for row in table if (row["gpu"], row["collective"]) == (gpu, kind)]
        name = _KINDS.get(kind, kind)
        ranks = np.array([int(row["gpus"]) for row in mine])
        wire = np.array([on_wire(name, 2 * int(r["elements"]), int(r["gpus"])) for r in mine])
        seconds = np.array([float(row["ms"]) / 1e3 for row in mine])
        order = np.random.default_rng(0).permutation(len(mine))
        errors: list[float] = []
        for part in range(5):
            test = np.zeros(len(mine), bool)
            test[order[part::5]] = True
            factors = fit(ranks[~test], wire[~test], seconds[~test])
            errors += list(np.abs(model(factors, ranks[test], wire[test]) / seconds[test] - 1))
        held_out += errors
        factors = np.exp(fit(ranks, wire, seconds))
        rates = ", ".join(f"{rate:.3g}" for rate in factors[3:])
        print(f"{gpu} {name} = {{ latency_s = {factors[0]:.3g}, step_s = {factors[1]:.3g}, ramp = {factors[2]:.3g}, "
              f"rate = [{rates}] }}  # held out: {100 * np.mean(errors):.1f} % on average")  # fmt: skip
    print(f"held out, all: {100 * np.mean(held_out):.1f} % on average, {100 * np.median(held_out):.1f} % in the median")


if __name__ == "__main__":
    main(sys.argv[1])
