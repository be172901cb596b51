"""SPEC L7: products of batches with parameters have eager's bits also where no gradient is wanted.

Torch multiplies a batch by a small matrix as one large product or as many small ones, with other last bits. Which one
it chooses depends on strides, and on whether the small operand requires grad: with grad mode off, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import mindtorch
from mindtorch._ext import intercept

Same = Callable[..., None]
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "columns first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:1].expand(4, 6, 32),
    "every second": lambda x: x[:, ::2],
}
PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "linear without bias": lambda x, w, b: F.linear(x, w),
    "@": lambda x, w, b: x @ w,
    "small @ batch": lambda x, w, b: w @ x.transpose(1, 2),
    "batch @ vector": lambda x, w, b: torch.matmul(x, b),
    "vector @ batch": lambda x, w, b: torch.Tensor.__rmatmul__(x.transpose(1, 2), b),
    "linalg": lambda x, w, b: torch.linalg.matmul(w, x.mT),
    "transposed weight": lambda x, w, b: x @ w.T,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", INPUTS)
def test_L7_products_with_parameters(kind: str, product: str, mode: Any, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        out = []
        for needs in (False, True):
            x, w, b = (torch.randn(*s).to(device).requires_grad_(needs) for s in ((8, 6, 32), (32, 32), (32,)))
            for given in (x, x.detach()):
                with mode():
                    out.append(PRODUCTS[product](INPUTS[kind](given), w, b))
        return out

    same_as_eager(program)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("sizes", [((5, 5, 5), (1, 5, 5)), ((1, 5, 5), (5, 5, 5)), ((1, 5, 5), (1, 5, 5))])
def test_L7_products_with_a_parameter_that_is_a_batch_of_one(
    sizes: Any, dtype: torch.dtype, mode: Any, same_as_eager: Same
) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        out = []
        for needs in (False, True):
            x, y = (torch.randn(*s, dtype=dtype).to(device).requires_grad_(needs) for s in sizes)
            with mode():
                out += [x @ y, torch.matmul(x, y)]
        return out

    same_as_eager(program)


def test_L7_a_product_with_what_may_have_had_a_gradient_is_recorded_whole() -> None:
    x, w = (torch.randn(*s).to("remote_accelerator:0") for s in ((8, 6, 32), (32, 32)))
    x, w = x.transpose(0, 1), w.requires_grad_().detach()
    with torch.no_grad():
        assert (x @ w).shape == (6, 8, 32)
        whole, apart = intercept.counts()
        assert (x @ w).shape == torch.matmul(x, w).shape
    assert intercept.counts() == (whole + 2, apart)


def test_L7_ordinary_products_are_recorded_whole() -> None:
    """What torch would do in one way only stays one record, with parameters too."""
    layer = torch.nn.Linear(32, 16).to("remote_accelerator:0")
    x = torch.randn(2, 5, 32).to("remote_accelerator:0")
    mindtorch.reset_stats()
    with torch.no_grad():
        for _ in range(3):
            layer(x)
            x @ layer.weight.detach().T
    stats = mindtorch.stats()
    assert stats["recorded_whole"] == 6 and stats["recorded_at_dispatch"] == 3  # linear, product; the transposition


def test_L7_views_of_parameters_in_inference_mode(same_as_eager: Same) -> None:
    """Composite views keep what their base is: no inference tensors, and requiring grad."""

    def program(device: str) -> object:
        w = torch.randn(4, 6).to(device).requires_grad_()
        with torch.inference_mode():
            views = (
                w.T,
                w.reshape(24),
                w.mT,
                w.flatten(),
                *w.chunk(2),
                *torch.tensor_split(w, 3),
                w.narrow(0, 1, 2),
                torch.broadcast_to(w, (2, 4, 6)),
                *torch.meshgrid(w[0], w[1], indexing="ij"),
                w.view_as(w),
            )
        assert not any(v.is_inference() for v in views) and all(v.requires_grad for v in views)
        return views

    same_as_eager(program)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "MultiheadAttention"])
def test_L7_layers_that_multiply_inside(kind: str, mode: Any, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        options: dict[str, Any] = {"batch_first": True}
        layer = getattr(torch.nn, kind)(16, 4 if kind == "MultiheadAttention" else 24, **options)
        layer, x = layer.to(device), torch.randn(3, 6, 16).to(device)
        with mode():
            return layer(*([x] * (3 if kind == "MultiheadAttention" else 1)))[0].detach()

    same_as_eager(program)


def test_L7_composite_overloads_called_directly(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        x, w = torch.randn(2, 3).to(device), torch.randn(4, 3).to(device).requires_grad_()
        ops = torch.ops.aten
        return (
            ops.linear.default(x, w),
            ops.matmul.default(x, w.T),
            ops.flatten.using_ints(x),
            *ops.chunk.default(x, 2),
            ops.reshape.default(x, [6]),
            ops.numpy_T.default(x),
        )

    same_as_eager(program)
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Flatten()), torch.randn(2, 3)
    exported = torch.export.export(model, (x,)).module(check_guards=False)
    expected = exported(x)
    assert torch.equal(exported.to("remote_accelerator:0")(x.to("remote_accelerator:0")).cpu(), expected)


def test_L7_modules_are_read_in_inference_mode() -> None:
    layer = torch.nn.Linear(3, 3).to("remote_accelerator:0")
    with torch.inference_mode():
        assert not layer.weight.detach().is_inference()
        for t in (layer.state_dict()["weight"], layer.weight.cpu(), copy.deepcopy(layer).weight, layer.weight.clone()):
            assert torch.equal(t.cpu(), layer.weight.cpu())


EINSUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "of one": lambda x, y: torch.einsum("ij->j", x),
    "of two": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "a list": lambda x, y: torch.einsum("ij,kj->ik", [x, y]),
    "of three": lambda x, y: torch.einsum("ij,kj,kl->il", x, y, y),
    "of C++": lambda x, y: torch._C._VariableFunctions.einsum("ij,kj->ik", [x, y]),
    "sublists": lambda x, y: torch.einsum(x, [0, 1], y, [2, 1], [0, 2]),
    "diagonal": lambda x, y: torch.einsum("ii->i", x[:, :4]),
    "batches": lambda x, y: torch.einsum("b...i,bj->b...ij", x[:, None], y),
}


@pytest.mark.parametrize("wanted", ("no gradient", "gradient", "parameters without"))
@pytest.mark.parametrize("form", EINSUMS)
def test_L7_einsum_has_eagers_bits(form: str, wanted: str) -> None:
    views: list[list[bool]] = []

    def program(device: str) -> list[Any]:
        torch.manual_seed(0)
        x, y = (torch.randn(4, 5).to(device).requires_grad_(wanted != "no gradient") for _ in range(2))
        with torch.set_grad_enabled(wanted == "gradient"):
            found = [EINSUMS[form](x, y) for _ in range(3)]
            views.append([t._is_view() for t in found])
            if wanted == "gradient":
                found[-1].sum().backward()
        return [t.detach().cpu() for t in (*found, x.grad, y.grad) if t is not None]

    expected, got = program("cpu"), program("remote_accelerator:0")
    assert len(got) == len(expected) and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert views[0] == views[1], "of a tensor that nobody sees: torch's own code takes it apart"
