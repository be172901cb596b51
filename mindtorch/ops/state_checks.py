"""What operators with states are looked at for: optimizers, norms, recurrences, attention (`bounds`; SPEC R3)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from .argument_checks import like, of_elements, of_sizes, wrong

__all__ = [
    "attention",
    "batch_norm",
    "fused",
    "group_norm",
    "heads",
    "int4",
    "layer_norm_backward",
    "lstm",
    "observed",
    "rnn",
    "weight_norm",
]


def fused(*states: str) -> Callable[[SimpleNamespace], None]:
    """Lists of tensors, one for each parameter; they are read as one stretch of memory each."""

    def check(a: SimpleNamespace) -> None:
        for name in ("grads", *states):
            tensors: Sequence[torch.Tensor] = getattr(a, name)
            if not tensors and name not in ("grads", *states[:-1]):
                continue  # without amsgrad, or momentum
            if len(tensors) != len(a.self):
                wrong(f"expected {len(a.self)} {name}, got {len(tensors)}")
            for t, parameter in zip(tensors, a.self, strict=True):
                like(parameter, t)
        for t in (*a.self, *a.grads, *(t for name in states for t in getattr(a, name))):
            if t.numel() > t.untyped_storage().nbytes() // t.dtype.itemsize - t.storage_offset():
                wrong("expected tensors without gaps between elements")
        for t in getattr(a, "state_steps", ()):
            of_elements(1, t)
        if hasattr(a, "state_steps") and len(a.state_steps) != len(a.self):
            wrong(f"expected {len(a.self)} state_steps, got {len(a.state_steps)}")
        of_elements(1, a.grad_scale if hasattr(a, "grad_scale") else None, getattr(a, "found_inf", None))

    return check


def layer_norm_backward(a: SimpleNamespace) -> None:
    inner = math.prod(a.normalized_shape)
    like(a.input, a.grad_out)
    if inner and a.input.numel() % inner == 0:
        of_elements(a.input.numel() // inner, getattr(a, "mean", None), a.rstd)
    of_elements(inner, a.weight)


def group_norm(a: SimpleNamespace) -> None:
    if min(a.N, a.C, a.HxW) < 0 or a.group <= 0 or a.C % a.group:
        wrong(f"expected a number of groups that divides {a.C} channels, got {a.group}")
    of_elements(a.N * a.C * a.HxW, a.input, getattr(a, "grad_out", None))
    of_elements(a.N * a.group, getattr(a, "mean", None), getattr(a, "rstd", None))
    of_elements(a.C, a.weight, getattr(a, "bias", None))


def batch_norm(a: SimpleNamespace) -> None:
    if a.input.dim() < 2:
        wrong(f"expected an input of at least 2 dimensions, got {a.input.dim()}")
    channels = a.input.shape[1]
    mean, var = getattr(a, "running_mean", None), getattr(a, "running_var", None)
    trains = getattr(a, "training", getattr(a, "train", getattr(a, "update", None)))
    if (mean is None) != (var is None) or (mean is None and not trains):
        wrong("expected a running mean and variance")
    names = ("weight", "bias", "running_mean", "running_var")
    of_elements(channels, *(getattr(a, name, None) for name in names))
    if hasattr(a, "grad_out"):
        like(a.input, a.grad_out)
        saved = (a.save_mean, a.save_invstd if hasattr(a, "save_invstd") else a.save_var)
        if trains and any(t is None for t in saved):
            wrong("expected the mean and variance of the forward pass")
        of_elements(channels, *(t for t in saved if trains or (t is not None and t.numel())))


_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # of relu, tanh, LSTM, GRU


def rnn(a: SimpleNamespace) -> None:
    if a.input.dim() != 3 or a.mode not in _GATES or a.batch_sizes or a.hidden_size < 1:
        wrong("expected an input of 3 dimensions and no batch_sizes")
    steps, batch, width = a.input.shape
    hidden, gates = a.hidden_size, _GATES[a.mode] * a.hidden_size
    backward = hasattr(a, "workspace")
    weights = [getattr(a, f"weight{k + backward}") for k in range(4)]
    of_sizes(weights[0], gates, width)
    of_sizes(weights[1], gates, hidden)
    if a.has_biases:
        of_elements(gates, *weights[2:])
    of_elements(batch * hidden, a.hx_, a.cx_tmp if backward else a.cx_)
    if backward:
        of_sizes(a.output, steps, batch, hidden)
        like(a.output, a.grad_output)
        of_elements(batch * hidden, a.hy_, a.cy_, a.grad_hy, a.grad_cy)
        of_elements(_workspace(steps, batch, width, hidden, a.mode, a.has_biases, a.input.dtype), a.workspace)


def lstm(a: SimpleNamespace) -> None:
    """Layers, in one direction or two, of weights that fit together; packed sequences' are torch's to look at."""
    if hasattr(a, "batch_sizes") or isinstance(a.hx, torch.Tensor):
        return
    both = 2 if a.bidirectional else 1
    if a.input.dim() != 3 or len(a.hx) != 2 or any(t.dim() != 3 for t in a.hx):
        wrong("expected an input, and states, of 3 dimensions")
    batch, (gives, hidden) = a.input.shape[0 if a.batch_first else 1], (t.shape[2] for t in a.hx)
    of_sizes(a.hx[0], a.num_layers * both, batch, gives)
    of_sizes(a.hx[1], a.num_layers * both, batch, hidden)
    each = 2 + 2 * bool(a.has_biases) + (gives != hidden)
    if len(a.params) != a.num_layers * both * each:
        wrong(f"expected {a.num_layers * both * each} weights, got {len(a.params)}")
    for k in range(a.num_layers * both):
        weights = a.params[k * each : (k + 1) * each]
        of_sizes(weights[0], 4 * hidden, a.input.shape[2] if k < both else both * gives)
        of_sizes(weights[1], 4 * hidden, gives)
        for bias in weights[2:4] if a.has_biases else ():
            of_sizes(bias, 4 * hidden)
        if gives != hidden:
            of_sizes(weights[-1], gives, hidden)


@functools.lru_cache(maxsize=1024)
def _workspace(steps: int, batch: int, width: int, hidden: int, mode: int, has_biases: bool, dtype: torch.dtype) -> int:
    """How many elements oneDNN's workspace has, which only the forward pass tells."""

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.ops.aten.zeros.default(sizes, dtype=dtype)  # type: ignore[no-any-return]

    gates = _GATES[mode] * hidden
    with torch.enable_grad():  # without, torch makes none
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer.default(
            zeros(steps, batch, width), zeros(gates, width), zeros(gates, hidden), zeros(gates), zeros(gates),
            zeros(batch, hidden), zeros(batch, hidden), False, [], mode, hidden, 1, has_biases, False, False, True,
        )  # fmt: skip
    return workspace.numel()  # type: ignore[no-any-return]


