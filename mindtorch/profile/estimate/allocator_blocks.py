"""The pieces of segments that a caching allocator hands out, and its pools of free ones."""

from __future__ import annotations

from bisect import bisect_left, insort

_ADDRESS_BITS = 52  # of a key: the size is above them


class Block:
    """A piece of a segment: given out, or free. `before` and `after`: its neighbours in the segment."""

    __slots__ = (
        "address",
        "after",
        "before",
        "expandable",
        "free_since",
        "given",
        "mapped",
        "pool",
        "requested",
        "size",
    )

    def __init__(self, pool: Pool, address: int, size: int, expandable: bool = False, mapped: bool = True) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.given, self.requested = False, 0
        self.before: Block | None = None
        self.after: Block | None = None
        self.expandable, self.mapped = expandable, mapped
        self.free_since = 0  # searches of the pool by then

    @property
    def whole(self) -> bool:
        return self.before is None and self.after is None


class Pool:
    """Free blocks by size, then address. unmapped: of expandable segments, by address alone."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: dict[int, Block] = {}
        self.searches = 0

    def add(self, block: Block) -> None:
        block.free_since = self.searches
        key = block.size << _ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def at(self, size: int) -> int:
        """Where the first free block of at least this size is in `keys`."""
        return bisect_left(self.keys, size << _ADDRESS_BITS)
