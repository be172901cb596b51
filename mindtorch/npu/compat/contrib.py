"""``torch_npu.contrib``: `transfer_to_npu`; its modules and functions are refused by name."""

from __future__ import annotations

import importlib
from typing import Any

from ..refused import getter

__path__: list[str] = []

_OPERATOR = "it needs a torch_npu operator that mindtorch does not call: use torch's own operators"
_REFUSED = dict.fromkeys(
    (
        "BiLSTM", "ChannelShuffle", "DropoutWithByteMask", "Focus", "LabelSmoothingCrossEntropy", "LinearA8W8Quant",
        "LinearQuant", "LinearWeightQuant", "Mish", "ModulatedDeformConv", "MultiheadAttention", "NpuCachedDropout",
        "NpuDropPath", "NpuFairseqDropout", "PSROIPool", "Prefetcher", "QuantConv2d", "ROIAlign", "SiLU", "Swish",
        "dropout_with_byte_mask", "fuse_add_softmax_dropout", "matmul_transpose", "npu_batched_multiclass_nms",
        "npu_bbox_coder_decode_xywh2xyxy", "npu_bbox_coder_encode_xyxy2xywh", "npu_bbox_coder_encode_yolo",
        "npu_fast_condition_index_put", "npu_fused_attention", "npu_fused_attention_with_layernorm",
        "npu_multiclass_nms", "npu_single_level_responsible_flags", "roll",
    ),
    _OPERATOR,
)  # fmt: skip
_refused = getter("torch_npu.contrib", _REFUSED)


def __getattr__(name: str) -> Any:
    if name == "transfer_to_npu":  # what it does, it does when it is asked for
        return importlib.import_module(".transfer_to_npu", __package__)
    return _refused(name)
