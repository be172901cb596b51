"""N4: NPU tensors through DLPack: the same memory within the process, copies for what reads the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch.utils.dlpack import DLDeviceType, to_dlpack

from mindtorch.npu import dlpack

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
WAYS: dict[str, Callable[[Any], Any]] = {
    "to_dlpack": lambda t: torch.from_dlpack(to_dlpack(t)),
    "from_dlpack": torch.from_dlpack,
    "versioned": lambda t: torch.from_dlpack(t.__dlpack__(max_version=(1, 0))),
    "copy=False": lambda t: torch.from_dlpack(t, copy=False),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.mT,
    "strided": lambda t: t[1:, :, ::2],
    "expanded": lambda t: t[:, :1].expand(2, 5, 4),
    "a number": lambda t: t[1, 2, 3],
    "nothing": lambda t: t[:, 3:],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("view", VIEWS)
def test_N4_dlpack_shares_the_memory(npu: ModuleType, way: str, view: str) -> None:
    for dtype in DTYPES:
        for index in range(min(2, npu.device_count())):
            base = (torch.arange(24) % 5 - 2).view(2, 3, 4).to(dtype)
            given = VIEWS[view](base.to(f"npu:{index}"))
            taken = WAYS[way](given)
            expected = VIEWS[view](base)
            assert (str(taken.device), taken.dtype, taken.shape) == (f"npu:{index}", dtype, expected.shape)
            assert taken.stride() == expected.stride()
            assert taken.data_ptr() == given.data_ptr() or not taken.numel()
            assert torch.equal(taken.cpu(), expected)
            given.zero_()
            assert not taken.cpu().any()
            taken.fill_(1)
            assert given.cpu().to(torch.bool).all() and taken._version == 1


def test_N4_dlpack_keeps_memory_as_long_as_it_is_needed(npu: ModuleType) -> None:
    before = npu.memory_allocated()
    capsule = to_dlpack(torch.full((1000,), 7.0, device="npu"))
    torch.zeros(1000, device="npu")
    taken = torch.from_dlpack(capsule)
    assert taken.cpu().eq(7).all() and npu.memory_allocated() > before
    del taken, capsule
    for each in (to_dlpack(torch.ones(1000, device="npu")), torch.ones(1000, device="npu").__dlpack__()):
        del each  # a capsule that nobody took
    assert npu.memory_allocated() == before


def test_N4_dlpack_to_the_cpu_and_from_it(npu: ModuleType) -> None:
    given = torch.arange(6.0, device="npu").view(2, 3).t()
    for taken in (numpy.from_dlpack(given, device="cpu"), torch.from_dlpack(given, device="cpu")):
        assert taken.tolist() == [[0, 3], [1, 4], [2, 5]]
        taken[0, 0] = 9
    assert given[0, 0].item() == 0
    assert given.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch.from_dlpack(numpy.arange(3.0)).to("npu").add(1).tolist() == [1, 2, 3]
    copied = torch.from_dlpack(given, copy=True)
    assert copied.tolist() == given.tolist() and copied.data_ptr() != given.data_ptr()


def test_N4_dlpack_waits_where_the_consumer_names_its_stream(npu: ModuleType, library: Any) -> None:
    given = torch.zeros(3, device="npu")
    library.stall(npu.current_stream().npu_stream, 200)
    given.add_(1)
    given.__dlpack__()
    assert not npu.current_stream().query()
    given.__dlpack__(stream=5)
    assert npu.current_stream().query()


def test_N4_dlpack_refuses_what_a_capsule_cannot_say(npu: ModuleType) -> None:
    given = torch.ones(3, device="npu")
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(3, device="npu", requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(3, dtype=torch.complex64, device="npu").conj().__dlpack__()
    with pytest.raises(BufferError, match="copy=None or True"):
        given.__dlpack__(dl_device=(DLDeviceType.kDLCPU, 0), copy=False)
    with pytest.raises(BufferError, match=r"got .*, 5"):
        given.__dlpack__(dl_device=(DLDeviceType.kDLExtDev, 5))
    with pytest.raises(RuntimeError, match="Unsupported device"):
        numpy.from_dlpack(given)
    capsule = to_dlpack(given)
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="only once"):
        torch.from_dlpack(capsule)


def test_N4_dlpack_refuses_memory_of_other_libraries(npu: ModuleType) -> None:
    capsule = to_dlpack(torch.ones(3, device="npu"))
    described = dlpack._described(capsule)
    assert described is not None
    address, described.data = described.data, ctypes.addressof(described)
    with pytest.raises(BufferError, match="another library's on npu:0"):
        torch.from_dlpack(capsule)
    described.data = address + 1
    with pytest.raises(BufferError, match="1 bytes off"):
        torch.from_dlpack(capsule)
