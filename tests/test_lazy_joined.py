"""Tensors of the CPU that join a call on a device: their gradients are the CPU's, as with torch's own devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

LAZY = "remote_accelerator:0"
H100 = targets.find("h100")


def put(x: torch.Tensor, place: Any, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[place] = w
    return y


#: x on the device, w of no dimension on the CPU.
SCALARS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "mul": lambda x, w: x * w,
    "reflected": lambda x, w: w * x,
    "by the operator's name": lambda x, w: w.__rsub__(x),
    "function": lambda x, w: torch.add(x, w, alpha=2),
    "keyword": lambda x, w: torch.clamp(x, max=w),
    "of a computed one": lambda x, w: x / w.exp(),
    "where": lambda x, w: torch.where(x > 1, w, x),
    "exponent": lambda x, w: x**w,
    "third operand": lambda x, w: torch.addcmul(x, x, w),
    "lerp": lambda x, w: torch.lerp(x, x + 1, w),
    "in place": lambda x, w: x.clone().mul_(w),
    "fill_": lambda x, w: x.clone().fill_(w),
    "copy_": lambda x, w: x.clone().copy_(w),
    "masked_fill": lambda x, w: x.masked_fill(x > 1, w),
    "index_put": lambda x, w: x.index_put((torch.tensor([0]),), w),
    "setitem": lambda x, w: put(x, 0, w),
    "twice": lambda x, w: x * w + w,
}
#: w as long as x.
VECTORS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "copy_": lambda x, w: x.clone().copy_(w),
    "setitem": lambda x, w: put(x, slice(0, 3), w),
}
FORMS = [*((name, form, 2.0) for name, form in SCALARS.items()),
         *((name, form, [2.0, 0.5, 3.0]) for name, form in VECTORS.items())]  # fmt: skip


def gradient(form: Callable[[Any, Any], torch.Tensor], value: Any, device: str) -> torch.Tensor:
    w = torch.tensor(value, requires_grad=True)
    made = form(torch.arange(3.0).to(device), w)
    assert made.device == torch.device(device)
    made.mul(torch.arange(1.0, 4.0).to(device)).sum().backward()
    assert w.grad is not None
    return w.grad


@pytest.mark.parametrize(("name", "form", "value"), FORMS, ids=[name for name, *_ in FORMS])
def test_L7_gradients_of_cpu_tensors_that_join_a_call_are_the_cpus(
    name: str, form: Callable[[Any, Any], torch.Tensor], value: Any
) -> None:
    found, expected = gradient(form, value, LAZY), gradient(form, value, "cpu")
    assert found.device == torch.device("cpu") and type(found) is torch.Tensor
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", [name for name in SCALARS if name != "setitem"])
def test_C4_gradients_of_cpu_tensors_that_join_a_call_are_the_cpus_in_an_estimate(name: str) -> None:
    with Estimator(target=H100):
        found = gradient(SCALARS[name], 2.0, "cuda:0")
        assert found.device == torch.device("cpu") and found.shape == ()


def train(device: str) -> list[Any]:
    """A model with a temperature that nobody moved."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    scale = torch.nn.Parameter(torch.tensor(0.5))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(2, 4, device=device)) * scale.exp()).sum().backward()
        optimizer.step()
    return [scale.tolist(), *(p.tolist() for p in model.parameters())]


def test_L7_a_parameter_of_the_cpu_beside_a_model_on_the_device_is_trained() -> None:
    assert train(LAZY) == train("cpu")


def test_C4_a_parameter_of_the_cpu_beside_a_model_on_the_accelerator_is_trained() -> None:
    """`genie check` said that an H100 rejects this: the gradient was the accelerator's."""
    with Estimator(target=H100):
        train("cuda:0")


def test_D4_what_wants_a_gradient_is_refused_as_what_wants_none() -> None:
    for wants in (False, True):
        w = torch.ones(3, requires_grad=wants)
        with pytest.raises(RuntimeError, match="at least two devices, remote_accelerator:0 and cpu"):
            torch.ones(3, device=LAZY) * w
        with Estimator(target=H100):
            w = torch.ones(3, requires_grad=wants)
            with pytest.raises(RuntimeError, match="at least two devices"):
                torch.ones(3, device="cuda") * w


def test_L3_what_is_written_on_the_cpu_stays_there() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w * 1
    y.copy_(torch.arange(3.0, device=LAZY))
    y[0] = torch.tensor(7.0, device=LAZY)
    assert type(y) is torch.Tensor and y.tolist() == [7.0, 1.0, 2.0]


def test_L3_nothing_is_moved_where_no_gradient_is_wanted() -> None:
    with torch.no_grad():
        made = torch.ones(3, device=LAZY) * torch.tensor(2.0, requires_grad=True)
    assert made.tolist() == [2.0] * 3 and not made.requires_grad
