"""Rows of ops that compute nothing: views, data movement, creation, random draws, questions about tensors."""

from __future__ import annotations

from .row import OpRow, op, ops
from .rules import elementwise, reduction, zero

ROWS: list[OpRow] = [
    *ops(
        "view",
        None,
        "_conj _fw_primal _indices _make_dual _neg_view _reshape_alias _unpack_dual _values adjoint alias as_strided "
        "broadcast_tensors broadcast_to ccol_indices chunk col_indices conj crow_indices detach diagonal dsplit expand "
        "expand_as flatten hsplit imag indices lift lift_fresh linalg_diagonal mH mT matrix_H moveaxis movedim narrow "
        "numpy_T permute positive ravel real reshape reshape_as resolve_conj resolve_neg row_indices select slice "
        "slice_inverse split split_with_sizes squeeze swapaxes swapdims t tensor_split transpose unbind unflatten "
        "unfold unsqueeze values view view_as view_as_complex view_as_real vsplit atleast_1d atleast_2d atleast_3d "
        "unsafe_chunk unsafe_split unsafe_split_with_sizes _unsafe_view data _autocast_to_full_precision "
        "_autocast_to_reduced_precision set _sparse_broadcast_to _test_autograd_multiple_dispatch_view "
        "unflatten_dense_tensors _mkldnn_reshape _mkldnn_transpose",
    ),
    op("pad", "data movement", python=("pad",)),
    op("im2col", "data movement", python=("unfold",)),
    # overlapping blocks are added up
    op("col2im", "reduction", reduction, python=("fold",)),
    *ops(
        "data movement",
        None,
        "clone contiguous copy _copy_from _copy_from_and_resize _to_copy to to_dense to_sparse to_mkldnn type_as "
        "_cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _to_cpu _to_dense "
        "_to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr chalf pin_memory _pin_memory "
        "cat concat concatenate stack _stack _chunk_cat hstack vstack dstack column_stack row_stack block_diag repeat "
        "repeat_interleave tile roll rot90 flip fliplr flipud gather gather_backward index index_select "
        "index_select_backward _unsafe_index _unsafe_masked_index index_put _index_put_impl _unsafe_index_put "
        "index_copy index_fill take take_along_dim put scatter masked_select_backward masked_scatter "
        "masked_scatter_backward select_scatter slice_scatter diagonal_scatter as_strided_scatter select_backward "
        "slice_backward diagonal_backward unfold_backward value_selecting_reduction_backward cummaxmin_backward "
        "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d _pad_circular _pad_enum channel_shuffle native_channel_shuffle pixel_shuffle "
        "pixel_unshuffle tril triu diag diag_embed diagflat fill_diagonal_ nonzero nonzero_numpy "
        "argwhere cartesian_prod combinations meshgrid flatten_dense_tensors fft_fftshift fft_ifftshift "
        "trace_backward resize resize_as _resize_output _lazy_clone _reshape_copy coalesce _coalesce sparse_mask "
        "dequantize quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel int_repr "
        "nested_to_padded_tensor to_padded_tensor _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned "
        "quantized::linear_prepack quantized::linear_unpack _foreach_copy _foreach_clone copy_sparse_to_sparse "
        "mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight",
    ),
    *ops(
        "data movement",
        None,
        "_conj_copy _fw_primal_copy _indices_copy _make_dual_copy _neg_view_copy _reshape_alias_copy _values_copy "
        "alias_copy as_strided_copy ccol_indices_copy col_indices_copy crow_indices_copy detach_copy diagonal_copy "
        "expand_copy indices_copy lift_fresh_copy narrow_copy permute_copy row_indices_copy select_copy slice_copy "
        "split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy "
        "values_copy view_as_complex_copy view_as_real_copy view_copy",
    ),
    op("nonzero_static", "data movement", probe=True),
    op("masked_select", "data movement", values_backward=True),
    # writes that add up: one addition per source element at most
    *ops("reduction", elementwise, "scatter_add scatter_reduce index_add index_reduce"),
    *ops("reduction", reduction, "_unsafe_masked_index_put_accumulate"),
    *ops(
        "reduction",
        reduction,
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
        "replication_pad2d_backward replication_pad3d_backward",
    ),
    *ops(
        "creation",
        None,
        "arange as_tensor bartlett_window blackman_window complex empty empty_like empty_permuted empty_quantized "
        "empty_strided eye fft_fftfreq fft_rfftfreq fill from_file full full_like hamming_window hann_window "
        "kaiser_window linspace logspace new_empty new_empty_strided new_full new_ones new_zeros ones ones_like range "
        "scalar_tensor _sparse_coo_tensor_with_dims_and_tensors "
        "sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor "
        "sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zero zeros zeros_like "
        "_efficientzerotensor _foreach_zero _empty_affine_quantized _empty_per_channel_affine_quantized _dim_arange "
        "_new_zeros_with_same_feature_meta _shape_as_tensor",
    ),
    *ops(
        "random",
        zero,
        "bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson rand "
        "rand_like randint randint_like randn randn_like random randperm uniform _sample_dirichlet _standard_gamma "
        "_cudnn_init_dropout_state _philox_normal _philox_uniform _philox_key_fold_in _philox_key_split "
        "_sobol_engine_draw _sobol_engine_ff_ _sobol_engine_initialize_state_ _sobol_engine_scramble_ "
        "_fill_mem_eff_dropout_mask_",
    ),
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
        "item _local_scalar_dense is_nonzero is_complex is_conj is_contiguous is_distributed is_floating_point "
        "is_inference is_leaf is_neg is_pinned is_same_size is_set_to is_signed is_coalesced is_vulkan_available dim "
        "numel element_size size stride storage_offset sym_numel sym_size sym_storage_offset sym_stride "
        "sym_is_contiguous sym_constrain_range sym_constrain_range_for_size get_device output_nr result_type "
        "promote_types can_cast dense_dim sparse_dim _dimI _dimV _nnz qscheme q_scale q_zero_point q_per_channel_axis "
        "q_per_channel_scales q_per_channel_zero_points record_stream requires_grad_ retain_grad retains_grad "
        "set_data _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async "
        "_functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size "
        "_has_same_storage_numel _has_compatible_shallow_copy_type _is_zerotensor _version _backward backward "
        "cudnn_is_acceptable _debug_has_internal_overlap _print _make_dep_token _nnpack_available _use_cudnn_ctc_loss "
        "_use_miopen_ctc_loss _use_cudnn_rnn_flatten_weight _coalesced prim::device prim::dtype prim::layout "
        "prim::is_cpu prim::is_cuda prim::is_meta prim::is_mkldnn prim::is_nested prim::is_quantized prim::is_sparse "
        "prim::is_sparse_csr prim::itemsize prim::nbytes prim::requires_grad",
    ),
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
