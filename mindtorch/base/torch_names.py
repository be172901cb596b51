"""The names inside torch that mindtorch relies on, with what stands in where a release has one no more.

A row: the name; what of `slower_ways` is put in its place; what that costs; what an object of that name has to be, on a
release that nobody has run the tests with. `torch_facts` goes through them when mindtorch is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

#: Releases that the whole suite was run with. Others work, too: what they lack is done the slower way.
RELEASES = ("2.12", "2.13", "2.14", "2.15")

#: Arguments of ops that some of these call otherwise than the others: (the one name, the name that mindtorch uses).
RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    "aten::_cdist_backward": (("grad_output", "grad"),),  # since 2.15
}


class Fact(NamedTuple):
    """A name inside torch."""

    name: str
    way: str
    lost: str
    proves: Callable[[Any], bool]


def there(found: Any) -> bool:
    return True


def calls(found: Any) -> bool:
    return callable(found)


def counts(found: Any) -> bool:
    return type(found()) is int


def answers(found: Any) -> bool:
    return type(found()) is bool


is_class = inspect.isclass


def is_list(found: Any) -> bool:
    return isinstance(found, list)


FACTS: tuple[Fact, ...] = (
    # ---- what is going on: modes, autocast, transforms, gradients
    Fact("torch._C._len_torch_function_stack", "count_function_modes", "function modes are counted in Python", counts),
    Fact("torch._C._get_function_stack_at", "function_mode_at", "function modes are looked up in Python", calls),
    Fact("torch._C._is_torch_function_enabled", "functions_seen", "whether functions are seen is tested by a call",
         answers),
    Fact("torch._C._is_torch_function_all_disabled", "modes_unseen", "whether modes see functions is tested by a call",
         answers),
    Fact("torch._C._len_torch_dispatch_stack", "count_dispatch_modes", "dispatch modes are counted in Python", counts),
    Fact("torch._C._push_on_torch_dispatch_stack", "enter_dispatch_mode", "dispatch modes are entered in Python",
         calls),
    Fact("torch._C._pop_torch_dispatch_stack", "leave_dispatch_mode", "dispatch modes are left in Python", calls),
    Fact("torch._ops._len_torch_dispatch_stack_pre_dispatch", "none_early", "tracers' own modes are not switched off",
         counts),
    Fact("torch.utils._python_dispatch._get_current_dispatch_mode_stack", "dispatch_modes",
         "dispatch modes are listed one by one", calls),
    Fact("torch.utils._python_dispatch._push_mode", "push_mode", "dispatch modes are entered past torch's Python",
         calls),
    Fact("torch.utils._python_dispatch._pop_mode", "pop_mode", "dispatch modes are left past torch's Python", calls),
    Fact("torch.utils._python_dispatch._disable_current_modes", "no_modes", "tracers' own modes are not switched off",
         calls),
    Fact("torch.utils._python_dispatch.is_traceable_wrapper_subclass", "is_wrapper",
         "wrapper classes are asked directly", calls),
    Fact("torch.overrides._get_current_function_mode_stack", "function_modes", "function modes are listed one by one",
         calls),
    Fact("torch._C._is_any_autocast_enabled", "any_autocast", "autocast is asked device by device", answers),
    Fact("torch._C._DisableAutocast", "NoAutocast", "autocast is switched off device by device", calls),
    Fact("torch._C._set_grad_enabled", "set_grad", "grad mode is set in Python", calls),
    Fact("torch._C._InferenceMode", "inference_mode", "inference mode is set in Python", calls),
    Fact("torch._C.DisableTorchFunction", "NoFunctions", "functions are hidden from modes in Python", calls),
    Fact("torch._C.DisableTorchFunctionSubclass", "NoSubclasses", "functions are hidden from classes in Python", calls),
    Fact("torch._C._DisableTorchDispatch", "NoDispatch", "kernels are hidden from classes in Python", calls),
    Fact("torch._C._current_graph_task_id", "task_unknown", "gradients of masked_select may have other strides",
         counts),
    Fact("torch._C._current_autograd_node", "no_node", "ops in backward have no module", calls),
    Fact("torch._C._autograd._get_sequence_nr", "zero", "ops in backward have no module", counts),
    Fact("torch.autograd.forward_ad._current_level", "no_level_of_ad", "every call is treated as forward-mode AD",
         there),
    # ---- torch.func
    Fact("torch._C._functorch.peek_interpreter_stack", "transform_level", "transforms are looked up by their level",
         calls),
    Fact("torch._C._DisableFuncTorch", "NoTransforms", "transforms are left in Python", calls),
    Fact("torch._C._functorch.is_functorch_wrapped_tensor", "is_transformed",
         "transformed tensors are asked for their level", calls),
    Fact("torch._C._functorch.get_unwrapped", "refuse torch.func on recorded tensors",
         "no torch.func on recorded tensors", calls),
    Fact("torch._C._functorch.maybe_get_level", "no_level", "no torch.func on recorded tensors", calls),
    Fact("torch._C._functorch.is_functionaltensor", "no", "no functionalize of recorded tensors", calls),
    Fact("torch._functorch.vmap._flat_vmap", "refuse vmap", "random draws under vmap are the CPU's", calls),
    Fact("torch._functorch.vmap._add_batch_dim", "refuse vmap",
         "wrapped recorded tensors report the CPU as their device",
         calls),
    Fact("torch._functorch.eager_transforms._wrap_for_grad", "refuse grad",
         "wrapped recorded tensors report the CPU as their device", calls),
    Fact("torch._functorch.eager_transforms._wrap_functional_tensor", "refuse functionalize",
         "wrapped recorded tensors report the CPU as their device", calls),
    Fact("torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter",
         "refuse functionalize on recorded tensors", "no functionalize of recorded tensors", calls),
    Fact("torch._vmap_internals._vmap", "refuse is_grads_batched", "no is_grads_batched with recorded tensors", calls),
    # ---- the dispatcher
    Fact("torch._C.DispatchKey", "keys", "dispatch keys are looked up by name", there),
    Fact("torch._C._parse_dispatch_key", "key_of", "dispatch keys are looked up in Python", calls),
    Fact("torch._C._dispatch_keys", "keys_of", "batches of gradients are not recognized", calls),
    Fact("torch._C._dispatch_tls_is_dispatch_key_excluded", "is_excluded", "excluded keys are looked up in their set",
         calls),
    Fact("torch._C._dispatch_tls_set_dispatch_key_excluded", "set_excluded", "keys are excluded in Python", calls),
    Fact("torch._C._ForceDispatchKeyGuard", "as_it_is", "views made inside composite ops are not recognized",
         calls),
    Fact("torch._C._dispatch_tls_local_exclude_set", "NoKeys",
         "views made inside composite ops are not recognized", calls),
    Fact("torch._C._dispatch_tls_local_include_set", "NoKeys",
         "views made inside composite ops are not recognized", calls),
    Fact("torch._C._dispatch_has_kernel", "has_kernel", "kernels are looked up in torch's dump of its dispatch table",
         calls),
    Fact("torch._C._dispatch_has_kernel_for_dispatch_key", "has_kernel_for",
         "kernels are looked up in torch's dump of its dispatch table", calls),
    Fact("torch._C._dispatch_has_computed_kernel_for_dispatch_key", "has_computed_kernel_for",
         "kernels are looked up in torch's dump of its dispatch table", calls),
    Fact("torch._C._jit_get_schemas_for_operator", "schemas_of", "schemas are looked up operator by operator", calls),
    Fact("torch._ops.OpOverload", "overload_class", "nothing is lost", is_class),
    Fact("torch._ops.OpOverloadPacket", "packet_class", "nothing is lost", is_class),
    Fact(
        "torch._ops.HigherOrderOperator", "Nothing", "higher-order operators are recognized by what they do", is_class
    ),
    # ---- tensors
    Fact("torch._C.TensorBase", "tensor_base", "nothing is lost", is_class),
    Fact("torch._C.StorageBase", "storage_base", "nothing is lost", is_class),
    Fact("torch._C._VariableFunctions", "functions", "nothing is lost", there),
    Fact("torch._C._disabled_torch_function_impl", "function_impl", "nothing is lost", calls),
    Fact("torch._C._disabled_torch_dispatch_impl", "dispatch_impl", "nothing is lost", calls),
    Fact("torch._C._set_conj", "refuse lazy conjugation", "no lazy conjugation of recorded tensors", calls),
    Fact("torch._C._set_neg", "refuse lazy negation", "no lazy negation of recorded tensors", calls),
    Fact("torch._C._swap_tensor_impl", "refuse moving parameters to another device", "modules cannot be moved", calls),
    Fact("torch._tensor_str._tensor_str", "text_of_values", "values are printed apart from their description",
         calls),
    Fact("torch._tensor_str._add_suffixes", "with_suffixes", "long printed lines are not wrapped", calls),
    Fact("torch._utils._get_obj_state", "state_of", "copies of subclasses keep only their attributes", calls),
    Fact("torch._utils._set_obj_state", "set_state", "copies of subclasses keep only their attributes", calls),
    Fact("torch.nn.parameter._ParameterMeta", "parameter_meta", "nothing is lost", is_class),
    Fact("torch.autograd.grad_mode._force_original_view_tracking", "as_it_is",
         "sparse tensors' views are tracked as torch does", calls),
    Fact("torch._subclasses.fake_tensor.FakeTensor", "Nothing", "tensors of compilers are not recognized", there),
    Fact("torch._subclasses.functional_tensor.FunctionalTensor", "Nothing", "tensors of compilers are not recognized",
         there),
    Fact("torch.nested._internal.nested_tensor.NestedTensor", "NoJagged", "no jagged tensors of recorded ones", there),
    Fact("torch._prims_common.suggest_memory_format", "memory_format", "layouts are found in Python", calls),
    Fact("torch._prims_common.is_non_overlapping_and_dense_or_false", "is_dense", "layouts are found in Python", calls),
    Fact("torch._C._check_sparse_tensor_invariants", "invariants_checked", "one setting is asked for in Python",
         answers),
    Fact("torch._C._construct_storage_from_data_pointer", "refuse tensors on NPUs",
         "no tensors can be made on NPUs", calls),
    Fact("torch._nested_get_values", "refuse values of jagged tensors",
         "values of jagged tensors do not share memory with recorded tensors", calls),
    Fact("torch._C._nn.one_hot", "refuse one_hot", "one_hot is recorded as torch decomposes it", calls),
    Fact("torch._C._nn.pad_sequence", "refuse pad_sequence", "pad_sequence is recorded as torch decomposes it", calls),
    # ---- what is replaced: without it, torch no longer comes by there
    Fact("torch.autograd.graph._engine_run_backward", "backward_of_autograd",
         "backward is counted as the phase before it", there),
    Fact("torch.autograd._engine_run_backward", "backward_of_graph", "backward is counted as the phase before it",
         calls),
    Fact("torch.optim.Optimizer._patch_step_function", "as_it_is",
         "a step that raises is counted until the next one ends", there),
    Fact("torch.autograd.profiler._enable_profiler", "as_it_is", "a report does not say that torch's own profiler ran",
         calls),
    Fact("torch.autograd.profiler._prepare_profiler", "as_it_is", "a report does not say that torch's own profiler ran",
         calls),
    Fact("torch._C._from_dlpack", "refuse torch.from_dlpack", "torch.from_dlpack does not take NPU tensors", calls),
    Fact("torch._utils._rebuild_tensor", "refuse torch.load", "torch.load cannot return recorded tensors", calls),
    Fact("torch.serialization._package_registry", "empty_list", "torch.load cannot return recorded tensors", is_list),
    Fact("torch.fx.experimental.proxy_tensor.HANDLED_TYPES", "empty_tuple",
         "make_fx treats values computed from a recorded tensor as constants", there),
    Fact("torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype", "refuse grouping",
         "clipping treats recorded tensors of several devices as on one", calls),
    Fact("torch.optim.optimizer._group_tensors_by_device_and_dtype", "refuse grouping",
         "optimizers treat recorded tensors of several devices as on one", calls),
    Fact("torch.utils._device._device_constructors", "no_functions", "with torch.device(...) makes plain tensors",
         calls),
    Fact("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "Nothing",
         "workers of a DataLoader fetch values themselves", there),
    Fact("torch.utils.data._utils.collate.default_collate_fn_map", "empty_dict", "no batches of recorded tensors",
         there),
    Fact("torch.jit._trace._trace_impl", "refuse torch.jit.trace", "torch.jit.trace does not refuse recorded tensors",
         calls),
    Fact("torch.jit._trace.trace_module", "refuse torch.jit.trace", "torch.jit.trace does not refuse recorded tensors",
         calls),
)  # fmt: skip
