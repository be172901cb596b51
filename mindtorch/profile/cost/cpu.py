"""The ``cpu`` target: the processor at hand, from a short measurement made once per process.

A processor differs from an accelerator in what bounds it: a call's overhead is not hidden behind the work of the call
before it, so it is added; a cache holds what was used just before, so bandwidth depends on how much a call touches;
functions such as exp and tanh compute for longer than memory takes; random numbers are drawn one after another.
"""

from __future__ import annotations

import math
import threading

import torch

from mindtorch import ops
from mindtorch.base.words import counted
from mindtorch.engine.execute.ambient import set_num_threads
from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost.cpu_measure import FRESH_BYTES, Measured, measure
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

_lock = threading.Lock()
_found: dict[int, Target] = {}  # by number of threads


def target(threads: int | None = None) -> Target:
    """This machine at so many threads, None: torch's current number; measured on the first call."""
    now = torch.get_num_threads()
    threads = threads or now
    with _lock:
        if threads not in _found:
            try:
                set_num_threads(threads)
                _found[threads] = _target(measure())
            finally:
                set_num_threads(now)
        return _found[threads]


def _target(found: Measured) -> Target:
    from mindtorch.base import hardware

    vector = {"float32": found.vector["simple"], "bfloat16": found.vector["simple_half"]}
    return Target(
        key="cpu",
        name=f"this CPU, {counted(found.threads, 'thread')}",
        source="measured on this machine at the start of the run",
        memory_bytes=float(hardware.cpu()["memory"]["total"] or 1e9),
        memory_bandwidth=found.bandwidth[-1][1],
        launch_s=found.launch_s,
        matrix=found.matrix,
        vector=vector,
        model=CpuModel(found),
    )


class CpuModel:
    """(seconds, bound) of one call."""

    def __init__(self, found: Measured) -> None:
        self.found = found
        self._sizes = [math.log2(size) for size, _ in found.bandwidth]

    def __call__(self, work: Work, footprint: int) -> tuple[float, str]:
        found = self.found
        kind = ops.about(work.name).cpu
        launch = found.launch_s if work.bytes or work.flops else found.launch_s / 2
        launch += (work.pieces - 1) * found.dispatch_s
        if not work.bytes and not work.flops:
            return launch, "launch"
        compute, memory = self._compute(work, kind), self._memory(work, kind, footprint)
        fresh = found.fresh_s * work.bytes_new if work.bytes_new >= FRESH_BYTES else 0.0
        if max(compute, memory + fresh) <= launch:
            bound = "launch"
        else:
            bound = "compute" if compute > memory + fresh else "memory"
        return launch + max(compute, memory) + fresh, bound

    def _compute(self, work: Work, kind: str) -> float:
        found = self.found
        if not work.flops:
            return 0.0
        if work.tag in MATRIX_TAGS:
            return self._matrix(work)
        flops = work.flops
        if kind == "pow" and work.variant == "simple":
            kind = "simple"
        if kind == "batch_norm" and work.variant == "eval":  # one multiply-add with what is known beforehand
            kind, flops = "simple", flops // 5
        if kind in ("gelu", "gelu_backward") and "tanh" in work.variant:
            kind = f"{kind}_tanh"
        if kind == "sum" and work.bytes_written > 16:  # not to one number
            kind = "sum_rows"
        if kind not in found.vector:
            kind = "sum_columns" if work.tag == "reduction" else "simple"
        seconds = flops / found.vector[kind]
        return seconds * self._width(work.dtype)

    def _width(self, dtype: str) -> float:
        """Time per element, in float32's: lanes are as wide as the type, and halves are converted to and fro."""
        if dtype in ("bfloat16", "float16"):
            return self.found.vector["simple"] / self.found.vector["simple_half"]
        return 2.0 if dtype in ("float64", "int64", "complex64") else 4.0 if dtype == "complex128" else 1.0

    def _matrix(self, work: Work) -> float:
        found, flops = self.found, work.flops or 0
        rate = found.matrix.get(work.dtype, found.matrix["float32"])
        share = rate / found.matrix["float32"]
        count, rows, columns, inner = work.product or (1, 0, 0, 0)
        kind = "backward" if work.name.endswith("backward") else ""
        if work.tag == "conv":
            kind = f"conv_{kind}" if kind else "depthwise" if count > 1 and columns == 1 else "conv"
            return flops / (found.vector[kind] * share)
        if work.tag == "attention":
            if kind:
                return flops / (found.vector["attention_backward"] * share)
            # between the two that were measured, by the size of one product
            place = min(max((math.log2(max(rows * columns * inner, 1)) - 15) / 5, 0.0), 1.0)
            rate = found.vector["attention_short"] ** (1 - place) * found.vector["attention"] ** place
            return flops / (rate * share)
        if work.product is None:
            return flops / rate
        if rows == 1 or columns == 1 or inner == 1:
            return flops / rate  # a matrix by a vector: as fast as the matrix is read, see `_memory`
        return flops / rate + found.skinny_s * work.bytes_read

    def _memory(self, work: Work, kind: str, footprint: int) -> float:
        """What a call reads beside its largest operand has probably left the cache since, if the program holds more
        than fits there."""
        found = self.found
        slow = found.moves.get(kind, math.inf)
        if work.strided:
            slow = min(slow, found.moves["strided"])
        warm = work.bytes - work.bytes_rest
        near, far = self.bandwidth(work.bytes), self.bandwidth(max(work.bytes, footprint))
        return max(warm / near + work.bytes_rest / far, work.bytes / slow)

    def bandwidth(self, nbytes: int) -> float:
        """Bytes per second of a loop that touches so many."""
        sizes, known = self._sizes, self.found.bandwidth
        size = math.log2(max(nbytes, 1))
        if size <= sizes[0]:
            return known[0][1]
        for index in range(1, len(sizes)):
            if size <= sizes[index]:
                share = (size - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
                return known[index - 1][1] ** (1 - share) * known[index][1] ** share
        return known[-1][1]
