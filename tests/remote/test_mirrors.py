"""R1: meta tensors that stand for what a worker has: their numbers, what is said of them, which have died."""

from __future__ import annotations

import pytest
import torch

from mindtorch.engine.remote.mirrors import META, Deaths, Mirrors, as_bytes, view
from mindtorch.engine.remote.wire import WireError


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
def mirrors(told: list[int]) -> Mirrors:
    return Mirrors(told.append)


def test_R1_numbers_are_never_used_again(mirrors: Mirrors) -> None:
    assert [mirrors.fresh(), mirrors.fresh(3), mirrors.fresh(), mirrors.fresh(0), mirrors.fresh()] == [1, 2, 5, 6, 6]


def test_R1_a_mirror_knows_its_number_and_a_death_is_told_once(mirrors: Mirrors, told: list[int]) -> None:
    one, two = mirrors.whole(12, 4), mirrors.number(torch.empty(2, 3, device=META), 5)
    assert mirrors.alive == {4: 12, 5: 24} and one.dtype is torch.uint8
    assert (mirrors.number_of(one), mirrors.number_of(two[1]), mirrors.numbered(two.untyped_storage())) == (4, 5, 5)
    assert one in mirrors and two.t() in mirrors
    assert torch.empty(1, device=META) not in mirrors and torch.empty(1, device="cpu") not in mirrors
    assert mirrors.describe(two.t()[1:]) == (5, torch.float32, (2, 2), (1, 3), 1, 0)
    mirrors.copies[4], mirrors._addresses[4] = object(), 512
    del one
    mirrors.bury(), mirrors.bury()
    assert (told, mirrors.dead, mirrors.alive) == ([4], [4], {5: 24})
    assert 4 not in mirrors.copies and 4 not in mirrors._addresses
    with pytest.raises(WireError, match="expected the meta tensor that mirrors a remote value, got a tensor on cpu"):
        mirrors.number_of(torch.empty(1, device="cpu"))


def test_R2_a_mirror_that_moves_stands_for_what_is_there_with_all_that_shares_its_storage(
    mirrors: Mirrors, told: list[int]
) -> None:
    told_there: list[int] = []
    there = Mirrors(told_there.append)
    one, other = mirrors.whole(12, 4), mirrors.whole(8, 5)
    part, copy = view(one.untyped_storage(), torch.float32, (2,), (1,), 1), there.whole(12, 9)
    assert (mirrors.nbytes, there.nbytes) == (20, 12)
    mirrors.hand_over(part, there, copy)
    assert one in there and part in there and one not in mirrors and copy not in there
    assert there.describe(part)[0] == there.number_of(one) == 9
    assert (told, mirrors.dead, mirrors.alive, mirrors.nbytes) == ([4], [4], {5: 8}, 8), "it is freed where it was"
    del copy
    there.bury()
    assert (told_there, there.dead, there.alive) == ([], [], {9: 12}), "what it stood for has another now"
    del one
    there.bury()
    assert there.alive == {9: 12}, "the part shares it"
    del part
    there.bury(), mirrors.bury()
    assert (told, told_there, there.dead, there.alive, there.nbytes) == ([4], [9], [9], {}, 0)
    mirrors.without(5)
    assert (mirrors.nbytes, mirrors.alive) == (0, {5: 0})
    del other
    mirrors.bury()
    assert mirrors.nbytes == 0


def test_R1_values_on_one_storage_share_their_mirror(mirrors: Mirrors) -> None:
    storages: dict[int, torch.UntypedStorage] = {}
    first = mirrors.made((7, torch.float32, (2, 2), (3, 1), 1, 0), storages)
    assert mirrors.alive == {7: 24} and (first.stride(), first.storage_offset()) == ((3, 1), 1)
    second = mirrors.made((7, torch.int16, (5,), (1,), 0, 0), storages)
    assert second.untyped_storage()._cdata == first.untyped_storage()._cdata and second.dtype is torch.int16
    turned = mirrors.made((8, torch.complex64, (2,), (1,), 0, 3), storages)
    assert turned.is_conj() and turned.is_neg() and mirrors.describe(turned)[-1] == 3


def test_R1_all_bytes_of_a_storage_are_those_before_a_view_too() -> None:
    x = torch.arange(6, dtype=torch.int16)
    whole = as_bytes(x[2:4])
    assert whole.tolist() == as_bytes(x).tolist() and (whole.shape, whole.storage_offset()) == ((12,), 0)
    assert view(x.untyped_storage(), torch.int16, (2, 2), (1, 3), 1).tolist() == [[1, 4], [2, 5]]
    x[0] = -1
    assert whole.tolist()[:2] == [255, 255]  # no copy


def test_R1_a_death_that_was_not_dealt_with_is_told_again() -> None:
    deaths = Deaths()
    t, u = torch.empty(1), torch.empty(1)
    deaths.watch(t.untyped_storage(), 3), deaths.watch(u.untyped_storage())
    assert list(deaths.take()) == []
    del t
    for death in deaths.take():
        assert death.number == 3
        break
    assert [death.number for death in deaths.take()] == [3]
    del u
    assert [death.number for death in deaths.take()] == [0] and deaths._watched == {}
