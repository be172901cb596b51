"""Sparse, nested and quantized tensors beside lazy ones: they stay torch's own (SPEC L7, L8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.masked import masked_tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

import mindtorch  # noqa: F401

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_L7_nested_tensors_stay_torchs_own(layout: torch.layout, same_bits: Same) -> None:
    def program(d: str) -> list[torch.Tensor]:
        x, y = torch.arange(8.0, device=d).reshape(2, 4), torch.ones(3, 4, device=d)
        leaves = [x.requires_grad_(), y.requires_grad_()]
        nested = torch.nested.as_nested_tensor(leaves, layout=layout, device=d)
        (nested * nested.sin()).to_padded_tensor(0.0).sum().backward()
        plain = torch.nested.nested_tensor([torch.ones(2, 4), torch.zeros(3, 4)], layout=layout, device=d)
        lists = torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=layout, device=d)
        with torch.device(d):
            made = torch.nested.nested_tensor([[1.0], [2.0, 3.0]], layout=layout)
        assert all(n.is_nested and n.device.type == "cpu" for n in (nested, plain, lists, made))
        padded = [n.to_padded_tensor(7.0) for n in (nested, plain, plain * 2, lists, made)]
        return [*padded, x.grad, y.grad, *(t + 1 for t in nested.unbind())]  # type: ignore[list-item]

    for got, expected in zip(program(LAZY), program("cpu"), strict=True):
        same_bits(got, expected)
    plain = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    moved = plain.to(LAZY, torch.float64)
    assert moved.is_nested and moved.dtype is torch.float64 and moved.to_padded_tensor(0.0).sum().item() == 5.0


@pytest.mark.parametrize("bias", [True, False])
def test_L7_linear_layers_of_nested_tensors(bias: bool, same_bits: Same) -> None:
    """Autograd hands this call down whole. It was taken apart: "NestedTensorImpl doesn't support sizes"."""

    def program(d: str) -> list[torch.Tensor | None]:
        parts = [torch.arange(8.0, device=d).reshape(2, 4).requires_grad_(), torch.ones(3, 4, device=d)]
        weight = torch.arange(12.0).reshape(3, 4).to(d).requires_grad_()
        offset = torch.ones(3).to(d).requires_grad_() if bias else None
        out = F.linear(torch.nested.as_nested_tensor(parts), weight, offset).relu()
        padded = torch.nested.to_padded_tensor(out, 0.0)
        padded.sum().backward()
        return [padded, parts[0].grad, weight.grad, offset.grad if offset is not None else None]

    for got, expected in zip(program(LAZY), program("cpu"), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            same_bits(got, expected)


@pytest.mark.parametrize("make", [torch.nested.nested_tensor, torch.nested.as_nested_tensor], ids=lambda f: f.__name__)
def test_L7_jagged_tensors_are_made_of_lazy_ones(make: Callable[..., Any], same_bits: Same) -> None:
    def program(d: str) -> list[torch.Tensor]:
        parts = [torch.arange(8.0, device=d).reshape(2, 4), torch.ones(3, 4, device=d)]
        nested = make(parts, layout=torch.jagged)
        whole, offsets = torch.arange(24.0, device=d).reshape(6, 4), torch.tensor([0, 2, 6], device=d)
        view = torch.nested.nested_tensor_from_jagged(whole, offsets)
        narrow = torch.nested.narrow(
            whole[None], 1, torch.tensor([1], device=d), torch.tensor([3], device=d), layout=torch.jagged
        )
        made = [*nested.unbind(), *(nested * 2).unbind(), *view.unbind(), *narrow.unbind()]
        if make is torch.nested.as_nested_tensor:  # which keeps the graph
            leaves = [p.requires_grad_() for p in parts]
            (make(leaves, layout=torch.jagged) * 3).to_padded_tensor(0.0).square().sum().backward()
            made += [p.grad for p in leaves]  # type: ignore[misc]
        return made

    for got, expected in zip(program(LAZY), program("cpu"), strict=True):
        same_bits(got, expected)


class Graph(nn.Module):
    """A layer of a graph network: its adjacency matrix is a buffer."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("adjacency", (torch.eye(4) + torch.eye(4).roll(1, 0)).to_sparse(layout=layout))
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(self.adjacency @ x))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_L7_modules_with_sparse_buffers_move_and_train(layout: torch.layout, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        model = Graph(layout).to(d)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3).to(d)).square().sum().backward()
            optimizer.step()
        return list(model.parameters()), model(torch.ones(4, 3, device=d)), model.adjacency.layout is layout

    same_as_eager(program)


