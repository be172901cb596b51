"""C4: torch's caching allocator is replayed by its rules: cases by hand, any sequence against a plain model of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from naive_allocator import MIB, Naive

from mindtorch.profile.estimate.allocator_blocks import Block
from mindtorch.profile.estimate.allocator_settings import Settings
from mindtorch.profile.estimate.caching_allocator import CachingAllocator

KIB = 1 << 10


def allocator(text: str = "", **options: Any) -> CachingAllocator:
    return CachingAllocator(Settings.parse(text), **options)


def check(a: CachingAllocator) -> None:
    """Whatever happened: segments without holes, neighbours joined, sums and pools as the blocks have them."""
    mapped = given = 0
    free = set()
    for head in a.segments():
        assert head.before is None
        block: Block | None = head
        while block is not None:
            following = block.after
            if following is not None:
                assert following.before is block and following.address == block.address + block.size
                assert block.given or following.given or block.mapped != following.mapped, "not joined"
            assert block.size > 0 and not (block.given and not block.mapped)
            mapped += block.size if block.mapped else 0
            given += block.size if block.given else 0
            if block.mapped and not block.given:
                free.add(id(block))
            block = following
    assert mapped == a.reserved and given == a.allocated and a.allocated <= a.reserved
    pools = [pool for both in a.pools.values() for pool in both]
    assert free == {id(block) for pool in pools for block in pool.blocks.values()}
    assert all(sorted(pool.keys) == pool.keys and set(pool.keys) == set(pool.blocks) for pool in pools)
    assert a.peak_allocated >= a.allocated and a.peak_reserved >= a.reserved


def layout(a: CachingAllocator, owners: dict[int, int]) -> list[list[tuple[int, int | None]]]:
    found = []
    for head in a.segments():
        row, block = [], head
        each: Block | None = block
        while each is not None:
            row.append((each.size, owners[id(each)] if each.given else None))
            each = each.after
        found.append(row)
    return found


def test_C4_requests_are_rounded_to_512_bytes() -> None:
    for nbytes, taken in ((0, 512), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)):
        a = allocator()
        a.malloc(nbytes)
        assert a.allocated == taken and a.requested == nbytes


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 1, 10 * MIB), (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB), (100 * MIB, 100 * MIB), (101 * MIB, 102 * MIB),
    ],
)  # fmt: skip
def test_C4_segments_are_of_torchs_sizes(nbytes: int, segment: int) -> None:
    a = allocator()
    a.malloc(nbytes)
    assert a.reserved == segment


def test_C4_what_is_left_of_a_block_is_split_off_only_where_torch_does() -> None:
    a = allocator()
    a.malloc(19 * MIB // 2)  # of a segment of 20 MiB: 10.5 are left
    a.malloc(19 * MIB // 2)  # 1 MiB would be left, which is not more than 1 MiB
    assert a.allocated == 20 * MIB == a.reserved
    a = allocator()
    a.malloc(11 * MIB)
    assert a.allocated == a.reserved == 12 * MIB
    a.malloc(MIB - 512)  # the small pool splits down to 512 bytes
    a.malloc(MIB + 512)
    assert a.reserved == (12 + 2 + 20) * MIB and a.allocated == 12 * MIB + MIB - 512 + MIB + 512


def test_C4_the_smallest_free_block_that_holds_a_request_is_taken() -> None:
    a = allocator()
    blocks = [a.malloc(size * MIB) for size in (40, 20, 30)]
    for block in blocks:
        a.free(block)
    taken = a.malloc(19 * MIB + 1)
    assert taken.address == blocks[1].address and a.reserved == 90 * MIB
    assert a.malloc(25 * MIB).address == blocks[2].address
    assert a.malloc(39 * MIB).size == 40 * MIB


def test_C4_emptying_the_cache_gives_back_whole_segments_only() -> None:
    a = allocator()
    kept, other, third = a.malloc(4 * MIB), a.malloc(4 * MIB), a.malloc(32 * MIB)
    a.free(other)
    a.free(third)
    assert a.reserved == 52 * MIB and a.inactive_split == 16 * MIB
    a.empty_cache()
    assert a.reserved == 20 * MIB and a.peak_reserved == 52 * MIB
    a.free(kept)
    a.empty_cache()
    assert a.reserved == 0 == a.segments_now
    check(a)


def test_C4_where_the_device_is_full_the_cache_is_given_back_first() -> None:
    a = allocator(capacity=100 * MIB)
    for size in (30, 31, 32):
        a.free(a.malloc(size * MIB))
    assert a.reserved == 30 * MIB + 32 * MIB + 32 * MIB - 32 * MIB == 62 * MIB
    a.malloc(80 * MIB)
    assert (a.retries, a.ooms, a.reserved) == (1, 0, 80 * MIB)
    a.malloc(30 * MIB)
    assert (a.retries, a.ooms, a.reserved) == (2, 1, 110 * MIB)  # shows how much is missing


def test_C4_large_blocks_are_not_split_where_the_program_says_so() -> None:
    a = allocator("max_split_size_mb:32")
    a.free(a.malloc(64 * MIB))
    a.malloc(16 * MIB)
    assert a.reserved == 80 * MIB
    assert a.malloc(50 * MIB).size == 64 * MIB
    a = allocator("max_split_size_mb:32", capacity=200 * MIB)
    for block in [a.malloc(size * MIB) for size in (40, 60, 80)]:
        a.free(block)
    a.malloc(30 * MIB)  # only as much is given back as it needs
    assert (a.reserved, a.retries) == (170 * MIB, 0)


def test_C4_requests_are_rounded_up_to_parts_of_powers_of_two() -> None:
    for text, nbytes, taken in (
        ("roundup_power2_divisions:4", 5 * MIB + MIB // 2, 6 * MIB),
        ("roundup_power2_divisions:4", 8 * MIB, 8 * MIB),
        ("roundup_power2_divisions:4", 1200, 1536),  # too small for four parts of 512 bytes and more
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 33 * MIB, 36 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 257 * MIB, 320 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 513 * MIB, 513 * MIB),
    ):
        assert Settings.parse(text).rounded(nbytes) == taken, (text, nbytes)


def test_C4_settings_are_read_as_torch_reads_them() -> None:
    told = Settings.of_environment(environment={
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1",
        "PYTORCH_ALLOC_CONF": " expandable_segments:True , garbage_collection_threshold:0.5,backend:native",
    })  # fmt: skip
    assert told.expandable and told.gc_threshold == 0.5 and not told.limits_splits and told.ignored == ("backend",)
    assert (
        Settings.of_environment(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}).max_split == 64 * MIB
    )
    assert Settings.of_environment(environment={}) == Settings() == Settings.parse("nonsense")
    assert Settings.of_environment("npu", {}).rounded(481) == 1024  # the NPU's operators may touch 32 bytes more


def test_C4_old_blocks_are_given_back_beyond_the_threshold() -> None:
    a = allocator("garbage_collection_threshold:0.5", capacity=200 * MIB)
    a.fraction = 1.0
    old, young = a.malloc(60 * MIB), a.malloc(40 * MIB)
    a.free(old)
    for _ in range(5):  # `old` stays free meanwhile
        a.free(young)
        young = a.malloc(40 * MIB)
    a.malloc(70 * MIB)  # 100 MiB are no more than half of the device
    assert a.reserved == 170 * MIB
    a.malloc(20 * MIB)
    assert a.reserved == 170 * MIB - 60 * MIB + 60 * MIB and a.allocated == 130 * MIB  # a part of `old`: no new memory
    a.malloc(50 * MIB)
    check(a)


def test_C4_blocks_that_are_free_for_equally_long_go_together() -> None:
    a = allocator("garbage_collection_threshold:0.25", capacity=400 * MIB)
    a.fraction = 1.0
    one, other, _held = (a.malloc(50 * MIB) for _ in range(3))
    a.free(one)
    a.free(other)
    a.malloc(60 * MIB)  # into which neither fits; 50 MiB would be enough
    assert a.reserved == (50 + 60) * MIB
    check(a)


def test_C4_no_more_old_blocks_are_given_back_than_it_takes() -> None:
    a = allocator("garbage_collection_threshold:0.25", capacity=480 * MIB)
    a.fraction = 1.0
    old, young, other = a.malloc(50 * MIB), a.malloc(50 * MIB), a.malloc(70 * MIB)
    a.free(old)
    a.free(other)
    a.malloc(70 * MIB)  # `other` again, while `old` stays free
    a.free(young)
    a.malloc(80 * MIB)  # 170 MiB of 120: `old` is exactly enough
    assert a.reserved == (50 + 70 + 80) * MIB
    check(a)


def test_C4_expandable_segments_grow_by_pages() -> None:
    a = allocator("expandable_segments:True", capacity=1000 * MIB)
    first = a.malloc(30 * MIB)
    assert a.reserved == 40 * MIB
    second = a.malloc(30 * MIB)
    assert a.reserved == 60 * MIB and len(a.segments()) == 1
    assert second.address == first.address + 30 * MIB
    a.malloc(100 * KIB)
    assert a.reserved == 62 * MIB and len(a.segments()) == 2
    a.free(first)
    a.empty_cache()  # one page of 20 MiB lies within what is free
    assert a.reserved == 42 * MIB
    check(a)
    a.malloc(25 * MIB)
    assert a.reserved == 62 * MIB
    check(a)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limits", [(None, None), (32, None), (None, 400), (32, 500)])
@pytest.mark.parametrize("streams", [1, 3])
def test_C4_any_sequence_gives_what_a_plain_model_gives(
    seed: int, limits: tuple[int | None, int | None], streams: int
) -> None:
    split, capacity = limits
    draw = random.Random(f"{seed} {limits}")
    text = "" if split is None else f"max_split_size_mb:{split}"
    a = allocator(text, capacity=None if capacity is None else capacity * MIB)
    b = Naive(None if split is None else split * MIB, None if capacity is None else capacity * MIB)
    sizes = [draw.choice([draw.randrange(3000), draw.randrange(2 * MIB), draw.randrange(60 * MIB)]) for _ in range(25)]
    live: dict[int, Block] = {}
    for number in range(300):
        if live and draw.random() < 0.5:
            owner = draw.choice(list(live))
            a.free(live.pop(owner))
            b.free(owner)
        elif draw.random() < 0.03:
            a.empty_cache()
            b.empty()
        else:
            a.stream = b.stream = draw.randrange(streams)
            nbytes = draw.choice(sizes)
            live[number] = a.malloc(nbytes)
            b.malloc(number, nbytes)
        assert (a.allocated, a.reserved) == (b.allocated, b.reserved), number
    assert (a.retries, a.ooms) == (b.retries, b.ooms)
    assert layout(a, {id(block): owner for owner, block in live.items()}) == b.layout()
    check(a)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("text", ["expandable_segments:True", "garbage_collection_threshold:0.6",
                                  "roundup_power2_divisions:8", "large_segment_size_mb:64"])  # fmt: skip
def test_C4_no_sequence_breaks_the_books(seed: int, text: str) -> None:
    draw = random.Random(seed)
    steps: list[tuple[str, int, int]] = []
    a = allocator(text, capacity=600 * MIB, trace=lambda *step: steps.append(step))
    a.fraction = 0.9
    live: list[Block] = []
    for number in range(300):
        if live and draw.random() < 0.5:
            a.free(live.pop(draw.randrange(len(live))))
        elif draw.random() < 0.04:
            a.empty_cache()
        else:
            a.stream = draw.randrange(3)
            live.append(
                a.malloc(draw.choice([draw.randrange(3000), draw.randrange(2 * MIB), draw.randrange(80 * MIB)]))
            )
        if number % 10 == 0:
            check(a)
    check(a)
    sums = dict.fromkeys(
        ("segment_alloc", "segment_map", "segment_free", "segment_unmap", "alloc", "free_completed"), 0
    )
    for what, _address, nbytes in steps:
        sums[what] = sums.get(what, 0) + nbytes
    got = sums["segment_alloc"] + sums["segment_map"] - sums["segment_free"] - sums["segment_unmap"]
    assert got == a.reserved and sums["alloc"] - sums["free_completed"] == a.requested
    for block in live:
        a.free(block)
    a.empty_cache()
    assert (a.allocated, a.reserved, a.allocations) == (0, 0, 0)
