"""Random programs that once differed from eager, cut down, and what was wrong (SPEC L7)."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

import mindtorch
from tests.executors import using

Step = tuple[str, int, int, int]
NO_GRADIENTS = ("no_gradients", 0, 0, 0)

FOUND: dict[str, list[Step]] = {
    # Torch refuses operands that share memory with what is written; prediction gave each a storage of its own.
    "operand_overlaps_what_is_written": [("add_own_part_", 0, 0, 0)],
    "operand_is_what_is_written": [("index_add_", 0, 0, 0)],
    # The kernel resizes ``out=`` before it refuses the call: sizes must follow.
    "refused_out_was_resized": [("max_out", 0, 0, 0)],
    "refused_out_was_resized_on_the_way": [("div_number_", 0, 0, 0), ("cat_out", 0, 0, 0)],
    # A view that waits must not see its base resized by an op that runs at once.
    "view_waits_while_its_base_is_out": [
        NO_GRADIENTS,
        ("as_real", 0, 0, 0),
        ("expand_ones", 1, 1, 1),
        ("cat_out", 1, 1, 0),
        ("clone", 2, 0, 0),
    ],
    "two_names_of_one_value_and_out": [NO_GRADIENTS, ("assign_data", 1, 0, 0), ("sum_out", 0, 0, 0)],
    # Torch's own inner loops advance the versions of what foreach ops write.
    "foreach_versions": [("foreach_add_", 0, 1, 0), ("foreach_mul_", 0, 0, 0)],
    # How far a storage goes is not known from a view of it.
    "as_strided_beyond_the_tensor": [("masked", 1, 0, 0), ("as_strided", 2, 2, 0), ("as_strided", 2, 3, 2)],
    # set_ makes two tensors share a storage that did not before.
    "set_shares_the_storage": [
        NO_GRADIENTS,
        ("cumsum_", 1, 0, 0),
        ("uniform_", 0, 0, 0),
        ("set_", 0, 1, 0),
        ("clamp_", 0, 0, 0),
        ("pow_", 1, 0, 0),
    ],
    # A worker had two tensors for one that a call both read and resized.
    "resized_is_what_is_read": [NO_GRADIENTS, ("sum_out", 0, 0, 0), ("uniform_", 0, 0, 0), ("sum_out", 0, 0, 0)],
    # Lazy negation and conjugation are part of what a view is.
    "negative_view": [("negative_view", 0, 0, 0), ("index", 2, 0, 1), ("softmax", 3, 0, 0), ("mul_", 2, 0, 0)],
    "conjugate_view": [
        ("full", 0, 7, 6),
        ("conj", 2, 0, 0),
        ("imaginary", 3, 1, 0),
        ("contiguous", 3, 0, 0),
        ("mul_number_", 3, 0, 0),
        ("set_item", 3, 0, 0),
    ],
    # Inside a dispatch torch takes both as resolved; ops that had been waiting were run there.
    "negative_view_read_inside_a_dispatch": [("negative_view", 0, 0, 0), ("outer", 1, 2, 0), ("sub_", 1, 0, 0)],
    # A tensor that took a leaf's gradient through another view, or through its base, was taken for a constant.
    "base_of_a_written_view": [
        ("leaf", 0, 0, 0),
        ("zeros_like", 0, 0, 0),
        ("set_item_part", 3, 2, 0),
        ("relu", 3, 0, 0),
        ("scaled", 3, 0, 0),
        ("backward", 4, 0, 1),
    ],
    "view_of_a_written_base": [
        ("leaf", 0, 0, 0),
        ("zeros_like", 0, 0, 0),
        ("select", 3, 0, 0),
        ("mul_", 3, 2, 0),
        ("scaled", 4, 0, 0),
        ("backward", 6, 0, 1),
    ],
    "view_made_before_its_base_required_grad": [
        ("zeros_like", 0, 0, 0),
        ("select", 2, 0, 0),
        ("normal_", 2, 0, 0),
        ("requires_grad_", 2, 0, 0),
        ("scaled", 3, 0, 0),
        ("backward", 6, 0, 1),
    ],
}


@pytest.mark.parametrize("where", [mindtorch.LocalExecutor, mindtorch.LoopbackExecutor])
@pytest.mark.parametrize("name", FOUND)
def test_L7_R1_found(name: str, where: Callable[[], mindtorch.Executor], programs: types.SimpleNamespace) -> None:
    with using(where()):
        programs.run_both(FOUND[name], memory=where is mindtorch.LocalExecutor)
