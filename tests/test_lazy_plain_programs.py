"""Importing mindtorch leaves programs that do not use its devices alone (SPEC L1)."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.modules.module
import torch.overrides
from torch.utils import _device as torch_device_module

import mindtorch

LAZY = "remote_accelerator:0"
PATCHED_OWNERS = (
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.random,
    torch.overrides,
    torch_device_module.DeviceContext,
)


def test_L1_pin_memory_loader_works_on_cpu() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    batches = [batch[0] for batch in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)]
    assert [b.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_L1_torch_accelerator_is_as_without_mindtorch(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        {0}
        a = torch.accelerator
        print(a.is_available(), a.device_count(), a.current_accelerator(check_available=True),
              torch.cuda.is_available(), torch.get_default_device(), torch.empty(2).is_pinned(),
              torch.get_device_module().__name__, torch.amp.is_autocast_available("cpu"))
    """
    assert after_torch(code.format("import mindtorch")).stdout == after_torch(code.format("")).stdout


def test_L1_torch_compile_keeps_creation_calls_in_one_graph() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(3, dtype=torch.float64) + torch.ones(3, device=x.device)
        return x + torch.randn(3) * 2 + torch.zeros(3, device="cpu") + zeros.to(x.dtype) + torch.arange(3)

    torch._dynamo.reset()
    compiled = torch.compile(noisy, backend="eager", fullgraph=True)
    x = torch.ones(3)
    torch.manual_seed(1)
    got = compiled(x)
    torch.manual_seed(1)
    assert torch.equal(got, noisy(x))


def test_L1_torch_compile_of_a_module() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0), torch.nn.LayerNorm(4))
    x = torch.randn(2, 4)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_L1_torch_compile_while_lazy_tensors_are_in_use() -> None:
    torch._dynamo.reset()
    (torch.ones(2, device=LAZY) + 1).cpu()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_L1_jit_script_and_trace_and_fx() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(2, dtype=torch.float32)

    x = torch.ones(2)
    assert torch.equal(torch.jit.script(Adds())(x), x)
    assert torch.equal(torch.jit.trace(Adds(), (x,))(x), x)
    assert torch.equal(torch.fx.symbolic_trace(Adds())(x), x)


def test_L1_functions_stay_picklable_and_documented() -> None:
    import inspect
    import pickle

    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
    assert torch.zeros.__name__ == "zeros"
    assert "filled with the scalar value" in (inspect.getdoc(torch.zeros) or "")


def test_L1_vmap_and_grad_over_creation_calls() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.ones(3, device=x.device) + torch.zeros_like(x) + x.new_ones(3)).sum()

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.func.vmap(f)(x).tolist() == [6.0, 15.0]
    assert torch.func.grad(f)(x[0]).tolist() == [1.0, 1.0, 1.0]


def test_L1_fake_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert tuple((torch.zeros(2, 3) @ torch.randn(3, 4, device="cpu")).shape) == (2, 4)
    with torch.device("meta"):
        assert torch.nn.Linear(2, 2).weight.is_meta
    assert torch.zeros(2, device="meta").is_meta


def snapshot() -> dict[tuple[int, str], object]:
    return {(i, name): value for i, owner in enumerate(PATCHED_OWNERS) for name, value in vars(owner).items()}


def test_L1_disable_restores_every_attribute_exactly() -> None:
    assert mindtorch.is_enabled()
    used = [torch.zeros(1, device=LAZY)]  # modules are followed while there are tensors of ours
    enabled = snapshot()
    try:
        mindtorch.disable()
        plain = snapshot()
        assert not mindtorch.is_enabled()
        changed = {key for key in enabled if enabled[key] is not plain.get(key)}
        assert changed, "enable() patched nothing"
        assert {type(torch.zeros).__name__, type(torch.tensor).__name__} == {"builtin_function_or_method"}
        assert torch.manual_seed.__module__ == "torch.random" and "_manual_seed" not in repr(torch.manual_seed)
        for (_, name), value in plain.items():
            if name == "remote_accelerator":
                continue  # the device's module: once registered with torch, it stays
            assert not str(getattr(value, "__module__", "")).startswith("mindtorch"), name
            code = value.__code__ if isinstance(value, types.FunctionType) else None
            assert code is None or "mindtorch" not in code.co_filename, name
        assert "mindtorch" not in torch.Tensor.to.__class__.__module__
        mindtorch.disable()  # idempotent
        assert snapshot() == plain
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.zeros(2, device=LAZY)
    finally:
        mindtorch.enable()
    assert mindtorch.is_enabled()
    mindtorch.enable()  # idempotent
    used.append(torch.zeros(1, device=LAZY))
    assert set(snapshot()) == set(enabled)
    mindtorch.disable()
    try:
        assert snapshot() == plain
    finally:
        mindtorch.enable()
    assert type(torch.zeros(2, device=LAZY)) is not torch.Tensor


