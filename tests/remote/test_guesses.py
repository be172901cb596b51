"""R1: which runs are guessed, when they are sent ahead, and what becomes of them."""

from __future__ import annotations

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
        self._mirrors = SimpleNamespace(dead=[], fresh=self.fresh)
        self._line = [SimpleNamespace(requests=[], behind=[])]
        self._epochs, self.early = [0, 0], False
        self.next, self.small, self.asked = 1000, list[tuple](), list[tuple]()
        self.plans = {name: SimpleNamespace(number=name, draws=name == 9, change=lambda n: (n,)) for name in (7, 8, 9)}
        self.watched = speculation.Speculation(self)  # type: ignore[arg-type]

    def fresh(self, n: int = 1) -> int:
        self.next += n
        return self.next - n

    def _ask(self, *request: Any) -> None:
        self.asked.append(request)

    def made(self, k: int, plan: int = 7, add: int = 0, given: int | None = None) -> speculation.Run:
        """The run number k: of the second output of the one before it, and of a number that grows by 5."""
        numbers = np.array([100 + 2 * k - 1 if given is None else given, 10 + 5 * k + add], np.int64)
        made = range(100 + 2 * k, 102 + 2 * k)
        return speculation.Run(self.plans[plan], made, numbers, 1, 1 << 20, [1], [1], ahead=True)  # type: ignore[arg-type]

    def run(self, n: int, *plans: int, first: int = 0) -> None:
        """The program waits at the end of each step."""
        for k in range(first, first + n):
            self.watched.ran(self.made(k, plans[k % len(plans)] if plans else 7))
            self.watched._runs[-1].waited = (k + 1) % max(len(plans), 1) == 0

    def waited(self, seconds: float = 1.0) -> None:
        """That is how long, as is known since."""
        self.watched._runs[-1].alone.append(seconds)

    def sent(self) -> list[tuple[int, list[int]]]:
        """The guesses of the next message: (plan, numbers)."""
        self._line[0].requests.clear()
        self._line[0].behind.clear()
        self.watched._send()
        return [(r[1], r[3].tolist()) for r, _answer in self._line[0].requests if r[0] == "speculate"]


def test_R1_a_run_is_likely_where_the_last_ones_differ_by_the_same() -> None:
    session = Session()
    runs, ran = session.watched._runs, session.watched.ran
    session.run(4)
    assert [run.repeats for run in runs] == [False, False, True, True], "the third shows that they go on"
    ran(session.made(4, add=1))
    assert not runs[-1].repeats, "another number"
    ran(session.made(5, add=2))
    ran(session.made(6, add=3))
    assert runs[-1].repeats
    ran(session.made(7, add=4, given=100 + 2 * 4 + 1))
    assert not runs[-1].repeats and runs[-1].sources == {0: (3, 1)}, "a storage of another run"
    ran(session.made(8, given=55))
    assert not runs[-1].repeats and runs[-1].sources is None, "a storage that nobody here has made"
    session.watched.start_anew()
    assert not runs and session.watched._period == 0


def test_R1_what_is_no_run_is_part_of_what_repeats() -> None:
    """Uploads that come together are one: what reads them is known by which of them it is."""
    session = Session()
    runs = session.watched._runs
    for k in range(4):
        for number in (500 + 3 * k, 501 + 3 * k, None):
            session.watched.other(number)
        session.watched.ran(session.made(k, given=501 + 3 * k))
        runs[-1].waited = True
    assert session.watched._period == 2 and [run.made for run in runs[::2]] == [
        (500 + 3 * k, 501 + 3 * k) for k in range(4)
    ]
    assert runs[-1].sources == {0: (1, 1)} and [run.repeats for run in runs[1::2]] == [False, False, True, True]
    session.waited()
    assert session.sent() == [], "what comes next is an upload"
    session.watched.ran(session.made(4, 8))  # which waits for nothing, and then something else is asked for
    session.watched._runs[-1].waited = True
    session.watched.other(None)
    assert session.watched._runs[-1].made == () and session.watched._period == 0


def test_R1_of_what_comes_between_two_runs_so_many_storages_are_told_apart() -> None:
    session = Session()
    for number in range(70):
        session.watched.other(number)
    assert session.watched._runs[-1].made == tuple(range(64))


