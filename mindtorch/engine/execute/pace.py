"""When a program looks at its values, and so when what it has recorded had better be sent (SPEC R1)."""

from __future__ import annotations

__all__ = ["Pace"]

_FEW = 8  # recorded operations that are no forward pass: what is done to a loss before it is printed


_MANY = 32  # pending operations that take a worker longer than a message of their own takes the program


class Pace:
    """Should what is pending begin at the end of a backward pass or an optimizer's step, or with the next read?

    A program that looks at its loss at the step's end would wait for the whole step if that had begun before; the next
    read starts it then, once it has what it asked for. One that looks before the backward pass, or never, leaves the
    worker with nothing to do until the next read; where it has looked, even its backward pass is better begun before
    the optimizer's step is recorded.
    """

    def __init__(self) -> None:
        self._stepped = 0  # operations recorded when the last step ended
        self._read = False  # since then?
        self._early = True  # was the last read in the middle of a step?

    def read(self, recorded: int, left: bool) -> None:
        """A value was read when so many operations had been recorded; left: it did not take all that was pending."""
        if not self._read:
            self._read = True
            self._early = not left and recorded - self._stepped > _FEW

    def passed(self, pending: int) -> bool:
        """A backward pass has ended, and so many operations are pending. Should they begin?"""
        return self._read and self._early and pending >= _MANY

    def step(self, recorded: int) -> bool:
        """An optimizer's step has ended. Should what is pending begin?"""
        begin = self._early or not self._read
        self._stepped, self._read = recorded, False
        return begin
