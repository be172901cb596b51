"""Which tests are near which file of the engine: those that a mutant of that file meets (tests/mutants.py)."""

from __future__ import annotations

import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What is changed, and the tests that are near it, quick ones first: the first that fits counts.
NEAREST = {
    "_ext/acl*.pyx": "npu/test_binding.py npu/test_aclnn.py npu/test_aclnn_calls.py npu/test_deterministic.py"
    " npu/test_kernel_rows.py npu/test_unkind.py",
    "_ext/allocator.pyx": "npu/test_allocator.py npu/test_memory.py npu/test_copies.py npu/test_faults.py"
    " npu/test_load.py",
    "_ext/attributes.pyx": "test_lazy_tensor.py test_lazy_plain_programs.py estimate/test_accelerator.py",
    "_ext/audit.pyx": "estimate/test_private_files.py",
    "_ext/balance.pyx": "profile/test_balance.py profile/test_memory.py profile/test_cuda.py profile/test_peak.py"
    " profile/test_made_of.py npu/test_profile.py",
    "_ext/blocks.pyx": "npu/test_memory.py npu/test_copies.py npu/test_faults.py",
    "_ext/collect.pyx": "profile/test_failing_ops.py profile/test_times_apart.py profile/test_nested.py"
    " profile/test_lazy.py profile/test_as_plain.py profile/test_memory.py profile/test_inclusive.py"
    " profile/test_report.py profile/test_lines.py profile/test_peak.py profile/test_compiling.py"
    " profile/test_surroundings.py profile/test_waiting.py profile/test_finding_inputs.py"
    " profile/test_waiting_shared.py profile/test_api.py npu/test_profile.py",
    "_ext/context.pyx": "ext/test_context_model.py ext/test_context.py semantics profile/test_nested.py",
    "_ext/dispatch.pyx": "ext/test_dispatch.py test_lazy_tensor.py",
    "_ext/divided.pyx": "remote/test_divided.py remote/test_placing.py",
    "_ext/encoder.pyx": "remote/test_wire.py remote/test_messages.py remote/test_loopback.py remote/test_operators.py",
    "_ext/forms.pyx": "test_passes.py test_segment_hooks.py test_cache.py programs/test_passes.py",
    "_ext/frames.pyx": "remote/test_pipe.py remote/test_slow_network.py",
    "_ext/function_entries.pyx": "test_lazy_function_entries.py test_lazy_methods.py",
    "_ext/guards.pyx": "ext/test_guards.py test_lazy_modes.py test_lazy_transforms.py",
    "_ext/hits.pyx": "profile/test_hits.py",
    "_ext/hooks.pyx": "test_lazy_surroundings.py test_lazy_creation.py test_lazy_wrappers.py"
    " estimate/test_estimating.py",
    "_ext/intercept.pyx": "test_lazy_tensor.py test_lazy_function_entries.py test_lazy_modes.py"
    " test_lazy_autograd_writes.py test_lazy_mistakes.py test_lazy_eager.py test_lazy_products.py"
    " test_lazy_view_chains.py test_lazy_shortcuts.py test_limits.py programs/test_programs.py"
    " estimate/test_as_written.py estimate/test_known.py",
    "_ext/in_flight.pyx": "npu/test_failing_calls.py npu/test_profile.py",
    "_ext/intern.pyx": "ext/test_tape.py ext/test_tables.py test_execute.py test_lazy_tensor.py"
    " programs/test_programs.py",
    "_ext/interpreter.pyx": "ext/test_interpreter.py ext/test_context.py",
    "_ext/shortcuts.pyx": "test_lazy_shortcuts.py test_lazy_shortcuts_around.py test_lazy_view_chains.py",
    "_ext/catching.pyx": "test_native_calls.py",
    "_ext/module_state.pyx": "test_generation.py test_generation_caches.py",
    "_ext/native_calls.pyx": "test_native_calls.py",
    "_ext/native_views.pyx": "test_lazy_shortcuts_around.py test_lazy_shortcuts.py test_native_calls.py",
    "_ext/local_state.pyx": "test_lazy_shortcuts_around.py test_lazy_modes.py",
    "_ext/kept_wrappers.pyx": "test_lazy_kept_wrappers.py",
    "_ext/keys.pyx": "test_lazy_function_entries.py test_lazy_products.py test_lazy_floats.py test_lazy_mistakes.py"
    " ext/test_tables.py programs/test_programs.py test_meta.py test_lazy_transforms.py test_lazy_protocol.py",
    "_ext/labels.pyx": "profile/test_inclusive.py profile/test_times_apart.py profile/test_estimate.py"
    " profile/test_lines.py",
    "_ext/layout.pyx": "ext/test_shapes_of_each.py ext/test_shapes_nearby.py ext/test_shapes.py test_lazy_layouts.py"
    " test_meta.py programs/test_programs.py",
    "_ext/lazy.pyx": "ext/test_tape.py test_lazy_tensor.py test_limits.py test_incremental.py test_failures.py"
    " estimate/test_known.py remote/test_loopback.py programs/test_programs.py",
    "_ext/ledger.pyx": "ext/test_ledger.py profile/test_memory_estimate.py estimate/test_estimating.py"
    " conformance/test_estimate.py profile/test_estimate.py",
    "_ext/location.pyx": "ext/test_location.py ext/test_context.py profile/test_lines.py",
    "_ext/looking.pyx": "profile/test_waiting.py profile/test_lines.py profile/test_data_loading.py"
    " profile/test_iterations.py estimate/test_host_time.py",
    "_ext/op*.pyx": "profile/test_report.py",
    "_ext/overlap.pyx": "test_lazy_overlap.py",
    "_ext/named_forwards.pyx": "semantics/test_named_forwards.py",
    "_ext/node_log.pyx": "semantics/test_modules.py semantics/test_named_forwards.py ext/test_context.py",
    "_ext/paths.pyx": "ext/test_context.py ext/test_context_model.py semantics profile/test_owners.py",
    "_ext/plan_steps.pyx": "remote/test_repeated_plans.py remote/test_native_plans.py",
    "_ext/pool.pyx": "npu/test_binding.py npu/test_streams.py npu/test_events.py npu/test_memory.py"
    " npu/test_failing_calls.py npu/test_cann_releases.py npu/test_unkind.py npu/test_load.py",
    "_ext/registry.pyx": "test_lazy_operators.py test_lazy_surroundings.py",
    "_ext/replay.pyx": "test_execute.py test_lazy_autograd_writes.py test_failures.py test_cache.py test_passes.py"
    " remote/test_spread.py remote/test_placing.py programs/test_programs.py",
    "_ext/rowtable.pyx": "profile/test_rows.py profile/test_times_apart.py profile/test_report.py",
    "_ext/sampler.pyx": "profile/test_waiting.py profile/test_lines.py",
    "_ext/signals.pyx": "test_signals.py",
    "_ext/standin.pyx": "ext/test_standin.py test_lazy_surroundings.py",
    "_ext/streams.pyx": "npu/test_streams.py npu/test_events.py npu/test_compat.py npu/test_binding.py",
    "_ext/tape.pyx": "ext/test_tape.py test_limits.py test_execute.py test_incremental.py test_failures.py"
    " ext/test_tables.py programs/test_programs.py",
    "_ext/template.pyx": "ext/test_tables.py test_lazy_products.py test_lazy_tensor.py remote/test_loopback.py"
    " programs/test_programs.py",
    "_ext/timeline.pyx": "profile/test_rows.py profile/test_times_apart.py profile/test_lazy.py profile/test_report.py",
    "_ext/view_chains.pyx": "test_lazy_view_chains.py",
    "_ext/*.pyx": "ext/test_shapes_numbers.py ext/test_shapes_of_each.py ext/test_shapes_nearby.py ext/test_shapes.py"
    " test_meta.py",
    "engine/cache/where_kept.py engine/remote/kept_values.py": "remote/test_kept_values.py remote/test_kept_draws.py"
    " remote/test_kept_on_several.py test_cache.py",
    "engine/cache/*": "test_cache_shelves.py test_cache_names.py test_cache.py",
    "engine/execute/device_copies.py engine/execute/cuda.py": "test_execute_cuda.py test_lazy_transforms.py"
    " remote/test_spread.py",
    "engine/execute/ambient.py": "remote/test_settings.py test_cache_names.py test_lazy_modes.py",
    "engine/execute/pace.py": "test_pace.py",
    "engine/execute/around_segments.py engine/execute/wrapping.py": "test_segment_hooks.py remote/test_changing.py",
    "engine/execute/lent_storages.py": "remote/test_lent_storages.py",
    "engine/execute/triggers.py": "test_execute.py test_lazy_tensor.py test_incremental.py test_limits.py",
    "engine/execute/tensors.py": "test_lazy_tensor.py test_lazy_methods.py test_lazy_modules.py test_lazy_storage.py"
    " test_lazy_transforms.py test_lazy_sparse.py remote/test_loopback.py estimate/test_loading.py",
    "engine/execute/mapped_files.py": "remote/test_files.py test_lazy_safetensors.py",
    "engine/execute/local.py": "test_pace.py test_execute.py test_incremental.py test_failures.py test_limits.py"
    " programs/test_programs.py",
    "engine/execute/machine.py": "test_lazy_devices.py test_limits.py test_device_module.py",
    "engine/execute/*": "test_execute.py test_incremental.py test_failures.py test_limits.py"
    " remote/test_lost_writes.py programs/test_programs.py",
    "engine/passes/calling.py": "test_native_layouts.py test_native_calls.py",
    "engine/passes/native.py": "test_native_layouts.py test_native_calls.py",
    "engine/passes/*": "test_passes.py test_passes_functions.py test_passes_values.py programs/test_passes.py",
    "engine/record/arguments.py engine/record/eager.py": "test_lazy_operators.py test_lazy_eager.py"
    " test_lazy_autograd_writes.py test_lazy_sparse.py test_lazy_errors.py test_meta.py remote/test_loopback.py"
    " estimate/test_accelerator.py programs/test_programs.py",
    "engine/record/gradients.py engine/record/unwrapping.py": "test_lazy_autograd.py test_lazy_transforms.py"
    " semantics/test_phases.py",
    "engine/record/handlers.py": "test_lazy_handlers.py test_lazy_tensor.py test_lazy_creation.py test_lazy_methods.py"
    " test_lazy_storage.py test_lazy_late_errors.py test_lazy_operators.py test_lazy_autograd.py estimate/test_known.py"
    " test_lazy_sparse.py programs/test_programs.py",
    "engine/record/plain_operands.py": "test_lazy_meeting.py cli/test_cli_run_devices.py",
    "engine/record/intercept.py": "test_lazy_function_entries.py test_lazy_meeting.py test_lazy_tensor.py"
    " test_lazy_transforms.py test_lazy_operators.py test_lazy_modes.py test_lazy_modules.py",
    "engine/record/meta.py": "test_meta.py estimate/test_type_as.py estimate/test_old_constructors.py"
    " estimate/test_accelerator.py",
    "engine/record/mixing.py engine/record/placed.py": "test_lazy_joined.py test_lazy_sparse.py"
    " conformance/test_mixing.py test_lazy_mistakes.py test_lazy_transforms.py test_lazy_devices.py",
    "engine/record/integer_views.py": "test_lazy_autograd_writes.py",
    "engine/record/lists.py": "remote/test_placing.py remote/test_spread.py",
    "engine/record/sequences.py engine/record/kernel_sizes.py": "test_lazy_sequences.py test_lazy_devices.py",
    "engine/record/predict.py": "test_lazy_predict.py test_lazy_modules.py test_lazy_products.py"
    " test_lazy_layouts.py test_lazy_mistakes.py test_lazy_late_errors.py test_lazy_operators.py test_meta.py"
    " programs/test_programs.py",
    "engine/record/shrink.py engine/record/trial.py": "test_lazy_small_copies.py test_lazy_layouts.py"
    " test_lazy_late_errors.py",
    "engine/record/*": "test_lazy_layouts.py test_lazy_mistakes.py test_lazy_late_errors.py test_lazy_operators.py",
    "engine/remote/speculation.py": "remote/test_guesses.py remote/test_speculation.py remote/test_native_plans.py",
    "engine/remote/growth.py engine/remote/upcoming.py": "remote/test_growth.py remote/test_placing.py",
    "engine/remote/repeated.py": "remote/test_repeated.py remote/test_placing.py",
    "engine/remote/run_time.py": "remote/test_run_time.py remote/test_cut_numbers.py remote/test_placing.py",
    "engine/remote/slices.py": "remote/test_slice_bounds.py remote/test_slices.py remote/test_placing.py",
    "engine/remote/replicas.py": "remote/test_replicas.py remote/test_placing.py",
    "engine/remote/set_aside.py": "remote/test_worker.py remote/test_no_memory.py",
    "engine/remote/plan_calls.py": "remote/test_plan_calls.py remote/test_repeated_plans.py"
    " remote/test_native_plans.py remote/test_worker.py",
    "engine/remote/sent_segments.py": "remote/test_plans.py remote/test_session.py remote/test_loopback.py"
    " remote/test_messages.py",
    "engine/remote/generator_states.py": "remote/test_kept_draws.py remote/test_speculation.py remote/test_messages.py",
    "engine/remote/held_storages.py engine/remote/results.py": "remote/test_held_storages.py remote/test_worker.py"
    " remote/test_loopback.py"
    " remote/test_messages.py remote/test_no_memory.py remote/test_operators.py",
    "engine/remote/cuts.py": "remote/test_cut_numbers.py remote/test_cuts.py remote/test_placing.py",
    "engine/remote/storage_homes.py": "remote/test_homes.py remote/test_division.py remote/test_placing.py",
    "engine/remote/pricing.py": "remote/test_cut_numbers.py remote/test_repeated.py remote/test_cuts.py"
    " remote/test_same_plans.py",
    "engine/remote/division.py": "remote/test_division.py remote/test_placing.py",
    "engine/remote/placing.py engine/remote/pending_uploads.py": "remote/test_limits_of_workers.py"
    " remote/test_same_plans.py remote/test_placing.py"
    " remote/test_growth.py",
    "engine/remote/spread.py engine/remote/postponed_moves.py engine/remote/moved_values.py": "remote/test_spread.py"
    " remote/test_placing.py remote/test_what_moves.py remote/test_changing.py",
    "engine/remote/functions.py": "remote/test_functions.py remote/test_wire.py remote/test_loopback.py"
    " remote/test_checks.py",
    "engine/remote/checks.py engine/remote/wire.py": "remote/test_wire.py remote/test_loopback.py"
    " remote/test_checks.py",
    "engine/remote/child.py engine/remote/pipe.py engine/remote/hello.py": "remote/test_pipe.py",
    "engine/remote/failures.py engine/remote/exchange.py": "remote/test_session.py remote/test_lost_writes.py"
    " remote/test_pipe.py remote/test_loopback.py remote/test_messages.py remote/test_overlap.py"
    " remote/test_settings.py",
    "engine/remote/worker.py engine/remote/shared_storages.py engine/remote/host_fallback.py"
    " engine/remote/client.py": "remote/test_worker.py remote/test_repeated_plans.py"
    " remote/test_loopback.py remote/test_messages.py"
    " remote/test_overlap.py remote/test_settings.py remote/test_changing.py remote/test_files.py"
    " remote/test_operators.py remote/test_spread.py remote/test_placing.py",
    "engine/remote/mirrors.py": "remote/test_mirrors.py remote/test_loopback.py remote/test_messages.py",
    "engine/remote/plans.py engine/remote/definitions.py": "remote/test_plans.py remote/test_loopback.py"
    " remote/test_messages.py",
    "engine/remote/reads.py engine/remote/small_values.py": "remote/test_reads.py remote/test_loopback.py"
    " remote/test_messages.py",
    "engine/remote/uploads.py engine/remote/sent_contents.py engine/remote/progress.py": "remote/test_uploads.py"
    " remote/test_files.py remote/test_loopback.py",
    "engine/remote/replies.py": "remote/test_answers.py remote/test_replies.py remote/test_loopback.py",
    "engine/remote/lineage.py": "remote/test_session.py cluster/test_lineage.py",
    "engine/remote/*": "remote/test_loopback.py remote/test_messages.py remote/test_overlap.py remote/test_settings.py"
    " remote/test_changing.py",
    "engine/semantics/generation.py engine/semantics/cache_growth.py"
    " engine/semantics/snapshots.py": "semantics/test_cache_growth.py test_generation.py test_generation_caches.py",
    "engine/semantics/no_gradients.py": "profile/test_findings_no_grad.py",
    "engine/semantics/*": "semantics profile/test_owners.py profile/test_iterations.py",
    "engine/tensor/*": "test_lazy_classes.py test_lazy_tensor.py test_lazy_protocol.py",
}


def nearest(path: str) -> list[str]:
    """The tests near a file."""
    for patterns, tests in NEAREST.items():
        if any(fnmatch.fnmatch(path.removeprefix("mindtorch/"), pattern) for pattern in patterns.split()):
            found = [ROOT / "tests" / name for name in tests.split()]
            files = [file for at in found for file in (sorted(at.glob("test_*.py")) if at.is_dir() else [at])]
            return [str(file.relative_to(ROOT)) for file in files]
    raise SystemExit(f"{path}: no tests are said to be near it")