@pytest.mark.parametrize(("plans", "period"), [
    ((7,), 1), ((7, 8), 2), ((7, 7, 8), 3), ((7, 7, 8, 7, 9), 5), ((*[7] * 14, 8, 9), 16), ((*[7] * 15, 8, 9), 1),
])  # fmt: skip
def test_R1_the_period_is_that_of_all_runs_of_a_step(plans: tuple[int, ...], period: int) -> None:
    """Up to 16 runs; beyond, it is that of the last ones."""
    session = Session()
    session.run(3 * len(plans) + (period == 1) * min(len(plans) - 1, 9), *plans)
    assert session.watched._period == period
    assert len(session.watched._runs) <= 64


def test_R1_what_comes_after_a_write_runs_ahead_up_to_the_next_one() -> None:
    session = Session()
    for k in range(4 * 3):
        run = session.made(k, 7 + k % 3)
        run.ahead, run.waited = k % 3 != 0, k % 3 != 2
        session.watched.ran(run)
    runs = session.watched._runs
    session.watched.ran(run := session.made(12))  # it writes; then come one that is waited for, and one that is not
    run.ahead, run.waited = False, True
    session.waited()
    runs[-3].alone.append(1.0)
    session._alive, session.watched._steps = {125: 4}, 5
    assert [plan for plan, _numbers in session.sent()] == [8] and session._line[0].behind == []
    assert [guess.ends for guess in session.watched._guesses] == [True]
    for draws, plans in ((False, [8, 9]), (True, [8])):
        session.watched._forget()
        session.early, session.watched._rest, session.plans[9].draws = True, 0, draws
        assert [plan for plan, _numbers in session.sent()] == [8], "it goes with the message, for its small values"
        assert [request[1] for request, _answer in session._line[0].behind] == plans[1:], (
            "what draws must not run twice"
        )
        assert [guess.run.plan.number for guess in session.watched._guesses] == plans  # type: ignore[union-attr]
    session.watched._forget()
    session.early, session.watched._rest = False, 0
    runs[-3].alone.clear()
    assert session.sent() == [], "nobody knows how long that wait takes"


def test_R1_up_to_the_next_write_a_run_goes_behind_the_message_that_is_waited_for() -> None:
    """As a backward pass does that comes after the read of a loss. Where all steps run ahead, the next ones have it."""
    for writes in (True, False):
        session = Session()
        for k in range(4 * 3):
            run = session.made(k, 7 + k % 3)
            run.ahead, run.waited = k % 3 != 2 or not writes, k % 3 == 0
            session.watched.ran(run)
        session.watched.ran(run := session.made(12))
        run.waited = True
        session.waited()
        session._alive, session.watched._steps = {123: 4, 125: 4}, 1
        for session.early, behind in ((False, []), (True, [("speculate", 8)] * writes)):
            assert len(session.sent()) == (0 if writes else 3), "the last of which is waited for"
            assert [request[:2] for request, _answer in session._line[0].behind] == behind, (
                "not where it cannot be sent alone"
            )
            session.watched._forget()
            session.watched._rest = 0


def test_R1_what_was_sent_behind_is_taken_before_its_reply_comes() -> None:
    """The program's side does not wait for it; what comes of it is asked for once more. And it has begun."""
    session = guessed(2)
    watched, plan = session.watched, session.plans[7]
    first, second = watched._guesses
    first.reply, first.replied = None, False
    assert not watched.begun
    assert watched.take(plan, bytearray(first.run.numbers.tobytes()), True) is first  # type: ignore[arg-type]
    watched.taken.append(first)
    watched.was_right(first)
    assert watched.begun and not session.asked
    second.reply = None  # it failed
    assert watched.take(plan, bytearray(second.run.numbers.tobytes()), True) is None  # type: ignore[arg-type]
    assert session.asked == [("free", [1004])]
    watched.begun = True
    watched.other(None)
    assert not watched.begun, "an upload has not"
    watched.begun = True
    watched.ran(session.made(5))
    assert not watched.begun


