"""N2: the caching allocator, step by step beside one that is written down as plainly as can be."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field

import pytest

from mindtorch._ext import blocks

KIB, MIB = 1 << 10, 1 << 20
FIGURES = ("allocation", "segment", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
#: On both sides of where sizes are rounded, and where another kind of segment begins.
SIZES = (1, 480, 481, 992, 3000, 50 * KIB, 300 * KIB, MIB - 544, MIB - 32, MIB - 31, 2 * MIB, 5 * MIB,
         10 * MIB - 544, 10 * MIB - 543, 10 * MIB - 32, 12 * MIB, 18 * MIB, 19 * MIB - 32)  # fmt: skip


@dataclass(eq=False)
class Piece:
    address: int
    size: int
    lane: int
    large: bool
    state: str = "free"  # or taken, or waiting
    asked: int = 0
    users: set[int] = field(default_factory=set)


class Plain:
    """Segments are lists of pieces, in the order of their addresses; every figure has its four columns."""

    def __init__(self) -> None:
        self.segments: list[list[Piece]] = []
        self.figures = {name: {"current": 0, "peak": 0, "allocated": 0, "freed": 0} for name in FIGURES}

    def count(self, name: str, change: int) -> None:
        figure = self.figures[name]
        figure["current"] += change
        figure["allocated" if change > 0 else "freed"] += abs(change)
        figure["peak"] = max(figure["peak"], figure["current"])

    def sweep(self) -> None:
        for piece in [piece for segment in self.segments for piece in segment]:
            if piece.state == "waiting" and not piece.users:
                piece.state = "free"
                self.count("active_bytes", -piece.size)
        for at, segment in enumerate(self.segments):
            merged: list[Piece] = []
            for piece in segment:
                if merged and merged[-1].state == piece.state == "free":
                    merged[-1].size += piece.size
                else:
                    merged.append(piece)
            self.segments[at] = merged

    def best(self, lane: int, nbytes: int) -> Piece | None:
        size = rounded(nbytes)
        pieces = [piece for segment in self.segments for piece in segment]
        fit = [p for p in pieces if (p.state, p.lane, p.large) == ("free", lane, size > MIB) and p.size >= size]
        return min(fit, key=lambda piece: (piece.size, piece.address), default=None)

    def segment(self, lane: int, nbytes: int, address: int) -> Piece:
        size = rounded(nbytes)
        span = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        piece = Piece(address, span, lane, size > MIB)
        self.segments.append([piece])
        self.count("segment", 1)
        self.count("reserved_bytes", span)
        return piece

    def take(self, piece: Piece, nbytes: int) -> None:
        rest = piece.size - rounded(nbytes)
        if rest > (MIB if piece.large else 0):
            segment = next(each for each in self.segments if piece in each)
            piece.size -= rest
            other = Piece(piece.address + piece.size, rest, piece.lane, piece.large)
            segment.insert(segment.index(piece) + 1, other)
        piece.state, piece.asked = "taken", nbytes
        for name, change in (("allocation", 1), ("allocated_bytes", piece.size), ("active_bytes", piece.size)):
            self.count(name, change)
        self.count("requested_bytes", nbytes)

    def give(self, piece: Piece) -> None:
        piece.state = "waiting"
        for name, change in (("allocation", -1), ("allocated_bytes", -piece.size), ("requested_bytes", -piece.asked)):
            self.count(name, change)
        if not piece.users:
            self.sweep_one(piece)

    def sweep_one(self, piece: Piece) -> None:
        """What no other lane used is free at once; what waits besides is asked for when memory is needed."""
        held = [p for segment in self.segments for p in segment if p.state == "waiting" and p is not piece]
        for other in held:
            other.users.add(-1)
        self.sweep()
        for other in held:
            other.users.discard(-1)

    def empty(self) -> None:
        self.sweep()
        for segment in list(self.segments):
            if len(segment) == 1 and segment[0].state == "free":
                self.segments.remove(segment)
                self.count("segment", -1)
                self.count("reserved_bytes", -segment[0].size)

    def reset_peaks(self) -> None:
        for figure in self.figures.values():
            figure["peak"] = figure["current"]


def rounded(nbytes: int) -> int:
    return -(-(nbytes + 32) // 512) * 512


@pytest.fixture
def empty(npu):
    """Nothing is kept of what earlier tests had."""
    gc.collect()
    npu.empty_cache()
    return npu


def figures(npu, before):
    stats = npu.memory_stats(0)
    for name in FIGURES:
        told = {column: stats[f"{name}.all.{column}"] for column in ("current", "peak", "allocated", "freed")}
        yield name, {column: value - before[f"{name}.all.{column}"] for column, value in told.items()}


class Beside:
    """Every step is made by both, and compared."""

    def __init__(self, npu, library, choices: random.Random) -> None:
        self.npu, self.library, self.choices = npu, library, choices
        self.lanes, self.users = [npu.Stream(0) for _ in range(2)], [npu.Stream(0) for _ in range(2)]
        self.plain, self.held = Plain(), []
        npu.reset_peak_memory_stats(0)
        self.before = npu.memory_stats(0)
        self.hold()

    def hold(self) -> None:
        for user in self.users:
            self.library.hold(user.npu_stream)

    def take(self) -> None:
        lane, nbytes = self.choices.randrange(len(self.lanes)), self.choices.choice(SIZES)
        self.plain.sweep()
        piece = self.plain.best(lane, nbytes)
        with self.lanes[lane]:
            block = blocks.allocate(0, nbytes)
        if piece is None:
            piece = self.plain.segment(lane, nbytes, block.ptr)
        assert block.ptr == piece.address
        self.plain.take(piece, nbytes)
        self.held.append((block, piece))

    def give(self) -> None:
        piece = self.held.pop(self.choices.randrange(len(self.held)))[1]
        self.plain.give(piece)

    def use(self) -> None:
        block, piece = self.choices.choice(self.held)
        user = self.choices.randrange(len(self.users))
        block.record_stream(self.users[user])
        piece.users.add(user)

    def settle(self) -> None:
        """One of the users has come past all that it had: no piece that was given back waits for it any more."""
        user = self.choices.randrange(len(self.users))
        self.library.release(self.users[user].npu_stream)
        self.users[user].synchronize()
        for segment in self.plain.segments:
            for piece in segment:
                if piece.state == "waiting":
                    piece.users.discard(user)
        self.library.hold(self.users[user].npu_stream)

    def empty(self) -> None:
        self.library.release()
        self.npu.empty_cache(0)
        for segment in self.plain.segments:
            for piece in segment:
                if piece.state == "waiting":
                    piece.users.clear()
        self.plain.empty()
        self.hold()

    def reset_peaks(self) -> None:
        self.npu.reset_peak_memory_stats(0)
        self.plain.reset_peaks()
        self.before |= {f"{name}.all.peak": self.before[f"{name}.all.current"] for name in FIGURES}

    def step(self) -> None:
        steps = [self.take] * (12 if len(self.held) < 30 else 2)
        if self.held:
            steps += [self.give] * 10 + [self.use] * 3
        steps += [self.settle] * 2
        if self.choices.random() < 0.02:
            steps = [self.empty, self.reset_peaks]
        self.choices.choice(steps)()
        assert dict(figures(self.npu, self.before)) == self.plain.figures


@pytest.mark.parametrize("seed", range(4))
def test_N2_every_step_is_the_one_that_is_written_down(empty, library, seed):
    beside = Beside(empty, library, random.Random(seed))
    for _ in range(400):
        beside.step()
    while beside.held:
        beside.give()
    beside.empty()
    library.release()
    assert beside.plain.segments == []
    assert dict(figures(empty, beside.before)) == beside.plain.figures


# Where the device has no more.


def test_N2_as_much_as_may_be_held_is(empty):
    try:
        blocks.limit_memory(0, empty.memory_reserved(0) + 22 * MIB)
        with empty.Stream(0):
            held = [blocks.allocate(0, 20 * MIB - 32), blocks.allocate(0, 1)]  # all of it
            stats = empty.memory_stats(0)
            with pytest.raises(RuntimeError):
                blocks.allocate(0, 2 * MIB)
        after = empty.memory_stats(0)
        assert [after[name] - stats[name] for name in ("num_alloc_retries", "num_ooms")] == [1, 1]
        held.clear()
        empty.empty_cache()
        blocks.limit_memory(0, empty.memory_reserved(0) + 22 * MIB - 1)
        with empty.Stream(0):
            held.append(blocks.allocate(0, 20 * MIB - 32))
            with pytest.raises(RuntimeError):
                blocks.allocate(0, 1)
    finally:
        blocks.limit_memory(0, None)


@pytest.mark.parametrize("asked", [500 * KIB, 700 * KIB, 900 * KIB, 3 * MIB])
def test_N2_of_other_streams_memory_the_best_fit_is_taken_and_stays_theirs(empty, library, asked):
    owners, taker = [empty.Stream(0) for _ in range(2)], empty.Stream(0)
    held, gaps, free = [], [], {}
    sizes = ((600 * KIB, 300 * KIB, 2 * MIB), (800 * KIB, 400 * KIB, 4 * MIB))
    for owner, of in zip(owners, sizes):
        with owner:
            for size in of:  # one gap in each segment, which is full besides
                gaps.append(blocks.allocate(0, size - 32))
                held.append(blocks.allocate(0, (MIB if size < MIB else 20 * MIB - size) - 32))
                if size < MIB:
                    held.append(blocks.allocate(0, MIB - size - 32))
                free[size] = gaps[-1].ptr, owner
    gaps.clear()
    try:
        blocks.limit_memory(0, empty.memory_reserved(0))
        with taker:
            best = min((size for size in free if size >= asked + 32), default=None)
            library.hold(taker.npu_stream)
            before = empty.memory_stats(0)
            block = blocks.allocate(0, asked)
            place, owner = free[best]
            assert block.ptr == place
            assert empty.memory_stats(0)["num_ooms"] == before["num_ooms"]
            blocks.fill(block, 0, 1, asked)
        del block  # it waits for the taker, who is held
        with owner, pytest.raises(RuntimeError):
            library.release()
            held.append(blocks.allocate(0, 30 * MIB))
        with owner:
            assert blocks.allocate(0, asked).ptr == place
    finally:
        library.release()
        blocks.limit_memory(0, None)