def weight_norm(a: SimpleNamespace) -> None:
    v, g = (a.v, a.g) if hasattr(a, "v") else (a.saved_v, a.saved_g)
    if not v.dim() or a.dim not in (0, v.dim() - 1):
        wrong(f"expected the first or the last dimension, got {a.dim}")
    of_elements(v.shape[a.dim], g, getattr(a, "saved_norms", None))
    like(v, getattr(a, "grad_w", None))


def attention(a: SimpleNamespace) -> None:
    q, k, v = a.query, a.key, a.value
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        wrong("expected query, key and value of 4 dimensions")
    batch, heads, n, width = q.shape
    if 0 in (*q.shape, *k.shape, *v.shape):
        wrong("expected non-empty query, key and value")
    groups = k.shape[1]  # heads of queries that are next to each other share one of keys
    if heads % groups:
        wrong(f"expected a number of key heads that divides {heads} query heads, got {groups}")
    of_sizes(k, batch, groups, k.shape[2], width)
    of_sizes(v, batch, groups, k.shape[2], width)
    mask = a.attn_mask
    if mask is not None:
        whole = (batch, heads, n, k.shape[2])
        if mask.dim() not in (2, 4) or any(
            m not in (1, there) for m, there in zip(reversed(mask.shape), reversed(whole))
        ):
            wrong(f"expected a mask that broadcasts to {whole}, got one of {tuple(mask.shape)}")
    if hasattr(a, "grad_out"):
        like(q, a.grad_out, a.out)
        of_sizes(a.logsumexp, batch, heads, n)


def heads(a: SimpleNamespace) -> None:
    """Attention with its projections: all of it of one dtype."""
    source = a.src if hasattr(a, "src") else a.query
    if (a.num_heads if hasattr(a, "num_heads") else a.num_head) < 1:
        wrong("expected at least one head")
    for name, t in vars(a).items():
        if isinstance(t, torch.Tensor) and "mask" not in name and t.dtype != source.dtype:
            wrong(f"expected {name} of {source.dtype}, got {t.dtype}")


def int4(a: SimpleNamespace) -> None:
    if a.self.dim() != 2 or a.mat2.dim() != 2 or a.qGroupSize < 1:
        wrong("expected matrices and at least one group")
    of_sizes(a.qScaleAndZeros, a.self.shape[1] // a.qGroupSize, a.mat2.shape[0], 2)


def observed(a: SimpleNamespace) -> None:
    """What is seen of numbers that quantize: once, or for each row; nothing yet before the first."""
    rows = a.self.shape[a.ch_axis] if a.per_row_fake_quant else 1
    states = (a.running_min, a.running_max, a.scale, a.zero_point)
    if any(t.numel() for t in states):
        of_elements(rows, *states)