@pytest.mark.parametrize(("plans", "runs"), [((7,), 3), ((7, 8), 6), ((7, 8, 9), 9)])
def test_R1_steps_are_guessed_once_one_would_have_been_right(plans: tuple[int, ...], runs: int) -> None:
    """Of each plan in a step: two runs show how they differ, the third is right. Then a wait is known to be one."""
    session, period = Session(), len(plans)
    session._alive = {97 + 2 * runs: 4}
    session.run(runs - 1, *plans)
    session.waited()
    assert session.sent() == []
    session.run(1, *plans, first=runs - 1)
    session.watched._runs[-1].alone.clear()
    assert session.sent() == [], "nobody knows how long a wait takes"
    session.waited()
    session.watched._steps, session._alive = 2, {}
    assert session.sent() == [], "what the next run is given is gone"
    session._alive = {99 + 2 * runs: 4}
    first = session.next + 1
    given = [99 + 2 * runs, *range(first + 1, first + 4 * period, 2)]
    expected = [(plans[k % period], [given[k], 10 + 5 * (runs + k)]) for k in range(2 * period)]
    assert session.sent() == expected
    assert [guess.ends for guess in session.watched._guesses] == ([False] * (period - 1) + [True]) * 2


def guessed(steps: int = 2, plan: int = 7) -> Session:
    """A session that has sent guesses of so many steps, which have come."""
    session = Session()
    session.run(3, plan)
    session._alive = {105: 4}
    session.waited()
    session.watched._steps = steps
    assert len(session.sent()) == steps
    for request, answer in session._line[0].requests:
        answer(([], []) if request[0] == "speculate" else [b"abcd"])
    return session


def test_R1_a_guess_is_taken_where_the_program_asks_for_just_that() -> None:
    session = guessed()
    watched, plan = session.watched, session.plans[7]
    for k, given in enumerate((105, 1002)):
        guess = watched.take(plan, bytearray(np.array([given, 25 + 5 * k], np.int64)), True)  # type: ignore[arg-type]
        assert guess is not None and session.small.pop() == (1002 + 2 * k, b"abcd")
        watched.taken.append(guess)
        assert watched.answered == k and watched._steps == 2
        watched.was_right(guess)
    assert watched.answered == 2 and watched._steps == 4 and watched._runs[-1].repeats
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
    assert session.asked == [("undo", 1001)] * drawn + [("free", [1002, 1004, 1006])]
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
    session.watched.other(None)
    assert session.watched._steps == after and session.watched._rest == 0


def test_R3_small_values_of_a_guess_are_as_long_as_their_storage() -> None:
    session = guessed()
    (guess, *_) = session.watched._guesses
    session._alive[1002] = 4
    session.watched.was_right(guess)
    session._alive[1002] = 5
    with pytest.raises(WireError, match="expected 5 bytes of storage 1002, got 4"):
        session.watched.was_right(guess)


def test_R1_of_runs_ahead_that_failed_the_last_failure_is_known() -> None:
    session = guessed()
    (guess, *_) = session.watched._guesses
    session._epochs[0] = 3
    for given, known in ((([(0, 4, "", ""), (1, 5, "", "")], []), 5), (([], [1]), 5), (None, 5)):
        guess.reply = None
        session.watched._answer(guess)(given)
        assert session._epochs[0] == known and guess.reply is None and guess.replied


@pytest.mark.parametrize(("nbytes", "steps"), [((64 << 20) // 3, 3), ((64 << 20) // 3 + 1, 2), (64 << 20, 1), (0, 5)])
def test_R1_outputs_of_what_runs_ahead_take_64_mib_at_most(nbytes: int, steps: int) -> None:
    session = Session()
    session.run(3)
    for run in session.watched._runs:
        run.nbytes = nbytes
    session._alive, session.watched._steps = {105: 4}, 5
    session.waited()
    assert len(session.sent()) == steps


def test_R1_running_ahead_goes_by_what_it_saves_and_what_the_last_test_wastes() -> None:
    """16 steps are worth what they save, as long as no more than that is wasted at the end."""
    for alone, step, expected in ((1.0, 0.0, 10), (3.0, 1.0, 10), (1.0, 0.67, 7), (1.0, 0.9, 1), (1.0, 0.94, 1)):
        watched = Session().watched
        watched._steps = 10
        watched._weigh(alone, step)
        assert watched._steps == expected and not watched._rest, (alone, step)
    watched = Session().watched
    for step, rest in ((2.0, 0), (0.94, 0), (9.0, 0), (2.0, 0), (0.95, 32), (9.0, 32), (1.0, 64)):
        watched._weigh(1.0, step)
        assert watched._steps == 1 and watched._rest == rest, step
