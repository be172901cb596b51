"""Rows of matrix work: products, convolutions, attention, recurrent networks."""

from __future__ import annotations

from . import attention_rules as attn
from . import byte_rules as moved
from . import matrix_rules as mat
from . import product_rules as products
from . import refusal_rules as refusal
from . import scratch_rules as scratch
from .flop_rules import zero
from .op_row import OpRow, op, ops

ROWS: list[OpRow] = [
    # products
    op("mm", "matmul", mat.matmul, scratch=scratch.mm, product=products.mm),
    op("bmm", "matmul", mat.matmul, product=products.bmm),
    op("mv", "matmul", mat.matmul, product=products.mv),
    op("_sparse_mm", "matmul", mat.matmul),
    op("smm", "matmul", mat.matmul),
    op("hspmm", "matmul", mat.matmul),
    op("dot", "matmul", mat.matmul),
    op("vdot", "matmul", mat.matmul),
    # whole: with out=, torch asks whether two views share a storage, which wrappers do not show
    op("matmul", "matmul", mat.matmul, whole=True, folds=True, product=products.matmul),
    op("linalg_matmul", "matmul", mat.matmul, whole=True, folds=True, product=products.matmul),
    op("linalg_vecdot", "matmul", mat.vecdot),
    op("_int_mm", "matmul", mat.matmul, product=products.mm),
    op("_scaled_mm", "matmul", mat.matmul, product=products.mm),
    op("_scaled_mm_v2", "matmul", mat.matmul),
    op("_grouped_mm", "matmul", mat.grouped_mm, bytes=moved.grouped, product=products.grouped_mm),
    op("_scaled_grouped_mm", "matmul", mat.grouped_mm, bytes=moved.grouped, product=products.grouped_mm),
    op("_scaled_grouped_mm_v2", "matmul", mat.grouped_mm, bytes=moved.grouped, product=products.grouped_mm),
    op("_weight_int8pack_mm", "matmul", mat.matmul),
    op("_foreach_mm", "matmul", mat.foreach_mm),
    op("addmm", "matmul", mat.addmm, scratch=scratch.addmm, product=products.addmm),
    op("_addmm_activation", "matmul", mat.addmm, product=products.addmm),
    op("baddbmm", "matmul", mat.addmm, product=products.baddbmm),
    op("addbmm", "matmul", mat.addmm),
    op("addmv", "matmul", mat.addmm, product=products.addmv),
    op("_sparse_addmm", "matmul", mat.addmm),
    op("sspaddmm", "matmul", mat.addmm),
    op("addr", "matmul", mat.addmm),
    op("linear", "matmul", mat.linear, product=products.linear, folds=True),
    op("mkldnn_linear", "matmul", mat.linear),
    op("matmul_backward", "matmul", mat.matmul_backward),
    op("linear_backward", "matmul", mat.linear_backward),
    op("inner", "matmul", mat.contraction),
    op("tensordot", "matmul", mat.contraction),
    op("linalg_multi_dot", "matmul", mat.chain),
    op("chain_matmul", "matmul", mat.chain),
    op("einsum", "matmul", mat.einsum),
    # of models with a quantization_config (program.quantized)
    op("genie::packed_linear", "matmul", mat.packed, bytes=moved.packed, product=products.packed),
    *ops("elementwise", zero, "genie::quantize genie::unpack genie::rescale"),
    # the cost of these depends on packing, on sparsity or on an inner choice
    *ops(
        "matmul",
        None,
        "bilinear _trilinear sparse_sampled_addmm _mixed_dtypes_linear "
        "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros "
        "_dyn_quant_matmul_4bit _cslt_sparse_mm _sparse_semi_structured_mm _sparse_semi_structured_linear "
        "_sparse_semi_structured_addmm _sparse_sparse_matmul kron",
    ),
    *ops("matmul", None, "matrix_power linalg_matrix_power", refuses=refusal.if_inverted),
    # convolutions
    op("convolution", "conv", mat.convolution, scratch=scratch.convolution, product=products.convolution),
    op("_convolution", "conv", mat.convolution, product=products.convolution),
    op("convolution_overrideable", "conv", mat.convolution),
    *ops(
        "conv",
        mat.conv,
        "conv1d conv2d conv3d _convolution_mode",
        product=products.conv,
    ),
    *ops(
        "conv",
        mat.conv,
        "cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu "
        "miopen_convolution miopen_convolution_relu miopen_convolution_add_relu miopen_depthwise_convolution "
        "mkldnn_convolution thnn_conv2d slow_conv3d slow_conv3d_forward _slow_conv2d_forward slow_conv_dilated2d "
        "slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d _nnpack_spatial_convolution _mps_convolution",
    ),
    *ops(
        "conv",
        mat.conv_transpose,
        "conv_transpose1d conv_transpose2d conv_transpose3d",
        product=products.conv_transpose,
    ),
    *ops(
        "conv",
        mat.conv_transpose,
        "cudnn_convolution_transpose miopen_convolution_transpose "
        "slow_conv_transpose2d slow_conv_transpose3d _mps_convolution_transpose",
    ),
    op("conv_tbc", "conv", mat.conv_tbc),
    op(
        "convolution_backward",
        "conv",
        mat.convolution_backward,
        scratch=scratch.convolution_backward,
        bytes=moved.convolution_backward,
        product=products.convolution_backward,
    ),
    op("convolution_backward_overrideable", "conv", None),
    op("_slow_conv2d_backward", "conv", mat.slow_conv2d_backward),
    op("conv_tbc_backward", "conv", mat.conv_tbc_backward),
    *ops("conv", None, "_convolution_double_backward mps_convolution_backward"),
    # attention; the composite's result is laid out as the kernel chosen likes it, and meta chooses another one
    op("scaled_dot_product_attention", "attention", attn.sdpa, eager=True, product=products.scores),
    *ops("attention", attn.sdpa, "_triton_scaled_dot_attention higher_order::flex_attention"),
    *ops(
        "attention",
        attn.sdpa,
        "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math_for_mps",
        product=products.scores,
    ),
    *ops(
        "attention",
        attn.sdpa_backward,
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward",
        product=products.scores_backward,
    ),
    op("higher_order::flex_attention_backward", "attention", attn.flex_backward),
    op("_flash_attention_forward", "attention", attn.flash_forward),
    op("_flash_attention_forward_no_dropout_inplace", "attention", attn.flash_inplace),
    op("_flash_attention_backward", "attention", attn.flash_backward),
    op("_efficient_attention_forward", "attention", attn.efficient_forward),
    op("_efficient_attention_backward", "attention", attn.efficient_backward),
    op("_cudnn_attention_forward", "attention", attn.sdpa),
    op("_cudnn_attention_backward", "attention", attn.sdpa_backward),
    op("_native_multi_head_attention", "attention", attn.native_mha),
    op("_triton_multi_head_attention", "attention", attn.native_mha),
    op("_transformer_encoder_layer_fwd", "attention", attn.encoder_layer),
    op("_transform_bias_rescale_qkv", "data movement"),
    op("_fused_sdp_choice", "other", zero),
    # recurrent networks
    *ops("rnn", mat.rnn, "lstm gru rnn_tanh rnn_relu", never_whole=True),
    *ops("rnn", mat.rnn_cell, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    op("mkldnn_rnn_layer", "rnn", mat.mkldnn_rnn_layer, eager=True, as_seen=True, scratch=scratch.mkldnn_rnn_layer),
    op(
        "mkldnn_rnn_layer_backward",
        "rnn",
        mat.mkldnn_rnn_layer_backward,
        eager=True,
        as_seen=True,
        scratch=scratch.mkldnn_rnn_layer_backward,
    ),
    op("_cudnn_rnn", "rnn", mat.backend_rnn),
    op("miopen_rnn", "rnn", mat.backend_rnn),
    op("_cudnn_rnn_backward", "rnn", mat.backend_rnn_backward),
    op("miopen_rnn_backward", "rnn", mat.backend_rnn_backward),
    *ops(
        "rnn",
        None,
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward _thnn_fused_gru_cell_backward "
        "_thnn_fused_lstm_cell_backward_impl _thnn_differentiable_lstm_cell_backward "
        "_thnn_differentiable_gru_cell_backward _lstm_mps lstm_mps_backward quantized_lstm quantized_gru",
    ),
    *ops("data movement", None, "_cudnn_rnn_flatten_weight _pack_padded_sequence_backward"),
    op("_pack_padded_sequence", "data movement", elsewhere=(1, "lengths")),
    op("pad_sequence", "data movement"),
    op("_pad_packed_sequence", "data movement", elsewhere=(1, "batch_sizes")),
]
