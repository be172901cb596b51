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

    def __init__(self, npu: Npu) -> None:
        self.npu, self.c = npu, npu.library.c
        self.c.aclCreateTensor.restype = self.c.aclCreateScalar.restype = c_void_p
        self.blocks: list[c_void_p] = []
        self.handles: list[tuple[str, c_void_p]] = []

    def tensor(self, sizes: tuple[int, ...], values: bytes, dtype: int = 0) -> c_void_p:
        pointer = self.npu.malloc(max(len(values), 1))
        self.npu.put(pointer, values)
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
        self.npu("aclrtSynchronizeDevice")
        for destroy, handle in self.handles:
            self.npu(destroy, handle)
        for block in self.blocks:
            self.npu("aclrtFree", block)


@pytest.fixture
def nn(npu: Npu) -> Nn:
    return Nn(npu)


def test_N7_two_phases_add_on_a_stream(nn: Nn) -> None:
    npu = nn.npu
    one, other = nn.tensor((2, 2), floats(1, 2, 3, 4)), nn.tensor((2,), floats(10, 20))
    out = nn.tensor((2, 2), bytes(16))
    code, size, executor = nn.first("Add", one, other, nn.scalar(2), out)
    assert code == 0 and size.value == 0
    npu.library.hold()
    npu("aclnnAdd", None, size, executor, None)
    assert npu.library.peek(nn.blocks[2].value or 0, 16) == bytes(16)
    npu.library.release()
    npu("aclrtSynchronizeStream", None)
    assert npu.get(nn.blocks[2], 16) == floats(21, 42, 23, 44)
    assert npu.code("aclnnAdd", None, size, executor, None) == 561102
    npu.violated("was destroyed before")  # an executor is for once
    nn.close()


def test_N7_first_phases_refuse_wrong_parameters(nn: Nn) -> None:
    one, whole, out = nn.tensor((4,), bytes(16)), nn.tensor((2,), bytes(16), 9), nn.tensor((3,), bytes(12))
    assert nn.first("Exp", one, None)[0] == 161001
    assert nn.first("Exp", one, out)[0] == 161002
    assert nn.first("Exp", whole, whole)[0] == 161002
    assert b"aclnnExpGetWorkspaceSize: type 9" in nn.c.aclGetRecentErrMsg()
    nn.close()


def test_N7_workspaces_must_be_given(nn: Nn) -> None:
    npu, one, out = nn.npu, nn.tensor((4,), floats(0, 0, 0, 0)), nn.tensor((4,), bytes(16))
    code, size, executor = nn.first("Softmax", one, ctypes.c_int64(-1), out)
    assert code == 0 and size.value > 0
    assert npu.code("aclnnSoftmax", None, size, executor, None) == 161002
    npu.violated("the workspace")
    _, size, executor = nn.first("Softmax", one, ctypes.c_int64(-1), out)
    nn.blocks.append(npu.malloc(size.value))
    npu("aclnnSoftmax", nn.blocks[-1], size, executor, None)
    npu("aclrtSynchronizeStream", None)
    assert npu.get(nn.blocks[1], 16) == floats(0.25, 0.25, 0.25, 0.25)
    nn.close()


def test_N7_freed_or_foreign_tensors_are_found(nn: Nn) -> None:
    npu, one, out = nn.npu, nn.tensor((4,), bytes(16)), nn.tensor((4,), bytes(16))
    _, size, executor = nn.first("Exp", one, out)
    npu("aclrtFree", nn.blocks.pop())
    assert npu.code("aclnnExp", None, size, executor, None) == 161002
    npu.violated("not inside a live device block")
    npu("aclrtSetDevice", 1)
    away = nn.tensor((4,), bytes(16))
    _, size, executor = nn.first("Exp", one, away)
    assert npu.code("aclnnExp", None, size, executor, None) == 161002
    npu.violated("a tensor of device 0 is used on device 1")
    _, size, executor = nn.first("Exp", away, away)
    assert any("aclOpExecutor" in line for line in npu.library.leaks())
    npu("aclnnExp", None, size, executor, None)
    nn.close()


def test_N7_an_index_out_of_range_fails_the_stream(nn: Nn) -> None:
    npu, weight, index = nn.npu, nn.tensor((2, 2), bytes(16)), nn.tensor((1,), (5).to_bytes(8, "little"), 9)
    out = nn.tensor((1, 2), bytes(8))
    _, size, executor = nn.first("Embedding", weight, index, out)
    npu("aclnnEmbedding", None, size, executor, None)
    assert npu.code("aclrtSynchronizeStream", None) == 507015
    npu("aclrtSynchronizeStream", None)  # told once
    nn.close()
