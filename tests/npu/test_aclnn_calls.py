"""N5, N7: how native operations are called: streams, devices, threads, memory, and what happens when a call fails."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from device_memory import block_of, get
from native_calls import Device

import mindtorch
from mindtorch._ext import aclnn, blocks
from mindtorch.npu.kernels import NATIVE


@pytest.fixture
def npu(device: Device) -> ModuleType:
    return mindtorch.npu


def test_N5_work_is_queued_on_the_current_stream(device: Device, npu: ModuleType) -> None:
    one, target = device.give(torch.ones(4)), device.give(torch.zeros(4))
    npu.synchronize(0)
    stream = npu.Stream(0)
    device.library.hold(stream.npu_stream)
    with npu.stream(stream):
        assert aclnn.call("Neg", 0, one.description, target.description)
    npu.default_stream(0).synchronize()
    assert not stream.query() and device.library.peek(target.base, 16) == bytes(16)
    device.library.release()
    stream.synchronize()
    assert torch.equal(target.back(), -torch.ones(4))


def test_N5_each_device_has_its_own_calls(device: Device, npu: ModuleType, devices: Callable[[int], None]) -> None:
    devices(2)
    blocks = [block_of(index, bytes(torch.full((4,), index + 1.0).untyped_storage())) for index in (0, 1)]
    for index, block in [(1, blocks[1]), (0, blocks[0]), (1, blocks[1])]:
        description = (block.ptr, (4,), (1,), 0, 4, 0)
        assert aclnn.call("Add", index, description, description, 1, description)
    assert [torch.frombuffer(bytearray(get(block)), dtype=torch.float32)[0].item() for block in blocks] == [2.0, 8.0]
    assert npu.current_device() == 0
    with pytest.raises(RuntimeError, match="99"):
        aclnn.call("Add", 99, description, description, 1, description)


def test_N5_threads_call_at_the_same_time(device: Device, npu: ModuleType) -> None:
    """Each on a stream of its own: results right, and no two uses of workspace or results unordered."""
    failures: list[BaseException] = []
    count = npu.device_count()

    def work(number: int) -> None:
        index = number % count
        try:
            with npu.stream(npu.Stream(index)):
                one = block_of(index, bytes(torch.full((4, 4), 0.25).untyped_storage()))
                other = block_of(index, bytes(64))
                forth, back = ((block.ptr, (4, 4), (4, 1), 0, 16, 0) for block in (one, other))
                for _ in range(25):
                    assert aclnn.call("Mm", index, forth, forth, back, 0)
                    assert aclnn.call("Softmax", index, back, -1, forth)
                    joined = blocks.allocate(index, 128)
                    assert aclnn.call("Cat", index, [forth, back], 0, (joined.ptr, (8, 4), (4, 1), 0, 32, 0))
                assert get(one) == bytes(torch.full((4, 4), 0.25).untyped_storage())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_N5_a_refusal_of_the_library_is_no_error(device: Device) -> None:
    integers = device.give(torch.ones(4, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert aclnn.call("Exp", 0, integers.description, integers.description) is False
    assert not aclnn.available("NoSuchOperation")
    with pytest.raises(NotImplementedError, match="aclnnNoSuchOperation"):
        aclnn.call("NoSuchOperation", 0, integers.description)


def test_N5_no_memory_for_a_workspace_leaves_nothing_behind(in_npu_process: Callable[..., str]) -> None:
    out = in_npu_process(
        """
        import mindtorch
        from mindtorch._ext import aclnn, blocks
        from mindtorch.npu import operators
        from device_memory import block_of
        mindtorch.npu.init()
        held = []
        data = block_of(0, bytes(16))
        description = (data.ptr, (2, 2), (2, 1), 0, 4, 0)
        target = block_of(0, bytes(16))
        try:
            while True:
                held.append(blocks.allocate(0, 512))
        except RuntimeError as error:
            print(str(error)[:100])
        try:
            aclnn.call("Mm", 0, description, description, (target.ptr, (2, 2), (2, 1), 0, 4, 0), 0)
        except RuntimeError as error:
            print(error)
        held.clear()
        assert aclnn.call("Mm", 0, description, description, (target.ptr, (2, 2), (2, 1), 0, 4, 0), 0)
    """,
        GENIE_TEST_NPU_MEMORY=str(5 << 20),
    )
    first, second = out.splitlines()
    assert "out of memory" in first and "512 bytes of workspace for aclnnMm on npu:0" in second


def every_call(device: Device) -> list[Callable[[], Any]]:
    one, weight, index = device.give(torch.randn(2, 2)), device.give(torch.randn(2)), device.give(torch.tensor([1, 0]))
    arguments: list[tuple[str, tuple]] = [
        ("add.Tensor", (one, one)), ("add.Tensor", (one, 2.0)), ("mul.Tensor", (one, one)), ("mul.Tensor", (one, 2)),
        ("exp", (one,)), ("gelu", (one,)), ("mm", (one, one)), ("addmm", (weight, one, one)), ("sum", (one,)),
        ("max", (one,)), ("max.dim", (one, 0)), ("_softmax", (one, 0, False)),
        ("native_layer_norm", (one, [2], weight, weight, 1e-5)), ("fill_.Scalar", (one, 1.0)), ("clone", (one,)),
        ("cat", ([one, one],)), ("index_select", (one, 0, index)), ("embedding", (one, index)),
        ("gelu_backward", (one, one)), ("index.Tensor", (one, [index])), ("_safe_softmax", (one, 1)),
        ("nll_loss_forward", (one, index, None, 1, -100)), ("select_backward", (weight, [2, 2], 0, 1)),
        ("native_batch_norm", (one, weight, weight, None, None, True, 0.1, 1e-5)),
        ("native_layer_norm_backward", (one, one, [2], weight, weight, None, None, [True, False, False])),
    ]  # fmt: skip
    calls: list[Callable[[], Any]] = []
    for name, args in arguments:
        calls.append(lambda name=name, args=args: NATIVE[f"aten::{name}"](device.calls, args, {}))
    calls.append(lambda: NATIVE["aten::_to_copy"](device.calls, (one,), {"dtype": torch.float16}))
    return calls


def test_N5_every_call_may_fail_once_and_leaves_nothing_behind(device: Device, npu: ModuleType) -> None:
    """Each library call of each operation: an exception with the function and the code; the next try works."""
    for call in every_call(device):
        device.library.clear()
        call()
        npu.synchronize(0)
        for nth in range(1, device.library.calls()):
            device.library.fail("*", nth)
            try:
                result = call()
            except (RuntimeError, MemoryError) as error:
                assert "acl" in str(error) and ("507899" in str(error) or "561103" in str(error))
            else:
                assert result is not NotImplemented
            device.library.clear()
            npu.synchronize(0)
            assert not [line for line in device.library.leaks() if " acl" in line], nth
            assert call() is not NotImplemented
            npu.synchronize(0)


def test_N5_errors_name_the_function_the_code_and_what_the_library_says(device: Device) -> None:
    one = device.give(torch.ones(4))
    for function in ("aclnnExp", "aclnnExpGetWorkspaceSize"):
        device.library.fail(function, 1, 361001)
        with pytest.raises(RuntimeError) as caught:
            NATIVE["aten::exp"](device.calls, (one,), {})
        for part in (function, "361001", "ACLNN_ERR_RUNTIME_ERROR", "injected fault"):
            assert part in str(caught.value)
    out_of_range = device.give(torch.tensor([9]))
    assert NATIVE["aten::index_select"](device.calls, (one, 0, out_of_range), {}) is not NotImplemented
    with pytest.raises(RuntimeError, match="507015"):  # only the stream can tell
        mindtorch.npu.synchronize(0)
