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


def _rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone()
    return x, x[0]


def _copied_by_name(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, v = _rows(x)
    torch.ops.aten.fill_.Tensor(v, w)
    return v


def _base_written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, v = _rows(x)
    x.fill_(w)
    return v


def _written_again(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, v = _rows(x)
    x[1] = w
    v.mul_(3)
    x.add_(1)
    v.logical_not_()
    return v


def _written_without_gradients(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, v = _rows(x)
    v.fill_(w)
    with torch.no_grad():
        x.mul_(2)
    return v


def _copied_by_an_operator(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    v = _rows(x)[1]
    assert torch.ops.aten._foreach_copy_([v], [w.expand(4)]) is None
    return v


def _of_a_long_chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    v = x.clone()
    for _ in range(6):
        v = v.t()
    v[:2].fill_(w)
    return v


#: Writes of a number that requires grad into integers or booleans, which each give a view or the base of one.
INTO_INTEGERS: dict[str, Write] = {
    "item": lambda x, w: (x := x.clone(), x.__setitem__(0, w))[0],
    "item of a view": lambda x, w: (v := _rows(x)[1], v.__setitem__(slice(1, None), w))[0],
    "item by a mask": lambda x, w: (v := _rows(x)[1], v.__setitem__(v > 1, w))[0],
    "fill": lambda x, w: _rows(x)[1].fill_(w),
    "fill by a function": lambda x, w: torch.fill_(_rows(x)[1], w),
    "fill by name": _copied_by_name,
    "fill by a function by name": lambda x, w: torch.fill_(value=w, input=_rows(x)[1]),
    "fill by an operator by name": lambda x, w: torch.ops.aten.fill_.Tensor(value=w, self=_rows(x)[1]),
    "copy into a list": lambda x, w: torch._foreach_copy_([_rows(x)[1]], [w.expand(4)])[0],
    "copy into a list by name": lambda x, w: torch._foreach_copy_(src=[w.expand(4)], self=(_rows(x)[1],))[0],
    "copy into two rows": lambda x, w: torch._foreach_copy_([*_rows(x)[1:3]], [w.expand(4)] * 2)[1],
    "copy into a list by an operator": _copied_by_an_operator,
    "masked fill": lambda x, w: (v := _rows(x)[1], v.masked_fill_(v > 1, w))[0],
    "index fill": lambda x, w: _rows(x)[1].index_fill_(0, torch.tensor([1], device=x.device), w),
    "comparison": lambda x, w: _rows(x)[1].lt_(w),
    "copy": lambda x, w: _rows(x)[1].copy_(w.expand(4)),
    "copy into the base": lambda x, w: (r := _rows(x), r[0].copy_(w))[0][1],
    "diagonal": lambda x, w: (x := x.clone(), x.diagonal().fill_(w))[0],
    "transposed": lambda x, w: (x := x.clone(), x.t()[1:].fill_(w))[0],
    "one of a split": lambda x, w: (x := x.clone(), x.flatten().narrow(0, 2, 3).fill_(w))[0],
    "base": _base_written,
    "again": _written_again,
    "then without gradients": _written_without_gradients,
    "a long chain of views": _of_a_long_chain,
}
#: What a program does with such a tensor next.
NEXT: dict[str, Callable[[torch.Tensor], object]] = {
    "read": lambda v: v.tolist(),
    "node": lambda v: type(v.grad_fn).__name__,
    "leaf": lambda v: v.is_leaf,
    "version": lambda v: v._version,
    "sum": lambda v: (v * 1.5).sum(),
    "compare": lambda v: v == 2,
    "condition": lambda v: torch.where(v > 1, 1.0, 0.0),
    "detached": lambda v: v.detach() + 1,
    "base": lambda v: None if v._base is None else (v._base.detach(), v._base.requires_grad),
    "view": lambda v: v[..., 0],
    "converted": lambda v: v.float(),
    "written": lambda v: v.add_(1),
    "backward": lambda v: (v * 1.5).sum().backward(),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
@pytest.mark.parametrize("write", INTO_INTEGERS)
def test_L7_integers_are_written_with_numbers_that_require_grad(
    write: str, dtype: torch.dtype, same_as_eager: Same
) -> None:
    def outcome(then: Callable[[torch.Tensor], object], d: str) -> object:
        x = torch.arange(12, device=d).reshape(3, 4).to(dtype)
        w = torch.tensor(2.5, device=d).requires_grad_()
        try:
            return then(INTO_INTEGERS[write](x, w))
        except RuntimeError as error:
            return type(error)

    def program(d: str) -> object:
        return {name: outcome(then, d) for name, then in NEXT.items()}

    same_as_eager(program)


def test_L7_a_backward_pass_through_integers_is_refused_in_one_sentence() -> None:
    v = torch.zeros(3, 4, device="remote_accelerator:0", dtype=torch.int64)[0]
    v.fill_(torch.tensor(2.5, device=v.device, requires_grad=True))
    with pytest.raises(RuntimeError, match="expected a graph of floating-point tensors, found a view of integers"):
        (v * 1.5).sum().backward()
    assert v.tolist() == [2, 2, 2, 2]
