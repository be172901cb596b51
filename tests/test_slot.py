"""Torch's slot for a foreign device is claimed at the first use of ours; torch.accelerator answers then (SPEC L1)."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import mindtorch

LAZY = "remote_accelerator:0"
USES = {
    "a torch.device": "torch.device('remote_accelerator:1')",
    "a torch.device by type and index": "torch.device('remote_accelerator', 1)",
    "a torch.device by keyword": "torch.device(type='remote_accelerator')",
    "creation by name": "torch.zeros(2, device='remote_accelerator')",
    "creation with a device": "torch.zeros(2, device=mindtorch.device('remote_accelerator'))",
    "data": "torch.tensor([1.0], device='remote_accelerator:0')",
    "new_*": "torch.zeros(2).new_ones(3, device='remote_accelerator:0')",
    "to": "torch.zeros(2).to('remote_accelerator:0')",
    "a module": "torch.nn.Linear(2, 2).to('remote_accelerator:0')",
    "a module's device argument": "torch.nn.Linear(2, 2, device='remote_accelerator:0')",
    "the default device": "torch.set_default_device('remote_accelerator:0')",
    "mindtorch's default device": "mindtorch.set_default_device('remote_accelerator:0')",
    "a block": "torch.device('remote_accelerator').__enter__()",
    "an event": "torch.Event('remote_accelerator')",
    "a stream": "torch.Stream('remote_accelerator:0')",
    "where a file is loaded": "b = io.BytesIO(); torch.save(torch.ones(2), b); b.seek(0); "
    "torch.load(b, map_location='remote_accelerator:0')",
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("use", USES, ids=str)
def test_L1_the_first_use_of_a_device_claims_the_slot(use: str, after_torch: Callable[..., Any]) -> None:
    code = f"""
        import io, torch, mindtorch
        assert torch.accelerator.current_accelerator(check_available=True) is None
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        {USES[use]}
        print(torch.accelerator.current_accelerator(), torch._C._get_privateuse1_backend_name())
        x = torch.ones(2, device="remote_accelerator:1")
        assert x.device == torch.device("remote_accelerator:1") and (x + 1).tolist() == [2.0, 2.0]
    """
    assert after_torch(code).stdout.split() == ["remote_accelerator"] * 2


def test_L1_what_is_no_use_claims_nothing(after_torch: Callable[..., Any]) -> None:
    code = """
        import traceback, torch, mindtorch
        torch.zeros(2, device="meta").to("meta:1"); mindtorch.zeros(2, device="meta:1"); mindtorch.ones(2)
        str(mindtorch.device("remote_accelerator:0")), mindtorch.stats(), mindtorch.flush("test"), dir(mindtorch)
        for wrong in ("remote", "", "remote_accelerator0", None):
            try:
                torch.device(wrong)
            except (RuntimeError, TypeError) as error:  # in torch's words, and without a frame of ours
                assert "mindtorch" not in traceback.format_exc()
        try:
            torch.zeros("x")
        except TypeError:
            assert "hooks" not in traceback.format_exc()
        mindtorch.disable()
        try:
            torch.device("remote_accelerator")
        except RuntimeError as error:
            print(torch._C._get_privateuse1_backend_name(), str(error).startswith("Expected one of cpu"))
    """
    assert after_torch(code).stdout.split() == ["privateuseone", "True"]


def test_L1_always_claims_the_slot_at_import(after_torch: Callable[..., Any]) -> None:
    code = "import torch, mindtorch; print(torch.accelerator.current_accelerator())"
    assert after_torch(code, GENIE_REGISTER_DEVICE="always").stdout.strip() == "remote_accelerator"


#: What torch names where nobody has the slot: a build with CUDA names CUDA, whether or not there is a GPU.
NOBODY = "cuda" if torch.version.cuda else "None"


@pytest.mark.parametrize(("mode", "there"), [("auto", NOBODY), ("never", NOBODY), ("always", "remote_accelerator")])
def test_L1_a_machine_with_cuda_keeps_its_accelerator(mode: str, there: str, after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        torch.backends.cuda.is_built = torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
        import mindtorch
        x = torch.ones(2, device="remote_accelerator:1") + 1
        print(torch.accelerator.current_accelerator(), x.device, type(x.device).__module__, x.tolist())
    """
    name = "torch" if mode == "always" else "mindtorch.devices.names"
    assert after_torch(code, GENIE_REGISTER_DEVICE=mode).stdout.strip() == (
        f"{there} remote_accelerator:1 {name} [2.0, 2.0]"
    )


