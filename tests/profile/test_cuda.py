"""What a profile does on CUDA (SPEC C2, L1), on fake CUDA tensors, and with torch's answers replaced: no GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mindtorch.profile import Profiler
from mindtorch.profile.measure import cuda_ops, device_ops


def test_C2_peak_memory_of_a_program_on_cuda_is_that_of_its_cuda_tensors() -> None:
    """As torch.cuda.max_memory_allocated: without what the host holds, in multiples of 512 bytes."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), Profiler() as profiler:
        held = torch.empty(10_000, device="cpu")
        weight = torch.empty(8, 8, device="cuda")  # 256 bytes, takes 512
        x = torch.empty(130, 8, device="cuda")  # 4,160, takes 4,608
        y = torch.mm(x, weight)  # the same
        del x
        z = y.relu()
        more = torch.empty(1_000_000, device="cpu")
    assert profiler.report()["totals"]["peak_bytes"] == 512 + 2 * 4608
    assert profiler.collector.balance.live_bytes == 512 + 2 * 4608
    del y, z, weight, held, more
    assert profiler.collector.balance.live_bytes == 0


def test_C2_bytes_of_ops_are_counted_on_both_sides() -> None:
    with FakeTensorMode(), torch.no_grad(), Profiler() as profiler:
        held = [torch.empty(2, 2, device="cuda"), torch.empty(100, device="cpu")]
    (row,) = (row for row in profiler.report()["ops"] if row["name"] == "aten::empty")
    assert (row["calls"], row["bytes"]) == (2, 16 + 400)
    del held


def test_C3_flops_and_calls_on_cuda_tensors_are_torchs() -> None:
    names: dict[str, int] = {}

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name
            names[name] = names.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    def program() -> None:
        q = torch.empty(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        y = torch.mm(y.view(-1, 32), torch.empty(32, 16, device="cuda", dtype=torch.bfloat16))
        image = torch.empty(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
        torch.conv2d(image, torch.empty(8, 3, 3, 3, device="cuda")).relu()

    with FakeTensorMode(), torch.no_grad():
        with FlopCounterMode(display=False) as flops:
            program()
        with Calls():
            program()
        with Profiler() as profiler:
            program()
    report = profiler.report()
    assert 2 * report["totals"]["macs"] == flops.get_total_flops()  # torch counts products only
    assert {row["name"]: row["calls"] for row in report["ops"] if row["name"] != "(python)"} == names


# ---- when it waits for the device


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The devices that were waited for, of a torch that has started CUDA."""
    found: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    monkeypatch.setenv("GENIE_PROFILE_CUDA", "wait")
    monkeypatch.setattr(device_ops, "cuda_present", lambda: True)
    return found


def test_C2_an_op_is_waited_for_on_the_device_that_it_ran_on(waited: list[Any]) -> None:
    """torch.cuda.synchronize() alone waits for the current device only."""
    with FakeTensorMode():
        first, second, host = (torch.empty(4, device=device) for device in ("cuda:0", "cuda:1", "cpu"))
    wait = cuda_ops.Wait()
    wait(host)  # may be a copy from anywhere
    wait(second)
    wait(((first, host), second))
    assert waited == [None, torch.device("cuda:1"), torch.device("cuda:0")]
    waited.clear()
    wait(None)  # lists changed in place give nothing back
    assert waited == [torch.device("cuda:1"), torch.device("cuda:0")]


def test_C2_a_graph_that_is_captured_is_not_waited_for(waited: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting while a stream captures is an error, and ends the program's capture."""
    with FakeTensorMode(), torch.no_grad(), Profiler():
        x = torch.empty(4, device="cuda:0")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        waited.clear()
        x.add_(1)
    assert waited == []


def test_L1_neither_import_nor_profile_starts_cuda(after_torch: Callable[..., Any]) -> None:
    """A process forked after torch asked the CUDA runtime for its devices can't use them; the driver's management
    library answers without harm. That goes for programs that import mindtorch, or are profiled, and fork then."""
    code = """
        import torch
        asked = []
        torch.backends.cuda.is_built = torch.cuda._is_compiled = lambda: True
        torch._C._cuda_getDeviceCount = lambda: asked.append("runtime") or 1
        torch._C._cuda_isInBadFork = lambda: False
        torch.cuda._device_count_nvml = lambda: 1
        import mindtorch
        from mindtorch.profile import Profiler
        with Profiler() as profiler:
            torch.ones(2) + 1
        assert profiler.report()["totals"]["ops"] == 2
        torch.ones(2, device="remote_accelerator").tolist()
        print(asked, torch._C._get_privateuse1_backend_name())
    """
    assert after_torch(code).stdout.split() == ["[]", "privateuseone"]
