"""L7: torch's optimizers, with the arguments that torch's own tests of them take, step as eager."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

Same = Callable[..., None]
DEVICE = "remote_accelerator:0"


def parameters(device: str, info: Any, kind: str) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes: list[tuple[int, ...]] = (
        [(4, 3), (3, 5)] if info.optim_cls.__name__ == "Muon" else [(4, 3), (7,), (), (0, 2)]
    )
    if kind == "dtypes":
        shapes = shapes[:2]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    if kind == "dtypes":
        made = [made[0].bfloat16(), made[1].double()]
    if kind == "complex":
        made = [torch.complex(t, t.flip(0) if t.dim() else t) for t in made]
    return [nn.Parameter(t.to(device)) for t in made]


def loss(params: list[nn.Parameter], x: torch.Tensor, kind: str, step: int) -> torch.Tensor:
    """Of all parameters, or of all but one at times; with transposed gradients where that is the kind."""
    parts = []
    for p in params[:-1] if kind == "without" and step % 2 else params:
        wide = p.t() if kind == "strided" and p.dim() == 2 else p
        wide = (wide * x[: wide.shape[-1]].to(p.dtype) if wide.dim() else wide * 2).abs().square()
        parts.append(wide.sum().float())
    return torch.stack(parts).sum()


def train(device: str, info: Any, given: dict[str, Any], kind: str) -> object:
    torch.manual_seed(5)
    params, x = parameters(device, info, kind), torch.linspace(0.5, 1.5, 8).to(device)
    groups: list[Any] = params
    if kind == "groups":
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.02}]
    optimizer = info.optim_cls(groups, **copy.deepcopy(given))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if kind == "schedule" else None
    seen: list[Any] = []
    if kind == "hooks":
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda o, *_: seen.append(len(o.state)))

    def closure(step: int) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=kind != "zeros")
        value = loss(params, x, kind, step)
        value.backward()
        if info.only_supports_sparse_grads:
            for p in params:
                if p.grad is not None:
                    p.grad = p.grad.to_sparse()
        return value

    for step in range(4):
        if info.step_requires_closure or kind == "closure":
            seen.append(optimizer.step(lambda step=step: closure(step)))
        else:
            closure(step)
            optimizer.step()
        if schedule is not None:
            schedule.step()
            seen += schedule.get_last_lr()
        if step == 1 and kind == "saved":
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = info.optim_cls(params, **copy.deepcopy(given))
            optimizer.load_state_dict(torch.load(file, map_location=device))
        if step == 1 and kind == "copied":
            params, optimizer = copy.deepcopy((params, optimizer))
        if step == 1 and kind == "added":
            params.append(nn.Parameter(torch.ones(3, 3).to(device)))
            optimizer.add_param_group({"params": params[-1:]})
    return [p.detach() for p in params], plain(optimizer.state_dict()), seen


def plain(value: Any) -> Any:
    """Values without their history."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.detach() if isinstance(value, torch.Tensor) else value


KINDS = (
    "plain", "closure", "groups", "saved", "copied", "added", "schedule", "hooks", "zeros", "without", "strided",
    "dtypes", "complex",
)  # fmt: skip
REFUSED = (RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError)


def cases() -> Iterator[Any]:
    turn = itertools.count()
    for info in optim_db:
        for given in info.optim_inputs_func(device="cpu"):
            for impl in ({}, *({name: True} for name in info.supported_impls if name != "differentiable")):
                name = f"{info.optim_cls.__name__}-{given.desc}-{'-'.join(impl) or 'default'}"
                yield pytest.param(info, {**given.kwargs, **impl}, next(turn), id=name)


@pytest.mark.parametrize(("info", "given", "turn"), list(cases()))
def test_L7_optimizers_step_as_eager(
    info: Any, given: dict[str, Any], turn: int, same_as_eager: Same, pytestconfig: pytest.Config
) -> None:
    """In some of the kinds each; in all with ``--conformance=full``."""
    whole = pytestconfig.getoption("--conformance") == "full"
    for kind in KINDS if whole else (KINDS[turn % len(KINDS)], KINDS[(5 * turn + 3) % len(KINDS)]):

        def program(device: str, kind: str = kind) -> object:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return train(device, info, given, kind)

        program.__name__ = kind
        try:
            program("cpu")
        except REFUSED as error:  # by torch, with these arguments
            with pytest.raises(type(error)) as raised:
                program(DEVICE)
            assert str(raised.value).splitlines()[0][:60] == str(error).splitlines()[0][:60]
        else:
            same_as_eager(program)
