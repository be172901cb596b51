"""L7, L9: what runs within a backward pass (hooks, what checkpoints compute again) sees the device as it does the CPU.

Torch switches off what classes say of calls while it runs `backward` for one of them. What is only said there (new
`.data`, `requires_grad`, histories) was lost in hooks: numbers were wrong, gradients missing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LAZY = "remote_accelerator:0"
Body = Callable[[torch.Tensor], torch.Tensor]


def new_data(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.data = x * 2
    return y + 1


def new_data_of_a_parameter(x: torch.Tensor) -> torch.Tensor:
    p = torch.nn.Parameter(x.clone())
    p.data = x * 3
    return p * 2


def gradient(of: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((torch.where(of > 0, of, 3.0) + of * 3 + x).sum(), of)[0]


def attribute(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(3, 4, device=x.device)
    z.requires_grad = True
    return gradient(z, x)


def method(x: torch.Tensor) -> torch.Tensor:
    return gradient(torch.zeros(3, 4, device=x.device).requires_grad_(), x)


def when_made(x: torch.Tensor) -> torch.Tensor:
    return gradient(torch.zeros(3, 4, device=x.device, requires_grad=True), x)


def with_views(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(3, 4, device=x.device)
    view = z[0]
    z.requires_grad_()
    return gradient(z, x) + (view + 1)


def no_longer(x: torch.Tensor) -> torch.Tensor:
    z = (x * 1).requires_grad_()
    return (z.requires_grad_(False) * 2).requires_grad * x


def history_by_writing(x: torch.Tensor) -> torch.Tensor:
    w = torch.ones(3, 4, device=x.device, requires_grad=True)
    z = torch.zeros(3, 4, device=x.device)
    z.add_(w * 2)
    z[0].mul_(w[0])
    return torch.autograd.grad((z * 3).sum(), w)[0]


def backward_within(x: torch.Tensor) -> torch.Tensor:
    z = (x * 1).requires_grad_()
    (z * z).sum().backward()
    assert z.grad is not None
    return z.grad


def checkpoint_within(x: torch.Tensor) -> torch.Tensor:
    z = (x * 1).requires_grad_()
    checkpoint(lambda t: (t * t).exp(), z, use_reentrant=False).sum().backward()
    assert z.grad is not None
    return z.grad


def step(x: torch.Tensor) -> torch.Tensor:
    p = torch.nn.Parameter(x.clone())
    p.grad = torch.ones_like(p)
    torch.optim.AdamW([p], 0.1, foreach=True).step()
    return p * 1


def items(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 5.0
    y[y > 1] = 0.5
    y[1] = x[0]
    return y + float(x.sum()) + len(x.tolist())


def draws(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return F.dropout(x + torch.rand(4, device=x.device), 0.5)


def functional(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda t: (t * t).sum())(x) + torch.func.vmap(lambda t: t * 2)(x) + copy.deepcopy(x)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(0, device=x.device)
    y.set_(x.clone())  # type: ignore[call-overload]
    return y + torch.from_numpy(x.cpu().numpy()).to(x.device)


BODIES = [new_data, new_data_of_a_parameter, attribute, method, when_made, with_views, no_longer, history_by_writing,
          backward_within, checkpoint_within, step, items, draws, functional, as_bytes]  # fmt: skip


def of_a_tensor(do: Callable[..., None], device: str) -> None:
    y = torch.ones(3, device=device, requires_grad=True) * 2
    y.register_hook(lambda grad: do())
    y.sum().backward()


def of_a_node(do: Callable[..., None], device: str) -> None:
    y = torch.ones(3, device=device, requires_grad=True) * 2
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda *grads: do())
    torch.autograd.grad(y.sum() * 2, y, retain_graph=True)
    torch.autograd.backward(y.sum())


def after_accumulation(do: Callable[..., None], device: str) -> None:
    w = torch.nn.Parameter(torch.ones(3, device=device))
    w.register_post_accumulate_grad_hook(do)
    (w * 2).sum().backward()


def of_a_module(do: Callable[..., None], device: str) -> None:
    net = torch.nn.Linear(3, 2, device=device)
    net.register_full_backward_hook(lambda *grads: do())
    net(torch.ones(3, device=device, requires_grad=True)).sum().backward()


def when_unpacked(do: Callable[..., None], device: str) -> None:
    w = torch.ones(3, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: (do(), t)[1]):
        y = (w.exp() * 2).sum()
    y.backward()


def where_classes_have_no_say(do: Callable[..., None], device: str) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        do()


PLACES = [of_a_tensor, of_a_node, after_accumulation, of_a_module, when_unpacked, where_classes_have_no_say]


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_L7_in_hooks_as_on_the_cpu(body: Body, place: Callable[..., None]) -> None:
    def run(device: str) -> list[Any]:
        found: list[Any] = []

        def do(*_: object) -> None:
            with torch.enable_grad():
                out = body(torch.arange(12.0, device=device).reshape(3, 4) / 3)
                found.append((out.detach().cpu().numpy().tobytes(), out.dtype, out.requires_grad))

        place(do, device)
        return found

    expected = run("cpu")
    assert expected and [run(LAZY) for _ in range(3)] == [expected] * 3


def test_L7_a_checkpoint_computes_again_what_it_computed() -> None:
    """T5's biases of zeros get `requires_grad` within it: it saved another number of tensors the second time."""

    def body(x: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros(3, 4, device=x.device)
        bias.requires_grad = True
        mask = torch.ones(3, 4, device=x.device) > 0
        return (torch.where(mask, bias, -1e30) * x + x * x).sum()

    for device in ("cpu", LAZY):
        for plain in (True, False):
            x = torch.ones(3, 4, device=device, requires_grad=True)
            (body(x) if plain else checkpoint(body, x, use_reentrant=False)).backward()
            assert x.grad is not None and x.grad.cpu().equal(torch.full((3, 4), 2.0))
