"""Rows of neural-network layers other than matrix work: norms, softmax, pooling, losses, embedding, dropout."""

from __future__ import annotations

from . import algorithm_rules as alg
from . import byte_rules as moved
from . import layout_rules as lay
from .flop_rules import (
    PerInput,
    PerOutput,
    PoolWindow,
    dropped,
    elementwise,
    norm,
    norm_backward,
    reduction,
    softmax,
    softmax_backward,
)
from .op_row import OpRow, op, ops

#: (running_mean, running_var) of ops whose schema says they are only read; they are updated when training.
_RUNNING = (3, 4)

ROWS: list[OpRow] = [
    # normalization
    op("batch_norm", "norm", norm, writes=_RUNNING, python=True, cpu="batch_norm"),
    op("_batch_norm_impl_index", "norm", norm, writes=_RUNNING, cpu="batch_norm"),
    # eager: in evaluation, meta invents the statistics
    op("native_batch_norm", "norm", norm, writes=_RUNNING, eager=True, cpu="batch_norm"),
    op("cudnn_batch_norm", "norm", norm, writes=_RUNNING),
    op("miopen_batch_norm", "norm", norm, writes=_RUNNING),
    op("instance_norm", "norm", norm, writes=_RUNNING, python=True, cpu="batch_norm"),
    op("batch_norm_update_stats", "norm", PerInput(3), writes=(1, 2)),
    op("batch_norm_gather_stats", "norm", PerInput(3), writes=_RUNNING),
    op("batch_norm_gather_stats_with_counts", "norm", PerInput(3), writes=_RUNNING),
    op("_native_batch_norm_legit", "norm", norm, eager=True, cpu="batch_norm"),
    op("layer_norm", "norm", norm, python=True, cpu="layer_norm", layout=lay.with_statistics(lay.dense)),
    op("group_norm", "norm", norm, python=True, cpu="layer_norm", layout=lay.as_suggested_by(0)),
    op("rms_norm", "norm", norm, python=True, cpu="layer_norm", layout=lay.scaled),
    *ops(
        "norm",
        norm,
        "_native_batch_norm_legit_functional _batch_norm_with_update_functional _batch_norm_no_update "
        "batch_norm_elemt batch_norm_stats _weight_norm _weight_norm_interface quantized_batch_norm norm_except_dim",
    ),
    op("_native_batch_norm_legit_no_training", "norm", norm, cpu="batch_norm"),
    op("_batch_norm_with_update", "norm", norm, cpu="batch_norm", layout=lay.with_statistics(lay.as_suggested_by(0))),
    op("native_layer_norm", "norm", norm, cpu="layer_norm", layout=lay.with_statistics(lay.dense)),
    op("native_group_norm", "norm", norm, cpu="layer_norm", layout=lay.needs_memory_format),
    op("_fused_rms_norm", "norm", norm, cpu="layer_norm", layout=lay.scaled),
    *ops(
        "norm",
        norm_backward,
        "cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward_reduce batch_norm_backward_elemt "
        "_weight_norm_interface_backward _weight_norm_differentiable_backward",
    ),
    *ops(
        "norm",
        norm_backward,
        "native_batch_norm_backward batch_norm_backward _batch_norm_impl_index_backward",
        cpu="batch_norm_backward",
    ),
    *ops(
        "norm",
        norm_backward,
        "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward",
        cpu="layer_norm_backward",
    ),
    # softmax
    op("softmax", "softmax", softmax, python=True, cpu="softmax"),
    op("log_softmax", "softmax", softmax, python=True, cpu="log_softmax"),
    *ops("softmax", softmax, "_masked_softmax special_softmax special_log_softmax _sparse_softmax _sparse_log_softmax"),
    op("_softmax", "softmax", softmax, cpu="softmax"),
    op("_log_softmax", "softmax", softmax, cpu="log_softmax"),
    op("_safe_softmax", "softmax", softmax, cpu="safe_softmax"),
    op("_masked_softmax_backward", "softmax", softmax_backward),
    op("_softmax_backward_data", "softmax", softmax_backward, cpu="softmax_backward", layout=lay.dense),
    op("_log_softmax_backward_data", "softmax", softmax_backward, cpu="log_softmax_backward", layout=lay.dense),
    *ops("softmax", softmax_backward, "_sparse_softmax_backward_data _sparse_log_softmax_backward_data"),
    # pooling: one operation per window element
    op("avg_pool1d", "reduction", PoolWindow(1), cpu="pool"),
    op("avg_pool2d", "reduction", PoolWindow(2), cpu="pool"),
    op("avg_pool3d", "reduction", PoolWindow(3), cpu="pool"),
    op("max_pool1d", "reduction", PoolWindow(1), python=True, cpu="max_pool", layout=lay.dense),
    op("max_pool2d", "reduction", PoolWindow(2), python=True, cpu="max_pool"),
    op("max_pool3d", "reduction", PoolWindow(3), python=True, cpu="max_pool", layout=lay.pooled),
    op("max_pool1d_with_indices", "reduction", PoolWindow(1), python=True),
    op("max_pool2d_with_indices", "reduction", PoolWindow(2), python=True, cpu="max_pool"),
    op("max_pool3d_with_indices", "reduction", PoolWindow(3), python=True, cpu="max_pool", layout=lay.pooled),
    op("mkldnn_max_pool2d", "reduction", PoolWindow(2)),
    op("mkldnn_max_pool3d", "reduction", PoolWindow(3)),
    op("quantized_max_pool1d", "reduction", PoolWindow(1)),
    op("quantized_max_pool2d", "reduction", PoolWindow(2)),
    op("quantized_max_pool3d", "reduction", PoolWindow(3)),
    *(
        op(name, "reduction", reduction, python=(name, f"{name}_with_indices"))
        for name in ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
    ),
    *(  # which draw inside
        op(name, "reduction", PoolWindow(n), python=(name, f"{name}_with_indices"), never_whole=True)
        for n, name in ((2, "fractional_max_pool2d"), (3, "fractional_max_pool3d"))
    ),
    op("adaptive_avg_pool1d", "reduction", reduction),
    op("adaptive_avg_pool2d", "reduction", reduction, python=True, cpu="pool"),
    op("adaptive_avg_pool3d", "reduction", reduction, python=True),
    *ops("reduction", reduction, "_adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d"),
    op("_adaptive_avg_pool2d", "reduction", reduction, cpu="pool"),
    *ops(
        "reduction",
        PerInput(1),
        "max_pool2d_backward adaptive_avg_pool3d_backward fractional_max_pool2d_backward "
        "fractional_max_pool3d_backward mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward "
        "mkldnn_adaptive_avg_pool2d_backward",
    ),
    *ops(
        "reduction", PerInput(1), "avg_pool2d_backward _adaptive_avg_pool2d_backward", bytes=moved.AllBut(1), cpu="pool"
    ),
    *ops(
        "reduction",
        PerInput(1),
        "avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward _adaptive_avg_pool3d_backward",
        bytes=moved.AllBut(1),
    ),
    op("max_pool2d_with_indices_backward", "reduction", PerInput(1), bytes=moved.AllBut(1), cpu="max_pool_backward"),
    op(
        "max_pool3d_with_indices_backward",
        "reduction",
        PerInput(1),
        bytes=moved.AllBut(1),
        cpu="max_pool_backward",
        layout=lay.pooled,
    ),
    op("max_unpool2d", "data movement", probe=True, python=True),
    op("max_unpool3d", "data movement", python=True),
    # interpolation: a multiply-add per tap; nearest copies
    *ops("elementwise", PerOutput(4), "upsample_linear1d upsample_linear1d_backward"),
    *ops("elementwise", PerOutput(8), "upsample_bilinear2d upsample_bilinear2d_backward"),
    *ops("elementwise", PerOutput(16), "upsample_trilinear3d upsample_trilinear3d_backward"),
    *ops("elementwise", PerOutput(32), "upsample_bicubic2d upsample_bicubic2d_backward"),
    *ops(
        "elementwise",
        None,  # anti-aliasing: the number of taps depends on the scale
        "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa "
        "_upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward "
        "cudnn_grid_sampler cudnn_grid_sampler_backward affine_grid_generator affine_grid_generator_backward",
    ),
    *ops("elementwise", alg.GridSample(2), "grid_sampler_2d _grid_sampler_2d_cpu_fallback"),
    op("grid_sampler_3d", "elementwise", alg.GridSample(3)),
    op("grid_sampler_2d_backward", "elementwise", alg.GridSample(2, backward=True)),
    op("_grid_sampler_2d_cpu_fallback_backward", "elementwise", alg.GridSample(2, backward=True)),
    op("grid_sampler_3d_backward", "elementwise", alg.GridSample(3, backward=True)),
    *ops(
        "data movement",
        None,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward",
    ),
    op("grid_sampler", "elementwise", None, python=("grid_sample",)),
    # losses: FLOPs per element of the prediction, the reduction included
    op("mse_loss", "loss", PerInput(3), python=True, cpu="sum"),
    op("l1_loss", "loss", PerInput(3), python=True, cpu="sum"),
    op("smooth_l1_loss", "loss", PerInput(5), python=True),
    op("huber_loss", "loss", PerInput(5), python=True),
    op("kl_div", "loss", PerInput(4), python=True, cpu="log"),
    op("binary_cross_entropy", "loss", PerInput(7), python=True, cpu="log", layout=lay.like(0)),
    op("binary_cross_entropy_with_logits", "loss", PerInput(7), python=True, cpu="exp"),
    op("poisson_nll_loss", "loss", PerInput(4), python=True),
    op("soft_margin_loss", "loss", PerInput(5), python=True),
    op("hinge_embedding_loss", "loss", PerInput(4), python=True),
    op("margin_ranking_loss", "loss", PerInput(5), python=True),
    # a softmax, and one element picked of each row
    op("cross_entropy_loss", "loss", PerInput(5), python=("cross_entropy",), cpu="log_softmax", layout=lay.dense),
    op("nll_loss", "loss", PerOutput(1), python=True, bytes=moved.nll, layout=lay.dense),
    *ops("loss", PerOutput(1), "nll_loss_nd nll_loss2d nll_loss2d_forward", bytes=moved.nll, layout=lay.dense),
    op("nll_loss_forward", "loss", PerOutput(1), bytes=moved.nll, cpu="gather", layout=lay.dense),
    op("nll_loss_backward", "loss", PerInput(1), bytes=moved.AllBut(1), cpu="fill"),
    op("nll_loss2d_backward", "loss", PerInput(1), bytes=moved.AllBut(1), layout=lay.needs_contiguous),
    *ops("loss", PerOutput(3), "mse_loss_backward smooth_l1_loss_backward huber_loss_backward", layout=lay.dense),
    op("binary_cross_entropy_backward", "loss", PerOutput(3), layout=lay.like(1)),
    op("soft_margin_loss_backward", "loss", PerOutput(3)),
    *ops(
        "loss",
        None,
        "cosine_embedding_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss",
        python=True,
    ),
    op("ctc_loss", "loss", python=True, elsewhere=(1, 2, 3, "targets", "input_lengths", "target_lengths")),
    *ops(
        "loss",
        None,
        "_cudnn_ctc_loss miopen_ctc_loss multi_margin_loss_backward "
        "multilabel_margin_loss_forward multilabel_margin_loss_backward",
    ),
    op("_ctc_loss", "loss", elsewhere=(2, 3, "input_lengths", "target_lengths")),
    op("_ctc_loss_backward", "loss", elsewhere=(3, 4, "input_lengths", "target_lengths")),
    # embedding: look-ups
    op("embedding", "embedding", python=True, bytes=moved.embedding, cpu="rows"),
    *ops("embedding", None, "embedding_sparse_backward one_hot"),
    op("embedding_backward", "embedding", bytes=moved.embedding_backward),
    op("embedding_dense_backward", "embedding", bytes=moved.embedding_backward, cpu="index_add"),
    op("embedding_bag", "reduction", alg.embedding_bag, eager=True, python=True, bytes=moved.embedding),
    *ops(
        "reduction", alg.embedding_bag, "_embedding_bag _embedding_bag_forward_only", probe=True, bytes=moved.embedding
    ),
    *ops("reduction", alg.embedding_bag_backward, "_embedding_bag_backward _embedding_bag_sparse_backward"),
    op("_embedding_bag_dense_backward", "reduction", alg.embedding_bag_backward, bytes=moved.embedding_backward),
    # the arithmetic depends on values: on the bags' sizes, on the norms
    *ops("reduction", None, "_embedding_bag_per_sample_weights_backward embedding_renorm"),
    # in evaluation they give their input back
    op("dropout", "random", dropped, python=True, cpu="bernoulli", bytes=moved.dropped),
    op("alpha_dropout", "random", dropped, python=True, bytes=moved.dropped),
    op("feature_dropout", "random", dropped, python=("dropout1d", "dropout2d", "dropout3d"), bytes=moved.dropped),
    op("feature_alpha_dropout", "random", dropped, python=True, bytes=moved.dropped),
    op("_fused_dropout", "random", elementwise),
    op("native_dropout", "random", elementwise, cpu="bernoulli"),
]
