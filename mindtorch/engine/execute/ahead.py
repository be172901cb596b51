"""Running recorded calls while the program goes on recording (SPEC L16): when that may be. `_ext/ahead.pyx` does it."""

from __future__ import annotations

import atexit
import functools
import os
from typing import Any

from ..._ext import ahead
from ...base import torch_facts
from ...base.errors import MaterializationError
from .. import passes
from . import around_segments, local, triggers, values

__all__ = ["AFTER", "begin", "prepare"]

AFTER = 32  # operations recorded between two hand-overs; waking the other thread takes as long as recording a few
#: Of torch: the C++ functions that set the grad mode and count threads, the C functions that make and delete a
#: reference to a tensor.
_FUNCTIONS = (
    "_ZN3c108GradMode11set_enabledEb",
    "_ZN2at15get_num_threadsEv",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_delete_tensor_object",
)


def begin() -> None:
    """From now on, hand calls over, where that can be."""
    if prepare():
        ahead.hand_over_after(AFTER)


@functools.cache
def prepare() -> bool:
    """Can calls be handed over? Not on one processor, nor where no calls are made without Python."""
    set_grad, threads, new, delete = map(torch_facts.exported, _FUNCTIONS)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processors < 2 or not all((set_grad, threads, new, delete)) or passes.native_maker() is None:
        return False
    ahead.begin((set_grad, threads, new, delete), _allowed, _run)
    os.register_at_fork(before=ahead.pause, after_in_parent=ahead.resume, after_in_child=ahead.resume_in_child)
    atexit.register(ahead.pause)
    return True


def _allowed() -> bool:
    """Does nobody look on, and is it calls that run here?"""
    executor = values.executor_in_use()
    return (
        type(executor) is local.LocalExecutor
        and executor.is_plain()
        and around_segments.keeper is None
        and around_segments.listener is None
        and not local.is_observed()
    )


def _run(segment: Any) -> bool:
    """Run it in this thread. False: a record has failed; it is pending again, and fails for who needs it."""
    with values.lock:
        try:
            triggers.run(values.tape, values.executor(), segment, "ahead")
        except MaterializationError:
            return False
    return True
