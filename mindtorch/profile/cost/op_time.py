"""What one call takes on a target: at least, about, and the interval that eight of ten measurements lie within.

"At least" is the roofline's (`roofline.bound`). "About" is that of the op's family: matrix products (`products`), fused
attention (`flash`), convolutions (as the product that they are), and everything else by the bytes it streams
(`streams`); with factors that were fitted to measurements of the chip or of its nearest kin (`factors`).

A program's ops run one after another on the device, while the host goes on: it takes the longer of the two
(`host_seconds`), not their sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost import factors, families, flash, implicit_gemm, products, roofline, streams
from mindtorch.profile.cost.factors import Factors
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

#: What the host takes from one kernel of a program in Python to the next, and from one view of a tensor to the next, in
#: launches (`Target.launch_s`): Python, modules and dispatch take more than the launch itself. From transformers'
#: decoding of Qwen2.5 in 16 bits on an A100 (0.5B 47.40 tokens/s, 1.5B 39.68, 3B 30.80, 7B 40.38: Qwen's page "Speed
#: Benchmark"): with these, each of the four is within 3 %.
HOST_KERNEL, HOST_VIEW = 3.5, 0.875
#: What a host may be off, as the logarithm: eight of ten further hosts are expected within. From the published decoding
#: of nine hosts, which took 0.52 to 1.96 times as long as assumed, 1.01 in the middle (asv_bench/published_hosts.py).
HOST_DOUBT = 0.67
#: In backward, autograd's engine calls without Python.
HOST_BACKWARD = 0.6
#: Of a compiled program: the kernels are launched by compiled code.
HOST_COMPILED = 0.3
#: Products in two-byte numbers take so much longer where rows begin at odd multiples of two bytes, as no copy into
#: shared memory goes past registers then. Not in the measurements that were fitted. From nanoGPT's change of 50,257
#: tokens to 50,304 (2023-02-04): the last layer had been 40 % of the time, and a fifth of the whole went; two of its
#: three products have such rows. That is of the A100's matrix units: slower ones wait less for what is copied.
UNALIGNED, _UNALIGNED_FLOPS = 3.0, 2048.0
#: What a processor that was measured (`Target.model`) may be off, as the logarithm.
_MEASURED = 0.25
#: Shapes that make up most of a whole program's time.
_SHAPES = 5.0


@dataclass(frozen=True)
class Cost:
    """Of one call: seconds (about), what bounds it (of `roofline.BOUNDS`), seconds at least; low and high: log-errors
    of "about"; family: as of `families.family`; kind: "half" or "single", whose measurements it is from."""

    seconds: float
    bound: str
    least: float = 0.0
    low: float = 0.0
    high: float = 0.0
    family: str = ""
    kind: str = "single"


#: Log-errors that a tenth of the measurements are below, and above.
Doubt = tuple[float, float]
NOTHING = Cost(0.0, "launch")
#: Of the time that the device waits for the host.
WAITING = Cost(0.0, "launch", low=HOST_DOUBT, high=HOST_DOUBT)


@dataclass(frozen=True)
class Precision:
    """What the program allows of float32: TF32 in matrix products, and in convolutions (cuDNN's own default)."""

    tf32: bool = False
    tf32_conv: bool = True

    def of(self, work: Work, target: Target) -> bool:
        if work.dtype != "float32" or work.tag not in MATRIX_TAGS:
            return False
        if target.device != "cuda" or target.capability < (8, 0):
            return False
        return self.tf32_conv if work.tag in ("conv", "rnn") else self.tf32


def precision() -> Precision:
    """As torch is set now, by whichever of its interfaces."""
    import torch

    asked = torch._C._get_fp32_precision_getter
    return Precision(asked("cuda", "matmul") == "tf32", asked("cuda", "conv") == "tf32")


def estimate(work: Work, target: Target, footprint: int = 0, allowed: Precision | None = None, among: str = "") -> Cost:
    """One call on the target. footprint: the most bytes that the program holds, for a processor that was measured.
    among: "" for a call alone, "inference" or "training" for one of a whole program (see `_in_program`)."""
    if work.seconds is not None:
        return Cost(work.seconds, roofline.COMMUNICATION, work.seconds, -_MEASURED, _MEASURED)
    if target.model is not None:
        seconds, bound = target.model(work, footprint)
        least = max(roofline.bound(target, work)) / 2  # its rates were measured: others may reach more
        return Cost(seconds, bound, min(least, seconds), -_MEASURED, _MEASURED, families.family(work))
    family = families.family(work)
    if not family:
        return NOTHING
    tf32 = (allowed or Precision()).of(work, target)
    computing, moving = roofline.bound(target, work, tf32)
    least = max(computing, moving)
    bound = "launch" if least < target.launch_s / 4 else "compute" if computing > moving else "memory"
    seconds, known = _seconds(work, family, target, tf32)
    low, high = known.doubt(seconds)
    kind = _kind(work, tf32)
    if among:
        seconds *= _in_program(family, among, program(target, kind).values)
        if kind == "half" and family == "product":
            seconds = max(seconds, (work.flops or 0) / _sustained(target, _peak(work, target, tf32)))
    return Cost(max(seconds, least), bound, least, low, high, family, kind)


def _in_program(family: str, among: str, known: Mapping[str, float]) -> float:
    """What whole models take of the time that their calls take alone, as fitted to whole models.

    In float32, sustained: of products. Their shapes are rounder than those of single measurements, and between them run
    ops that need less power, so clocks are higher. training: of everything; autograd, and memory allocated anew.
    In 16 bits, whole: of everything; single calls were timed again and again, with what they need in the cache.
    """
    sustained = known.get("sustained", 1.0) if family == "product" else 1.0
    return known.get("whole", 1.0) * sustained * (known.get("training", 1.0) if among == "training" else 1.0)


def _sustained(target: Target, peak: float) -> float:
    """Operations per second on matrix units that the board's power lets a program have that goes on with them.

    peak: of the data sheet for the number format. Single products were timed for too short a while, and on numbers too
    even, to be held back by it. joules: of one operation in 16 bits; other formats take as much of their peak.
    """
    joules = program(target, "half").values.get("joules", 0.0)
    share = target.power_w / (joules * target.rate("bfloat16", True)) if joules and target.power_w else math.inf
    return peak * min(share, factors.CLOCK if factors.geforce(target) else 1.0)


def _kind(work: Work, tf32: bool) -> str:
    return "single" if families.itemsize(work.dtype) >= 4 and not tf32 else "half"


def _peak(work: Work, target: Target, tf32: bool) -> float:
    return target.rate("tf32" if tf32 else work.dtype, True)


@lru_cache(1 << 14)
def _seconds(work: Work, family: str, target: Target, tf32: bool) -> tuple[float, Factors]:
    kind, peak = _kind(work, tf32), _peak(work, target, tf32)
    if family == "product":
        known = _factors(target, "product", kind)
        found = float(products.seconds(known.values, target, peak, families.product(work))[0])
        if kind == "single" and work.product is not None and work.product[0] == 1:
            # Fewer rows than were measured take at most as long as so many products of one, which stream their bytes.
            found = min(found, min(work.product[1:3]) * _streamed(work, target, kind)[0])
        if work.unaligned and target.capability >= (8, 0):
            found *= 1 + (UNALIGNED - 1) * min(factors.matrix_flops(target) / _UNALIGNED_FLOPS, 1.0)
        return found, known
    if family == "convolution":
        known = _factors(target, "product", kind)
        streamed, _ = _streamed(work, target, kind)
        return max(_convolved(work, target, known, kind, peak), streamed), known
    if family == "attention":
        known = _factors(target, _attention(work, target), kind)
        backward = work.name.endswith("backward")
        found = float(flash.seconds(known.values, target, peak, families.scores(work)))
        return found * (families.BACKWARD if backward else 1.0), known
    return _streamed(work, target, kind)


def _attention(work: Work, target: Target) -> str:
    """Which kernels it is: those that torch brings are FlashAttention-2's, written for the matrix units of Ampere. The
    measured ones of later data-centre chips are made for their own, as cuDNN's are, and other packages'."""
    torchs = work.name.startswith("aten::") and "cudnn" not in work.name
    return "flash2" if torchs and target.capability[0] in (9, 10) else "attention"


def _convolved(work: Work, target: Target, known: Factors, kind: str, peak: float) -> float:
    """0 where it streams memory only. Of kernels whose arguments are not known, as a product without a shape."""
    ordinary = target.rate("float32", False)
    if work.convolution is None:
        of = products.Products(1, 1, 1, max((work.flops or 2) // 2, 1), families.itemsize(work.dtype))
        return float(products.seconds(known.values, target, peak, of)[0]) * (1 + implicit_gemm.ADDRESSES)
    share = _factors(target, "stream", kind).values["elementwise"]
    found = implicit_gemm.seconds(
        known.values, _factors(target, "product", "single").values, target, work.convolution,
        families.itemsize(work.dtype), share, (peak if peak > ordinary else 0.0, ordinary),
    )  # fmt: skip
    return found or 0.0


def compiled(work: Work, target: Target, allowed: Precision | None, among: str, tuned: bool) -> float:
    """Seconds of one call, not fused, in what Inductor makes: rows are padded. tuned: a product of one row is a sum
    over the weights, which stream by."""
    if tuned and families.family(work) == "product" and work.product is not None and 1 in work.product[1:3]:
        kind = _kind(work, (allowed or Precision()).of(work, target))
        known = _factors(target, "stream", kind)
        whole = _in_program("stream", among, program(target, kind).values) if among else 1.0
        return whole * float(streams.seconds(known.values, target, work.bytes, known.values["elementwise"]))
    return estimate(work._replace(unaligned=False), target, 0, allowed, among).seconds


def _streamed(work: Work, target: Target, kind: str) -> tuple[float, Factors]:
    known = _factors(target, "stream", kind)
    share = known.values[families.share(work)]
    return float(streams.seconds(known.values, target, work.bytes, share)), known


@lru_cache(1 << 8)
def _factors(target: Target, model: str, kind: str, among: str = "") -> Factors:
    return factors.of(target, model, kind, among)


def source(work: Work, target: Target, allowed: Precision | None = None) -> str:
    """Where the factors of its model are from."""
    if target.model is not None:
        return "measured on this machine at the start of the run"
    family = families.family(work)
    model = "product" if family == "convolution" else _attention(work, target) if family == "attention" else family
    return _factors(target, model, _kind(work, (allowed or Precision()).of(work, target))).source


def program(target: Target, kind: str = "single", among: str = "") -> Factors:
    """How far off whole programs are, in numbers of a kind. among: "inference" or "training"."""
    if target.model is not None:
        return Factors({}, -_MEASURED, _MEASURED, "measured", True)
    return _factors(target, "program", kind, among)


def forget() -> None:
    """After the factors have changed."""
    _factors.cache_clear()
    _seconds.cache_clear()


def host_seconds(work: Work | None, target: Target, backward: bool, compiled: bool = False) -> float:
    """What the host takes for one call, Python included."""
    if work is None or target.model is not None:
        return 0.0
    launches = HOST_KERNEL if families.family(work) else HOST_VIEW
    share = HOST_COMPILED if compiled else HOST_BACKWARD if backward else 1.0
    return launches * share * target.launch_s


def interval(seconds: float, squares: float, single: Doubt, whole: Doubt) -> tuple[float, float]:
    """(low, high) of a sum of calls. squares: the sum of squares of the shapes' times; single: log-errors of single
    shapes, weighted by their times; whole: of whole programs.

    Errors of single shapes cancel out; what remains of a whole program is the error that whole programs have. With as
    many shapes as count (`effective`), the two are mixed; those that were measured have `_SHAPES` of them.
    """
    if seconds <= 0:
        return 0.0, 0.0
    effective = max(seconds**2 / squares, 1.0) if squares > 0 else 1.0
    share = max(1 / effective - 1 / _SHAPES, 0.0) / (1 - 1 / _SHAPES)
    low, high = (math.sqrt(one**2 * share + all_**2 * (1 - share)) for one, all_ in zip(single, whole, strict=True))
    return seconds * math.exp(-low), seconds * math.exp(high)


def read_seconds(target: Target) -> float:
    """What the host takes to read one value of the device, beside waiting for it: a copy is launched."""
    return 0.0 if target.model is not None else HOST_KERNEL * target.launch_s
