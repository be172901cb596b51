"""L9: places and chains of places, beside a model of them in plain Python: random calls through files of every kind."""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from mindtorch._ext import location
from mindtorch.engine import semantics

#: Of each kind of file: how its name begins.
SKIPPED, INSTALLED, OWN = "/skipped/", "/installed/", "/own/"
Place = tuple[str, int, str]
#: Files whose code runs around what a test calls: the library's here.
around: set[str] = set()
FUNCTIONS: dict[tuple[str, int], Callable[..., Any]] = {}


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    semantics.install()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        around.add(frame.f_code.co_filename)
        frame = frame.f_back
    around.update(semantics.skipped_prefixes())
    location.configure((SKIPPED, *around), (INSTALLED,))
    yield
    semantics.know_lines()
    semantics.uninstall()


@pytest.fixture
def chained() -> Iterator[None]:
    location.chains_wanted(1)
    yield
    location.chains_wanted(-1)


def made(file: str, name: str, gap: int) -> Callable[..., Any]:
    """A function in this file that calls the first of what it is given with the rest, on a line of its own."""
    names: dict[str, Any] = {}
    exec(compile(f"def {name}(first, *rest):\n" + "\n" * gap + "    return first(*rest)", file, "exec"), names)
    found: Callable[..., Any] = names[name]
    return found


