"""R5: which worker runs which record, in which parts, and what moves: random records beside a simulation of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from mindtorch.engine.remote.division import GENERATOR, divided

WORKERS = 3


def drawn(dice: random.Random) -> tuple[list[tuple], dict[int, int], dict[int, int]]:
    """Records, the homes of what was there before, the workers of modules."""
    slots = list(range(1, 7))
    homes = {slot: dice.randrange(WORKERS) for slot in slots if dice.random() < 0.5}
    workers = {module: dice.randrange(WORKERS) for module in (1, 2, 3) if dice.random() < 0.7}
    records = []
    for _ in range(dice.randrange(1, 25)):
        takes = [dice.choice(slots) for _ in range(dice.randrange(3))]
        writes = [slot for slot in dict.fromkeys(takes) if dice.random() < 0.2]
        makes: list[tuple[int, int]] = []
        if dice.random() < 0.8:
            slots.append(slots[-1] + 1)
            makes.append((slots[-1], dice.randrange(1, 100)))
        elif takes:
            makes.append((takes[0], 0))  # a view
        draws = 0 if dice.random() < 0.15 else -1
        device = dice.choice((1, 2)) if dice.random() < 0.1 else 0
        records.append((dice.randrange(5), 0, draws, device, False, takes, writes, makes))
    return records, homes, workers


def remainders(sizes: Sequence[int]) -> list[int]:
    return [nbytes % WORKERS for nbytes in sizes]


@pytest.mark.parametrize("seed", range(60))
def test_R5_parts_run_all_records_in_an_order_that_they_allow_on_what_has_moved_to_them(seed: int) -> None:
    dice = random.Random(seed)
    records, homes, workers = drawn(dice)
    generator = dice.randrange(WORKERS)
    before = dict(homes)
    found = divided(records, homes, workers, generator, remainders)
    assert homes == before, "what was given is as it was"
    order = [k for part in found.parts for k in part.positions]
    assert sorted(order) == list(range(len(records)))
    touched = [
        {*takes, *(slot for slot, _ in makes), *([GENERATOR] if draws == 0 else [])}
        for _, _, draws, _, _, takes, _, makes in records
    ]
    for k in range(len(records)):
        for j in range(k):
            if touched[j] & touched[k]:
                assert order.index(j) < order.index(k)

    # What moves is where it is said to be; before a part begins it is all there, and nothing moves that need not.
    at = {**homes, GENERATOR: generator}
    moves = list(found.moves)
    for k, (_, _, draws, _, _, takes, _, makes) in enumerate(records):
        place = found.places[k]
        (part,) = (part for part in found.parts if k in part.positions)
        assert part.worker == place
        for slot in dict.fromkeys([*takes, *([GENERATOR] if draws == 0 else [])]):
            if at.get(slot, place) != place:
                move = moves.pop(0)
                assert move == (slot, at[slot], place) and at[slot] in part.sources
                for j in range(part.positions[0], k):
                    assert slot not in touched[j], "it was used since the part began: it moves too late"
            at[slot] = place
        for slot, _ in makes:
            at[slot] = place
    assert not moves
    for part in found.parts:
        assert part.positions == sorted(part.positions)
        assert part.draws == any(records[k][2] == 0 for k in part.positions)
    assert found.messages == sum(len(part.sources) for part in found.parts)
    assert sum(len(part.sources) for part in found.parts) <= len(found.moves)

    # A worker has another part only where the first record of it needs what was used elsewhere meanwhile.
    for worker in range(WORKERS):
        own = [part for part in found.parts if part.worker == worker]
        for first, second in itertools.pairwise(own):
            k = second.positions[0]
            since = range(first.positions[0], k)
            assert any(slot in touched[j] and found.places[j] != worker for j in since for slot in touched[k])


@pytest.mark.parametrize("seed", range(120))
def test_R5_what_is_only_read_is_copied_and_each_record_finds_what_it_would_in_order(seed: int) -> None:
    """The parts, as they run: each brings what it needs when it begins. Contents are what was written last."""
    dice = random.Random(5000 + seed)
    records, homes, workers = drawn(dice)
    coming, sizes = dice.random() < 0.5, dict(enumerate(dice.choices((1, 10, 100), k=40)))
    copies = {slot: [k for k in range(WORKERS) if k != homes[slot] and dice.random() < 0.3] for slot in homes}
    kept = {slot for *_, makes in records for slot, _ in makes if dice.random() < 0.3}
    found = divided(records, homes, workers, 0, remainders, copies, kept, sizes, [dice.randrange(300)] * 3, coming)
    moving = divided(records, homes, workers, 0, remainders)
    assert found.copying and not moving.copying

    # In order: what each record takes, as (storage, by which record it was written last, by which ones it was viewed).
    wrote: dict[int, int] = {}
    views: dict[int, list[int]] = {}
    expected = []
    for k, (*_, takes, writes, makes) in enumerate(records):
        expected.append([(slot, wrote.get(slot), len(views.get(slot, []))) for slot in takes])
        wrote.update(dict.fromkeys([*writes, *(slot for slot, nbytes in makes if nbytes)], k))
        for slot, nbytes in makes:
            if not nbytes:
                views.setdefault(slot, []).append(k)

    # As they run: a worker has contents, which nobody else writes.
    home = dict(homes)
    has: dict[int, dict[int, int | None]] = {
        slot: dict.fromkeys((at, *copies.get(slot, ()))) for slot, at in home.items()
    }
    viewed: dict[int, int] = {}
    crossed = 0
    for part in found.parts:
        worker = part.worker
        needs = dict.fromkeys(slot for k in part.positions for slot in records[k][5])
        made = {slot for k in part.positions for slot, nbytes in records[k][7] if nbytes}
        for slot in [each for each in needs if each not in made]:
            there = has.setdefault(slot, {worker: None} if slot not in home else {})
            if worker not in there:
                there[worker] = there[home[slot]]
                crossed += 1
            if slot in part.moving or slot not in home:
                has[slot] = {worker: there[worker]}
                home[slot] = worker
        for k in part.positions:
            *_, takes, writes, makes = records[k]
            # Views that others make later do no harm, as long as those that it may take are there.
            for slot, by, count in expected[k]:
                assert has[slot][worker] == by, (k, slot)
                assert viewed.get(slot, 0) >= count
            for slot in writes:
                assert home[slot] == worker
                has[slot] = {worker: k}
            for slot, nbytes in makes:
                if nbytes:
                    home[slot], has[slot] = worker, {worker: k}
                else:
                    viewed[slot] = viewed.get(slot, 0) + 1
    generators = sum(GENERATOR in slots for part in found.parts for slots in part.sources.values())
    assert crossed + generators == len(found.moves)


@pytest.mark.parametrize("times", [1, 5])
def test_R5_a_weight_that_two_workers_read_crosses_once_for_each_write(times: int) -> None:
    """Storage 1 is on worker 0; the modules 7 and 8 are on the workers 0 and 1."""
    reads = [(module, 1, -1, 0, False, [1], [], []) for _ in range(times) for module in (7, 8)]
    write = (7, 1, -1, 0, False, [1], [1], [])

    def moves(*records: tuple, copies: dict[int, list[int]] | None) -> list[tuple[int, int, int]]:
        return divided(list(records), {1: 0}, {7: 0, 8: 1}, 0, lambda sizes: [0] * len(sizes), copies).moves

    assert moves(*reads, copies={}) == [(1, 0, 1)]
    assert moves(*reads, copies={1: [1]}) == []
    assert len(moves(*reads, copies=None)) == 2 * times - 1
    # It is written at home, and each other worker takes it once more.
    assert moves(*reads, write, *reads, copies={}) == [(1, 0, 1), (1, 0, 1)]


@pytest.mark.parametrize("seed", range(60))
def test_R5_workers_are_those_of_devices_writes_views_modules_and_values_in_this_order(seed: int) -> None:
    """What none of them decides about is where what it belongs to is decided on, or together where there is room."""
    dice = random.Random(1000 + seed)
    records, homes, workers = drawn(dice)
    asked: list[int] = []

    def otherwise(sizes: Sequence[int]) -> list[int]:
        asked.extend(sizes)
        return [2] * len(sizes)

    places = divided(records, homes, workers, 0, otherwise).places
    at: dict[int, int] = dict(homes)  # of what is decided on
    made_here = {slot for *_, takes, _, makes in records for slot, _ in makes if slot not in takes}
    for module, _, _, device, _, takes, _, _ in records:
        if not device and module in workers:
            at.update({slot: workers[module] for slot in takes if slot not in at and slot not in made_here})
    loose: list[tuple[set[int], set[int]]] = []  # records, and slots, that belong together and have no worker yet

    def group(slot: int) -> tuple[set[int], set[int]] | None:
        return next((each for each in loose if slot in each[1]), None)

    expected: dict[int, int] = {}

    def settle(each: tuple[set[int], set[int]], worker: int) -> None:
        loose.remove(each)
        expected.update(dict.fromkeys(each[0], worker))
        at.update({slot: worker for slot in each[1] if slot not in at})

    for k, (module, _, _, device, _, takes, writes, makes) in enumerate(records):
        made = [slot for slot, _ in makes]
        worker = device or next((at[slot] for slot in writes if slot in at), None)
        views = [slot for slot in made if slot in takes]
        if worker is None and views and (len(views) < len(made) or made_here.issuperset(views)):
            worker = next((at[slot] for slot in takes if slot in at), None)
        worker = workers.get(module) if worker is None else worker
        worker = next((at[slot] for slot in takes if slot in at), None) if worker is None else worker
        if worker is not None:
            for slot in takes:
                belongs = group(slot)
                if belongs is not None:
                    settle(belongs, worker)
            expected[k] = worker
            at.update(dict.fromkeys([*takes, *made], worker))
            continue
        together = ({k}, {*takes, *made})
        for slot in takes:
            belongs = group(slot)
            if belongs is not None:
                loose.remove(belongs)
                together = (together[0] | belongs[0], together[1] | belongs[1])
        loose.append(together)
    sizes = [max(sum(n for _, n in records[k][7]) for k in each[0]) for each in loose]
    for each in list(loose):
        settle(each, 2)
    assert places == [expected[k] for k in range(len(records))]
    assert sorted(asked) == sorted(sizes)