def test_L1_torch_accelerator_answers_once_a_device_is_in_use(after_torch: Callable[..., Any]) -> None:
    code = """
        import tempfile, torch, mindtorch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.nn.attention.flex_attention import create_block_mask

        x = torch.ones(2, device="remote_accelerator:0") + 1
        a = torch.accelerator
        assert (a.is_available(), a.device_count(), a.current_accelerator(check_available=True)) == (False, 0, None)
        assert a.current_device_index() == 0
        with a.device_index(1):
            assert a.current_device_index() == 1 == torch.remote_accelerator.current_device()
        with a.device_index(None):
            assert a.current_device_index() == 0
        a.set_device_index(2)
        assert a.current_device_index() == 2
        a.set_device_index("remote_accelerator:0")
        a.synchronize()
        assert mindtorch.stats()["ops_pending"] == 0
        assert torch.float32 in a.get_device_capability()["supported_dtypes"]
        free, total = a.get_memory_info()
        assert 0 < free <= total
        assert a.memory_stats() == {} and a.memory_allocated() == a.max_memory_allocated() == a.memory_reserved() == 0
        a.empty_cache(), a.empty_host_cache(), a.reset_peak_memory_stats(), a.reset_accumulated_memory_stats()
        stream = a.current_stream()
        a.set_stream(stream)
        assert stream.device == x.device and torch.Stream().device == x.device
        stream.synchronize()
        block = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
        dist.init_process_group(init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
        t = torch.ones(2)
        dist.all_reduce(t)
        print(fully_shard(torch.nn.Linear(4, 4))(torch.ones(1, 4)).shape, t.tolist(), x.tolist())
        dist.destroy_process_group()
    """
    assert after_torch(code).stdout.strip() == "torch.Size([1, 4]) [1.0, 1.0] [2.0, 2.0]"


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.funcs: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.funcs.append(func)
        return func(*args, **(kwargs or {}))


def test_L1_function_modes_see_torchs_functions_by_their_names() -> None:
    x = torch.ones(2)
    with Seen() as seen:
        torch.zeros(2)
        torch.zeros(2, device="cpu")
        torch.tensor([1.0])
        torch.zeros_like(x)
        torch.fft.fftfreq(4)
        x.to(torch.float64)
        x.new_zeros(2)
        x.new_zeros(2, device="cpu")
        torch.asarray([1, 2])
    expected = [
        torch.zeros,
        torch.zeros,
        torch.tensor,
        torch.zeros_like,
        torch.fft.fftfreq,
        torch.Tensor.to,
        torch.Tensor.new_zeros,
        torch.Tensor.new_zeros,
        torch.asarray,
    ]
    assert [a is b for a, b in zip(seen.funcs, expected, strict=True)] == [True] * len(expected)


def test_L1_a_function_mode_may_name_the_device() -> None:
    class Elsewhere(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            return func(*args, **{**(kwargs or {}), **({"device": LAZY} if func is torch.zeros else {})})

    with Elsewhere():
        x = torch.zeros(2)
    assert str(x.device) == LAZY and (x + 1).tolist() == [1.0, 1.0]


def test_L1_names_taken_before_the_import_are_hooked(after_torch: Callable[..., Any]) -> None:
    code = """
        import torch
        from torch import randn, zeros, tensor
        to = torch.Tensor.to
        before = zeros, to, repr(zeros), type(to)
        import mindtorch
        assert before == (torch.zeros, torch.Tensor.to, repr(torch.zeros), type(torch.Tensor.to))
        print(zeros(2, device="remote_accelerator:0").device, tensor([1.0], device="remote_accelerator:0").device,
              to(torch.ones(2), "remote_accelerator:0").device, mindtorch.is_enabled())
    """
    assert after_torch(code).stdout.split() == ["remote_accelerator:0"] * 3 + ["True"]


def test_L1_hooked_functions_are_torchs_own_objects() -> None:
    assert mindtorch.is_enabled()
    for function in (torch.zeros, torch.tensor, torch.fft.fftfreq):
        assert type(function).__name__ == "builtin_function_or_method" and inspect.isbuiltin(function)
        assert pickle.loads(pickle.dumps(function)) is function
    assert torch.zeros is torch._C._VariableFunctions.zeros
    assert type(torch.Tensor.to) is type(torch.Tensor.new_zeros) is type(torch.Tensor.add)
    assert "to" not in vars(torch.Tensor) and "data" not in vars(torch.Tensor)
