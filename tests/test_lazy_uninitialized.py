"""SPEC L7: torch's modules that learn their shapes from the first input (``nn.LazyLinear`` and its like)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter, is_lazy

import mindtorch

Same = Callable[..., None]
MODULES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (lambda **where: nn.LazyLinear(3, **where), (4, 2)),
    "conv2d": (lambda **where: nn.LazyConv2d(2, 3, **where), (1, 2, 5, 5)),
    "conv_transpose1d": (lambda **where: nn.LazyConvTranspose1d(2, 3, **where), (1, 2, 5)),
    "batch_norm": (lambda **where: nn.LazyBatchNorm1d(**where), (4, 2)),
    "instance_norm": (lambda **where: nn.LazyInstanceNorm1d(affine=True, **where), (1, 2, 4)),
}


def _moved(make: Callable[..., nn.Module], device: str) -> nn.Module:
    return make().to(device)


def _made_there(make: Callable[..., nn.Module], device: str) -> nn.Module:
    return make(device=device)


def _made_under(make: Callable[..., nn.Module], device: str) -> nn.Module:
    with torch.device(device):
        return make()


def _copied(make: Callable[..., nn.Module], device: str) -> nn.Module:
    return copy.deepcopy(make().to(device)) if isinstance(make(), nn.LazyLinear) else make().to(device)


def _there_and_back(make: Callable[..., nn.Module], device: str) -> nn.Module:
    return make().to(device).cpu().to(device, torch.float64).to(torch.float32)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("get", [_moved, _made_there, _made_under, _copied, _there_and_back])
def test_L7_modules_that_learn_their_shapes(name: str, get: Callable, same_as_eager: Same) -> None:
    make, shape = MODULES[name]

    def program(device: str) -> object:
        net = get(make, device)
        assert all(str(p.device) == device and is_lazy(p) for p in net.parameters())
        optimizer = None
        for _ in range(2):
            out = net(torch.linspace(-1, 1, math.prod(shape)).view(shape).to(device))
            optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
            out.square().sum().backward()
            optimizer.step()
        assert all(str(t.device) == device for t in net.state_dict().values())
        return out, list(net.parameters()), [p.grad for p in net.parameters()], net.state_dict()

    same_as_eager(program)


def test_L7_a_module_that_learned_its_shape_moves_as_any_other(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
        x = torch.ones(1, 2)
        return net(x), net.to(device)(x.to(device))[0].tolist()

    same_as_eager(program)


def test_D4_a_module_that_learns_its_shape_on_the_cpu_stays_there() -> None:
    with pytest.raises(RuntimeError, match=r"same device.*remote_accelerator:0.*cpu"):
        nn.LazyLinear(3)(torch.ones(1, 2, device="remote_accelerator:0"))


def test_L1_uninitialized_parameters_are_torchs_own_when_disabled() -> None:
    mindtorch.disable()
    try:
        assert UninitializedParameter.__new__.__module__ == "torch.nn.parameter"
        assert "device" not in vars(nn.parameter.UninitializedTensorMixin)
        net = nn.LazyLinear(3)
        assert net(torch.ones(1, 2)).shape == (1, 3) and type(net.weight) is nn.Parameter
    finally:
        mindtorch.enable()
