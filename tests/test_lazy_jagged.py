"""Jagged views of lazy tensors share their memory (SPEC L7)."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn import functional as F

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def _of_gradients(view: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(v: Any, o: Any) -> Any:
        x = v.requires_grad_()
        h = x * 1
        view(h, o)
        return h.detach() * 1, x.grad

    return run


def _view_in_place(h: Any, o: Any) -> None:
    nested = nested_tensor_from_jagged(h, o)
    h.mul_(3)
    (nested * nested).sum().backward()


def _base_through_view(h: Any, o: Any) -> None:
    nested_tensor_from_jagged(h, o).values().mul_(3)
    (h * h).sum().backward()


def _nested_first(nested: Any, v: Any, o: Any) -> Any:
    before = v + 1
    nested.mul_(0)
    return before, v + 1, v.add_(5) * 1, nested.values()


def _parts(nested: Any, v: Any) -> Any:
    first, second = nested.unbind()
    second.add_(5)
    first.zero_()
    v[0] = 7
    return first, second, v, nested.values()


def _saved(nested: Any, v: Any) -> Any:
    v.mul_(2)
    torch.save(nested, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False).values().to(v.device)


def _attention(v: Any, o: Any) -> Any:
    q = nested_tensor_from_jagged(v.view(6, 1, 2), o).transpose(1, 2)
    v.mul_(0.1)
    return [part.to(v.device) for part in F.scaled_dot_product_attention(q, q, q).unbind()]


def _inference(v: Any, o: Any) -> Any:
    with torch.inference_mode():
        v = v.clone()
        nested = nested_tensor_from_jagged(v, o)
        v.mul_(2)
        values = nested.values()
        nested.add_(1)
        return values.clone(), v.clone()


#: What becomes of a jagged view of ``v`` at the offsets ``o`` when one of the two is written to.
WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "values": lambda v, o: (nested_tensor_from_jagged(v, o).values(), v.mul_(2))[0],
    "results": lambda v, o: (n := nested_tensor_from_jagged(v, o), v.mul_(2), (n * 2).values().to(v.device))[-1],
    "before and after": lambda v, o: _nested_first(nested_tensor_from_jagged(v, o), v, o),
    "parts": lambda v, o: _parts(nested_tensor_from_jagged(v, o), v),
    "transposed": lambda v, o: (n := nested_tensor_from_jagged(v, o).transpose(1, 2), v.mul_(2), n.unbind()[1])[-1],
    "detached": lambda v, o: (n := nested_tensor_from_jagged(v, o).detach(), v.mul_(2), n.values())[-1],
    "cloned": lambda v, o: (n := nested_tensor_from_jagged(v, o).clone(), v.mul_(2), n.values().to(v.device))[-1],
    "copied": lambda v, o: (
        n := copy.deepcopy(nested_tensor_from_jagged(v, o)), v.mul_(2), n.values().to(v.device)
    )[-1],
    "offsets": lambda v, o: (n := nested_tensor_from_jagged(v, o), o.__setitem__(1, 3), n.unbind()[0])[-1],
    "saved": lambda v, o: _saved(nested_tensor_from_jagged(v, o), v),
    "attention": _attention,
    "inference": _inference,
    "view of what has a gradient": _of_gradients(_view_in_place),
    "written through the view": _of_gradients(_base_through_view),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_L7_jagged_views_share_the_memory_of_lazy_tensors(name: str, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        v, o = torch.arange(12.0, device=d).view(6, 2), torch.tensor([0, 2, 6], device=d)
        return WRITTEN[name](v, o), v.detach() * 1

    same_as_eager(program)


def test_L7_jagged_views_do_not_keep_memory() -> None:
    v, o = torch.ones(1 << 16, device=LAZY), torch.tensor([0, 2, 1 << 16], device=LAZY)
    v.add_(1).sum().item()
    held = mindtorch.stats()["values"]
    for _ in range(3):
        view = nested_tensor_from_jagged(v * 1, o)
        assert mindtorch.stats()["values"] > held
        del view
    gc.collect()
    assert mindtorch.stats()["values"] <= held


def _jagged(v: Any, o: Any) -> Any:
    return nested_tensor_from_jagged(v, o)


def _heads(v: Any, o: Any) -> Any:
    return nested_tensor_from_jagged(v.view(6, 1, 2), o).transpose(1, 2)


def _trained(v: Any, o: Any) -> Any:
    x = v.clone().requires_grad_()
    (F.dropout(_jagged(x, o) * 2, 0.5) ** 2).values().sum().backward()
    return x.grad


#: Random numbers with a jagged tensor of ``v`` at the offsets ``o``.
DRAWN: dict[str, Callable[[Any, Any], Any]] = {
    "dropout": lambda v, o: F.dropout(_jagged(v, o), 0.5).values(),
    "dropout of a copy": lambda v, o: F.dropout((_jagged(v, o) + 1).clone(), 0.5).values(),
    "dropout twice": lambda v, o: F.dropout(F.dropout(_jagged(v, o), 0.3) * 2, 0.5).values(),
    "dropout of a list": lambda v, o: F.dropout(
        torch.nested.nested_tensor([v[:2], v[2:]], layout=torch.jagged), 0.5
    ).values(),
    "dropout of parts": lambda v, o: F.dropout(
        torch.nested.as_nested_tensor([v[:2], v[2:]], layout=torch.jagged), 0.5
    ).values(),
    "dropout of new data": lambda v, o: F.dropout(
        torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=torch.jagged, device=v.device), 0.5
    ).values(),
    "dropout of moved data": lambda v, o: F.dropout(
        torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged, device=v.device), 0.5
    ).values(),
    "dropout module": lambda v, o: torch.nn.Dropout(0.5)(_jagged(v, o)).values(),
    "no dropout": lambda v, o: F.dropout(_jagged(v, o), 0.5, training=False).values(),
    "native dropout": lambda v, o: [t.values() for t in torch.native_dropout(_jagged(v, o), 0.5, True)],
    "rand_like": lambda v, o: torch.rand_like(_jagged(v, o)).values(),
    "randn_like": lambda v, o: torch.randn_like(_jagged(v, o)).values(),
    "randint_like": lambda v, o: torch.randint_like(_jagged(v, o), 10).values(),
    "attention": lambda v, o: list(F.scaled_dot_product_attention(*[_heads(v, o)] * 3, dropout_p=0.5).unbind()),
    "gradients": _trained,
}  # fmt: skip


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", DRAWN)
def test_L7_jagged_tensors_draw_from_the_generator_of_their_device(name: str, index: int, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        d = d.replace(":0", f":{index}")
        before = torch.rand(3, device=d)  # from the generator of the device, not from the CPU's own
        v, o = torch.arange(12.0, device=d).view(6, 2), torch.tensor([0, 2, 6], device=d)
        drawn = DRAWN[name](v, o)
        after = torch.rand(3, device=d)
        return before.cpu(), [t.cpu() for t in (drawn if isinstance(drawn, list) else [drawn])], after.cpu()

    same_as_eager(program)


def test_L7_jagged_tensors_of_the_cpu_draw_from_its_generator() -> None:
    v, o = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 6])
    torch.manual_seed(3)
    expected = F.dropout(_jagged(v, o), 0.5).values()
    kept = _jagged(v.to(LAZY), o.to(LAZY))
    _trained(v.to(LAZY), o.to(LAZY))  # which asks torch for the jagged tensor that all of them name
    torch.manual_seed(3)
    torch.rand(5, device=LAZY).tolist()
    assert torch.equal(F.dropout(_jagged(v, o), 0.5).values(), expected)
    assert kept.values().shape == v.shape
