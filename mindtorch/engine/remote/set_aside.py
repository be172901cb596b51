"""What a worker does where there is no memory: the request fails, and the session goes on (SPEC R4)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from .plans import Plan

__all__ = ["ENDED", "OUT_OF_MEMORY", "SetAside", "is_out_of_memory", "kind_of", "unwritten", "without_values"]

#: The kind of error that is told.
OUT_OF_MEMORY = torch.OutOfMemoryError.__name__
#: The exit code of a worker that has no memory to receive a message.
ENDED = 12
_NBYTES = 48 << 20  # a message has 16 MiB at most, and takes twice as much while it is read


class SetAside:
    """Memory that computing cannot take, because a message and its reply need it.

    It is held while requests make values, and released while a message is read and checked, and for a reply that there
    is no memory for otherwise. nbytes: 0 where the worker is in the program's own process: it then takes what there is.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self._nbytes = nbytes
        self._held: mmap.mmap | None = None

    def hold(self) -> None:
        """MemoryError where there is so little that nothing is to be computed."""
        if not self._nbytes or self._held is not None:
            return
        try:
            self._held = self._mapped()
        except OSError:
            trim()
            try:
                self._held = self._mapped()
            except OSError:
                raise MemoryError(f"the last {self._nbytes >> 20} MiB are for messages") from None

    def short(self) -> MemoryError | None:
        """The error of `hold`."""
        try:
            self.hold()
        except MemoryError as error:
            return error
        return None

    def _mapped(self) -> mmap.mmap:
        return mmap.mmap(-1, self._nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # no page of it is touched

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    @classmethod
    def of_a_process(cls) -> SetAside:
        """For a worker that has its process to itself."""
        return cls(_NBYTES)


def trim() -> None:
    """Give back what the C library keeps of freed memory."""
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Of what Python and torch raise: an error of the CPU's allocator is any RuntimeError, with its text."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def kind_of(error: Exception) -> str:
    """The name by which the program is told what an error is."""
    return OUT_OF_MEMORY if is_out_of_memory(error) else type(error).__name__


def unwritten(plan: Plan) -> dict[int, int]:
    """The tensors to begin with that a run of a plan may write to: index, and the first record that does."""
    found: dict[int, int] = {}
    roots: dict[int, set[int]] = {i: {i} for i in range(len(plan.given))}
    for k, step in enumerate(plan.steps):
        shared = set().union(*(roots[i] for i in step.inputs))
        for i in range(step.first, step.first + len(step.definition.predicted)):
            roots[i] = shared if step.definition.view or step.aliases else set()
        for i in step.definition.writes:
            for root in roots[step.inputs[i]]:
                found.setdefault(root, k)
    return found


def without_values(answers: Sequence[Any]) -> list[Any]:
    """The answers of a reply that there is no memory for, without the values that were read: they can be read again."""
    return [
        ("memory", f"no memory for a reply with {len(each[-1]):,} bytes")
        if isinstance(each, tuple) and each and each[0] in ("values", "bytes")
        else each
        for each in answers
    ]
