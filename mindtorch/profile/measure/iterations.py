"""Where the iterations of a program's own loop end, told by what its models and optimizers do.

In training an iteration ends with the step of its last optimizer. Which one that is, is known once a first optimizer
steps again: until then an end is tentative, and a step of yet another optimizer (a GAN has two) takes it back. Without
training, an iteration is a round of models: it ends as one is called without gradients that was called in it already.
Such calls within training (a teacher, an evaluation) end nothing; rounds of them before it (data that a model makes, a
first evaluation) are no part of its first iteration.

Threads that train at the same time have a loop each: the iterations are those of the thread that was there first. Those
that answer requests have one together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

#: Marks that are kept: threads that run at once show it soon.
MOST_NOTED = 10_000


def ends_within(marks: Sequence[int], stretches: Sequence[tuple[int, int]]) -> list[int]:
    return [mark for mark in marks if any(first < mark <= last for first, last in stretches)]


def from_end_to_end(marks: Sequence[int], stretches: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(how many, since, until): the iterations that end within these stretches, but for what the first began with.

    `marks`: their ends, as positions. Where the program's first iteration begins is not known, so it counts from its
    end; one that was left out before the others ends where they begin.
    """
    ends = ends_within(marks, stretches)
    before = [mark for mark in marks if ends and mark < ends[0]][-1:]
    ends = before + ends
    return (len(ends) - 1, ends[0], ends[-1]) if len(ends) > 1 else (0, 0, 0)


_BEGINS, _ENDS = {"enter": "call", "step begins": "step"}, {"exit": "call", "step": "step"}  # marks


class Iterations:
    """Told about every outermost call and optimizer step, in order. Models and optimizers are numbers."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.began = 0  # where the first of them began at the earliest
        self.tentative = False  # the last of the ends
        self._training = False
        self._called: set[int] = set()
        self._stepped: list[int] = []
        self._usual: list[int] = []  # what stepped in the iteration before
        self._last = 0  # where the last step ended
        self._counted = False  # that end is among the ends

    def calls(self, model: int, at: int) -> bool:
        """A model is called without gradients; whether an iteration ended before that."""
        if self._training:
            return False
        ended = model in self._called
        if ended:
            self._called.clear()
            self.ends.append(at)
        self._called.add(model)
        return ended

    def trains(self) -> bool:
        """There is a backward pass; whether it is the first, and what came before it was no iteration after all."""
        if self._training:
            return False
        self._training = True
        self._called.clear()
        self.began = self.ends[-1] if self.ends else 0
        self.ends.clear()
        return True

    def step_begins(self, optimizer: int) -> str:
        """What that says of the last end: "confirmed", "late" (it is one, and was not taken for one), "withdrawn"."""
        if optimizer in self._stepped:
            self._usual, self._stepped = self._stepped, []
            self.tentative = False
            if self._counted:
                return "confirmed"
            self.ends.append(self._last)
            return "late"
        if self.tentative:
            self.tentative = self._counted = False
            self.ends.pop()
            return "withdrawn"
        return ""

    def step_ends(self, optimizer: int, at: int) -> bool:
        """Whether an iteration ended with it, as far as is known (see `tentative`)."""
        self._training = True
        self._called.clear()
        self._stepped.append(optimizer)
        self._last, self._counted = at, False
        count = len(self._stepped)
        if count < len(self._usual) and self._stepped == self._usual[:count]:
            return False
        self._counted = True
        self.tentative = self._stepped != self._usual
        if not self.tentative:
            self._stepped = []
        self.ends.append(at)
        return True

    def finish(self, at: int) -> None:
        """The program ends."""
        if self._called:
            self.ends.append(at)
        elif self._stepped and not self._counted:
            self.ends.append(self._last)
        self._called.clear()
        self._stepped = []

    def again(self, marks: Iterable[tuple[str, int, int]]) -> None:
        """As if these had been told (kind, number, when; "call": one without gradients), and nothing else."""
        ends = self.ends
        ends.clear()
        self.__init__()  # type: ignore[misc]
        self.ends = ends
        for kind, which, at in marks:
            if kind == "call":
                self.calls(which, at)
            elif kind == "backward":
                self.trains()
            elif kind == "step begins":
                self.step_begins(which)
            elif kind == "step":
                self.step_ends(which, at)


class OneLoop:
    """Told about every mark of the program's and its thread, in order: does it belong to the loop that is counted?"""

    def __init__(self) -> None:
        self.aside: set[int] = set()  # threads that train while one does that was there before
        self._known: dict[int, int] = {}  # threads, in the order in which they came
        self._runs: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)  # by thread: the calls and steps it is in
        self._told: list[tuple[int, tuple[str, int, int]]] = []  # the first marks, with their threads

    def counts(self, kind: str, which: int, thread: int) -> bool:
        """Whether it does. kind: as `Collector` has them, "call" for what is entered without gradients."""
        if thread in self.aside:
            return False
        self._known.setdefault(thread, len(self._known))
        if kind in _BEGINS:
            beside = [other for other, runs in self._runs.items() if runs and other != thread]
            self._runs[thread].add((_BEGINS[kind], which))
            for late in sorted([*beside, thread], key=self._known.__getitem__)[1:]:
                self.aside.add(late)
                del self._runs[late]
        elif kind in _ENDS:
            self._runs[thread].discard((_ENDS[kind], which))
        return thread not in self.aside

    def note(self, thread: int, kind: str, which: int, at: int) -> None:
        """A mark that belongs to it, as far as is known; of a long run the first ones."""
        if len(self._told) < MOST_NOTED:
            self._told.append((thread, (kind, which, at)))

    def told(self) -> list[tuple[str, int, int]]:
        """Those that still do."""
        return [mark for thread, mark in self._told if thread not in self.aside]
