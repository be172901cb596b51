"""What ``import torch_npu`` gives where the real one is not installed."""

from __future__ import annotations

import torch

from mindtorch import npu as npu

from ..compositions import *  # noqa: F403
from ..refused import getter
from . import contrib as contrib
from . import distributed as distributed
from . import optim as optim
from . import profiler as profiler
from . import utils as utils

__path__: list[str] = []
__version__ = torch.__version__.partition("+")[0] + "+mindtorch"

_OPERATOR = "it is a CANN operator that mindtorch does not call: use torch's own operators"
_REFUSED = {
    "HiFloat8Tensor": "torch has no such dtype",
    "erase_stream": "a stream recorded on a tensor stays recorded until it is done",
    "matmul_checksum": "matrix products are not checked for silent data corruption",
    **dict.fromkeys(
        (
            "npu_alltoallv_gmm", "npu_anchor_response_flags", "npu_anti_quant", "npu_apply_rotary_pos_emb",
            "npu_batch_nms", "npu_bounding_box_decode", "npu_bounding_box_encode", "npu_ciou", "npu_conv2d",
            "npu_conv3d", "npu_conv_transpose2d", "npu_convolution", "npu_deformable_conv2d", "npu_diou",
            "npu_dropout_with_add_softmax", "npu_dynamic_quant", "npu_dynamic_quant_asymmetric", "npu_ffn",
            "npu_fused_attention_score", "npu_fused_infer_attention_score", "npu_geglu", "npu_giou",
            "npu_grid_assign_positive", "npu_group_norm_silu", "npu_group_norm_swish", "npu_group_quant",
            "npu_grouped_matmul", "npu_gru", "npu_incre_flash_attention", "npu_indexing", "npu_interleave_rope",
            "npu_iou", "npu_kv_rmsnorm_rope_cache", "npu_layer_norm_eval", "npu_lstm", "npu_max",
            "npu_min", "npu_mla_prolog", "npu_mm_all_reduce_base", "npu_moe_compute_expert_tokens",
            "npu_moe_distribute_combine", "npu_moe_distribute_dispatch", "npu_moe_finalize_routing",
            "npu_moe_gating_top_k", "npu_moe_gating_top_k_softmax", "npu_moe_init_routing", "npu_moe_token_permute",
            "npu_moe_token_unpermute", "npu_multi_head_attention", "npu_nms_rotated", "npu_nms_v4",
            "npu_nms_with_mask", "npu_one_hot", "npu_pad", "npu_prompt_flash_attention", "npu_ps_roi_pooling",
            "npu_ptiou", "npu_quant_conv2d", "npu_quant_matmul", "npu_quant_scatter", "npu_quantize", "npu_roi_align",
            "npu_rotated_iou", "npu_rotated_overlaps", "npu_scaled_masked_softmax", "npu_scatter_nd_update",
            "npu_scatter_nd_update_", "npu_sign_bits_pack", "npu_sign_bits_unpack", "npu_slice",
            "npu_softmax_cross_entropy_with_logits", "npu_sort_v2", "npu_stride_add", "npu_stride_copy",
            "npu_trans_quant_param", "npu_weight_quant_batchmatmul", "npu_yolo_boxes_encode", "scatter_update",
            "scatter_update_",
        ),
        _OPERATOR,
    ),
}  # fmt: skip
__getattr__ = getter("torch_npu", _REFUSED)
