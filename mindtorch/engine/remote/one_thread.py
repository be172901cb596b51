"""What is known of values elsewhere, and messages about them, belong to one thread at a time."""

from __future__ import annotations

from typing import TypeVar

from ...base.threads import under
from ..execute import values

__all__ = ["one_thread_at_a_time"]

_Class = TypeVar("_Class", bound=type)
# The interface's, but for `rng`: a block, whose callers hold the lock around it.
_METHODS = (
    "submit", "fetch", "address", "adopt", "call", "copied_storage", "take_from", "move", "home", "bring", "begin",
    "finish", "sync", "seed", "generators", "set_generators", "generator_state", "set_generator_state",
)  # fmt: skip


def one_thread_at_a_time(cls: _Class) -> _Class:
    """Let an executor's methods run under the engine's lock: also those that the engine calls without it.

    It does not hold its lock while it uploads a tensor, or asks for an address. One lock for both: with two, each of
    two threads could wait for the other's.
    """
    for name in _METHODS:
        if name in vars(cls):
            setattr(cls, name, under(values.lock)(vars(cls)[name]))
    return cls
