"""Rows of ops that compute nothing: views, data movement, creation, random draws, questions about tensors."""

from __future__ import annotations

import torch

from . import byte_rules as moved
from . import layout_rules as lay
from .flop_rules import PerArgument, reduction, zero
from .op_row import OpRow, op, ops

ROWS: list[OpRow] = [
    *ops(
        "view",
        None,
        "_unpack_dual positive atleast_1d atleast_2d atleast_3d unsafe_chunk unsafe_split unsafe_split_with_sizes "
        "_unsafe_view unflatten_dense_tensors _mkldnn_reshape _mkldnn_transpose",
    ),
    *ops("view", None, "broadcast_tensors expand_as reshape_as view_as data", anywhere=True),
    *ops("view", None, "flatten reshape", may_copy=True),
    *ops("view", None, "lift lift_fresh set", adopts=True),
    # whose sizes are the numbers
    op("_nested_view_from_jagged", "view", elsewhere=(5, 6, "min_seqlen", "max_seqlen")),
    op("tensor_split", "view", elsewhere=(1, "indices", "indices_or_sections", "tensor_indices_or_sections")),
    op("pad", "data movement", python=True, layout=lay.padded),
    op("im2col", "data movement", python=("unfold",)),
    # overlapping blocks are added up
    op("col2im", "reduction", reduction, python=("fold",)),
    *ops(
        "data movement",
        None,
        "to_sparse to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr "
        "_to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr",
        sizes_from_values=True,
    ),
    *ops(
        "data movement",
        None,
        "clone _copy_from _copy_from_and_resize to_dense to_mkldnn _cast_Byte _cast_Char "
        "_cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _to_cpu _to_dense "
        "chalf _pin_memory "
        "cat concat concatenate stack _stack _chunk_cat hstack vstack dstack column_stack row_stack "
        "block_diag repeat tile rot90 flip fliplr flipud gather_backward index_select_backward "
        "_unsafe_masked_index put masked_select_backward masked_scatter_backward unfold_backward "
        "value_selecting_reduction_backward cummaxmin_backward constant_pad_nd reflection_pad1d "
        "replication_pad1d _pad_circular _pad_enum tril triu diag_embed diagflat fill_diagonal_ "
        "nonzero_numpy argwhere cartesian_prod combinations meshgrid flatten_dense_tensors "
        "trace_backward _lazy_clone _reshape_copy coalesce _coalesce sparse_mask dequantize "
        "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel int_repr "
        "nested_to_padded_tensor to_padded_tensor _nested_tensor_from_mask "
        "_nested_tensor_from_mask_left_aligned quantized::linear_prepack quantized::linear_unpack "
        "_foreach_clone copy_sparse_to_sparse mkldnn_reorder_conv2d_weight "
        "mkldnn_reorder_conv3d_weight",
    ),
    op("roll", "data movement", layout=lay.roll),
    *ops(
        "data movement",
        None,
        "reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d channel_shuffle native_channel_shuffle",
        layout=lay.as_suggested_by(0),
    ),
    *ops("data movement", None, "pixel_shuffle pixel_unshuffle", layout=lay.shuffled),
    op("fft_fftshift", "data movement", layout=lay.centred(False)),
    op("fft_ifftshift", "data movement", layout=lay.centred(True)),
    op("contiguous", "data movement", bytes=moved.conversion, may_copy=True),
    op("copy", "data movement", bytes=moved.AllBut(0), blind=True, anywhere=True),
    op("_to_copy", "data movement", cpu="cast"),
    *ops("data movement", None, "to type_as", bytes=moved.conversion, may_copy=True, anywhere=True),
    *ops("data movement", None, "pin_memory resize _resize_output", bytes=moved.nothing),
    op("repeat_interleave", "data movement", cpu="rows", sizes_from_values=True),
    *ops("data movement", None, "gather take take_along_dim", bytes=moved.part, cpu="gather"),
    op("index", "data movement", bytes=moved.part, cpu="rows", indexed=True, sizes_from_values=True),
    *ops("data movement", None, "index_select _unsafe_index", bytes=moved.part, cpu="rows"),
    op("index_put", "data movement", bytes=moved.index_put, cpu="scatter", indexed=True, layout=lay.put),
    op("_index_put_impl", "data movement", bytes=moved.index_put, cpu="scatter", indexed=True),
    op("_unsafe_index_put", "data movement", bytes=moved.index_put),
    op("index_copy", "data movement", bytes=moved.index_copy, cpu="index_add"),
    op("index_fill", "data movement", bytes=moved.index_fill, cpu="index_add"),
    op("scatter", "data movement", bytes=moved.scatter, cpu="scatter"),
    op("masked_scatter", "data movement", cpu="scatter"),
    op("select_scatter", "data movement", bytes=moved.onto_copy, layout=lay.scattered(torch.select)),
    *ops("data movement", None, "slice_scatter as_strided_scatter", bytes=moved.onto_copy),
    op("diagonal_scatter", "data movement", bytes=moved.onto_copy, layout=lay.scattered(torch.diagonal)),
    *ops("data movement", None, "select_backward slice_backward diagonal_backward", bytes=moved.into_zeros),
    op("diag", "data movement", bytes=moved.part),
    op("nonzero", "data movement", cpu="scatter", sizes_from_values=True),
    op("resize_as", "data movement", bytes=moved.nothing, anywhere=True),
    op("_foreach_copy", "data movement", bytes=moved.AllBut(0), anywhere=True),
    *ops(
        "data movement",
        None,
        "diagonal_copy narrow_copy select_copy slice_copy split_copy split_with_sizes_copy unbind_copy unfold_copy",
        bytes=moved.part,
    ),
    op("nonzero_static", "data movement", probe=True),
    op("masked_select", "data movement", values_backward=True, bytes=moved.part, cpu="gather", sizes_from_values=True),
    # writes that add up: one addition per element that is added
    *ops(
        "reduction",
        PerArgument(1, 2, "index"),
        "scatter_add scatter_reduce",
        bytes=moved.scatter_add,
        cpu="scatter_add",
    ),
    op("index_add", "reduction", PerArgument(1, 3, "source"), bytes=moved.index_add, cpu="index_add"),
    op("index_reduce", "reduction", PerArgument(1, 3, "source"), bytes=moved.index_add),
    *ops("reduction", reduction, "_unsafe_masked_index_put_accumulate"),
    *ops("reduction", reduction, "reflection_pad1d_backward replication_pad1d_backward"),
    *ops(
        "reduction",
        reduction,
        "reflection_pad2d_backward reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward",
        layout=lay.as_suggested_by(1),
    ),
    *ops(
        "creation",
        None,
        "bartlett_window blackman_window eye fft_fftfreq fft_rfftfreq from_file hamming_window hann_window "
        "kaiser_window range scalar_tensor _sparse_coo_tensor_with_dims_and_tensors sparse_bsc_tensor "
        "sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor "
        "tril_indices triu_indices _foreach_zero _empty_per_channel_affine_quantized _dim_arange "
        "_new_zeros_with_same_feature_meta _shape_as_tensor",
    ),
    *ops("creation", None, "arange full ones zeros", cpu="fill"),
    *ops("creation", None, "as_tensor complex linspace logspace tensor", bytes=moved.AllBut()),
    *ops(
        "creation",
        None,
        "empty empty_permuted empty_quantized empty_strided _efficientzerotensor _empty_affine_quantized",
        bytes=moved.nothing,
    ),
    *ops("creation", None, "empty_like new_empty new_empty_strided", bytes=moved.nothing, blind=True),
    op("fill", "creation", bytes=moved.AllBut(0), cpu="fill", blind=True, anywhere=True),
    *ops("creation", None, "full_like new_full new_ones new_zeros ones_like zero zeros_like", cpu="fill", blind=True),
    *ops(
        "random",
        zero,
        "binomial normal_functional _sample_dirichlet _cudnn_init_dropout_state _philox_normal "
        "_philox_uniform _philox_key_fold_in _philox_key_split _sobol_engine_draw _sobol_engine_ff_ "
        "_sobol_engine_initialize_state_ _sobol_engine_scramble_ _fill_mem_eff_dropout_mask_",
    ),
    *ops("random", zero, "poisson _standard_gamma", layout=lay.dense),
    *ops("random", zero, "bernoulli geometric", cpu="bernoulli"),
    *ops("random", zero, "cauchy log_normal randn", cpu="normal"),
    op("normal", "random", zero, cpu="normal", layout=lay.dense),
    *ops("random", zero, "exponential multinomial rand randint randperm uniform", cpu="uniform"),
    op("rand_like", "random", zero, bytes=moved.AllBut(0), cpu="uniform"),
    op("randint_like", "random", zero, bytes=moved.AllBut(0), cpu="uniform", blind=True),
    op("randn_like", "random", zero, bytes=moved.AllBut(0), cpu="normal"),
    op("random", "random", zero, cpu="uniform", blind=True),
    *ops("random", None, "_standard_gamma_grad _dirichlet_grad"),
    # torch's own annotations, seen by dispatch modes
    *ops(
        "other",
        zero,
        "profiler::_record_function_enter profiler::_record_function_enter_new profiler::_record_function_exit",
    ),
    # reading a value, and questions that only need metadata
    *ops(
        "other",
        zero,
        "is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_leaf is_neg is_pinned "
        "is_signed is_coalesced is_vulkan_available dim numel element_size size stride storage_offset sym_numel "
        "sym_size sym_storage_offset sym_stride sym_is_contiguous sym_constrain_range sym_constrain_range_for_size "
        "get_device output_nr promote_types can_cast dense_dim sparse_dim _dimI _dimV _nnz qscheme q_scale "
        "q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points record_stream retains_grad "
        "_assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async _functional_assert_scalar "
        "_functional_sym_constrain_range _functional_sym_constrain_range_for_size _has_same_storage_numel "
        "_is_zerotensor _version _backward cudnn_is_acceptable "
        "_debug_has_internal_overlap _print _make_dep_token _nnpack_available _use_cudnn_ctc_loss "
        "_use_miopen_ctc_loss _use_cudnn_rnn_flatten_weight _coalesced prim::device prim::dtype prim::layout "
        "prim::is_cpu prim::is_cuda prim::is_meta prim::is_mkldnn prim::is_nested prim::is_quantized "
        "prim::is_sparse prim::is_sparse_csr prim::itemsize prim::nbytes prim::requires_grad",
    ),
    *ops("other", zero, "item _local_scalar_dense is_nonzero", bytes=moved.one),
    *ops(
        "other",
        zero,
        "is_same_size is_set_to result_type requires_grad_ retain_grad _has_compatible_shallow_copy_type",
        anywhere=True,
    ),
    op("set_data", "other", zero, bytes=moved.AllBut(0, 1), anywhere=True),
    op("backward", "other", zero, elsewhere=("inputs",)),
    # functions of torch's in Python
    op("torch::backward", "other", elsewhere=("inputs",)),
    *ops("other", None, "torch::grad torch::module_load", anywhere=True),
    op("__setitem__", "other", indexed=True),
    *ops("other", None, "_add_batch_dim _remove_batch_dim", never_whole=True),  # of torch's older vmap: wrappers
    # FSDP2's: writes what it is to gather into the result of the gathering, of which it gives a view
    op("fsdp::all_gather_copy_in", "data movement", writes=(1,)),
    # collectives
    *ops(
        "communication",
        None,
        "c10d::_allgather_base_ c10d::_reduce_scatter_base_ c10d::allgather_ c10d::allgather_coalesced_ "
        "c10d::allgather_into_tensor_coalesced_ c10d::allreduce_ c10d::allreduce_coalesced_ c10d::alltoall_ "
        "c10d::alltoall_base_ c10d::barrier c10d::broadcast_ c10d::check_for_nan c10d::gather_ "
        "c10d::monitored_barrier_ c10d::recv_ c10d::recv_any_source_ c10d::reduce_ c10d::reduce_scatter_ "
        "c10d::reduce_scatter_tensor_coalesced_ c10d::scatter_ c10d::send "
        "_c10d_functional::all_gather_into_tensor _c10d_functional::all_gather_into_tensor_coalesced "
        "_c10d_functional::all_gather_into_tensor_out _c10d_functional::all_reduce "
        "_c10d_functional::all_reduce_coalesced _c10d_functional::all_to_all_single "
        "_c10d_functional::batch_p2p_ops _c10d_functional::broadcast _c10d_functional::irecv "
        "_c10d_functional::isend _c10d_functional::reduce_scatter_tensor "
        "_c10d_functional::reduce_scatter_tensor_coalesced _c10d_functional::reduce_scatter_tensor_out "
        "_c10d_functional::wait_tensor _c10d_functional_autograd::all_gather_into_tensor "
        "_c10d_functional_autograd::all_to_all_single _c10d_functional_autograd::reduce_scatter_tensor",
    ),
]
