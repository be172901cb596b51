"""Calls of operators that programs reach seldom, or through functions that look: good ones, and what is wrong."""

from __future__ import annotations

from typing import Any

import torch

A: Any = torch.ops.aten
i = torch.tensor


def own(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)))


def weights(gates: int, width: int, hidden: int) -> list[torch.Tensor]:
    return [own(gates, width), own(gates, hidden), own(gates), own(gates)]


LSTM = (True, 1, 0.0, False, False, False)
STATES = [own(1, 3, 7), own(1, 3, 7)]
PROJECTIONS = (8, 2, own(24, 8), own(24), own(8, 8), own(8), None)
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
LOG = own(6, 2, 4).log_softmax(-1)
TWICE = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3)
IMAGES, KERNELS = own(2, 3, 6, 7), own(4, 3, 3, 3)
OBSERVED = (i([1]), i([1]), own(2), own(2), own(2), torch.zeros(2, dtype=torch.int32), 0.1, 0, 255, 0, True)
# an operator, good arguments, which of them is wrong instead and how, what the error says
CALLS: list[tuple[Any, tuple[Any, ...], int, Any, str]] = [
    (A._cdist_backward.default, (own(2, 3, 5), own(2, 3, 4), own(2, 5, 4), 1.5, own(2, 3, 5)), 0, own(3, 5), "got one"),
    (A._cdist_backward.default, (own(2, 3, 5), own(1, 3, 4), own(2, 5, 4), 2.0, own(2, 3, 5)), 1, own(1, 3, 8), "numb"),
    (A._pdist_forward.default, (own(4, 3), 2.0), 0, own(3, 4, 0), "2 dimensions"),
    (A._linalg_eigvals.default, (own(3, 3),), 0, torch.full((3, 3), float("nan")), "finite"),
    (A._pad_packed_sequence.default, (own(5, 4), i([3, 2]), False, 0.0, 2), 1, i([3, -(1 << 20)]), "in 1..5"),
    (A.lstm.input, (own(5, 3, 4), STATES, weights(28, 4, 7), *LSTM), 0, own(5, 3, 8), r"\(28, 8\)"),
    (A.lstm.input, (own(5, 3, 4), STATES, weights(28, 4, 7), *LSTM), 1, STATES[:1], "3 dimensions"),
    (A.lstm.input, (own(5, 3, 4), STATES, weights(28, 4, 7), *LSTM), 2, weights(28, 4, 7)[:3], "4 weights, got 3"),
    (A._native_multi_head_attention.default, (*[own(2, 4, 8)] * 3, *PROJECTIONS), 6, own(24).half(), "float32, got"),
    (A._fft_r2c.default, (own(3, 4, 5), [0, 1], 0, True), 1, [1, 1], "each dimension once"),
    (A._fft_r2c.default, (own(3, 4, 5), [0, 1], 0, True), 1, [0, -1], "dimensions of 3"),
    (A._ctc_loss.default, (LOG, i([[1, -1], [3, 1]]), [6, 5], [1, 2]), 3, [2, 2], "in 0..3, got -1"),
    (A._upsample_bilinear2d_aa.default, (own(1, 3, 9, 11), [3, 3], False, 1.7, 0.9), 3, 0.01, "got 0.01"),
    (A._convolution_double_backward.default,
     (own(2, 3, 6, 7), own(4, 3, 3, 3), own(4), own(2, 4, 6, 7), KERNELS, IMAGES, *TWICE), 3, own(), "got 0"),
    (A.scaled_dot_product_attention.default,
     (own(2, 6, 4, 8), own(2, 3, 6, 8), own(2, 3, 6, 8), None, 0.0, False), 1, own(2, 0, 6, 8), "at least one head"),
    (A.scaled_dot_product_attention.default,
     (own(2, 6, 4, 8), own(2, 3, 6, 8), own(2, 3, 6, 8), None, 0.0, False), 2, own(2, 3, 9, 8), "a value for each key"),
    (A._native_multi_head_attention.default, (*[own(2, 4, 8)] * 3, *PROJECTIONS), 4, 0, "at least one head"),
    (A._fused_moving_avg_obs_fq_helper.default, (own(2, 3, 4), *OBSERVED), 0, own(4, 3, 4), "4 elements"),
    (A._batch_norm_no_update.default, (own(3, 4, 5), own(4), own(4), own(4), own(4), 0.1, 1e-5), 3, None, "mean and v"),
]  # fmt: skip


def keywords(name: str) -> dict[str, Any]:
    """What the calls of an operator are given besides."""
    return {"enable_gqa": True} if name.endswith("product_attention") else {}
