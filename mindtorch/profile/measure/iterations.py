"""Where the iterations of a program's own loop end, told by what its models and optimizers do.

In training an iteration ends with the step of its last optimizer. Which one that is, is known once a first optimizer
steps again: until then an end is tentative, and a step of yet another optimizer (a GAN has two) takes it back. Without
training, an iteration is a round of models: it ends as one is called without gradients that was called in it already.
Such calls within training (a teacher, an evaluation) end nothing; rounds of them before it (data that a model makes, a
first evaluation) are no part of its first iteration.
"""

from __future__ import annotations


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
