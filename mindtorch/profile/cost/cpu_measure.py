"""A short measurement of the CPU at hand: what a `CpuModel` needs to know, in about a second.

Every figure is the best of several short rounds: noise only ever adds. Nothing is written to disk, and the program's
random state is left as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from mindtorch.engine.execute.ambient import set_num_threads
from mindtorch.engine.record.arguments import quiet
from mindtorch.profile.cost.calibrate import Block

#: Seconds of one figure's rounds, at most (two rounds are made in any case); and how often everything is gone through:
#: whatever else the machine does rarely lasts for as long as a whole pass.
ROUND_S, ROUNDS_S, PASSES = 0.0005, 0.004, 2
#: No further pass is begun after so many seconds.
ENOUGH_S = 1.5
#: Working sets whose bandwidth is measured, bytes.
SIZES = (1 << 18, 1 << 20, 1 << 22, 3 << 22, 3 << 24)
#: Above this the C library maps memory anew for every tensor, page by page (glibc's largest mmap threshold).
FRESH_BYTES = 32 << 20
#: Rows and side of the product that shows what few rows cost.
FEW, SIDE = 16, 768


@dataclass
class Measured:
    """Seconds and rates; FLOPs as the op table counts them, a multiply-add being two.

    launch_s: from one op to the next in a small program, Python and modules included; dispatch_s: without them.
    matrix: by dtype, FLOP/s of a large product; few_s: seconds of a product of `FEW` rows by a square matrix.
    bandwidth: (working set, bytes/s read and written) of a plain loop over memory that was used just before.
    first_s, again_s: seconds per byte of filling memory that was not used before, and filling it again.
    vector: FLOP/s by kind of op, in cache.
    moves: bytes/s by kind, of what is limited neither by arithmetic nor by bandwidth.
    """

    threads: int
    launch_s: float = 0.0
    dispatch_s: float = 0.0
    few_s: float = 0.0
    first_s: float = 0.0
    again_s: float = 0.0
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    moves: dict[str, float] = field(default_factory=dict)
    bandwidth: list[tuple[int, float]] = field(default_factory=list)

    @property
    def fresh_s(self) -> float:
        """Seconds per byte of memory that is used for the first time, on top of using it."""
        return max(0.0, self.first_s - self.again_s)

    @property
    def skinny_s(self) -> float:
        """Seconds per byte of a product's operands, on top of its FLOPs: they are laid out anew before."""
        seconds = self.few_s - self.dispatch_s - 2 * FEW * SIDE**2 / self.matrix["float32"]
        return max(0.0, seconds) / (4 * (FEW + SIDE) * SIDE)


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    call()
    begun = time.perf_counter()
    call()
    once = max(time.perf_counter() - begun, 1e-7)
    inner = max(1, min(500, int(ROUND_S / once)))
    fastest, rounds, end = once, 0, time.perf_counter() + ROUNDS_S
    while rounds < 2 or time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(inner):
            call()
        fastest = min(fastest, (time.perf_counter() - begun) / inner)
        rounds += 1
    return fastest


def measure() -> Measured:
    """Measure this machine at torch's current number of threads.

    One thread is tried too, for on a busy machine several wait for each other; without company they are never slower.
    """
    threads = torch.get_num_threads()
    passes: list[Measured] = []
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():  # a seed would be one for devices, too
        try:
            begun = time.perf_counter()
            while len(passes) < PASSES and (not passes or time.perf_counter() - begun < ENOUGH_S):
                passes.append(_pass())
            if threads > 1:
                set_num_threads(1)
                passes.append(_pass())
        finally:
            set_num_threads(threads)
    return _fastest(passes)


def _pass() -> Measured:
    found = Measured(torch.get_num_threads())
    _launches(found)
    _memory(found)
    _matrix(found)
    _vector(found)
    _moves(found)
    return found


def _fastest(passes: list[Measured]) -> Measured:
    """The least of each time and the most of each rate; the threads are those of the first pass."""
    found = Measured(passes[0].threads)
    for name in ("launch_s", "dispatch_s", "few_s", "first_s", "again_s"):
        setattr(found, name, min(getattr(one, name) for one in passes))
    for name in ("matrix", "vector", "moves"):
        rates = [getattr(one, name) for one in passes]
        setattr(found, name, {key: max(rate[key] for rate in rates) for key in rates[0]})
    bandwidth: dict[int, float] = {}
    for size, rate in (pair for one in passes for pair in one.bandwidth):
        bandwidth[size] = max(rate, bandwidth.get(size, 0.0))
    found.bandwidth = sorted(bandwidth.items())
    return found


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device="cpu") + 0.5


