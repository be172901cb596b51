"""What torch's caching allocator for CUDA does with a program's allocations: the same rules, without memory.

The rules are those of torch 2.13 (`DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp, constants and settings
in c10/core/AllocatorConfig.h). Addresses are made up; they grow as segments are asked for, so
that of two free blocks of one size the older segment's is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mindtorch.profile.estimate.allocator_blocks import Block, Pool
from mindtorch.profile.estimate.allocator_settings import ROUND, SMALL_SEGMENT, SMALL_SIZE, Settings

#: Called with what happened, address and bytes: as torch's `TraceEntry` calls it.
Trace = Callable[[str, int, int], None]


class CachingAllocator:
    """One device's memory as torch hands it out.

    capacity: bytes that may be reserved at most; None: no end. trace: told of every step.
    Where nothing is left, the request is counted in `ooms`, and given memory beyond the capacity, so that it shows how
    much is missing.
    """

    def __init__(
        self, settings: Settings | None = None, capacity: int | None = None, trace: Trace | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.capacity, self.fraction = capacity, self.settings.fraction
        self.trace = trace
        self.stream = 0  # the current one: what was freed on another one is not handed out on it
        self.graph = 0  # the private pool of the CUDA graph that is captured now, by its number; 0: none is captured
        self.graphs: Counter[int] = Counter()  # private pools, and of how many graphs each is
        self.pools: dict[tuple[int, int], tuple[Pool, Pool]] = {}  # of small blocks and large ones, by graph and stream
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = 0
        self.allocations = self.segments_now = 0  # how many now, and at most
        self.peak_requested = self.peak_allocations = self.peak_segments = 0
        self.ooms = self.retries = self.device_allocations = self.device_frees = 0
        self._next = 0x7F00_0000_0000
        self.heads: dict[int, Block] = {}  # address of a segment → its first block

    # ---- what a program asks for

    def malloc(self, nbytes: int) -> Block:
        size = self.settings.rounded(nbytes)
        of = self.graph, self.stream
        small, large = self.pools.get(of) or self.pools.setdefault(of, (Pool(True), Pool(False)))
        pool = small if size <= SMALL_SIZE else large
        block = self._take(pool, size) or self._obtain(pool, size)
        rest = block.size - size
        few = ROUND if pool.small or block.expandable else SMALL_SIZE + 1
        if rest >= few and (pool.small or block.expandable or size < self.settings.max_split):
            behind = Block(pool, block.address + size, rest, block.expandable)
            behind.before, behind.after = block, block.after
            if block.after is not None:
                block.after.before = behind
            block.after, block.size = behind, size
            pool.add(behind)
        block.given, block.requested = True, nbytes
        self.allocations += 1
        self.requested += nbytes
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
        if self.allocations > self.peak_allocations:
            self.peak_allocations = self.allocations
        if self.trace is not None:
            self.trace("alloc", block.address, nbytes)
        return block

    def free(self, block: Block) -> None:
        block.given = False
        self.allocations -= 1
        self.requested -= block.requested
        self.allocated -= block.size
        if self.trace is not None:
            self.trace("free_requested", block.address, block.requested)
            self.trace("free_completed", block.address, block.requested)
        block.pool.add(self._joined(block))

    def empty_cache(self) -> None:
        """Free segments go back to the device, but for those of private pools whose graphs are there."""
        for (graph, _), (small, large) in self.pools.items():
            if graph not in self.graphs:
                self._release_all(large)
                self._release_all(small)

    def capture(self, graph: int) -> None:
        """From now on memory is of a private pool; 0: no more."""
        self.graph = graph
        if graph:
            self.graphs[graph] += 1

    def release_graph(self, graph: int) -> None:
        """A graph with that private pool is no more."""
        self.graphs[graph] -= 1
        if self.graphs[graph] <= 0:
            del self.graphs[graph]

    def reset_peak(self) -> None:
        self.peak_allocated, self.peak_reserved, self.peak_requested = self.allocated, self.reserved, self.requested
        self.peak_allocations, self.peak_segments = self.allocations, self.segments_now

    def segments(self) -> list[Block]:
        """The first block of each segment, by address."""
        return [self.heads[address] for address in sorted(self.heads)]

    @property
    def inactive_split(self) -> int:
        """Free bytes of segments of which something is given out: what cannot go back to the device."""
        free = (block for pools in self.pools.values() for pool in pools for block in pool.blocks.values())
        return sum(block.size for block in free if not block.whole and not block.expandable)

    # ---- free blocks

    def _take(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that holds `size`, taken out of its pool."""
        settings = self.settings
        if settings.gc_threshold and self.fraction is not None:
            pool.searches += 1
        at = pool.at(size)
        if at == len(pool.keys):
            return None
        block = pool.blocks[pool.keys[at]]
        if block.expandable:
            # One that can grow counts as large as it can get.
            while at + 1 < len(pool.keys):
                other = pool.blocks[pool.keys[at + 1]]
                if _can_grow_to(other) >= _can_grow_to(block):
                    break
                block, at = other, at + 1
        if size < settings.max_split <= block.size:
            return None
        if size >= settings.max_split and block.size >= size + settings.max_non_split_rounding:
            return None
        del pool.blocks[pool.keys.pop(at)]
        return block

    def _joined(self, block: Block) -> Block:
        """A block that is free or unmapped now, together with its neighbours that are the same; in no pool."""
        before, after = block.before, block.after
        if before is not None and not before.given and before.mapped == block.mapped:
            self._forget(before)
            block.address, block.before = before.address, before.before
            block.size += before.size
            if block.before is not None:
                block.before.after = block
            else:
                self.heads[block.address] = block
        if after is not None and not after.given and after.mapped == block.mapped:
            self._forget(after)
            block.after = after.after
            block.size += after.size
            if block.after is not None:
                block.after.before = block
        return block

    def _forget(self, block: Block) -> None:
        if block.mapped:
            block.pool.remove(block)
        else:
            del block.pool.unmapped[block.address]

    # ---- memory of the device

    def _obtain(self, pool: Pool, size: int) -> Block:
        """A new segment, or more of one that grows; where there is no room, after cached ones have been given back."""
        if self.settings.gc_threshold and self.fraction is not None and self.capacity is not None:
            for _, large in [pools for (graph, _), pools in self.pools.items() if not graph]:
                self._collect(large, int(self.settings.gc_threshold * self.fraction * self.capacity))
        nbytes = self.settings.segment(size)
        make = self._grown if self.settings.expandable else self._new_segment
        block = make(pool, size, nbytes, self._limit())
        if block is None and self._release_oversized(pool, size):
            block = make(pool, size, nbytes, self._limit())
        if block is None and not self.graph:  # a capture permits no cudaFree
            self.empty_cache()
            self.retries += 1
            block = make(pool, size, nbytes, self._limit())
        if block is None:
            self.ooms += 1
            if self.trace is not None:
                self.trace("oom", max(0, (self._limit() or 0) - self.reserved), size)
            block = make(pool, size, nbytes, None)
            assert block is not None
        return block

    def _limit(self) -> int | None:
        if self.capacity is None or self.fraction is None:
            return self.capacity
        return min(self.capacity, int(self.fraction * self.capacity))

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.device_allocations += 1
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
        if self.segments_now > self.peak_segments:
            self.peak_segments = self.segments_now

    def _new_segment(self, pool: Pool, size: int, nbytes: int, limit: int | None) -> Block | None:
        if limit is not None and self.reserved + nbytes > limit:
            return None
        block = Block(pool, self._next, nbytes)
        self._next += -(-nbytes // SMALL_SEGMENT) * SMALL_SEGMENT
        self.heads[block.address] = block
        self.segments_now += 1
        self._reserve(nbytes)
        if self.trace is not None:
            self.trace("segment_alloc", block.address, nbytes)
        return block

    def _release(self, block: Block) -> None:
        """Give a free block that is a whole segment back to the device."""
        block.pool.remove(block)
        del self.heads[block.address]
        self.segments_now -= 1
        self.reserved -= block.size
        self.device_frees += 1
        if self.trace is not None:
            self.trace("segment_free", block.address, block.size)

    def _release_all(self, pool: Pool) -> None:
        free = [pool.blocks[key] for key in pool.keys]
        for block in free:
            if block.expandable:
                self._unmap(block)
            elif block.whole:
                self._release(block)

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """With max_split_size_mb: only as many of the blocks that may not be split as the request needs."""
        most = self.settings.max_split
        if not self.settings.limits_splits or self.settings.expandable:
            return False
        wanted = max(size, most)
        at = pool.at(wanted)
        if at < len(pool.keys):
            self._release(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while released < wanted and pool.keys:
            block = pool.blocks[pool.keys[-1]]
            if block.size < most:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect(self, pool: Pool, threshold: int) -> None:
        """`garbage_collection_threshold`: give back what has been free for longer than others, until below it."""
        if self.reserved <= threshold:
            return
        wanted = self.reserved - threshold
        old = {key: pool.searches - block.free_since for key, block in pool.blocks.items() if block.whole}
        ages, freed, reclaimed = sum(old.values()), True, 0
        while reclaimed < wanted and freed and old:
            limit, freed = ages / len(old), False
            for key in sorted(old):
                if old[key] >= limit:
                    block = pool.blocks[key]
                    freed = True
                    reclaimed += block.size
                    ages -= old.pop(key)
                    self._release(block)

    # ---- expandable segments

    def _grown(self, pool: Pool, size: int, nbytes: int, limit: int | None) -> Block | None:
        """A block of an expandable segment, into which as many pages were mapped as `size` needs."""
        block = self._room(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size), limit):
            return None
        while block.size < size:
            following = block.after
            assert following is not None
            if not self._map(following, min(size - block.size, following.size), limit):
                return None
            block = following
        pool.remove(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """The first place in an expandable segment where `size` bytes are free or not mapped yet."""
        for address in sorted(pool.unmapped):
            block = pool.unmapped[address]
            if block.before is not None and not block.before.given:
                block = block.before
            found = 0
            following: Block | None = block
            while following is not None and not following.given and found < size:
                found += following.size
                following = following.after
            if found >= size:
                return block
        space = self.capacity or 1 << 40
        page = self._page(pool)
        self._next = -(-self._next // page) * page  # pages lie at multiples of their size
        block = Block(pool, self._next, -(-(space + space // 8) // page) * page, expandable=True, mapped=False)
        self._next += block.size
        self.heads[block.address] = block
        self.segments_now += 1
        pool.unmapped[block.address] = block
        return block

    def _page(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.small else self.settings.large_segment

    def _map(self, block: Block, size: int, limit: int | None) -> bool:
        pool, page = block.pool, self._page(block.pool)
        nbytes = -(-size // page) * page
        if limit is not None and self.reserved + nbytes > limit:
            return False
        del pool.unmapped[block.address]
        address = block.address
        if nbytes < block.size:
            rest = Block(pool, block.address + nbytes, block.size - nbytes, expandable=True, mapped=False)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, nbytes
            pool.unmapped[rest.address] = rest
        block.mapped = True
        self._reserve(nbytes)
        pool.add(self._joined(block))
        if self.trace is not None:
            self.trace("segment_map", address, nbytes)
        return True

    def _unmap(self, block: Block) -> None:
        """Give back the pages that lie in a free block as a whole."""
        pool, page = block.pool, self._page(block.pool)
        first, last = -(-block.address // page) * page, (block.address + block.size) // page * page
        if last <= first:
            return
        pool.remove(block)
        if first > block.address:
            front = Block(pool, block.address, first - block.address, expandable=True)
            front.before, front.after = block.before, block
            if front.before is not None:
                front.before.after = front
            else:
                self.heads[front.address] = front
            block.before = front
            pool.add(front)
        if last < block.address + block.size:
            back = Block(pool, last, block.address + block.size - last, expandable=True)
            back.before, back.after = block, block.after
            if back.after is not None:
                back.after.before = back
            block.after = back
            pool.add(back)
        block.address, block.size, block.mapped = first, last - first, False
        self.reserved -= block.size
        self.device_frees += 1
        if self.trace is not None:
            self.trace("segment_unmap", block.address, block.size)
        self._joined(block)
        if block.whole:  # nothing of it is used any more
            del self.heads[block.address]
            self.segments_now -= 1
        else:
            pool.unmapped[block.address] = block


def _can_grow_to(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
