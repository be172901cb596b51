"""What an executor knows of the functions that messages name."""

from __future__ import annotations

import pytest
import torch

from mindtorch.engine.remote import functions
from mindtorch.profile.estimate.estimator import Estimator


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("op aten::view.default", True), ("op aten::slice.Tensor", True), ("op aten::split.Tensor", True),
        ("op aten::reshape.default", True), ("op aten::contiguous.default", True),
        ("op aten::add.Tensor", False), ("op aten::add_.Tensor", False), ("op aten::mm.default", False),
        ("op aten::relu_.default", False), ("op aten::cat.default", False),
        ("like aten::empty_like.default", False), (functions.SEED, False),
    ],
)  # fmt: skip
def test_L1_which_functions_give_memory_of_their_arguments(name: str, may: bool) -> None:
    """What an operator writes to it gives back, but no other names of it."""
    assert functions.may_alias(name) is may


def test_L1_functions_go_under_names_that_are_found_again() -> None:
    assert functions.may_alias("Tensor.transpose") and not functions.may_alias("torch.mm")
    assert {"Tensor.transpose", "torch.mm"} <= {*functions.names()}
    assert functions.called("op aten::relu.default")(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    with pytest.raises(Exception, match="expected the name of an operation, got 'relu of mine'"):
        functions.called("relu of mine")


def test_L1_the_names_are_the_same_where_an_estimate_was_first_to_ask() -> None:
    """Three were missing for the rest of the process: others stand in the place of torch's functions meanwhile."""
    outside = functions._table()
    functions._table.cache_clear()
    with Estimator():
        within = functions._table()
    assert within == outside
