"""A write that autograd tracks makes the base and every view of it require grad (SPEC L7).

Operations on tensors known not to require grad are recorded without asking autograd; a write elsewhere in the same
storage must end that knowledge.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Same = Callable[..., None]
Write = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def through_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[0].add_(w * 2)
    return x


def by_a_mask(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[torch.tensor([True, False])] = w * 2  # runs eagerly
    return x


def into_the_base_of_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    view = x.t()
    x[0] = w * 2
    return view


def by_a_custom_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):  # type: ignore[no-untyped-def]
            ctx.mark_dirty(x)
            return x.add_(w)

        @staticmethod
        def backward(ctx, g):  # type: ignore[no-untyped-def]
            return g, g * 5

    base = x * 1
    view = base[1]
    Add.apply(base, w)
    return view


def into_what_a_slice_sees(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.masked_fill_(x > 1, 0.0)
    part = x[:1]
    x[0] = w
    return part * 1


def by_a_foreach(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x[0]], [w * 3])
    return x


def by_copy_into_what_no_grad_made(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made = x + 1
    made.copy_(w)
    return made


def into_a_detached_alias(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.detach().add_(w)  # the alias requires grad; x does not
    return x + w


WRITES = [through_a_view, by_a_mask, into_the_base_of_a_view, by_a_custom_function, into_what_a_slice_sees,
          by_a_foreach, by_copy_into_what_no_grad_made, into_a_detached_alias]  # fmt: skip


@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_L7_a_tracked_write_reaches_base_and_views(write: Write, same_as_eager: Same) -> None:
    def program(d: str) -> object:
        w = torch.arange(3.0, device=d).requires_grad_()
        x = torch.zeros(2, 3, device=d)
        y = write(x, w)
        z = (y * y * 3).sum()
        z.backward()
        return z, w.grad, x.requires_grad, y.requires_grad, y

    same_as_eager(program)


def test_L7_saying_again_that_no_gradient_is_wanted_keeps_an_operation_whole() -> None:
    import mindtorch

    x = torch.ones(3, device="remote_accelerator:0").requires_grad_(False)
    x.requires_grad = False
    whole = mindtorch.stats()["recorded_whole"]
    assert (x + x).operation == "aten::add"
    assert mindtorch.stats()["recorded_whole"] == whole + 1


INSIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its input": lambda x: x.sin() * 2,
    "its input's data": lambda x: torch.relu(x.detach()),
    "a new tensor": lambda x: torch.ones(2, 2, device=x.device),
    "data": lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device),
    "a tensor that was on the CPU": lambda x: x.detach().cpu().to(x.device),
    "a view of a new tensor": lambda x: torch.ones(4, device=x.device).view(2, 2),
}


@pytest.mark.parametrize("name", INSIDE)
def test_L7_what_a_custom_function_computes_in_grad_mode(name: str, same_as_eager: Same) -> None:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            with torch.enable_grad():
                y = INSIDE[name](x)
            return y, y.detach() * 2

        @staticmethod
        def backward(ctx, first, second):  # type: ignore[no-untyped-def]
            return first * 3 + second

    def program(d: str) -> object:
        x = torch.arange(4.0, device=d).reshape(2, 2).requires_grad_()
        y, z = Custom.apply(x)
        loss = (y * y).sum() + torch.relu(z).sum()
        loss.backward()
        return x.grad, y, z, loss, type(y.grad_fn).__name__

    same_as_eager(program)