def test_L7_a_sparse_tensor_moves_as_others_do(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        values = torch.tensor([1.0, 2.0], requires_grad=True)
        s = torch.sparse_coo_tensor([[0, 1], [1, 0]], values, (2, 2))
        moved, half = s.to(d), s.to(d, torch.bfloat16)
        (torch.sparse.mm(moved, torch.ones(2, 3, device=d)).cpu() * 3).sum().backward()
        quantized = torch.quantize_per_tensor(torch.arange(3.0), 0.5, 0, torch.qint8).to(d)
        return moved.is_sparse, half.dtype, values.grad, quantized.is_quantized, quantized.int_repr().tolist()

    same_as_eager(program)


class Pair(torch.Tensor):
    """A class that wraps two tensors, as torchao's and torch's own do."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.shape, a.stride(), a.storage_offset(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parts = [tree_map_only(Pair, lambda t, name=name: getattr(t, name), args) for name in "ab"]
        made = [func(*part, **(kwargs or {})) for part in parts]
        return cls(*made) if isinstance(made[0], torch.Tensor) else made[0]


def test_L7_classes_that_wrap_lazy_tensors_go_through_autograd(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        p = Pair(torch.arange(3.0, device=d), torch.ones(3, device=d)).requires_grad_()
        q = (p * p).exp()
        q.sum().backward()
        assert str(p.device) == str(q.device) == str(p.grad.device) == d  # type: ignore[union-attr]
        return p.grad.a, p.grad.b, q.a, q.b, torch.zeros(2).device  # type: ignore[union-attr]

    same_as_eager(program)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_L7_masked_tensors_go_through_autograd(same_as_eager: Callable[..., None]) -> None:
    def program(d: str) -> object:
        data, mask = torch.arange(6.0).view(2, 3).to(d), (torch.arange(6).view(2, 3) % 2 == 0).to(d)
        m = masked_tensor(data, mask, requires_grad=True)
        total = (m * 2).exp().sum()
        total.backward()
        means = torch.masked.mean(data, 1, mask=mask)
        return m.grad.get_data(), m.grad.get_mask(), total.get_data(), str(m.device) == d, means

    same_as_eager(program)


JAGGED: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 3),
    "norm": lambda: nn.LayerNorm(4),
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4, bias=False)),
}


@pytest.mark.parametrize("name", JAGGED)
def test_L8_modules_on_the_device_take_jagged_tensors(name: str, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        module, factor = JAGGED[name]().to(d), torch.randn(4).to(d).requires_grad_()
        parts = [torch.randn(2, 4).to(d).requires_grad_(), torch.randn(3, 4).to(d).requires_grad_()]
        nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        out = module(nested * factor + factor)
        out.to_padded_tensor(0.0).square().sum().backward()
        plain = torch.nested.nested_tensor([torch.ones(2, 4), torch.zeros(1, 4)], layout=torch.jagged)
        with torch.no_grad():
            again = module(plain.to(d)) @ torch.ones(out.shape[-1], 2, device=d)
        return (
            [(t + 1).to(d) for t in (*out.unbind(), *again.unbind())],
            factor.grad,
            [p.grad for p in parts],
            [p.grad for p in module.parameters()],
        )

    same_as_eager(program)
