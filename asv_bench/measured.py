"""Measurements of GPUs, read from a folder of csv files, and what is fitted to them: see `accuracy.py`.

`gemm_bf16.csv` (gpu, m, n, k, ms), `attention_causal_bf16.csv` (gpu, batch, seq, heads, kv_heads, head_dim, ms) and
`kernels_fp32.csv` (gpu, op, B, H, ms, M, N, K) hold single kernels, `models_fp32.csv` whole models. A file that is not
there is left out; a gpu is any name that `--target` takes. In `kernels_fp32.csv`, bmm multiplies B × M × N by
B × N × K, and linear has N features in and K out, with a bias: N is contracted, as the source's own script has it.
`kernels_fp32_check.csv` has the same columns; nothing is fitted to it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindtorch.profile.cost import flash, products, streams, targets
from mindtorch.profile.cost.fit import fit
from mindtorch.profile.cost.targets import Target

#: `kernels_fp32.csv`: ops of rows, the tensors each reads and writes, and the family in `streams`.
STREAMS = {
    "add": (3, "elementwise"), "mul": (3, "elementwise"), "div": (3, "elementwise"), "pow": (3, "elementwise"),
    "addu": (2, "elementwise"), "mulu": (2, "elementwise"), "divu": (2, "elementwise"), "powu": (2, "elementwise"),
    "gelu": (2, "elementwise"), "relu": (2, "elementwise"), "tanh": (2, "elementwise"), "ln": (2, "norm"),
    "softmax": (2, "softmax"),
}  # fmt: skip
#: These were timed call by call from Python: below this many times the fastest call of a kind, the host was timed. Of
#: what streams memory the regime of small tensors was the host's for longer: all sizes up to 8 MB took the same time.
HOST_BOUND, HOST_BOUND_STREAM = 1.5, 3.0
#: Chips whose products are in no fit. The P4's ran at a fifth to a half of the rate that those of its check reach: the
#: longer, the slower, as its cooling had it. Without them, its models are predicted better from one another.
THROTTLED = ("p4",)
#: What a call took of these on top of its kernel, which no program pays that keeps the device busy.
_CALL = {"start_s": (2e-6, 0.02), "call_s": (2e-5, 1.0)}
_CALLS = {"call_linear_s": (5e-5, 1.0), "call_bmm_s": (3e-5, 1.0)}

#: TFLOP/s of FlashAttention-2 on an H100 SXM, forward, at 512, 1k … 16k: (head size, share of pairs that is computed) →
#: rates. 16k tokens, heads of 2,048 together, float16. From the figures of "FlashAttention-3" (Shah et al., 2024).
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
FLASH2 = {
    (64, 0.5): (180, 229, 262, 284, 295, 299), (128, 0.5): (191, 260, 298, 319, 333, 335),
    (256, 0.5): (208, 251, 278, 293, 297, 298), (128, 1.0): (309, 350, 362, 368, 370, 370),
}  # fmt: skip


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    return list(csv.DictReader(path.open())) if path.exists() else []


@dataclass
class Rows:
    """Measurements of one family on one chip. predict: seconds of the rows `which` with some factors."""

    chip: Target
    kind: str  # "half" or "single": what was computed in
    model: str  # "product", "attention" or "stream"
    seconds: Any
    predict: Callable[[Target, Mapping[str, float], Any], Any]
    start: Mapping[str, tuple[float, float]]
    flops: Any
    nbytes: Any

    def fitted(self, which: Any, chip: Target | None = None) -> dict[str, float]:
        spring = 0.01 if self.kind == "half" else 0.004
        chip = chip or self.chip
        return fit(lambda f: self.predict(chip, f, which), self.seconds[which], self.start, spring=spring)


def read(folder: Path) -> list[Rows]:
    """Every family of every chip of the files."""
    single = _single(_table(folder, "kernels_fp32.csv"))
    fit = [rows for rows in single if rows.model != "product" or rows.chip.key not in THROTTLED]
    return [*_half(folder), _flash2(), *fit]


def _columns(rows: list[dict[str, str]], *names: str) -> list[Any]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _by_chip(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(targets.find(row["gpu"]).key, []).append(row)
    return found


def _half(folder: Path) -> list[Rows]:
    found = []
    for key, rows in _by_chip(_table(folder, "gemm_bf16.csv")).items():
        m, n, k, ms = _columns(rows, "m", "n", "k", "ms")

        def product(chip: Target, f: Mapping[str, float], which: Any, m: Any = m, n: Any = n, k: Any = k) -> Any:
            of = products.Products(np.ones(len(m))[which], m[which], n[which], k[which], turned=True)
            return products.seconds(f, chip, chip.rate("bfloat16", True), of)

        found.append(
            Rows(
                targets.find(key),
                "half",
                "product",
                ms / 1e3,
                product,
                products.FACTORS,
                2 * m * n * k,
                2 * (m * n + m * k + n * k),
            )
        )
    for key, rows in _by_chip(_table(folder, "attention_causal_bf16.csv")).items():
        rows = [row for row in rows if int(row["seq"]) > 1]  # one token: that is no prefill
        b, s, h, kv, d, ms = _columns(rows, "batch", "seq", "heads", "kv_heads", "head_dim", "ms")
        table = flash.Scores(b * h, b * kv, s, s, d, 0.5 * np.ones(len(b)))
        found.append(_attention(key, "attention", ms / 1e3, table, 2 * b * h * s * s * d, 4 * s * d * b * (h + kv)))
    return found


def _flash2() -> Rows:
    """FlashAttention-2, forward."""
    head, seen, length, rate = np.array(
        [(head, seen, length, rate) for (head, seen), rates in FLASH2.items() for length, rate in zip(LENGTHS, rates)]
    ).T
    heads = 16384 / length * 2048 / head
    table = flash.Scores(heads, heads, length, length, head, seen)
    flops = 4 * heads * length**2 * head * seen

    return _attention("h100", "flash2", flops / rate / 1e12, table, flops, 8 * heads * length * head)


def _attention(key: str, model: str, seconds: Any, table: flash.Scores, flops: Any, nbytes: Any) -> Rows:
    def predict(chip: Target, f: Mapping[str, float], which: Any) -> Any:
        return flash.seconds(f, chip, chip.rate("bfloat16", True), flash.Scores(*(c[which] for c in table[:6])))

    return Rows(targets.find(key), "half", model, seconds, predict, flash.FACTORS, flops, nbytes)


def checks(folder: Path, op: str) -> list[Rows]:
    """One op ("linear", "bmm") of each chip of the file that nothing is fitted to."""
    return _single([row for row in _table(folder, "kernels_fp32_check.csv") if row["op"] == op])


def _single(table: list[dict[str, str]]) -> list[Rows]:
    found = []
    for key, rows in _by_chip(table).items():
        chip = targets.find(key)
        matrix = _slow([row for row in rows if row["op"] in ("linear", "bmm")], HOST_BOUND)
        if matrix:
            b, m, k, n, ms = _columns(matrix, "B", "M", "N", "K", "ms")

            turned = np.array([row["op"] == "linear" for row in matrix])

            def product(chip: Target, f: Mapping[str, float], which: Any, t: Any = (b, m, n, k, turned)) -> Any:
                of = products.Products(*(column[which] for column in t[:4]), 4.0, 1.0, t[4][which], biased=t[4][which])
                call = np.where(t[4][which], f["call_linear_s"], f["call_bmm_s"])
                return products.seconds(f, chip, chip.rate("float32", True), of) + call

            start = {**products.SINGLE, **_CALLS}
            found.append(
                Rows(
                    chip,
                    "single",
                    "product",
                    ms / 1e3,
                    product,
                    start,
                    2 * b * m * n * k,
                    4 * b * (m * n + m * k + n * k),
                )
            )
        even = _slow([row for row in rows if row["op"] in STREAMS], HOST_BOUND_STREAM)
        if even:
            b, h, ms = _columns(even, "B", "H", "ms")
            nbytes = b * h * 4 * np.array([STREAMS[row["op"]][0] for row in even])
            names = np.array([STREAMS[row["op"]][1] for row in even])

            def stream(chip: Target, f: Mapping[str, float], which: Any, t: Any = (nbytes, names)) -> Any:
                share = np.array([f[name] for name in t[1][which]])
                return streams.seconds(f, chip, t[0][which], share) + f["call_s"]

            found.append(Rows(chip, "single", "stream", ms / 1e3, stream, {**streams.FACTORS, **_CALL}, b * h, nbytes))
    return found


def _slow(rows: list[dict[str, str]], times: float) -> list[dict[str, str]]:
    """Without those that timed the host."""
    least: dict[str, float] = {}
    for row in rows:
        least[row["op"]] = min(float(row["ms"]), least.get(row["op"], 1e9))
    return [row for row in rows if float(row["ms"]) > times * least[row["op"]]]


#: So many parts are held out in turn.
PARTS = 4


def by_lot(number: int, seed: int = 0) -> Any:
    """The part of each row, by lot."""
    return np.random.default_rng(seed).integers(0, PARTS, number)


def by_size(rows: Rows) -> Any:
    """The part of each row, by its work: one part has the smallest, one the largest. Rows that were drawn by lot have
    neighbours among the others, so a factor that is fitted to these knows them, too; a program's shapes have not."""
    size = rows.nbytes if rows.model == "stream" else rows.flops
    return np.argsort(np.argsort(size, kind="stable"), kind="stable") * PARTS // len(size)
