"""The ``cpu`` target: the processor at hand, from a short measurement made once per process.

A processor differs from an accelerator in what bounds it: a call's overhead is not hidden behind the work of the call
before it, so it is added; a cache holds what was used just before, so bandwidth depends on how much a call touches;
functions such as exp and tanh compute for longer than memory takes; random numbers are drawn one after another.
"""

from __future__ import annotations

import math
import threading

import torch

from mindtorch.base.words import counted
from mindtorch.ops.row import MATRIX_TAGS
from mindtorch.profile.cost.cpu_measure import FRESH_BYTES, Measured, measure
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

_lock = threading.Lock()
_found: dict[int, Target] = {}  # by number of threads


def target() -> Target:
    """This machine at torch's current number of threads; measured on the first call."""
    threads = torch.get_num_threads()
    with _lock:
        if threads not in _found:
            _found[threads] = _target(measure())
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


#: Kinds of op (keys of `Measured.vector`), by name without namespace and the underscore of in-place ops.
KINDS = {
    name: kind
    for kind, names in {
        "sqrt": "sqrt rsqrt reciprocal _foreach_sqrt _foreach_rsqrt _foreach_reciprocal addcdiv _foreach_addcdiv",
        "divide": "div true_divide divide fmod remainder floor_divide _foreach_div",
        "exp": "exp exp2 expm1 elu elu_backward celu selu softplus softplus_backward mish mish_backward _foreach_exp "
        "logit sinh cosh logsumexp logaddexp binary_cross_entropy_with_logits log_sigmoid log_sigmoid_forward",
        "tanh": "tanh atanh acosh asinh _foreach_tanh",
        "erf": "erf erfc erfinv special_erf special_ndtr lgamma digamma",
        "log": "log log2 log10 log1p xlogy binary_cross_entropy kl_div _foreach_log",
        "sin": "sin cos tan asin acos atan atan2 sinc polar angle",
        "pow": "pow float_power _foreach_pow",
        "sigmoid": "sigmoid hardsigmoid glu glu_backward",
        "silu": "silu",
        "silu_backward": "silu_backward",
        "gelu": "gelu",
        "gelu_backward": "gelu_backward",
        "compare": "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite",
        "where": "where masked_fill",
        "sum": "sum mean nansum any all count_nonzero norm linalg_vector_norm mse_loss l1_loss dist equal amax amin",
        "max": "max min argmax argmin aminmax median kthvalue",
        "cumsum": "cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper prod",
        "var": "var std var_mean std_mean",
        "softmax": "softmax _softmax",
        "safe_softmax": "_safe_softmax",
        "log_softmax": "log_softmax _log_softmax cross_entropy_loss",
        "softmax_backward": "_softmax_backward_data",
        "log_softmax_backward": "_log_softmax_backward_data",
        "layer_norm": "layer_norm native_layer_norm rms_norm _fused_rms_norm group_norm native_group_norm",
        "layer_norm_backward": "native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward",
        "batch_norm": "batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update instance_norm "
        "_native_batch_norm_legit_no_training _batch_norm_impl_index",
        "batch_norm_backward": "native_batch_norm_backward batch_norm_backward _batch_norm_impl_index_backward",
        "pool": "avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward adaptive_avg_pool2d _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward",
        "max_pool": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices",
        "max_pool_backward": "max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
        "sort": "sort argsort msort mode",
        "topk": "topk",
    }.items()
    for name in names.split()
}
#: Kinds of move (keys of `Measured.moves`).
MOVES = {
    name: kind
    for kind, names in {
        "cast": "_to_copy",
        "rows": "embedding index_select index _unsafe_index repeat_interleave",
        "gather": "gather take take_along_dim masked_select nll_loss_forward",
        "scatter": "scatter index_put _index_put_impl masked_scatter nonzero",
        "scatter_add": "scatter_add scatter_reduce",
        "index_add": "index_add index_copy index_fill embedding_dense_backward",
        "uniform": "uniform rand rand_like random randint randint_like randperm exponential multinomial",
        "normal": "normal randn randn_like log_normal cauchy",
        "bernoulli": "bernoulli native_dropout dropout geometric",
        "fill": "fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange "
        "nll_loss_backward",
    }.items()
    for name in names.split()
}


class CpuModel:
    """(seconds, bound) of one call."""

    def __init__(self, found: Measured) -> None:
        self.found = found
        self._sizes = [math.log2(size) for size, _ in found.bandwidth]

    def __call__(self, work: Work, footprint: int) -> tuple[float, str]:
        found = self.found
        base = work.name.partition("::")[2]
        base = base[:-1] if base.endswith("_") else base
        launch = found.launch_s if work.bytes or work.flops else found.launch_s / 2
        launch += (work.pieces - 1) * found.dispatch_s
        if not work.bytes and not work.flops:
            return launch, "launch"
        compute, memory = self._compute(work, base), self._memory(work, base, footprint)
        fresh = found.fresh_s * work.bytes_new if work.bytes_new >= FRESH_BYTES else 0.0
        if max(compute, memory + fresh) <= launch:
            bound = "launch"
        else:
            bound = "compute" if compute > memory + fresh else "memory"
        return launch + max(compute, memory) + fresh, bound

    def _compute(self, work: Work, base: str) -> float:
        found = self.found
        if not work.flops:
            return 0.0
        if work.tag in MATRIX_TAGS:
            return self._matrix(work, base)
        kind = KINDS.get(base)
        flops = work.flops
        if kind == "pow" and work.variant == "simple":
            kind = "simple"
        if kind == "batch_norm" and work.variant == "eval":  # one multiply-add with what is known beforehand
            kind, flops = "simple", flops // 5
        if kind in ("gelu", "gelu_backward") and "tanh" in work.variant:
            kind = f"{kind}_tanh"
        if kind == "sum" and work.bytes_written > 16:  # not to one number
            kind = "sum_rows"
        if kind is None:
            kind = "sum_columns" if work.tag == "reduction" else "simple"
        seconds = flops / found.vector[kind]
        return seconds * self._width(work.dtype)

    def _width(self, dtype: str) -> float:
        """Time per element, in float32's: lanes are as wide as the type, and halves are converted to and fro."""
        if dtype in ("bfloat16", "float16"):
            return self.found.vector["simple"] / self.found.vector["simple_half"]
        return 2.0 if dtype in ("float64", "int64", "complex64") else 4.0 if dtype == "complex128" else 1.0

    def _matrix(self, work: Work, base: str) -> float:
        found, flops = self.found, work.flops or 0
        rate = found.matrix.get(work.dtype, found.matrix["float32"])
        share = rate / found.matrix["float32"]
        count, rows, columns, inner = work.product or (1, 0, 0, 0)
        kind = "backward" if base.endswith("backward") else ""
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

    def _memory(self, work: Work, base: str, footprint: int) -> float:
        """What a call reads beside its largest operand has probably left the cache since, if the program holds more
        than fits there."""
        found = self.found
        slow = found.moves[MOVES[base]] if base in MOVES else math.inf
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
