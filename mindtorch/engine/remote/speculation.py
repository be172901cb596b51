"""Runs that the program is likely to ask for next, sent along with a question: a loop that stops by a test (SPEC R1).

A loop over tokens reads at each step whether it is over, and the next step depends on nothing but the last. Where the
last runs repeat, but for numbers that grow by the same amount each time and for the storages of the step before, the
next ones are known before the program has recorded them: the worker runs them ahead, and its reply has their small
values. What the program then records is compared with them, to the last number. If it is the same, it has run already;
else they are forgotten: their storages are freed, and generators are as they were before them.

So they only make what nobody has yet. A run that writes to what is there before is not run ahead, nor what comes after
an upload, a setting or a seed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._ext.encoder import Encoded
from .sent_segments import Sent
from .wire import WireError

if TYPE_CHECKING:
    from .client import RemoteExecutor
    from .exchange import Entry

__all__ = ["HARMLESS", "Guess", "Speculation"]

#: Requests that change nothing of what a guess is about.
HARMLESS = frozenset({"digest", "fetch", "free", "seen", "small", "speculate", "storage", "undo"})

_PERIOD = 8  # runs in a step of a loop, at most
_AHEAD = 10  # steps that are run ahead, at most
_ROOM = 64 << 20  # bytes of all outputs of these
_LIKELY = 16  # steps after which a loop ends, where nothing else is known
_PATIENCE = 32  # runs that are watched after a guess that did not pay, the first time

clock = time.perf_counter


class Run:
    """What was asked for: a plan, the number of its first output's storage, and its numbers (see `encoder`).

    n_given: how many of them are those of storages; staying: the outputs that keep their storages; small: those of
    them that come unasked. step: how its numbers differ from those of the run one period before; sources: of the
    storages that differ, {position: (runs back, output)}; both None where there is no such run, or nobody knows where
    such a storage comes from.
    """

    __slots__ = ("base", "n_given", "n_outputs", "nbytes", "numbers", "plan", "small", "sources", "staying", "step")

    def __init__(
        self, plan: Sent, base: int, numbers: np.ndarray, n_given: int, n_outputs: int, nbytes: int,
        staying: list[int], small: list[int],
    ) -> None:  # fmt: skip
        self.plan, self.base, self.numbers, self.n_given = plan, base, numbers, n_given
        self.n_outputs, self.nbytes, self.staying, self.small = n_outputs, nbytes, staying, small
        self.step: np.ndarray | None = None
        self.sources: dict[int, tuple[int, int]] | None = None


class Guess:
    """A run that was sent ahead. ends: a step, after which the program waited; reply: what the worker said of it;
    values: its small values, by storage."""

    def __init__(self, run: Run, ends: bool) -> None:
        self.run, self.ends = run, ends
        self.reply: Any = None
        self.values: dict[int, bytes] = {}

    def learn(self, given: list[bytes | None]) -> None:
        numbers = [self.run.base + k for k in self.run.small]
        self.values = {number: data for number, data in zip(numbers, given, strict=True) if data is not None}


class Speculation:
    """The runs of one executor, and what was sent ahead of them."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self._executor = executor
        self.answered = 0  # waits that did not occur
        self._runs: deque[Run] = deque(maxlen=2 * _PERIOD)
        self._period = 0  # runs back to the one with the same plan
        self._right = 0  # runs in a row that would have been guessed right
        self._guesses: deque[Guess] = deque()
        self.taken: list[Guess] = []  # the first of them, which are what the program has asked for
        self._steps = 1  # to run ahead the next time
        self._alone: deque[float] = deque(maxlen=4)  # seconds of the last waits with no guess
        self._patience, self._rest = _PATIENCE, 0
        self._any_right = True  # of those that were sent the last time

    # ---- what the program asks for -----------------------------------------------------------------------------------
    def other(self) -> None:
        """Something else is asked for, which is not part of a loop."""
        self._forget()
        self._start_anew()

    def _start_anew(self) -> None:
        self._right = 0
        self._runs.clear()

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
        if as_before and guess.reply is not None and guess.run.plan is plan and guess.run.numbers.tobytes() == numbers:
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

    def ran(self, run: Run) -> None:
        """It has been asked for, or was guessed right."""
        runs = self._runs
        period = next((k for k, before in enumerate(reversed(runs), 1) if before.plan is run.plan), 0)
        if period != self._period:
            self._period, self._right = period, 0
            self._alone.clear()
        right = False
        if 0 < period <= _PERIOD:
            before = runs[-period]
            run.step = run.numbers[run.n_given :] - before.numbers[run.n_given :]
            run.sources = self._sources(run, before)
            right = (
                run.sources is not None
                and run.sources == before.sources
                and before.step is not None
                and np.array_equal(run.step, before.step)
            )
        self._right = self._right + 1 if right else 0
        runs.append(run)

    def _sources(self, run: Run, before: Run) -> dict[int, tuple[int, int]] | None:
        found = {}
        for at in np.flatnonzero(run.numbers[: run.n_given] != before.numbers[: run.n_given]).tolist():
            number = int(run.numbers[at])
            source = _maker(self._runs, number)
            if source is None:
                return None
            found[at] = source
        return found

    # ---- guesses -----------------------------------------------------------------------------------------------------
    def wait(self, exchange: Callable[[], None]) -> None:
        """Send the next message, with guesses where they are likely to be right and to pay, and wait for the reply."""
        try:
            steps = self._send()
        except BaseException:  # a signal handler's: the worker may not have what is known here of its plans
            self._start_anew()
            self._executor._told.forget()
            raise
        began = clock()
        exchange()
        took = clock() - began
        if not steps and self._period:
            self._alone.append(took)
        elif steps and self._alone:
            self._weigh((took - min(self._alone)) / steps)

    def _weigh(self, step: float) -> None:
        """A step takes so many seconds on the worker. What is run ahead of a loop's last test is for nothing."""
        saved = min(self._alone) - step
        most = _AHEAD if step <= 0 else int(max(_LIKELY * saved / step, 0))
        self._steps = min(self._steps, most)
        if not self._steps:
            self._pause()

    def _pause(self) -> None:
        """It does not pay. Have a look again after some time, longer each time."""
        self._steps, self._rest = 1, self._patience
        self._patience *= 2

    def _send(self) -> int:
        """Put guesses into the next message. Of how many steps?"""
        period, runs = self._period, self._runs
        if self._rest:
            self._rest -= 1
            return 0
        over = len(self.taken) == len(self._guesses)
        if not over or not period or self._right < period or len(runs) < 2 * period or not self._alone:
            return 0
        nbytes = sum(run.nbytes for run in list(runs)[-period:])
        steps = min(self._steps, _ROOM // max(nbytes, 1))
        ahead = list(runs)
        guesses = []
        for k in range(1, steps * period + 1):
            comes = self._next(ahead)
            if comes is None:
                return 0
            ahead.append(comes)
            guesses.append(Guess(comes, ends=k % period == 0))
        entries: list[Entry] = []
        for guess in guesses:
            run = guess.run
            request = ("speculate", run.plan.number, run.base, *run.plan.change(run.numbers))
            entries.append((request, self._answer(guess)))
            if run.small:
                entries.append((("small", [run.base + k for k in run.small]), guess.learn))
        self._any_right = False
        self._guesses.clear()
        self.taken.clear()
        self._guesses.extend(guesses)  # first: a signal handler may raise in between
        self._executor._line[-1].requests.extend(entries)
        return steps

    def _next(self, runs: list[Run]) -> Run | None:
        """The run that comes after these; None where what it is given is gone."""
        before = runs[-self._period]
        assert before.step is not None and before.sources is not None
        numbers = before.numbers.copy()
        numbers[before.n_given :] += before.step
        for at, (back, output) in before.sources.items():
            numbers[at] = runs[-back].base + output
        alive, first = self._executor._alive, self._runs[-1].base + self._runs[-1].n_outputs
        if any(number < first and number not in alive for number in numbers[: before.n_given].tolist()):
            return None
        base = self._executor._mirrors.fresh(before.n_outputs)
        run = Run(
            before.plan, base, numbers, before.n_given, before.n_outputs, before.nbytes, before.staying, before.small
        )
        run.step, run.sources = before.step, before.sources
        return run

    def _answer(self, guess: Guess) -> Callable[[Any], None]:
        def answer(given: Any) -> None:
            if given is not None and given[0]:  # it failed: nobody else will be told
                self._executor._epochs[0] = max(number for _k, number, *_ in given[0])
            elif given is not None and not given[1]:  # as predicted
                guess.reply = given

        return answer

    def _forget(self) -> None:
        """What was sent ahead is not what the program does."""
        guesses = [guess for guess in self._guesses if guess not in self.taken]
        drawn = next((guess.run for guess in guesses if guess.run.plan.draws), None)
        if drawn is not None:
            self._executor._ask("undo", drawn.base)
        dead = self._executor._mirrors.dead
        dead.extend(guess.run.base + k for guess in guesses for k in guess.run.staying)
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


def _maker(runs: deque[Run], number: int) -> tuple[int, int] | None:
    """Which of these runs made a storage: (the how manieth from the end, its output)."""
    for back, run in enumerate(reversed(runs), 1):
        if 0 <= number - run.base < run.n_outputs:
            return back, number - run.base
    return None


def described(plan: Sent, encoded: Encoded, base: int, small: list[int]) -> Run:
    """A run that has been asked for, with its numbers in ``encoded``."""
    staying = [ordinal for _slot, _root, ordinal, *_ in encoded.kept[: encoded.n_own]]
    numbers = np.frombuffer(encoded.numbers, np.int64)
    return Run(plan, base, numbers, len(encoded.given), encoded.n_outputs, encoded.nbytes, staying, small)