def test_L1_every_patched_attribute_is_torchs_own_after_disable(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch, torch.overrides, torch.random
        from torch.utils import _device
        owners = (torch, torch.Tensor, torch.nn.Module, torch.random, torch.overrides, _device.DeviceContext)
        snap = lambda: [dict(vars(o)) for o in owners]
        before = snap()
        import mindtorch
        mindtorch.disable()
        after = snap()
        for o, a, b in zip(owners, before, after):
            for name in a:
                assert a[name] is b.get(name), (o, name)
        print([sorted(set(b) - set(a)) for a, b in zip(before, after)])
    """
    assert after_torch(code).stdout.strip() == "[[], [], [], [], [], []]"


def test_L1_lazy_tensors_outlive_disable() -> None:
    x = torch.ones(2, device=LAZY) + 1
    mindtorch.disable()
    try:
        assert (x * 2).tolist() == [4.0, 4.0]
        assert x.cpu().tolist() == [2.0, 2.0]
    finally:
        mindtorch.enable()


def test_L1_auto_enable_0_leaves_torch_alone(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        before = {(o, n): v for o in (torch, torch.Tensor, torch.nn.Module) for n, v in vars(o).items()}
        import mindtorch
        after = {(o, n): v for o in (torch, torch.Tensor, torch.nn.Module) for n, v in vars(o).items()}
        assert all(after[k] is v for k, v in before.items())
        assert not mindtorch.is_enabled()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        mindtorch.enable()
        print(mindtorch.is_enabled(), (torch.ones(2, device="remote_accelerator:0") + 1).tolist())
    """
    assert after_torch(code, GENIE_AUTO_ENABLE="0").stdout.strip() == "True [2.0, 2.0]"


def test_L1_import_survives_another_backend_owning_the_slot(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        torch.utils.rename_privateuse1_backend("othernpu")
        import mindtorch
        assert torch._C._get_privateuse1_backend_name() == "othernpu"
        x = torch.ones(2, device="remote_accelerator:1")
        y = torch.zeros(2, device=mindtorch.device("remote_accelerator:1"))
        z = (x + y + 1).sum()
        model = torch.nn.Linear(2, 2).to("remote_accelerator:1")
        out = model(x)
        out.sum().backward()
        print(z.item(), str(x.device), x.device == mindtorch.device("remote_accelerator:1"),
              type(out).__name__, model.weight.grad.shape == (2, 2), out.isfinite().all().item())
        print(x.metadata.device_hint, torch.zeros_like(x).device, x.new_ones(1).device, x.to("cpu").device)
        print(repr(x))
    """
    first, second, third = after_torch(code).stdout.strip().splitlines()
    assert first == "4.0 remote_accelerator:1 True LazyTensor True True"
    assert second == "remote_accelerator:1 remote_accelerator:1 remote_accelerator:1 cpu"
    assert third == "tensor([1., 1.], device='remote_accelerator:1')"


def test_L1_register_never_keeps_the_name_free(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch, mindtorch
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        print((torch.ones(2, device="remote_accelerator") * 3).tolist())
    """
    assert after_torch(code, GENIE_REGISTER_DEVICE="never").stdout.strip() == "[3.0, 3.0]"


def test_L1_lightning_like_device_checks_do_not_break() -> None:
    x = torch.ones(2, device=LAZY)
    assert not x.is_cuda and not x.is_meta and not x.is_cpu and not x.is_sparse and not x.is_quantized
    assert x.get_device() == 0 and x.device.type == "remote_accelerator" and x.device.index == 0
    assert torch.device(LAZY) == x.device
    with torch.autocast("remote_accelerator", enabled=False):
        assert (x + 1).tolist() == [2.0, 2.0]
