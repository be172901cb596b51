"""Runs that the program is likely to ask for next, sent along with a question (SPEC R1).

A loop over tokens reads at each step whether it is over, and the next step depends on nothing but the last; a step of
training reads its loss, and then the norm of its gradients. Where what is asked for repeats, but for numbers that grow
by the same amount each time and for the storages of the step before, the next runs are known before the program has
recorded them: the worker runs them ahead, and its reply has their small values. What the program then records is
compared with them, to the last number. If it is the same, it has run already; else they are forgotten: their storages
are freed, and generators are as they were before them.

So they only make what nobody has yet: nothing is run ahead of a run that writes to what is there, nor of an upload, a
setting or a seed. These are part of what repeats.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._ext.encoder import Encoded
from .sent_segments import Sent
from .wire import WireError

if TYPE_CHECKING:
    from .client import RemoteExecutor
    from .exchange import Entry

__all__ = ["HARMLESS", "MAKES", "Guess", "Speculation"]

#: Requests that change nothing of what a guess is about.
HARMLESS = frozenset({"digest", "fetch", "free", "seen", "small", "speculate", "storage", "undo"})

#: Requests for a storage of a number.
MAKES = frozenset({"copy", "file", "reserve", "upload"})

_PERIOD = 16  # runs, and what is asked for between them, in a step of a loop, at most
_AHEAD = 10  # steps that are run ahead, at most
_ROOM = 64 << 20  # bytes of all outputs of these
_LIKELY = 16  # steps after which a loop ends, where nothing else is known
_OTHERS = 64  # storages of uploads between two runs that are told from each other
_PATIENCE = 32  # runs that are watched after a guess that did not pay, the first time

_NONE = np.empty(0, np.int64)

clock = time.perf_counter


class Run:
    """What was asked for: a plan, the numbers of the storages that it makes, and its own numbers (see `encoder`).

    n_given: how many of them are those of storages; staying: the outputs that keep their storages; small: those of
    them that come unasked; ahead: it writes to nothing that was there. ``plan`` is None of whatever is no run, such as
    uploads.

    repeats: is it as it was one period before, as that was to the one before it? step: how its numbers differ from
    those; sources: of the storages that differ, {position: (runs back, output)}. waited: the program waited then;
    alone: seconds of the last such waits with no guess.
    """

    __slots__ = (
        "ahead", "alone", "made", "n_given", "nbytes", "numbers", "plan", "repeats", "small", "sources", "staying",
        "step", "waited",
    )  # fmt: skip

    def __init__(
        self, plan: Sent | None, made: Sequence[int], numbers: np.ndarray = _NONE, n_given: int = 0, nbytes: int = 0,
        staying: Sequence[int] = (), small: Sequence[int] = (), ahead: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.made, self.numbers, self.n_given, self.nbytes = plan, made, numbers, n_given, nbytes
        self.staying, self.small, self.ahead = staying, small, ahead
        self.repeats = self.waited = False
        self.step: np.ndarray | None = None
        self.sources: dict[int, tuple[int, int]] | None = None
        self.alone: deque[float] = deque(maxlen=4)

    def follows(self, before: Run) -> Run:
        """The same, if it goes on as ``before``."""
        self.step, self.sources, self.repeats = before.step, before.sources, before.repeats
        self.alone, self.waited = before.alone, before.waited
        return self


class Guess:
    """A run that was sent ahead. ends: the program is likely to wait after it; reply: what the worker said of it, once
    it has ``replied``; values: its small values, by storage."""

    def __init__(self, run: Run, ends: bool) -> None:
        assert isinstance(run.made, range)
        self.run, self.ends, self.base = run, ends, run.made.start
        self.reply: Any = None
        self.replied = False
        self.values: dict[int, bytes] = {}

    def learn(self, given: list[bytes | None]) -> None:
        numbers = [self.base + k for k in self.run.small]
        self.values = {number: data for number, data in zip(numbers, given, strict=True) if data is not None}


class Speculation:
    """The runs of one executor, and what was sent ahead of them."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self._executor = executor
        self.answered = 0  # waits that did not occur
        self._runs: list[Run] = []
        self._period = 0  # runs back to the one with the same plan
        self._guesses: deque[Guess] = deque()
        self.taken: list[Guess] = []  # the first of them, which are what the program has asked for
        self._steps = 1  # to run ahead the next time
        self._seconds: deque[float] = deque(maxlen=3)  # that one took the last times; some are disturbed
        self._patience, self._rest = _PATIENCE, 0
        self._any_right = True  # of those that were sent the last time
        self.begun = False  # was the last run sent ahead, so that nothing is to be begun?

    # ---- what the program asks for -----------------------------------------------------------------------------------
    def other(self, number: int | None) -> None:
        """Something that is no run is asked for, which makes a storage of this number."""
        self._forget()
        self.begun = False
        last = self._runs[-1] if self._runs else None
        if last is None or last.plan is not None or last.waited:
            last = Run(None, ())
            self.ran(last)
        if number is not None and len(last.made) < _OTHERS:
            last.made = (*last.made, number)

    def start_anew(self) -> None:
        """Nothing of what was asked for tells of what comes."""
        self._forget()
        self._begin()

    def _begin(self) -> None:
        self._runs.clear()
        self._period = 0

    def take(self, plan: Sent, numbers: bytearray, as_before: bool) -> Guess | None:
        """The guess that is what the program asks for now; it is over once it is in `taken`. as_before: is what the
        program asks for under the settings of the last time?"""
        guesses = self._guesses
        for guess in self.taken:
            if guesses and guesses[0] is guess:
                guesses.popleft()
        self.taken.clear()
        if not guesses:
            return None
        guess = guesses[0]
        fails = guess.replied and guess.reply is None
        if as_before and not fails and guess.run.plan is plan and guess.run.numbers.tobytes() == numbers:
            for number, data in guess.values.items():
                self._executor._known.put(number, data)
            return guess
        self._forget()
        return None

    def was_right(self, guess: Guess) -> None:
        """It has been taken. WireError where the worker has said of it what it may not."""
        for number, data in guess.values.items():
            if len(data) < (nbytes := self._executor._alive.get(number, 0)):
                raise WireError(f"expected {nbytes} bytes of storage {number}, got {len(data)}")
        self._any_right = True
        self.answered += guess.ends
        if guess is self._guesses[-1]:  # all of them were
            self._steps = min(2 * self._steps, _AHEAD)
            self._patience = _PATIENCE
        self.ran(guess.run)
        self.begun = True

    def ran(self, run: Run) -> None:
        """It has been asked for, or was guessed right."""
        self.begun = False
        runs = self._runs
        runs.append(run)
        if len(runs) > 4 * _PERIOD:
            del runs[: 2 * _PERIOD]
        if 0 < self._period < len(runs) and runs[-1 - self._period].plan is run.plan:
            self._compare(len(runs) - 1)
            return
        longest = min(_PERIOD, len(runs) // 2)
        self._period = next(
            (k for k in range(1, longest + 1) if runs[-1 - k].plan is run.plan and self._has_period(k)), 0
        )
        for at in range(len(runs) - self._period, len(runs)):
            self._compare(at)

    def _has_period(self, k: int) -> bool:
        runs = self._runs
        return all(runs[-n].plan is runs[-n - k].plan for n in range(2, k + 1))

    def _compare(self, at: int) -> None:
        """Does the run there repeat the one before it?"""
        run, before = self._runs[at], self._runs[at - self._period]
        run.alone = before.alone
        if not run.ahead:
            return
        run.step = run.numbers[run.n_given :] - before.numbers[run.n_given :]
        run.sources = self._sources(at)
        run.repeats = (
            run.sources is not None
            and run.sources == before.sources
            and before.step is not None
            and np.array_equal(run.step, before.step)
        )

    def _sources(self, at: int) -> dict[int, tuple[int, int]] | None:
        """Of each storage that differs: which run made it. None where that is not known."""
        run, before = self._runs[at], self._runs[at - self._period]
        found = {}
        for place in np.flatnonzero(run.numbers[: run.n_given] != before.numbers[: run.n_given]).tolist():
            number = int(run.numbers[place])
            for back in range(1, at + 1):
                made = self._runs[at - back].made
                if number in made:
                    found[place] = back, made.index(number)
                    break
            else:
                return None
        return found

    # ---- guesses -----------------------------------------------------------------------------------------------------
    def wait(self, exchange: Callable[[], None]) -> None:
        """Send the next message, with guesses where they are likely to be right and to pay, and wait for the reply.

        What is likely to run after that, up to the next write, goes behind it and is not waited for: a backward pass
        runs while the program hears of its loss.
        """
        last = self._runs[-1] if self._runs else None
        if last is not None:
            last.waited = True
        try:
            ends = self._send()
        except BaseException:  # a signal handler's: the worker may not have what is known here of its plans
            self._begin()
            self._executor._told.forget()
            raise
        began = clock()
        exchange()
        took = clock() - began
        if ends:
            alone = sum(min(run.alone) for run in ends) / len(ends)
            assert last is not None
            self._weigh(alone, (took - min(last.alone)) / len(ends))
        elif last is not None and self._period:
            last.alone.append(took)

    def _weigh(self, alone: float, step: float) -> None:
        """A wait takes ``alone`` seconds, and what is run ahead of it ``step`` on the worker, for nothing if it comes
        after a loop's last test.
        """
        self._seconds.append(step)
        step = min(self._seconds)
        most = _AHEAD if step <= 0 else int(max(_LIKELY * (alone - step) / step, 0))
        self._steps = max(min(self._steps, most), 1)
        if not most and len(self._seconds) > 1:  # the first time, much is done that is not done again
            self._pause()

    def _pause(self) -> None:
        """It does not pay. Have a look again after some time, longer each time."""
        self._seconds.clear()
        self._steps, self._rest = 1, self._patience
        self._patience *= 2

    def _send(self) -> list[Run]:
        """Put guesses into the next message, and behind it. Those that the program is likely to wait after."""
        if self._rest:
            self._rest -= 1
            return []
        over = len(self.taken) == len(self._guesses)
        if not over or not self._period or not self._runs[-1].alone:
            return []
        within, behind = self._likely()
        if not within and not behind:
            return []
        asked = self._asked(within, small=True), self._asked(behind, small=False)
        self._any_right = False
        self._guesses.clear()
        self.taken.clear()
        self._guesses.extend([*within, *behind])  # first: a signal handler may raise in between
        message = self._executor._line[-1]
        message.requests.extend(asked[0])
        message.behind.extend(asked[1])
        return [guess.run for guess in within if guess.ends]

    def _asked(self, guesses: list[Guess], small: bool) -> list[Entry]:
        """The requests for them. small: and for their small values?"""
        entries: list[Entry] = []
        for guess in guesses:
            run = guess.run
            assert run.plan is not None
            request = ("speculate", run.plan.number, guess.base, *run.plan.change(run.numbers))
            entries.append((request, self._answer(guess)))
            if small and run.small:
                entries.append((("small", [guess.base + k for k in run.small]), guess.learn))
        return entries

    def _likely(self) -> tuple[list[Guess], list[Guess]]:
        """What comes next, up to something that cannot be run ahead: to where the program is likely to wait, and what
        comes after that."""
        runs, period = self._runs.copy(), self._period
        first, room = self._executor._mirrors.fresh(), _ROOM
        guesses: list[Guess] = []
        more = self._steps * period
        while more:
            before = runs[-period]
            room -= before.nbytes
            if not (before.ahead and before.repeats) or room < 0 or (comes := self._next(runs, first)) is None:
                break
            runs.append(comes)
            guesses.append(Guess(comes, before.waited and bool(before.alone)))
            more -= 1
        n = next((n for n in range(len(guesses), 0, -1) if guesses[n - 1].ends), 0)
        if not more or not self._executor.early:  # the next guesses will have what is behind
            return guesses[:n], []
        # It may run once more, after what has been run ahead of it: it must not draw.
        return guesses[:n], list(takewhile(lambda guess: not guess.run.plan.draws, guesses[n:]))  # type: ignore[union-attr]

    def _next(self, runs: list[Run], first: int) -> Run | None:
        """The run that comes after these; None where what it is given is gone. Those from ``first`` on are made by
        guesses."""
        before = runs[-self._period]
        assert before.step is not None and before.sources is not None
        numbers = before.numbers.copy()
        numbers[before.n_given :] += before.step
        for place, (back, output) in before.sources.items():
            made = runs[-back].made
            if output >= len(made):
                return None
            numbers[place] = made[output]
        alive = self._executor._alive
        if any(number < first and number not in alive for number in numbers[: before.n_given].tolist()):
            return None
        base = self._executor._mirrors.fresh(len(before.made))
        run = Run(
            before.plan, range(base, base + len(before.made)), numbers, before.n_given, before.nbytes,
            before.staying, before.small, ahead=True,
        )  # fmt: skip
        return run.follows(before)

    def _answer(self, guess: Guess) -> Callable[[Any], None]:
        def answer(given: Any) -> None:
            guess.replied = True
            if given is not None and given[0]:  # it failed: nobody else will be told
                self._executor._epochs[0] = max(number for _k, number, *_ in given[0])
            elif given is not None and not given[1]:  # as predicted
                guess.reply = given

        return answer

    def _forget(self) -> None:
        """What was sent ahead is not what the program does."""
        guesses = [guess for guess in self._guesses if guess not in self.taken]
        drawn = next((guess for guess in guesses if guess.run.plan.draws), None)  # type: ignore[union-attr]
        if drawn is not None:
            self._executor._ask("undo", drawn.base)
        dead = self._executor._mirrors.dead
        dead.extend(guess.base + k for guess in guesses for k in guess.run.staying)
        if guesses:  # at once: what the program does instead may need the memory
            self._executor._ask("free", dead[:])
            dead.clear()
        self._guesses.clear()  # last: a signal handler may raise before, and then it is all done once more
        self.taken.clear()
        if not guesses:
            return
        if self._any_right:  # the loop is over
            self._steps = max(self._steps // 2, 1)
        else:
            self._pause()


def described(plan: Sent, encoded: Encoded, base: int, small: list[int], writes: bool) -> Run:
    """A run that has been asked for, with its numbers in ``encoded``. small: the numbers of those that come unasked;
    writes: to what was there."""
    staying = [ordinal for _slot, _root, ordinal, *_ in encoded.kept[: encoded.n_own]]
    numbers, made = np.frombuffer(encoded.numbers, np.int64), range(base, base + encoded.n_outputs)
    return Run(
        plan,
        made,
        numbers,
        len(encoded.given),
        encoded.nbytes,
        staying,
        [number - base for number in small],
        not writes,
    )
