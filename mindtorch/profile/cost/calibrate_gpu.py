"""A GPU at hand measured as a target: matrix products of many shapes and streams of many sizes, timed by events, from
which the factors of `products` and `streams` are fitted; what cannot be measured is its data sheet's or its kin's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mindtorch.base.errors import UsageError
from mindtorch.profile.cost import factors, products, streams, targets
from mindtorch.profile.cost.fit import fit
from mindtorch.profile.cost.targets import Target

#: Rows, columns and contracted elements of the products that are timed; elements of the streams.
ROWS, SIDES, STREAMS = (1, 16, 128, 1024, 4096), (256, 1024, 4096, 8192), tuple(1 << n for n in range(16, 29, 2))
#: (torch dtype, kind of factors, bytes of an element)
KINDS = (("bfloat16", "half", 2), ("float32", "single", 4))
_CALLS = 20

Time = Callable[[Callable[[], Any]], float]


def by_events(call: Callable[[], Any]) -> float:
    """Seconds of one call on the GPU, warm: the middle of three rounds."""
    call()
    found = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(_CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / _CALLS)
    return sorted(found)[1]


def sheet(time: Time = by_events) -> str:
    """The text of a file for ``--target``.

    Raises UsageError: there is no GPU (the target "cpu" is measured anew in each run), or none that is known.
    """
    if not torch.cuda.is_available():
        raise UsageError("[calibrate] found no GPU: the target cpu measures this machine's processor in each run")
    given = torch.cuda.get_device_properties(0)
    return measured(_known(given.name, given.total_memory), given.name, "cuda", time)


def _known(name: str, memory: int) -> Target:
    """The target of that name, with the memory that is there."""
    return dataclasses.replace(targets.find(name), memory_bytes=float(memory))


def measured(target: Target, name: str, device: str, time: Time) -> str:
    """Time products and streams on the device, fit the factors, and write everything down."""
    tables: dict[str, dict[str, float]] = {}
    for dtype, kind, item in KINDS:
        shapes = np.array([(m, n, k) for m in ROWS for n in SIDES for k in SIDES], float)
        seconds = np.array([time(_product(int(m), int(n), int(k), dtype, device)) for m, n, k in shapes])
        start = products.FACTORS if kind == "half" else products.SINGLE
        of = products.Products(np.ones(len(shapes)), shapes[:, 0], shapes[:, 1], shapes[:, 2], float(item), 1.0, True)
        peak = target.rate(dtype, True)
        tables[f"{kind}_product"] = _fitted(
            lambda f, of=of, peak=peak: products.seconds(f, target, peak, of), seconds, start
        )
    nbytes = np.array([8 * n for n in STREAMS], float)
    seconds = np.array([time(_stream(n, device)) for n in STREAMS])
    share = {**factors.of(target, "stream", "single").values}

    def stream(f: Any) -> Any:
        return streams.seconds(f, target, nbytes, f["elementwise"])

    own = _fitted(stream, seconds, streams.FACTORS)
    for name_ in ("softmax", "norm"):  # as much slower as its kin's
        own[name_] = own["elementwise"] * share[name_] / share["elementwise"]
    tables["single_stream"] = tables["half_stream"] = own
    return _text(target, name, tables)


def _product(m: int, n: int, k: int, dtype: str, device: str) -> Callable[[], Any]:
    kind = getattr(torch, dtype)
    x, weight = torch.zeros(m, k, dtype=kind, device=device), torch.zeros(n, k, dtype=kind, device=device)
    return lambda: torch.nn.functional.linear(x, weight)


def _stream(n: int, device: str) -> Callable[[], Any]:
    x, y = torch.zeros(n, device=device), torch.zeros(n, device=device)
    return lambda: torch.neg(x, out=y)


def _fitted(predict: Any, seconds: Any, start: Any) -> dict[str, float]:
    found = fit(predict, seconds, start)
    low, high = np.percentile(np.log(seconds / predict(found)), (10, 90))
    return {**found, "low": min(float(low), -0.01), "high": max(float(high), 0.01)}


def _text(target: Target, name: str, tables: dict[str, dict[str, float]]) -> str:
    def rates(given: Any) -> str:
        return "{ " + ", ".join(f"{dtype} = {rate:.6g}" for dtype, rate in given.items()) + " }"

    lines = [
        "[measured]", f'name = "{name}"', f'source = "measured by genie calibrate; peaks: {target.source}"',
        *(f"{field} = {getattr(target, field):.6g}" for field in
          ("memory_bytes", "memory_bandwidth", "launch_s", "clock_hz", "l2_bytes", "power_w")),
        f"capability = {list(target.capability)}", f"processors = {target.processors}",
        f"matrix = {rates(target.matrix)}", f"vector = {rates(target.vector)}",
    ]  # fmt: skip
    for table, values in tables.items():
        lines += ["", f"[measured.factors.{table}]", *(f"{factor} = {value:.5g}" for factor, value in values.items())]
    return "\n".join(lines) + "\n"
