"""N7: the aclnn calls of the AscendCL test library: two phases, and what they find wrong with callers."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_uint64, c_void_p

import pytest
from acl_calls import Npu


def floats(*values: float) -> bytes:
    return bytes((c_float * len(values))(*values))


class Nn:
    """Tensors of float32 in device memory and the two phases of an aclnn call."""

    def __init__(self, calls: Npu) -> None:
        self.calls, self.c = calls, calls.library.c
        self.c.aclCreateTensor.restype = self.c.aclCreateScalar.restype = c_void_p
        self.blocks: list[c_void_p] = []
        self.handles: list[tuple[str, c_void_p]] = []

    def tensor(self, sizes: tuple[int, ...], values: bytes, dtype: int = 0) -> c_void_p:
        pointer = self.calls.malloc(max(len(values), 1))
        self.calls.put(pointer, values)
        self.blocks.append(pointer)
        array, n = (ctypes.c_int64 * len(sizes))(*sizes), c_uint64(len(sizes))
        handle = c_void_p(self.c.aclCreateTensor(array, n, dtype, None, ctypes.c_int64(0), 2, array, n, pointer))
        self.handles.append(("aclDestroyTensor", handle))
        return handle

    def scalar(self, value: float) -> c_void_p:
        handle = c_void_p(self.c.aclCreateScalar(byref(c_float(value)), 0))
        self.handles.append(("aclDestroyScalar", handle))
        return handle

    def first(self, name: str, *arguments: object) -> tuple[int, c_uint64, c_void_p]:
        size, executor = c_uint64(), c_void_p()
        code = getattr(self.c, f"aclnn{name}GetWorkspaceSize")(*arguments, byref(size), byref(executor))
        return code, size, executor

    def close(self) -> None:
        self.calls("aclrtSynchronizeDevice")
        for destroy, handle in self.handles:
            self.calls(destroy, handle)
        for block in self.blocks:
            self.calls("aclrtFree", block)


@pytest.fixture
def nn(calls: Npu) -> Nn:
    return Nn(calls)


def test_N7_two_phases_add_on_a_stream(nn: Nn) -> None:
    calls = nn.calls
    one, other = nn.tensor((2, 2), floats(1, 2, 3, 4)), nn.tensor((2,), floats(10, 20))
    out = nn.tensor((2, 2), bytes(16))
    code, size, executor = nn.first("Add", one, other, nn.scalar(2), out)
    assert code == 0 and size.value == 0
    calls.library.hold()
    calls("aclnnAdd", None, size, executor, None)
    assert calls.library.peek(nn.blocks[2].value or 0, 16) == bytes(16)
    calls.library.release()
    calls("aclrtSynchronizeStream", None)
    assert calls.get(nn.blocks[2], 16) == floats(21, 42, 23, 44)
    assert calls.code("aclnnAdd", None, size, executor, None) == 561102
    calls.violated("was destroyed before")  # an executor is for once
    nn.close()


def test_N7_first_phases_refuse_wrong_parameters(nn: Nn) -> None:
    one, whole, out = nn.tensor((4,), bytes(16)), nn.tensor((2,), bytes(16), 9), nn.tensor((3,), bytes(12))
    assert nn.first("Exp", one, None)[0] == 161001
    assert nn.first("Exp", one, out)[0] == 161002
    assert nn.first("Exp", whole, whole)[0] == 161002
    assert b"aclnnExpGetWorkspaceSize: type 9" in nn.c.aclGetRecentErrMsg()
    nn.close()


def test_N7_workspaces_must_be_given(nn: Nn) -> None:
    calls, one, out = nn.calls, nn.tensor((4,), floats(0, 0, 0, 0)), nn.tensor((4,), bytes(16))
    code, size, executor = nn.first("Softmax", one, ctypes.c_int64(-1), out)
    assert code == 0 and size.value > 0
    assert calls.code("aclnnSoftmax", None, size, executor, None) == 161002
    calls.violated("the workspace")
    _, size, executor = nn.first("Softmax", one, ctypes.c_int64(-1), out)
    nn.blocks.append(calls.malloc(size.value))
    calls("aclnnSoftmax", nn.blocks[-1], size, executor, None)
    calls("aclrtSynchronizeStream", None)
    assert calls.get(nn.blocks[1], 16) == floats(0.25, 0.25, 0.25, 0.25)
    nn.close()


def test_N7_freed_or_foreign_tensors_are_found(nn: Nn) -> None:
    calls, one, out = nn.calls, nn.tensor((4,), bytes(16)), nn.tensor((4,), bytes(16))
    _, size, executor = nn.first("Exp", one, out)
    calls("aclrtFree", nn.blocks.pop())
    assert calls.code("aclnnExp", None, size, executor, None) == 161002
    calls.violated("not inside a live device block")
    calls("aclrtSetDevice", 1)
    away = nn.tensor((4,), bytes(16))
    _, size, executor = nn.first("Exp", one, away)
    assert calls.code("aclnnExp", None, size, executor, None) == 161002
    calls.violated("a tensor of device 0 is used on device 1")
    _, size, executor = nn.first("Exp", away, away)
    assert any("aclOpExecutor" in line for line in calls.library.leaks())
    calls("aclnnExp", None, size, executor, None)
    nn.close()


def test_N7_an_index_out_of_range_fails_the_stream(nn: Nn) -> None:
    calls, weight, index = nn.calls, nn.tensor((2, 2), bytes(16)), nn.tensor((1,), (5).to_bytes(8, "little"), 9)
    out = nn.tensor((1, 2), bytes(8))
    _, size, executor = nn.first("Embedding", weight, index, out)
    calls("aclnnEmbedding", None, size, executor, None)
    assert calls.code("aclrtSynchronizeStream", None) == 507015
    calls("aclrtSynchronizeStream", None)  # told once
    nn.close()
