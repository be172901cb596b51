"""SPEC N5: torch's fused optimizer steps run on the NPU, with the numbers of the steps that are not fused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.npu.counts import native_counts, staged_counts

SIZES = [(5, 4), (3,), ()]
ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
#: The optimizer that is not fused, and its arguments: the op's have the same names.
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adamw, largest": ("AdamW", {"amsgrad": True}),
    "adamw, maximized": ("AdamW", {"maximize": True, "weight_decay": 0.1}),
    "adam": ("Adam", {"weight_decay": 0.1}),
    "sgd": ("SGD", {}),
    "sgd, nesterov": ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd, dampened": ("SGD", {"momentum": 0.5, "dampening": 0.2, "maximize": True}),
    "adagrad": ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
}


def expected(kind: str, options: dict[str, Any], params: Any, grads: Any) -> list[torch.Tensor]:
    """After two steps, in float64."""
    mine = [torch.nn.Parameter(p.double()) for p in params]
    more = {"betas": (0.9, 0.99), "eps": 1e-8} if kind.startswith("Adam") else {}
    optimizer = getattr(torch.optim, kind)(mine, lr=0.05, **{"weight_decay": 0.0, **more, **options})
    for each in grads:
        for p, g in zip(mine, each, strict=True):
            p.grad = g.double()
        optimizer.step()
    return [p.detach() for p in mine]


def fused(kind: str, options: dict[str, Any], params: Any, grads: Any, lr: Any, **scaled: Any) -> None:
    given = {"weight_decay": 0.0, "maximize": False, **options}
    zeros = [[torch.zeros_like(p) for p in params] for _ in range(3)]
    for n, each in enumerate(grads, 1):
        steps = [torch.tensor(float(n)).to(params[0].device) for _ in params]
        if kind == "SGD":
            sgd = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, **given}
            buffers = zeros[0] if sgd["momentum"] else []
            torch._fused_sgd_(params, each, buffers, lr=lr, is_first_step=n == 1, **sgd, **scaled)
        elif kind == "Adagrad":
            torch._fused_adagrad_(params, each, zeros[0], steps, lr=lr, eps=1e-10, **given, **scaled)
        else:
            step = {"Adam": torch._fused_adam_, "AdamW": torch._fused_adamw_}[kind]
            adam = {"amsgrad": False, **ADAM, **given}
            largest = zeros[2] if adam["amsgrad"] else []
            step(params, each, *zeros[:2], largest, steps, lr=lr, **adam, **scaled)


def made(dtype: torch.dtype) -> tuple[Any, Any]:
    params = [torch.randn(size).to(dtype) for size in SIZES]
    return params, [[torch.randn(size).to(dtype) for size in SIZES] for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_N5_fused_steps_are_those_that_are_not_fused(name: str, dtype: torch.dtype, npu: Any) -> None:
    kind, options = STEPS[name]
    params, grads = made(dtype)
    there = [p.npu() for p in params]
    staged = dict(staged_counts)
    fused(kind, options, there, [[g.npu() for g in each] for each in grads], 0.05)
    assert dict(staged_counts) == staged, "nothing went through the host"
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    for found, wanted in zip(there, expected(kind, options, params, grads), strict=True):
        assert found.dtype is dtype
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["adamw", "sgd, nesterov", "adagrad"])
@pytest.mark.parametrize("on_host", [False, True])
def test_N5_fused_steps_take_scaled_gradients_and_leave_them_unscaled(name: str, on_host: bool, npu: Any) -> None:
    kind, options = STEPS[name]
    params, grads = made(torch.float32)
    there = [p.npu() for p in params]
    scaled = [[(g * 8).npu() for g in each] for each in grads]
    rate = torch.tensor(0.05) if on_host else torch.tensor(0.05).npu()
    fused(kind, options, there, scaled, rate, grad_scale=torch.tensor(8.0).npu(), found_inf=torch.zeros(1).npu())
    for found, wanted in zip(there, expected(kind, options, params, grads), strict=True):
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(scaled[0], grads[0], strict=True):
        torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("name", ["adamw", "sgd, nesterov", "adagrad"])
def test_N5_fused_steps_leave_all_as_it_is_where_a_gradient_is_infinite(name: str, npu: Any) -> None:
    kind, options = STEPS[name]
    params, grads = made(torch.float32)
    there, scaled = [p.npu() for p in params], [[g.npu() for g in each] for each in grads]
    fused(kind, options, there, scaled, 0.05, grad_scale=torch.tensor(8.0).npu(), found_inf=torch.ones(()).npu())
    for found, wanted in zip((*there, *scaled[1]), (*params, *grads[1]), strict=True):
        assert torch.equal(found.cpu(), wanted)


def test_N5_a_step_reads_the_device_once(npu: Any) -> None:
    params, grads = made(torch.float32)
    reads = native_counts.get("aten::stack", 0), native_counts.get("aten::cat", 0)
    fused("AdamW", {}, [p.npu() for p in params], [[g.npu() for g in grads[0]]], 0.05)
    assert sum((native_counts.get("aten::stack", 0), native_counts.get("aten::cat", 0))) - sum(reads) == 1


def test_N5_nan_and_infinity_are_looked_for_on_the_device(npu: Any) -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        staged = dict(staged_counts)
        assert x.to(dtype).npu().isnan().cpu().equal(x.isnan()) and x.to(dtype).npu().isinf().cpu().equal(x.isinf())
        assert dict(staged_counts) == staged
    assert torch.arange(3).npu().isinf().tolist() == [False] * 3


def test_N5_fused_adamw_of_a_program_stages_nothing(in_npu_program: Any) -> None:
    """As transformers' Trainer has it: each step took all weights and states to the host and back."""
    said = in_npu_program("""
        import mindtorch.npu.compat, torch, torch_npu
        from mindtorch.npu.counts import staged_counts
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4).npu()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("npu", init_scale=4.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4, device="npu")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        print(dict(staged_counts), [round(v, 4) for v in model.bias.tolist()])
    """)
    assert said.startswith("{} [")
