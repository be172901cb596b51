"""What tests of native operations share: tensors on npu:0 with the least that kernels need, and comparisons."""

from __future__ import annotations

from typing import Any

import acl_library
import torch
from device_memory import block_of, get

from mindtorch.npu.kernels import DTYPES, NATIVE, Calls


class Fake:
    """A tensor on npu:0, laid out as a CPU tensor is."""

    def __init__(self, device: Device, like: torch.Tensor) -> None:
        self.device, self.dtype, self.sizes, self.strides = device, like.dtype, tuple(like.shape), like.stride()
        self.offset, self.numel = like.storage_offset(), like.untyped_storage().nbytes() // like.itemsize
        self.block = block_of(0, bytes(like.untyped_storage()))
        self.base = self.block.ptr

    @property
    def description(self) -> tuple:
        return self.base, self.sizes, self.strides, self.offset, self.numel, DTYPES[self.dtype]

    def back(self) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(get(self.block)) or bytearray(1), dtype=torch.uint8)[: self.block.nbytes]
        return flat.view(self.dtype).as_strided(self.sizes, self.strides, self.offset)


class Device:
    """What the tensors' layer gives kernels."""

    def __init__(self, library: acl_library.Library) -> None:
        self.library = library
        self.calls = Calls(self.describe, self.empty, 0)

    def describe(self, value: object) -> tuple | None:
        return value.description if isinstance(value, Fake) else None

    def empty(self, sizes: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None) -> Fake:
        made = torch.empty(sizes, dtype=dtype) if strides is None else torch.empty_strided(sizes, strides, dtype=dtype)
        return Fake(self, made)

    def give(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Fake(self, value)
        return [self.give(each) for each in value] if isinstance(value, list) else value

    def run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        result = NATIVE[name](self.calls, tuple(self.give(each) for each in args), kwargs)
        if isinstance(result, tuple):
            return tuple(each.back() for each in result)
        return result.back() if isinstance(result, Fake) else result

    def queued(self, name: str) -> int:
        """How many second phases there were."""
        return self.library.calls(f"aclnn{name}")


def eager(name: str, *args: Any, **kwargs: Any) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")(*args, **kwargs)


def same(native: Any, expected: Any, exact: bool) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(native, expected, strict=True):
            same(one, other, exact)
        return
    assert (native.dtype, native.shape, native.stride()) == (expected.dtype, expected.shape, expected.stride())
    if exact:
        torch.testing.assert_close(native, expected, rtol=0, atol=0, equal_nan=True)
    else:
        torch.testing.assert_close(native, expected, equal_nan=True)
