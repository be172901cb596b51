"""L4: op names are `aten::name`, whatever the caller holds."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import get_testing_overrides

from mindtorch.ops import op_name

aten = torch.ops.aten


@pytest.mark.parametrize(
    "func,name",
    [
        (aten.add.Tensor, "aten::add"),
        (aten.add, "aten::add"),
        (aten.add_.Scalar, "aten::add_"),
        (torch.add, "aten::add"),
        (torch.relu_, "aten::relu_"),
        (torch.randn, "aten::randn"),
        (torch.tensor, "aten::tensor"),
        (torch._C._nn.linear, "aten::linear"),
        (F.linear, "aten::linear"),
        (F.gelu, "aten::gelu"),
        (F.conv2d, "aten::conv2d"),
        (F.layer_norm, "aten::layer_norm"),
        (F.softmax, "aten::softmax"),
        (F.cross_entropy, "aten::cross_entropy_loss"),
        (F.max_pool2d, "aten::max_pool2d"),
        (F.unfold, "aten::im2col"),
        (torch.Tensor.unfold, "aten::unfold"),
        (F.scaled_dot_product_attention, "aten::scaled_dot_product_attention"),
        (F.multi_head_attention_forward, "torch::multi_head_attention_forward"),
        (torch.nn.init.uniform_, "torch::uniform_"),
        (torch.linalg.norm, "aten::linalg_norm"),
        (torch.special.expit, "aten::special_expit"),
        (torch.fft.rfft, "aten::fft_rfft"),
        (torch.einsum, "aten::einsum"),
        (torch.unique, "aten::_unique2"),
        (torch.Tensor.add, "aten::add"),
        (torch.Tensor.add_, "aten::add_"),
        (torch.Tensor.__add__, "aten::add"),
        (torch.Tensor.__radd__, "aten::add"),
        (torch.Tensor.__iadd__, "aten::add_"),
        (torch.Tensor.__rsub__, "aten::rsub"),
        (torch.Tensor.__rpow__, "aten::pow"),
        (torch.Tensor.__matmul__, "aten::matmul"),
        (torch.Tensor.__getitem__, "aten::index"),
        (torch.Tensor.__setitem__, "aten::index_put_"),
        (torch.Tensor.__bool__, "aten::is_nonzero"),
        (torch.Tensor.item, "aten::item"),
        (torch.Tensor.float, "aten::to"),
        (torch.Tensor.T.__get__, "aten::numpy_T"),
        (torch.Tensor.shape.__get__, "torch::shape.__get__"),
        (torch.Tensor.__repr__, "torch::__repr__"),
        (torch.ones(1).add, "aten::add"),
        ("add", "aten::add"),
        ("aten::add.Tensor", "aten::add"),
        ("aten.add.Tensor", "aten::add"),
        (test := (lambda: None), f"python::{__name__}.<lambda>"),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),  # no addresses: a name is the same in every process
)
def test_L4_op_name(func, name):
    assert op_name(func) == name
    assert op_name(func) == name  # remembered


def test_L4_every_overridable_function_has_a_name():
    for func in get_testing_overrides():
        name = op_name(func)
        namespace, _, rest = name.partition("::")
        assert namespace in ("aten", "torch") and rest
        if namespace == "aten":
            assert hasattr(aten, rest)


def test_L4_higher_order_and_custom_ops():
    assert op_name(torch.ops.higher_order.flex_attention) == "higher_order::flex_attention"

    @torch.library.custom_op("mindtorch_names::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    assert op_name(torch.ops.mindtorch_names.twice.default) == "mindtorch_names::twice"


def test_L4_a_hook_has_the_name_of_what_it_wraps():
    @functools.wraps(torch.Tensor.to)
    def hook(*args, **kwargs):
        return torch.Tensor.to(*args, **kwargs)

    hook.__module__ = "some.package"
    assert op_name(hook) == "aten::to"


def test_L4_names_keep_no_tensor_alive():
    x = torch.ones(3)
    assert op_name(x.add) == "aten::add"
    died = weakref.ref(x)
    del x
    gc.collect()
    assert died() is None
