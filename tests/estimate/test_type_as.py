"""C4: ``x.float().type_as(x)``, as every RMSNorm ends: taken apart once, whatever requires grad."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def calls(report: dict) -> dict[str, int]:
    return {row["name"]: row["calls"] for row in report["ops"] if not row["name"].startswith("(")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("inference", [False, True])
def test_C4_what_ends_a_norm_is_counted_as_in_a_measured_run(dtype: torch.dtype, inference: bool) -> None:
    """It raised "_type_as() missing 2 required positional arguments" where the input required no grad."""

    def run() -> None:
        net = Norm()
        with torch.inference_mode(inference):
            for _ in range(3):
                out = net(torch.ones(2, 3, dtype=dtype))
                assert out.dtype is torch.float32 and out.shape == (2, 3)
        if not inference:
            out.sum().backward()

    with Profiler() as measured:
        run()
    with Estimator(target=L4) as estimated:
        run()
    assert calls(estimated.report()) == calls(measured.report())


def test_C4_type_as_moves_to_the_others_device() -> None:
    with Estimator(target=L4):
        here, there = torch.ones(3, dtype=torch.float64), torch.ones(2, device="cuda")
        for _ in range(3):
            moved, back = here.type_as(there), there.type_as(here)
            assert (moved.device.type, moved.dtype) == ("cuda", torch.float32)
            assert (back.device.type, back.dtype) == ("cpu", torch.float64)


@pytest.mark.parametrize("call", [
    lambda t: t.type(int), lambda t: t.type(list), lambda t: t.type("x"), lambda t: t.type(3),
])  # fmt: skip
def test_C4_what_is_no_type_is_refused_in_torchs_words(call: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as plain:
        call(torch.ones(2))
    with Estimator(target=L4), pytest.raises(type(plain.value)) as found:
        call(torch.ones(2))
    assert str(found.value) == str(plain.value) and type(found.value) is type(plain.value)
