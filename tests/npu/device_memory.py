"""What the memory tests share: bytes to a block and back, as Python objects."""

from __future__ import annotations

import ctypes

from mindtorch._ext import blocks


def put(block: blocks.Block, data: bytes, offset: int = 0) -> None:
    """Copy ``data`` to the block; it is the library's when this returns."""
    buffer = ctypes.create_string_buffer(data, len(data))
    blocks.copy_in(block, offset, ctypes.addressof(buffer), len(data))
    ctypes.memset(buffer, 0xEE, len(data))  # wait=True: it may be written to


def get(block: blocks.Block, offset: int = 0, size: int | None = None) -> bytes:
    """The block's bytes from ``offset`` on."""
    size = block.nbytes - offset if size is None else size
    buffer = ctypes.create_string_buffer(size)
    blocks.copy_out(block, offset, ctypes.addressof(buffer), size)
    return buffer.raw


def block_of(device: int, data: bytes) -> blocks.Block:
    """A new block that holds ``data``."""
    block = blocks.allocate(device, len(data))
    put(block, data)
    return block


def pattern(size: int, seed: int = 1) -> bytes:
    """``size`` bytes that are not easily confused with others."""
    unit = bytes((i * 31 + i // 256 * 7 + seed) % 251 for i in range(min(size, 1 << 16)))
    return (unit * (size // max(len(unit), 1) + 1))[:size]
