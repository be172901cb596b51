"""Public names of torch_npu (its own list of what it promises to keep), by module. Names only."""

NAMES = {
    "torch_npu": (
        "HiFloat8Tensor erase_stream fast_gelu matmul_checksum npu_anchor_response_flags npu_anti_quant "
        "npu_batch_nms npu_bmmV2 npu_bounding_box_decode npu_bounding_box_encode npu_ciou npu_confusion_transpose "
        "npu_conv3d npu_deformable_conv2d npu_diou npu_dropout_with_add_softmax npu_dynamic_quant "
        "npu_dynamic_quant_asymmetric npu_fast_gelu npu_format_cast npu_fused_attention_score npu_geglu npu_gelu "
        "npu_giou npu_grid_assign_positive npu_group_norm_silu npu_group_quant npu_incre_flash_attention "
        "npu_indexing npu_iou npu_linear npu_lstm npu_max npu_mm_all_reduce_base npu_moe_compute_expert_tokens "
        "npu_moe_finalize_routing npu_multi_head_attention npu_nms_v4 npu_nms_with_mask npu_one_hot npu_pad "
        "npu_prompt_flash_attention npu_ps_roi_pooling npu_quantize npu_rms_norm npu_roi_align npu_rotary_mul "
        "npu_rotated_iou npu_rotated_overlaps npu_scaled_masked_softmax npu_scatter_nd_update npu_sign_bits_pack "
        "npu_sign_bits_unpack npu_slice npu_softmax_cross_entropy_with_logits npu_stride_add npu_transpose "
        "npu_weight_quant_batchmatmul npu_yolo_boxes_encode"
    ).split(),
    "torch_npu.contrib": (
        "ChannelShuffle Focus LabelSmoothingCrossEntropy LinearA8W8Quant LinearQuant LinearWeightQuant "
        "ModulatedDeformConv MultiheadAttention NpuCachedDropout NpuDropPath NpuFairseqDropout PSROIPool "
        "Prefetcher ROIAlign matmul_transpose npu_batched_multiclass_nms npu_bbox_coder_decode_xywh2xyxy "
        "npu_bbox_coder_encode_xyxy2xywh npu_bbox_coder_encode_yolo npu_fast_condition_index_put "
        "npu_fused_attention npu_fused_attention_with_layernorm npu_multiclass_nms "
        "npu_single_level_responsible_flags roll"
    ).split(),
    "torch_npu.distributed": (
        "all_gather_into_tensor_uneven is_available is_hccl_available reduce_scatter_tensor_uneven reinit_process_group"
    ).split(),
    "torch_npu.npu": (
        "BFloat16Storage BFloat16Tensor BoolStorage BoolTensor ByteStorage ByteTensor CharStorage CharTensor "
        "CubeMathType DoubleStorage DoubleTensor Event ExternalEvent ExternalStream FloatStorage FloatTensor "
        "HalfStorage HalfTensor IntStorage IntTensor LongStorage LongTensor MemPool NPUGraph "
        "NPUPluggableAllocator NpuGraphOpHandler ShortStorage ShortTensor Stream StreamContext SyncLaunchStream "
        "are_compatible_impl_enabled caching_allocator_alloc caching_allocator_delete can_device_access_peer "
        "change_current_allocator check_uce_in_memory clear_npu_overflow_flag config conv current_blas_handle "
        "current_device current_stream default_stream device device_count device_of "
        "disable_deterministic_with_backward empty_cache empty_virt_addr_cache enable_deterministic_with_backward "
        "finalize_dump get_allocator_backend get_amp_supported_dtype get_autocast_dtype get_device_capability "
        "get_device_limit get_device_name get_device_properties get_mm_bmm_format_nd get_npu_overflow_flag "
        "get_per_process_memory_fraction get_rng_state get_rng_state_all get_stream_limit get_sync_debug_mode "
        "graph graph_pool_handle graph_task_group_begin graph_task_group_end graph_task_update_begin "
        "graph_task_update_end host_empty_cache host_memory_stats host_memory_stats_as_nested_dict init init_dump "
        "initial_seed ipc_collect is_autocast_enabled is_available is_bf16_supported is_current_stream_capturing "
        "is_initialized is_jit_compile_false make_graphed_callables manual_seed manual_seed_all matmul "
        "max_memory_allocated max_memory_cached max_memory_reserved mem_get_info memory_allocated memory_cached "
        "memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary mstx npurt "
        "obfuscation_calculate obfuscation_finalize obfuscation_initialize register_npu_graph_handler "
        "reset_accumulated_host_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated "
        "reset_max_memory_cached reset_peak_host_memory_stats reset_peak_memory_stats reset_stream_limit "
        "restart_device seed seed_all set_aoe set_autocast_dtype set_autocast_enabled set_compile_mode "
        "set_deterministic_level set_device set_device_limit set_dump set_mm_bmm_format_nd set_op_timeout_ms "
        "set_option set_per_process_memory_fraction set_rng_state set_rng_state_all set_stream set_stream_limit "
        "set_sync_debug_mode stop_device stream stress_detect super_kernel_scope_begin super_kernel_scope_end "
        "synchronize use_compatible_impl use_mem_pool utilization"
    ).split(),
    "torch_npu.npu.amp": ("GradScaler autocast custom_bwd custom_fwd").split(),
    "torch_npu.npu.memory": (
        "MemPool NPUPluggableAllocator caching_allocator_alloc caching_allocator_delete change_current_allocator "
        "empty_cache empty_virt_addr_cache get_allocator_backend get_per_process_memory_fraction host_empty_cache "
        "host_memory_stats host_memory_stats_as_nested_dict max_memory_allocated max_memory_cached "
        "max_memory_reserved memory_allocated memory_cached memory_reserved memory_snapshot memory_stats "
        "memory_stats_as_nested_dict memory_summary reset_accumulated_host_memory_stats "
        "reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached "
        "reset_peak_host_memory_stats reset_peak_memory_stats set_per_process_memory_fraction use_mem_pool"
    ).split(),
    "torch_npu.npu.random": (
        "get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all set_rng_state "
        "set_rng_state_all"
    ).split(),
    "torch_npu.optim": (
        "NpuFusedAdadelta NpuFusedAdam NpuFusedAdamP NpuFusedAdamW NpuFusedBertAdam NpuFusedLamb "
        "NpuFusedOptimizerBase NpuFusedRMSprop NpuFusedRMSpropTF NpuFusedSGD"
    ).split(),
    "torch_npu.profiler": (
        "AiCMetrics ExportType HostSystem ProfilerAction ProfilerLevel _ExperimentalConfig profile schedule "
        "supported_activities supported_ai_core_metrics supported_export_type supported_profiler_level "
        "tensorboard_trace_handler"
    ).split(),
    "torch_npu.utils": (
        "FlopsCounter get_cann_version get_part_combined_tensor is_combined_tensor_valid npu_combine_tensors "
        "reset_thread_affinity save_async set_thread_affinity"
    ).split(),
}
