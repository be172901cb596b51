"""C2, C4: what torch.func makes is of the kinds that it is without torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.profile.test_peak import by_both

__all__ = ["by_both"]  # a fixture: `held`


@pytest.mark.parametrize("batched", [False, True])
def test_C2_what_torch_func_grad_finds_is_a_gradient(held: Callable[..., dict[str, int]], batched: bool) -> None:
    """It asks autograd to keep the graph each time, for a transform around it; here there is none."""

    def program() -> None:
        net = nn.Linear(64, 128, bias=False)
        params = {name: p.detach() for name, p in net.named_parameters()}

        def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(net, params, (x,)).square().sum()

        gradient = torch.func.grad(loss)
        if batched:
            gradient = torch.func.vmap(gradient, in_dims=(None, 0))
        found = gradient(params, torch.ones(16, 64))
        torch.ones(16 * 64 * 128)  # the peak comes later
        del found

    size = 64 * 128 * 4
    assert held(program)["gradients"] == (16 * size if batched else size)


def test_C2_what_torch_func_differentiates_again_is_an_activation(held: Callable[..., dict[str, int]]) -> None:
    """The slope by torch.func, of a network whose weights autograd differentiates the loss by."""
    hidden = 512 * 256 * 4

    def program() -> None:
        net = nn.Sequential(nn.Linear(2, 256, bias=False), nn.Tanh(), nn.Linear(256, 1, bias=False))
        for _ in range(2):
            slope = torch.func.grad(lambda x: net(x).sum())(torch.zeros(512, 2))
            slope.square().mean().backward()
            net.zero_grad()

    assert held(program)["activations"] >= 2 * hidden


def test_C2_stacked_parameters_of_several_models_are_parameters(held: Callable[..., dict[str, int]]) -> None:
    def program() -> None:
        models = [nn.Linear(64, 128, bias=False) for _ in range(3)]
        models[0](torch.ones(1, 64))  # what follows could be its loss
        params, _ = torch.func.stack_module_state(models)
        each = torch.func.vmap(lambda p, x: torch.func.functional_call(models[0], p, (x,)), in_dims=(0, None))
        each(params, torch.ones(2, 64))

    assert held(program)["parameters"] == 2 * 3 * 64 * 128 * 4
