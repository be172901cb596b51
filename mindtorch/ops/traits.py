"""Traits that few ops have, by name: what is known of most is a column of their row (`row.OpRow`).

Names are without overload and, where a comment does not say otherwise, with their namespace.
"""

from __future__ import annotations

#: Composite functions that fill tensors or mutate state in ways their schema does not show, or whose replay would
#: depend on state that is not part of the call.
NEVER_WHOLE = frozenset(
    {
        "aten::lstm",
        "aten::gru",
        "aten::rnn_tanh",
        "aten::rnn_relu",
        "aten::batch_norm",
        "aten::instance_norm",
        "aten::fractional_max_pool2d",
        "aten::fractional_max_pool3d",  # draw inside
        "aten::_add_batch_dim",
        "aten::_remove_batch_dim",  # torch's older vmap: wrappers, not values
    }
)
#: What copies its input, or views it, or gives it back, as the arguments and its strides have it.
MAY_COPY = frozenset({"aten::to", "aten::contiguous", "aten::reshape", "aten::flatten", "aten::type_as"})
#: Reductions of which only those without a dimension have another gradient formula for tensor subclasses.
OVER_ALL = frozenset({"aten::max", "aten::min", "aten::median", "aten::nanmedian"})
#: Products whose choice of kernel depends on more than their operands' sizes: see `predict._folds`.
FOLDS = frozenset({"aten::matmul", "aten::linear", "aten::linalg_matmul"})
#: Calls that do not look at the content of their first input.
BLIND = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "randint_like",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "zero_",
        "fill_",
        "copy_",
        "random_",
    )
)
#: Calls whose result may follow from one of their inputs alone: what the elements of that one all have to be.
ABSORBING = {
    **dict.fromkeys(("aten::__and__", "aten::bitwise_and", "aten::logical_and"), False),
    **dict.fromkeys(("aten::__or__", "aten::bitwise_or", "aten::logical_or"), True),
}
#: Without namespace: functions that take tensors of two devices on purpose, or look at sizes and dtypes only.
ANYWHERE = frozenset(
    {
        "copy_",
        "_foreach_copy_",
        "fill_",
        "to",
        "type_as",
        "module_load",
        "set_data",
        "data",
        "grad",
        "requires_grad_",
        "retain_grad_",
        "view_as",
        "reshape_as",
        "expand_as",
        "resize_as_",
        "broadcast_tensors",
        "is_same_size",
        "is_set_to",
        "result_type",
    }
)
#: Without namespace: arguments, by position or name, that may be elsewhere: torch wants lengths and splits on the CPU.
ELSEWHERE: dict[str, frozenset[int | str]] = {
    "ctc_loss": frozenset({2, 3, "input_lengths", "target_lengths"}),
    "_pack_padded_sequence": frozenset({1, "lengths"}),
    "_pad_packed_sequence": frozenset({1, "batch_sizes"}),
    "tensor_split": frozenset({1, "indices", "indices_or_sections", "tensor_indices_or_sections"}),
    "backward": frozenset({"inputs"}),
    "_nested_view_from_jagged": frozenset({5, 6, "min_seqlen", "max_seqlen"}),  # whose sizes are the numbers
    **dict.fromkeys(
        ("_foreach_addcdiv", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcmul_"), frozenset({3, "scalars"})
    ),
}
#: Without namespace: what takes packed sequences, whose batch sizes are on the CPU.
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Without namespace: what takes indices, which may be on the CPU whatever they index.
INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "__getitem__", "__setitem__"})
#: Ops whose schema says "view" although their storage was not made by an op: data given to ``torch.tensor``, ``load``.
ADOPTS = frozenset({"aten::lift_fresh", "aten::lift", "aten::set_"})
#: Without namespace: ops whose result has as many elements as their input has true ones.
SIZES_FROM_VALUES = frozenset(
    "nonzero index masked_select unique _unique2 unique_consecutive unique_dim repeat_interleave bincount".split()
)
