"""L12: how much what a model keeps has grown, told from sizes; how far what a call got is looked at."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import pytest
import torch

from mindtorch.engine.semantics import generation, snapshots
from mindtorch.engine.semantics.cache_growth import beside, growth, length, sizes


@pytest.mark.parametrize(("before", "made", "tokens", "grown"), [
    ([(1, 4, 8)], [(1, 5, 8)], 5, (1, (1, (1, 8)))),
    ([(1, 4, 8)], [(1, 5, 8)], 6, (1, None)),  # not as long as all tokens
    ([(1, 4, 8)], [(1, 7, 8)], 7, (3, (1, (1, 8)))),
    ([(1, 4, 8)], [(1, 4, 8)], 4, (0, None)),
    ([(1, 4, 8)], [(1, 3, 8)], 3, (0, None)),
    ([(1, 4, 8)], [(2, 5, 8)], 5, (0, None)),  # in two dimensions
    ([(1, 0, 8)], [(1, 1, 8)], 1, (0, None)),  # of nothing
    ([(1, 3, 8), (1, 4, 8)], [(1, 5, 8)], 5, (1, (1, (1, 8)))),  # beside the next shorter
    ([(1, 4, 8)], [(1, 5, 8), (1, 6, 8), (1, 6, 8)], 5, (1, (1, (1, 8)))),  # as long as the tokens: that alone counts
    ([(1, 4, 8)], [(1, 5, 8), (1, 6, 8), (1, 6, 8)], 9, (2, None)),  # most of it
    ([(1, 4, 8)], [(1, 5, 8), (1, 7, 8)], 9, (1, None)),  # the least of as many
    ([], [(1, 5, 8)], 5, (0, None)),
    ([(1, 4, 8)], [], 5, (0, None)),
])  # fmt: skip
def test_L12_growth_is_that_of_most_of_what_was_made(before: list, made: list, tokens: int, grown: tuple) -> None:
    assert growth(before, made, tokens) == grown


def test_L12_the_length_is_that_of_the_longest_of_its_kind() -> None:
    found = [(1, 4, 8), (1, 6, 8), (1, 9, 7)]
    assert length(found, (1, (1, 8))) == 6 and length(found, (1, (1, 7))) == 9
    assert length(found, (0, (6, 8))) == 1 and length(found, (1, (2, 8))) == 0
    assert length(found, None) == 0 and length([], (1, (1, 8))) == 0


def test_L12_sizes_are_of_floats_with_several_dimensions() -> None:
    given = [torch.ones(2, 3), torch.ones(3), torch.ones(2, 3, dtype=torch.int64), torch.ones(1, 2, 3).half()]
    assert sizes(given) == [(2, 3), (1, 2, 3)]


def test_L12_what_is_beside_what_was_filled_belongs_to_it() -> None:
    a, b, c, d = (torch.full((1,), float(k)) for k in range(4))
    ids = torch.ones(1, dtype=torch.int64)

    def found(got: list[Any], *filled: torch.Tensor) -> list[float]:
        return sorted(t.item() for t in beside(got, list(filled)))

    assert found([[a, b, ids], [c]], a) == [0, 1]
    assert found([{"k": a, "v": [b, c]}, d], a) == [0]
    assert found([{"k": a, "v": [b, c]}, d], b) == [1, 2]
    assert found([(a, (b, {"x": c, "y": d}))], d, a) == [0, 2, 3]
    assert found([a], a) == [0] and found([[a]]) == []
    circle: list[Any] = [a, b]
    circle.append(circle)
    assert found([circle], b) == [0, 1]


def nested(depth: int, inside: Any) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


@pytest.mark.parametrize(("value", "tensors"), [
    (nested(6, torch.ones(1)), 1), (nested(7, torch.ones(1)), 1), (nested(8, torch.ones(1)), 0),
    ([torch.ones(1)] * 3, 3), ({"a": torch.ones(1), "b": (torch.ones(1),)}, 2), ("text", 0), (None, 0),
    ([0] * 4095 + [torch.ones(1)], 1), ([0] * 4096 + [torch.ones(1)], 0),
    ([[0] * 4000] * 2 + [torch.ones(1)], 1),  # each list once
    ([[0] * 3999 for _ in range(4)] + [[0] * 3998 + [torch.ones(1)]], 0),  # 20,000 values in all, with the lists
    ([[0] * 3999 for _ in range(4)] + [[0] * 3997 + [torch.ones(1)]], 1),
])  # fmt: skip
def test_L12_lists_and_dicts_are_looked_at_so_deep_and_so_far(value: Any, tensors: int) -> None:
    found: list[torch.Tensor] = []
    snapshots.find(value, found)
    assert len(found) == tensors


class Holder:
    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors


def test_L12_objects_are_kept_apart_with_what_they_hold() -> None:
    t, u, holder = torch.ones(1), torch.ones(1), Holder(torch.ones(2), [torch.ones(3)])
    tensors: list[torch.Tensor] = []
    held: list[tuple[Any, Any]] = []
    snapshots.find([t, holder, (u, len)], tensors, held)
    assert [id(each) for each in tensors] == [id(t), id(u)]
    assert [(each, len(snapshot)) for each, snapshot in held] == [(holder, 2), (len, 0)]


def test_L12_an_object_may_get_more_while_it_is_looked_at() -> None:
    holder, code, told = Holder(torch.ones(1)), snapshots._own.__code__, []
    holder.more = torch.ones(2)  # type: ignore[attr-defined]

    def another_thread(frame: FrameType, _event: str, _arg: Any) -> None:
        if frame.f_code is code:
            told.append(setattr(holder, f"more_{len(told)}", torch.ones(1)))

    before = sys.gettrace()
    sys.settrace(another_thread)
    try:
        found = snapshots.of(holder)
    finally:
        sys.settrace(before)
    assert len(told) > 1 and len(found) >= 2


def test_L12_what_changed_is_new_or_written_or_may_be() -> None:
    def shot(*tensors: torch.Tensor) -> Any:
        return snapshots.of(list(tensors))

    a, b = torch.ones(1), torch.ones(1)
    before = shot(a, b)
    assert snapshots.is_same(before, shot(a, b)) and not snapshots.changed(before, shot(a))
    assert not snapshots.is_same(before, shot(a))
    b.add_(1)
    c = torch.ones(1)
    assert set(snapshots.changed(before, shot(a, b, c))) == {id(b), id(c)}
    assert not snapshots.is_same(before, shot(a, b))
    with torch.inference_mode():
        hidden = torch.ones(1)
    assert set(snapshots.changed(shot(hidden), shot(hidden))) == {id(hidden)}  # it has no version


def test_L12_a_state_keeps_the_newest_thousand_of_what_lives() -> None:
    state = generation._State()
    old = [torch.ones(1) for _ in range(1000)]
    new = [torch.ones(1) for _ in range(100)]
    state.keep([], old)
    state.keep([], new + old[-1:])
    kept = [ref() for ref in state.tensors]
    assert len(kept) == 1024 and kept[-1] is old[-1] and sum(t is old[-1] for t in kept) == 1 and kept[0] is old[76]
    holders = [Holder() for _ in range(1030)]
    state.keep(holders, [])
    assert len(state.objects) == 1024 and state.objects[0]() is holders[6]
    assert len(state.tensors) == 1024
    del old, new, kept
    state.keep(holders[:1], [])
    assert state.tensors == [] and state.objects[-1]() is holders[0] and len(state.objects) == 1024
    assert all(isinstance(ref, weakref.ref) for ref in state.objects)


def test_L12_tokens_are_known_by_where_they_were_from() -> None:
    state = generation._State()
    text = torch.arange(8).view(1, 8)
    state.took(text[:, :4])
    assert state.had(text[:, 4:]) and not state.had(torch.arange(4).view(1, 4))
    text.add_(1)
    assert not state.had(text[:, 4:])  # they are others by now
    state.took(text[:, :])
    assert not state.had(text[:, 4:])  # the whole of it: nothing is left
    state.took(text)
    assert not state.had(text)
    state.took(text[:, :4])
    assert len(state.tokens) == 1
    del text
    assert state.tokens == {}
