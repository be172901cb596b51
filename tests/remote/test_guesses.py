"""R1: which runs are guessed, when they are sent ahead, and what becomes of them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mindtorch.engine.remote import speculation
from mindtorch.engine.remote.wire import WireError


class Session:
    """As much of an executor as a `Speculation` asks for. Its runs have two outputs, of which the second stays."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}
        self._known = SimpleNamespace(put=lambda *small: self.small.append(small))
        self._mirrors = SimpleNamespace(dead=[], fresh=lambda n: 1000 + n * next(self.fresh))
        self._line = [SimpleNamespace(requests=[])]
        self._epochs = [0, 0]
        self.fresh, self.small, self.asked = itertools.count(), list[tuple](), list[tuple]()
        self.plans = {name: SimpleNamespace(number=name, draws=name == 9, change=lambda n: (n,)) for name in (7, 8, 9)}
        self.watched = speculation.Speculation(self)  # type: ignore[arg-type]

    def _ask(self, *request: Any) -> None:
        self.asked.append(request)

    def made(self, k: int, plan: int = 7, add: int = 0, given: int | None = None) -> speculation.Run:
        """The run number k: of the second output of the one before it, and of a number that grows by 5."""
        numbers = np.array([100 + 2 * k - 1 if given is None else given, 10 + 5 * k + add], np.int64)
        return speculation.Run(self.plans[plan], 100 + 2 * k, numbers, 1, 2, 1 << 20, [1], [1])  # type: ignore[arg-type]

    def run(self, n: int, *plans: int, first: int = 0) -> None:
        for k in range(first, first + n):
            self.watched.ran(self.made(k, plans[k % len(plans)] if plans else 7))

    def sent(self) -> list[tuple[int, list[int]]]:
        """The guesses of the next message: (plan, numbers)."""
        self._line[0].requests.clear()
        self.watched._send()
        return [(r[1], r[3].tolist()) for r, _answer in self._line[0].requests if r[0] == "speculate"]


def test_R1_a_run_is_likely_where_the_last_ones_differ_by_the_same() -> None:
    session = Session()
    rights = []
    for k in range(4):
        session.watched.ran(session.made(k))
        rights.append(session.watched._right)
    assert rights == [0, 0, 1, 2], "the first two show how they differ, the third that they go on"
    session.watched.ran(session.made(4, add=1))
    assert session.watched._right == 0, "another number"
    session.watched.ran(session.made(5, add=2)), session.watched.ran(session.made(6, add=3))
    assert session.watched._right == 2
    session.watched.ran(session.made(7, add=4, given=100 + 2 * 5 + 1))
    assert session.watched._right == 0, "a storage of another run"
    session.watched.ran(session.made(8, given=55))
    assert session.watched._runs[-1].sources is None, "a storage that nobody here has made"
    session.watched.other()
    assert (session.watched._right, len(session.watched._runs)) == (0, 0)


def test_R1_which_run_has_made_a_storage() -> None:
    session = Session()
    session.run(3)
    found = [speculation._maker(session.watched._runs, number) for number in range(99, 107)]
    assert found == [None, (3, 0), (3, 1), (2, 0), (2, 1), (1, 0), (1, 1), None]


@pytest.mark.parametrize(("plans", "runs"), [((7,), 3), ((7, 8), 6), ((7, 8, 9), 9)])
def test_R1_steps_are_guessed_once_one_would_have_been_right(plans: tuple[int, ...], runs: int) -> None:
    """Of each plan in a step: two runs show how they differ, the third is right. Then a wait is known to be one."""
    session, period = Session(), len(plans)
    session.run(runs - 1, *plans)
    session.watched._alone.append(1.0)
    assert session.sent() == []
    session.run(1, *plans, first=runs - 1)
    session.watched._alone.clear()
    assert session.sent() == [], "nobody knows how long a wait takes"
    session.watched._alone.append(1.0)
    session.watched._steps = 2
    assert session.sent() == [], "what the next run is given is gone"
    session._alive = {99 + 2 * runs: 4}
    given = [99 + 2 * runs, *range(1001, 1000 + 4 * period, 2)]
    expected = [(plans[k % period], [given[k], 10 + 5 * (runs + k)]) for k in range(2 * period)]
    assert session.sent() == expected
    assert [guess.ends for guess in session.watched._guesses] == ([False] * (period - 1) + [True]) * 2


def guessed(steps: int = 2, plan: int = 7) -> Session:
    """A session that has sent guesses of so many steps, which have come."""
    session = Session()
    session.run(3, plan)
    session._alive = {105: 4}
    session.watched._alone.append(1.0)
    session.watched._steps = steps
    assert len(session.sent()) == steps
    for request, answer in session._line[0].requests:
        answer(([], []) if request[0] == "speculate" else [b"abcd"])
    return session