def walked(frame: FrameType | None) -> list[Place]:
    """All that is running in files that are not the library's, the innermost first."""
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((SKIPPED, *around)):
            found.append((file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def owned(places: list[Place]) -> list[Place]:
    """The innermost, and of the others those in the program's own files."""
    return [place for k, place in enumerate(places) if k == 0 or not place[0].startswith(INSTALLED)]


def look() -> tuple[int, int, list[Place]]:
    frame = sys._getframe()
    return location.get_location(), location.location_at(frame), walked(frame)


def shown(ids: list[int]) -> list[Place]:
    return [location.location(id) for id in ids]


def calls(seed: int, most: int = 8) -> list[Callable[..., Any]]:
    """A few functions of every kind of file, to be called one by the other."""
    draw = random.Random(seed)
    kinds = (SKIPPED, INSTALLED, OWN)
    return [
        FUNCTIONS.setdefault(key, made(f"{key[0]}{key[1]}.py", f"f{key[1]}", key[1]))
        for key in ((draw.choice(kinds), draw.randrange(5)) for _ in range(draw.randrange(most)))
    ]


@pytest.mark.parametrize("inside", [True, False])
def test_L9_places_are_those_of_a_walk_over_all_frames(inside: bool) -> None:
    before = location.look_inside(inside)
    try:
        for seed in range(200):
            first, *rest = [*calls(seed), look]
            id, at, places = first(*rest)
            assert id == at
            assert location.location(id) == (places[0] if places else None)
            assert location.chain(id) == ([id] if places else [])
            assert location.is_own(id) == bool(places and places[0][0].startswith(OWN))
    finally:
        location.look_inside(before)


def test_L9_chains_are_those_of_a_walk_over_all_frames(chained: None) -> None:
    known: dict[tuple[Place, ...], int] = {}
    for seed in range(300):
        first, *rest = [*calls(seed), look]
        id, at, places = first(*rest)
        lines = owned(places)
        assert id == at == known.setdefault(tuple(lines), id)
        assert shown(location.chain(id)) == lines
        assert location.location(id) == (lines[0] if lines else None)
        assert location.is_own(id) == bool(lines and lines[0][0].startswith(OWN))
    assert len(set(known.values())) == len(known) > 100


def test_L9_chains_are_wanted_as_long_as_somebody_wants_them() -> None:
    outer, inner = made(f"{OWN}wants.py", "outer", 1), made(f"{OWN}wants.py", "inner", 2)
    lengths = []
    for change in (0, 1, 1, -1, -1):
        location.chains_wanted(change)
        lengths.append([len(location.chain(each)) for each in outer(inner, look)[:2]])
    assert lengths == [[1, 1], [2, 2], [2, 2], [2, 2], [1, 1]]


def test_L9_the_lines_of_a_chain_end_somewhere(chained: None) -> None:
    """Of deep recursion the innermost lines are told."""
    deep = [made(f"{OWN}deep.py", "deep", gap) for gap in range(3)]
    for depth in (254, 255, 256, 257, 300):
        functions = [deep[k % 3] for k in range(depth)]
        id, at, places = functions[0](*functions[1:], look)
        assert len(places) == depth and id == at
        assert shown(location.chain(id)) == places[:256]


def test_L9_chains_are_found_again_in_tables_that_have_grown(chained: None) -> None:
    """Also where they collide; and each line of theirs is the place that it is without a chain."""
    functions = [made(f"{OWN}grown{k}.py", f"f{k}", k % 3) for k in range(60)]
    found = {(a, b): functions[a](functions[b], look) for a in range(60) for b in range(60)}
    assert len({id for id, *_ in found.values()}) == 3600
    before = location.table_bytes()
    for (a, b), (id, at, places) in found.items():
        assert functions[a](functions[b], look)[:2] == (id, at)
        assert shown(location.chain(id)) == places and location.location(id) == places[0]
    assert location.table_bytes() == before


def test_L9_only_places_and_chains_that_exist_can_be_asked_about(chained: None) -> None:
    functions = [made(f"{OWN}last{k}.py", "last", 0) for k in range(30)]
    last = max(function(look)[0] for function in functions)  # the newest
    for ask in (location.chain, location.location):
        assert ask(last)
        for bad in (last + 1, last + 1000):
            with pytest.raises(IndexError, match=f"expected an? (number|id) below {'[0-9]+'}, got"):
                ask(bad)
        with pytest.raises((IndexError, OverflowError)):
            ask(-1)
    assert location.is_own(last) and not location.is_own(last + 1) and not location.is_own(location.location_count())
    assert location.location(location.location_count() - 1) is not None
    with pytest.raises(IndexError):
        location.location(location.location_count())


def test_L9_what_files_are_counts_anew_when_it_is_said_anew() -> None:
    functions = [made(f"{kind}anew.py", "anew", 0) for kind in (SKIPPED, INSTALLED, OWN)]
    id = functions[1](look)[0]
    assert [location.location(f(look)[0]) is None for f in functions] == [True, False, False]
    assert not location.is_own(id)
    location.configure((INSTALLED, *around), (SKIPPED,))
    assert [location.location(f(look)[0]) is None for f in functions] == [False, True, False]
    assert location.is_own(id) and not location.is_own(functions[0](look)[0])


def test_L9_functions_that_hand_calls_of_torch_on_are_no_places_and_are_counted() -> None:
    """A class of tensors has such a function: the place is that of the call."""
    own, hands = (made(f"{OWN}hands.py", name, 1) for name in ("own", "__torch_function__"))
    other = made(f"{SKIPPED}hands.py", "__torch_function__", 0)
    assert hands(look)[0] == 0
    for function, more in ((own, 0), (other, 0), (hands, 1)):
        before = location.handed_on()
        location.get_location()  # from the innermost on, up to the first place
        assert location.handed_on() == before
        id = own(function, look)[0]
        assert location.location(id) == (f"{OWN}hands.py", 3, "own")
        assert location.handed_on() == before + 2 * more  # the place is looked for twice


FIRST = """
from mindtorch._ext import location

def made(k):
    names = {}
    exec(compile(f"def f{k}(first, *rest): return first(*rest)", f"first{k}.py", "exec"), names)
    return names[f"f{k}"]

functions = [made(k) for k in range(3000)]
for wanted in (0, 1):
    location.chains_wanted(wanted)
    looked = []
    for _ in range(2):
        looked.append(([function(location.get_location) for function in functions], location.location_count()))
    found = looked[0][0]
    assert looked[0] == looked[1] and len(set(found)) == 3000
    assert [location.location(id) for id in found] == [(f"first{k}.py", 1, f"f{k}") for k in range(3000)]
    assert all(location.location(location.chain(id)[0])[0] == f"first{k}.py" for k, id in enumerate(found))
location.configure((), ("first0.py", "first7.py"))
assert [k for k, id in enumerate(found) if not location.is_own(id)] == [0, 7]
location.configure(("first0.py", "first7.py"))
seen = [location.chain(function(location.get_location))[0] for function in functions]
assert [k for k, id in enumerate(seen) if id != location.chain(found[k])[0]] == [0, 7]
"""


def test_L9_the_first_places_of_a_process_are_found_again_too(after_torch: Callable[..., Any]) -> None:
    """In tables that have grown since."""
    after_torch(FIRST)


def test_C2_a_call_is_one_at_whichever_of_its_instructions_it_runs() -> None:
    code = compile("f(x)", "one.py", "eval")
    calls = [each.offset for each in dis.get_instructions(code) if each.opname in ("PRECALL", "CALL", "CALL_FUNCTION")]
    places = [location.place(code, at) for at in calls]
    assert len(set(places)) == len(places)
    assert {location.call_of(place) for place in places} == {(code, calls[-1])}
    assert location.call_of(0) is None and location.call_of(location.location_count()) is None
