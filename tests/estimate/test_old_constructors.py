"""C4: what torch's old constructors make is where torch makes it, and counted there while it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

H100 = targets.find("h100")
MIB = 1 << 20
WAYS: dict[str, Callable[[Any], Any]] = {
    "new": lambda t: t.new(512, 1024),
    "new of a size": lambda t: t.new(torch.Size([512, 1024])),
    "new of a named size": lambda t: t.new(size=(512, 1024)),
    "new on its device": lambda t: t.new(512, 1024, device="cuda:0"),
    "new of a parameter": lambda t: torch.nn.Parameter(t).new(512, 1024),
    "new of data": lambda t: t.new([[0.5] * 1024] * 512),
    "cuda.FloatTensor": lambda t: torch.cuda.FloatTensor(512, 1024),  # type: ignore[attr-defined]
    "new_empty": lambda t: t.new_empty(512, 1024),
}


@pytest.mark.parametrize("way", WAYS)
def test_C4_what_old_constructors_make_is_memory_of_the_device(way: str) -> None:
    with Estimator(target=H100) as estimate:
        t = torch.zeros(2, device="cuda")
        before = torch.cuda.memory_allocated()
        made = WAYS[way](t)
        assert (made.device, made.dtype, made.shape) == (t.device, torch.float32, (512, 1024))
        assert torch.cuda.memory_allocated() - before == 2 * MIB
        del made
        assert torch.cuda.memory_allocated() == before
    memory = estimate.report()["memory"]
    assert memory["categories"] == {"inputs and other": 2 * MIB + 512}


def test_C4_an_optimizer_whose_state_is_made_by_new_has_it() -> None:
    """As Shampoo's preconditioners are."""

    class Whitening(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                if not self.state[p]:
                    self.state[p]["precond"] = p.grad.new(64, 64).zero_()
                p.sub_(self.state[p]["precond"].addmm_(p.grad.T, p.grad).mm(p.grad.T).T)

    with Estimator(target=H100) as estimate:
        net = torch.nn.Linear(64, 256, bias=False, device="cuda")
        optimizer = Whitening(net.parameters())
        for _ in range(2):
            net(torch.zeros(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert estimate.report()["memory"]["categories"]["optimizer state"] == 64 * 64 * 4


def test_C4_old_constructors_give_and_refuse_what_torchs_do() -> None:
    with Estimator(target=H100):
        t, host = torch.zeros(3, device="cuda"), torch.zeros(3)
        assert t.new([1, 2]).tolist() == [1.0, 2.0] and t.new((1, 2)).shape == (2,)
        assert t.new().shape == (0,) and t.new().device == t.device
        assert t.long().new([3, 4]).tolist() == [3, 4]
        same = t.new(t)
        assert same is not t and same.data_ptr() == t.data_ptr()
        assert host.new(4).device == torch.device("cpu")
        for made in (type(t)(2, 3), type(host)(2, 3)):  # on CUDA, too, that is torch.Tensor
            assert (made.device.type, made.shape, made.dtype) == ("cpu", (2, 3), torch.float32)
        with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu was passed"):
            t.new(3, device="cpu")
        with pytest.raises(TypeError, match="FloatTensor"):
            t.new(host)
        with pytest.raises(TypeError, match="invalid data type 'str'"):
            t.new("x")