def test_R1_a_guess_is_taken_where_the_program_asks_for_just_that() -> None:
    session = guessed()
    watched, plan = session.watched, session.plans[7]
    for k, given in enumerate((105, 1001)):
        guess = watched.take(plan, bytearray(np.array([given, 25 + 5 * k], np.int64)), True)  # type: ignore[arg-type]
        assert guess is not None and session.small.pop() == (1001 + 2 * k, b"abcd")
        watched.taken.append(guess)
        assert watched.answered == k and watched._steps == 2
        watched.was_right(guess)
    assert watched.answered == 2 and watched._steps == 4 and watched._right == 3
    assert watched.take(plan, bytearray(16), True) is None and session.asked == []  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["number", "plan", "settings", "reply"])
@pytest.mark.parametrize("drawn", [False, True])
def test_R1_guesses_that_are_not_what_the_program_does_leave_nothing(what: str, drawn: bool) -> None:
    session = guessed(3, 9 if drawn else 7)
    watched = session.watched
    if what == "reply":
        watched._guesses[0].reply = None
    asked = bytearray(np.array([105, 25 + (what == "number")], np.int64))
    plan = session.plans[8 if what == "plan" else 9 if drawn else 7]
    assert watched.take(plan, asked, what != "settings") is None  # type: ignore[arg-type]
    assert session.asked == [("undo", 1000)] * drawn + [("free", [1001, 1003, 1005])]
    assert not watched._guesses and session._mirrors.dead == [] == session.small
    assert (watched._steps, watched._rest, watched._patience) == (1, 32, 64), "it did not pay"
    session._alive = {105: 4}
    for left in range(31, -1, -1):
        assert session.sent() == [] and watched._rest == left
    assert len(session.sent()) == 1


@pytest.mark.parametrize(("steps", "taken", "after"), [(3, 1, 1), (10, 1, 5), (1, 1, 2), (6, 6, 10), (4, 4, 8)])
def test_R1_fewer_steps_run_ahead_after_a_loop_and_more_where_all_are_right(steps: int, taken: int, after: int) -> None:
    session = guessed(steps)
    for guess in list(session.watched._guesses)[:taken]:
        found = session.watched.take(guess.run.plan, bytearray(guess.run.numbers.tobytes()), True)
        assert found is guess
        session.watched.taken.append(guess)
        session.watched.was_right(guess)
    session.watched.other()
    assert session.watched._steps == after and session.watched._rest == 0


def test_R3_small_values_of_a_guess_are_as_long_as_their_storage() -> None:
    session = guessed()
    (guess, *_) = session.watched._guesses
    session._alive[1001] = 4
    session.watched.was_right(guess)
    session._alive[1001] = 5
    with pytest.raises(WireError, match="expected 5 bytes of storage 1001, got 4"):
        session.watched.was_right(guess)


def test_R1_of_runs_ahead_that_failed_the_last_failure_is_known() -> None:
    session = guessed()
    (guess, *_) = session.watched._guesses
    session._epochs[0] = 3
    for given, known in ((([(0, 4, "", ""), (1, 5, "", "")], []), 5), (([], [1]), 5), (None, 5)):
        guess.reply = None
        session.watched._answer(guess)(given)
        assert session._epochs[0] == known and guess.reply is None


@pytest.mark.parametrize(("nbytes", "steps"), [((64 << 20) // 3, 3), ((64 << 20) // 3 + 1, 2), (64 << 20, 1), (0, 5)])
def test_R1_outputs_of_what_runs_ahead_take_64_mib_at_most(nbytes: int, steps: int) -> None:
    session = Session()
    session.run(3)
    for run in session.watched._runs:
        run.nbytes = nbytes
    session._alive, session.watched._steps = {105: 4}, 5
    session.watched._alone.append(1.0)
    assert len(session.sent()) == steps


def test_R1_running_ahead_goes_by_what_it_saves_and_what_the_last_test_wastes() -> None:
    """16 steps are worth what they save, as long as no more than that is wasted at the end."""
    for alone, step, expected in ((1.0, 0.0, 10), (3.0, 1.0, 10), (1.0, 0.67, 7), (1.0, 0.9, 1), (1.0, 0.94, 1)):
        watched = Session().watched
        watched._alone.append(alone)
        watched._steps = 10
        watched._weigh(step)
        assert watched._steps == expected and not watched._rest, (alone, step)
    for step in (0.95, 1.0, 2.0):
        watched._weigh(step)
        assert watched._steps == 1
    assert watched._rest == 32 << 2 and watched._patience == 32 << 3