def _launches(found: Measured) -> None:
    tiny, other = _rand(4), _rand(4)
    best(lambda: tiny.add_(other))  # a processor wakes up slowly
    found.dispatch_s = best(lambda: tiny.add_(other))
    with torch.device("cpu"):  # only while it is made: the context itself slows every call
        block, x = Block(), torch.zeros(1, 4, 16)
    # 3 rounds of: 8 ops that compute, 12 that do not and cost about half
    found.launch_s = best(lambda: block(x)) / (3 * (8 + 12 / 2))


def _memory(found: Measured) -> None:
    for nbytes in SIZES:
        a, b = _rand(nbytes // 12), _rand(nbytes // 12)
        seconds = best(lambda a=a, b=b: a.add_(b)) - found.dispatch_s  # type: ignore[misc]
        if seconds > found.dispatch_s / 4:  # else too short to be told from the call itself
            found.bandwidth.append((nbytes, nbytes / seconds))
    large = 20 << 20  # 80 MB: more than what the C library keeps of memory that was given back
    first: list[float] = []
    again: list[float] = []
    for _ in range(2):
        block = torch.empty(large, device="cpu")
        for times in (first, again):
            begun = time.perf_counter()
            block.zero_()
            times.append(time.perf_counter() - begun)
        del block
    found.first_s, found.again_s = min(first) / (4 * large), min(again) / (4 * large)


def _matrix(found: Measured) -> None:
    for dtype, n in ((torch.float32, 384), (torch.float64, 256), (torch.bfloat16, 128), (torch.float16, 128)):
        a = _rand(n, n).to(dtype)
        found.matrix[str(dtype).removeprefix("torch.")] = 2 * n**3 / best(lambda a=a: torch.mm(a, a))  # type: ignore[misc]
    few, wide = _rand(FEW, SIDE), _rand(SIDE, SIDE)
    found.few_s = best(lambda: torch.mm(few, wide))
    # convolutions: as the library of torch does them, blocked layouts and all
    x, w = _rand(4, 32, 28, 28), _rand(32, 32, 3, 3)
    flops = 2 * 4 * 28 * 28 * 32 * 32 * 9
    found.vector["conv"] = flops / best(lambda: F.conv2d(x, w, padding=1))
    rest = ([32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    y = F.conv2d(x, w, padding=1)
    back = torch.ops.aten.convolution_backward
    found.vector["conv_backward"] = 2 * flops / best(lambda: back(y, x, w, *rest))
    narrow = _rand(32, 1, 3, 3)
    found.vector["depthwise"] = flops / 32 / best(lambda: F.conv2d(x, narrow, padding=1, groups=32))
    # attention, of long sequences and of short ones
    q, short = _rand(2, 4, 128, 64), _rand(4, 8, 32, 32)
    flops = 2 * 4 * 4 * 128 * 128 * 64
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found.vector["attention"] = flops / best(lambda: attend(q, q, q))
    found.vector["attention_short"] = 4 * 8 * 4 * 32 * 32 * 32 / best(lambda: attend(short, short, short))
    out, logsumexp = attend(q, q, q)
    undo = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    found.vector["attention_backward"] = 2.5 * flops / best(lambda: undo(q, q, q, q, out, logsumexp, 0.0, False))


def _vector(found: Measured) -> None:
    """Rates in cache: 256 KB of float32."""
    aten, rows, n = torch.ops.aten, 128, 512
    size = rows * n
    x = _rand(rows, n)
    y = _rand(rows, n)
    weight = _rand(n)
    grad = _rand(rows, n)
    out, mask = _rand(rows, n), x > y
    mean, rstd = _rand(rows, 1), _rand(rows, 1)
    image = _rand(4, 16, 32, 32)  # the same size
    channel = _rand(16)
    small, places = aten.max_pool2d_with_indices(image, [2, 2])
    unary = {
        "simple": lambda: torch.add(x, y, out=out), "sqrt": lambda: torch.sqrt(x, out=out),
        "divide": lambda: torch.div(x, y, out=out), "exp": lambda: torch.exp(x, out=out),
        "tanh": lambda: torch.tanh(x, out=out), "erf": lambda: torch.erf(x, out=out),
        "log": lambda: torch.log(x, out=out), "sin": lambda: torch.sin(x, out=out),
        "pow": lambda: torch.pow(x, 1.7, out=out), "sigmoid": lambda: torch.sigmoid(x, out=out),
        "silu": lambda: aten.silu.out(x, out=out), "gelu": lambda: aten.gelu.out(x, out=out),
        "gelu_tanh": lambda: aten.gelu.out(x, approximate="tanh", out=out),
        "gelu_backward": lambda: aten.gelu_backward(grad, x),
        "gelu_backward_tanh": lambda: aten.gelu_backward(grad, x, approximate="tanh"),
        "silu_backward": lambda: aten.silu_backward(grad, x),
        "compare": lambda: torch.gt(x, y), "where": lambda: torch.where(mask, x, y),
        "sum": lambda: x.sum(), "sum_rows": lambda: x.sum(1), "sum_columns": lambda: x.sum(0),
        "max": lambda: torch.max(x, 1), "cumsum": lambda: x.cumsum(1),
    }  # fmt: skip
    for name, call in unary.items():
        found.vector[name] = size / max(best(call) - found.dispatch_s, 1e-8)
    per_element = {
        "var": (4, lambda: x.var(1)), "softmax": (5, lambda: torch.softmax(x, 1)),
        "log_softmax": (5, lambda: torch.log_softmax(x, 1)),
        "softmax_backward": (10, lambda: aten._softmax_backward_data(grad, x, 1, torch.float32)),
        "log_softmax_backward": (10, lambda: aten._log_softmax_backward_data(grad, x, 1, torch.float32)),
        "layer_norm": (5, lambda: aten.native_layer_norm(x, [n], weight, weight, 1e-5)),
        "layer_norm_backward": (
            10, lambda: aten.native_layer_norm_backward(grad, x, [n], mean, rstd, weight, weight, [True] * 3)),
        "batch_norm": (
            5, lambda: aten.native_batch_norm(image, channel, channel, channel, channel, True, 0.1, 1e-5)),
        "batch_norm_backward": (
            10, lambda: aten.native_batch_norm_backward(
                image, image, channel, channel, channel, channel, channel, True, 1e-5, [True] * 3)),
        "pool": (1, lambda: aten.avg_pool2d(image, [2, 2])),
        "max_pool": (1, lambda: aten.max_pool2d_with_indices(image, [2, 2])),
        "max_pool_backward": (
            0.25, lambda: aten.max_pool2d_with_indices_backward(
                small, image, [2, 2], [2, 2], [0, 0], [1, 1], False, places)),
        "safe_softmax": (5, lambda: torch._safe_softmax(x, 1)),
    }  # fmt: skip
    for name, (flops, call) in per_element.items():
        found.vector[name] = flops * size / max(best(call) - found.dispatch_s, 1e-8)
    found.vector["sort"] = size * 9 / best(lambda: torch.sort(x, 1))
    found.vector["topk"] = size / best(lambda: torch.topk(x, 8))
    half, twin = x.bfloat16(), y.bfloat16()
    found.vector["simple_half"] = size / max(best(lambda: half.add_(twin)) - found.dispatch_s, 1e-8)


def _moves(found: Measured) -> None:
    x, turned = _rand(512, 256), _rand(256, 512).t()
    ids = torch.randint(512, (512,), device="cpu")
    places = torch.randint(256, (512, 256), device="cpu")
    out = _rand(512, 256)
    cases: dict[str, tuple[int, Callable[[], object]]] = {
        "strided": (2 * x.nbytes, lambda: out.copy_(turned)),
        "cast": (3 * x.nbytes // 2, lambda: x.bfloat16()),
        "rows": (2 * x.nbytes, lambda: x.index_select(0, ids)),
        "gather": (2 * x.nbytes + places.nbytes, lambda: torch.gather(x, 1, places)),
        "scatter": (2 * x.nbytes + places.nbytes, lambda: out.scatter_(1, places, x)),
        "scatter_add": (3 * x.nbytes + places.nbytes, lambda: out.scatter_add_(1, places, x)),
        "index_add": (3 * x.nbytes, lambda: out.index_add_(0, ids, x)),
        "fill": (x.nbytes, lambda: out.zero_()),
        "uniform": (x.nbytes, lambda: out.uniform_()),
        "normal": (x.nbytes, lambda: out.normal_()),
        "bernoulli": (x.nbytes, lambda: out.bernoulli_(0.9)),
    }
    for name, (nbytes, call) in cases.items():
        found.moves[name] = nbytes / max(best(call) - found.dispatch_s, 1e-8)
