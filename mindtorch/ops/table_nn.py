"""Rows of neural-network layers other than matrix work: norms, softmax, pooling, losses, embedding, dropout."""

from __future__ import annotations

from . import algorithm_rules as alg
from .row import OpRow, op, ops
from .rules import (
    PerInput,
    PerOutput,
    PoolWindow,
    elementwise,
    norm,
    norm_backward,
    reduction,
    softmax,
    softmax_backward,
)

#: (running_mean, running_var) of ops whose schema says they are only read; they are updated when training.
_RUNNING = (3, 4)

ROWS: list[OpRow] = [
    # normalization
    op("batch_norm", "norm", norm, writes=_RUNNING, python=("batch_norm",)),
    op("_batch_norm_impl_index", "norm", norm, writes=_RUNNING),
    op("native_batch_norm", "norm", norm, writes=_RUNNING, eager=True),  # eval: meta invents the statistics
    op("cudnn_batch_norm", "norm", norm, writes=_RUNNING),
    op("miopen_batch_norm", "norm", norm, writes=_RUNNING),
    op("instance_norm", "norm", norm, writes=_RUNNING, python=("instance_norm",)),
    op("batch_norm_update_stats", "norm", PerInput(3), writes=(1, 2)),
    op("batch_norm_gather_stats", "norm", PerInput(3), writes=_RUNNING),
    op("batch_norm_gather_stats_with_counts", "norm", PerInput(3), writes=_RUNNING),
    op("_native_batch_norm_legit", "norm", norm, eager=True),
    op("layer_norm", "norm", norm, python=("layer_norm",)),
    op("group_norm", "norm", norm, python=("group_norm",)),
    op("rms_norm", "norm", norm, python=("rms_norm",)),
    *ops(
        "norm",
        norm,
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
        "_batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update batch_norm_elemt "
        "batch_norm_stats native_layer_norm native_group_norm _fused_rms_norm _weight_norm _weight_norm_interface "
        "quantized_batch_norm norm_except_dim",
    ),
    *ops(
        "norm",
        norm_backward,
        "native_batch_norm_backward batch_norm_backward _batch_norm_impl_index_backward cudnn_batch_norm_backward "
        "miopen_batch_norm_backward batch_norm_backward_reduce batch_norm_backward_elemt native_layer_norm_backward "
        "native_group_norm_backward _fused_rms_norm_backward _weight_norm_interface_backward "
        "_weight_norm_differentiable_backward",
    ),
    # softmax
    op("softmax", "softmax", softmax, python=("softmax",)),
    op("log_softmax", "softmax", softmax, python=("log_softmax",)),
    *ops(
        "softmax",
        softmax,
        "_softmax _log_softmax _safe_softmax _masked_softmax special_softmax special_log_softmax _sparse_softmax "
        "_sparse_log_softmax",
    ),
    *ops("softmax", softmax_backward, "_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward"),
    *ops("softmax", softmax_backward, "_sparse_softmax_backward_data _sparse_log_softmax_backward_data"),
    # pooling: one operation per window element
    op("avg_pool1d", "reduction", PoolWindow(1)),
    op("avg_pool2d", "reduction", PoolWindow(2)),
    op("avg_pool3d", "reduction", PoolWindow(3)),
    op("max_pool1d", "reduction", PoolWindow(1), python=("max_pool1d",)),
    op("max_pool2d", "reduction", PoolWindow(2), python=("max_pool2d",)),
    op("max_pool3d", "reduction", PoolWindow(3), python=("max_pool3d",)),
    op("max_pool1d_with_indices", "reduction", PoolWindow(1), python=("max_pool1d_with_indices",)),
    op("max_pool2d_with_indices", "reduction", PoolWindow(2), python=("max_pool2d_with_indices",)),
    op("max_pool3d_with_indices", "reduction", PoolWindow(3), python=("max_pool3d_with_indices",)),
    op("mkldnn_max_pool2d", "reduction", PoolWindow(2)),
    op("mkldnn_max_pool3d", "reduction", PoolWindow(3)),
    op("quantized_max_pool1d", "reduction", PoolWindow(1)),
    op("quantized_max_pool2d", "reduction", PoolWindow(2)),
    op("quantized_max_pool3d", "reduction", PoolWindow(3)),
    *(
        op(name, "reduction", rule, python=(name, f"{name}_with_indices"))
        for name, rule in (
            ("adaptive_max_pool1d", reduction),
            ("adaptive_max_pool2d", reduction),
            ("adaptive_max_pool3d", reduction),
            ("fractional_max_pool2d", PoolWindow(2)),
            ("fractional_max_pool3d", PoolWindow(3)),
        )
    ),
    op("adaptive_avg_pool1d", "reduction", reduction),
    op("adaptive_avg_pool2d", "reduction", reduction, python=("adaptive_avg_pool2d",)),
    op("adaptive_avg_pool3d", "reduction", reduction, python=("adaptive_avg_pool3d",)),
    *ops("reduction", reduction, "_adaptive_avg_pool2d _adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d"),
    *ops(
        "reduction",
        PerInput(1),
        "avg_pool2d_backward avg_pool3d_backward max_pool2d_backward max_pool2d_with_indices_backward "
        "max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward mkldnn_max_pool2d_backward "
        "mkldnn_max_pool3d_backward mkldnn_adaptive_avg_pool2d_backward",
    ),
    op("max_unpool2d", "data movement", probe=True, python=("max_unpool2d",)),
    op("max_unpool3d", "data movement", python=("max_unpool3d",)),
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
    op("mse_loss", "loss", PerInput(3), python=("mse_loss",)),
    op("l1_loss", "loss", PerInput(3), python=("l1_loss",)),
    op("smooth_l1_loss", "loss", PerInput(5), python=("smooth_l1_loss",)),
    op("huber_loss", "loss", PerInput(5), python=("huber_loss",)),
    op("kl_div", "loss", PerInput(4), python=("kl_div",)),
    op("binary_cross_entropy", "loss", PerInput(7), python=("binary_cross_entropy",)),
    op("binary_cross_entropy_with_logits", "loss", PerInput(7), python=("binary_cross_entropy_with_logits",)),
    op("poisson_nll_loss", "loss", PerInput(4), python=("poisson_nll_loss",)),
    op("soft_margin_loss", "loss", PerInput(5), python=("soft_margin_loss",)),
    op("hinge_embedding_loss", "loss", PerInput(4), python=("hinge_embedding_loss",)),
    op("margin_ranking_loss", "loss", PerInput(5), python=("margin_ranking_loss",)),
    # a softmax, and one element picked of each row
    op("cross_entropy_loss", "loss", PerInput(5), python=("cross_entropy",)),
    op("nll_loss", "loss", PerOutput(1), python=("nll_loss",)),
    *ops("loss", PerOutput(1), "nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward"),
    *ops("loss", PerInput(1), "nll_loss_backward nll_loss2d_backward"),
    *ops(
        "loss",
        PerOutput(3),
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
        "soft_margin_loss_backward",
    ),
    *(
        op(name, "loss", None, python=(name,))
        for name in ("cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss", "multilabel_margin_loss")
    ),
    op("ctc_loss", "loss", None, python=("ctc_loss",)),
    *ops(
        "loss",
        None,
        "_ctc_loss _ctc_loss_backward _cudnn_ctc_loss miopen_ctc_loss multi_margin_loss_backward "
        "multilabel_margin_loss_forward multilabel_margin_loss_backward",
    ),
    # embedding: look-ups
    op("embedding", "embedding", python=("embedding",)),
    *ops(
        "embedding",
        None,
        "embedding_backward embedding_dense_backward embedding_sparse_backward one_hot",
    ),
    op("embedding_bag", "reduction", alg.embedding_bag, eager=True, python=("embedding_bag",)),
    *ops("reduction", alg.embedding_bag, "_embedding_bag _embedding_bag_forward_only", probe=True),
    *ops(
        "reduction",
        alg.embedding_bag_backward,
        "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_sparse_backward",
    ),
    # the arithmetic depends on values: on the bags' sizes, on the norms
    *ops("reduction", None, "_embedding_bag_per_sample_weights_backward embedding_renorm"),
    # dropout: a multiplication per element; the draw is not arithmetic
    op("dropout", "random", elementwise, python=("dropout",)),
    op("alpha_dropout", "random", elementwise, python=("alpha_dropout",)),
    op("feature_dropout", "random", elementwise, python=("dropout1d", "dropout2d", "dropout3d")),
    op("feature_alpha_dropout", "random", elementwise, python=("feature_alpha_dropout",)),
    *ops("random", elementwise, "native_dropout _fused_dropout"),
]
