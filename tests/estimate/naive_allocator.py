"""torch's caching allocator written down as plainly as can be, to hold the replay against: lists, and nothing kept."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass
class Piece:
    size: int
    owner: int | None = None  # the allocation that has it


@dataclass
class Segment:
    number: int
    small: bool
    stream: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Naive:
    """Without expandable segments and garbage collection."""

    def __init__(self, max_split: int | None = None, capacity: int | None = None) -> None:
        self.segments: list[Segment] = []
        self.made = self.retries = self.ooms = 0
        self.max_split, self.capacity = max_split, capacity
        self.stream = 0

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(piece.size for s in self.segments for piece in s.pieces if piece.owner is not None)

    def malloc(self, owner: int, nbytes: int) -> None:
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        found = self._fitting(size, small)
        if found is None:
            found = self._new(size, small)
        segment, piece = found
        rest = piece.size - size
        split = rest >= 512 if small else rest > MIB and (self.max_split is None or size < self.max_split)
        if split:
            segment.pieces.insert(segment.pieces.index(piece) + 1, Piece(rest))
            piece.size = size
        piece.owner = owner

    def free(self, owner: int) -> None:
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.owner == owner:
                    piece.owner = None
            joined: list[Piece] = []
            for piece in segment.pieces:
                if joined and joined[-1].owner is None and piece.owner is None:
                    joined[-1].size += piece.size
                else:
                    joined.append(piece)
            segment.pieces = joined

    def empty(self) -> None:
        self.segments = [s for s in self.segments if any(piece.owner is not None for piece in s.pieces)]

    def _fitting(self, size: int, small: bool) -> tuple[Segment, Piece] | None:
        free = [
            (piece.size, segment.number, segment, piece)
            for segment in self.segments if segment.small == small and segment.stream == self.stream
            for piece in segment.pieces if piece.owner is None and piece.size >= size
        ]  # fmt: skip
        if not free:
            return None
        best = min(free, key=lambda row: row[:2])  # of one size: the oldest segment's first
        if self.max_split is not None:
            if size < self.max_split <= best[0]:
                return None
            if size >= self.max_split and best[0] >= size + 20 * MIB:
                return None
        return best[2], best[3]

    def _new(self, size: int, small: bool) -> tuple[Segment, Piece]:
        span = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        enough = self._room(span)
        if (
            not enough and self.max_split is not None
        ):  # what is less than was wanted does not count, though it is given back
            enough = self._release_oversized(size, small) and self._room(span)
        if not enough:
            self.empty()
            self.retries += 1
        if not self._room(span):
            self.ooms += 1
        segment = Segment(self.made, small, self.stream, [Piece(span)])
        self.made += 1
        self.segments.append(segment)
        return segment, segment.pieces[0]

    def _room(self, span: int) -> bool:
        return self.capacity is None or self.reserved + span <= self.capacity

    def _release_oversized(self, size: int, small: bool) -> bool:
        assert self.max_split is not None
        wanted = max(size, self.max_split)
        whole = [
            s for s in self.segments
            if (s.small, s.stream) == (small, self.stream) and len(s.pieces) == 1 and s.pieces[0].owner is None
        ]  # fmt: skip
        whole.sort(key=lambda s: (s.size, s.number))
        enough = [s for s in whole if s.size >= wanted]
        if enough:
            self.segments.remove(enough[0])
            return True
        released = 0
        for segment in reversed(whole):
            if released >= wanted or segment.size < self.max_split:
                break
            released += segment.size
            self.segments.remove(segment)
        return released >= wanted

    def layout(self) -> list[list[tuple[int, int | None]]]:
        """Of each segment, in the order in which they were made: its pieces' sizes and owners."""
        return [[(piece.size, piece.owner) for piece in segment.pieces] for segment in self.segments]
