"""R5: which bytes of a storage cross where another worker reads a small part of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch.engine.remote import slices

X = torch.empty(256, device="meta")  # of 1,024 bytes, an eighth of which are 32 elements


def found(*reads: torch.Tensor, moving: tuple[int, ...] = (), viewed: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    """(first byte, bytes) of the part of X; its root is slot 3."""
    encoded: Any = SimpleNamespace(given=[(read, 3) for read in reads], viewed=viewed)
    parts = slices.slices(encoded, [X.untyped_storage()._cdata], moving)
    assert all(part.part.untyped_storage()._cdata == X.untyped_storage()._cdata for part in parts.values())
    return [(part.begin, part.part.numel()) for part in parts.values()]


@pytest.mark.parametrize(("reads", "part"), [
    ([X[:32]], (0, 128)), ([X[:33]], None), ([X[224:]], (896, 128)), ([X[223:]], None),
    ([X[16:17]], (64, 4)), ([X[15:17]], (0, 68)), ([X[20:40]], (64, 96)), ([X[28:30], X[16:20]], (64, 56)),
    ([X[:4], X[28:32]], (0, 128)), ([X[:4], X[29:33]], None), ([X[16:32:2]], (64, 60)), ([X[5:5]], None),
    ([X.view(torch.float64)[8:10]], (64, 16)), ([torch.empty(9, device="meta")], None),
])  # fmt: skip
def test_R5_a_part_goes_from_the_first_to_the_last_byte_that_is_read(
    reads: list[torch.Tensor], part: tuple[int, int] | None
) -> None:
    assert found(*reads) == ([] if part is None else [part])


def test_R5_what_moves_or_is_viewed_crosses_as_a_whole() -> None:
    assert found(X[:4], moving=(4,), viewed=(5,)) == [(0, 16)]
    assert found(X[:4], moving=(3,)) == found(X[:4], viewed=(3,)) == []


def test_R5_what_reads_a_part_begins_as_much_earlier() -> None:
    other = torch.empty(64, dtype=torch.float64, device="meta")
    mirrors = [X[20:24], other[40:46].view(2, 3)]
    cut = {
        each.untyped_storage()._cdata: slices.Slice(begin, each) for each, begin in zip(mirrors, (64, 128), strict=True)
    }
    numbers = torch.tensor(
        [7, 8, 4, 20, 2, 3, 3, 1, 40]
    )  # storages; sizes, strides where they are told, and the offset
    begins = [(torch.float32, 1, False, 0), (torch.float64, 2, True, 0)]
    encoded: Any = SimpleNamespace(given=[(each, 3) for each in mirrors], begins=lambda: begins)
    encoded.numbers = memoryview(bytearray(numbers.numpy().tobytes()))
    slices.shift(encoded, cut)
    assert encoded.numbers.cast("q").tolist() == [7, 8, 4, 4, 2, 3, 3, 1, 24]
    whole = torch.arange(4.0)
    assert cut[X.untyped_storage()._cdata].of(whole, X[17:19]).tolist() == [1.0, 2.0]
