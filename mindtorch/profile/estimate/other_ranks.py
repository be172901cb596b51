"""Objects that other ranks send to an estimated one, such as the shapes of a pipeline (SPEC C4).

Ranks run one at a time. Where one needs an object of another's, that one runs first, in a process of its own, until it
has sent it; what it sends is kept in files until the estimate is over. That process is forked off a copy of this one
which was made before the program began.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mindtorch.base.mounts import apart

from . import private_files
from .private_tree import by_us

__all__ = ["MISSING", "at_hand", "forked", "kept", "received", "sent"]

MISSING = object()
_folder: str | None = None
_ask: tuple[int, int] | None = None  # file descriptors: of requests, of answers
_wanted = ""  # a message: this process ends when it is sent
_counts: dict[tuple[int, int], int] = {}


@contextmanager
def kept() -> Iterator[None]:
    """Within the block, what ranks send is kept for all that run in it."""
    global _folder
    before = _folder
    with _shared() as folder:
        _folder = folder
        try:
            yield
        finally:
            _folder = before


@contextmanager
def _shared() -> Iterator[str]:
    """A folder by a name that leads to it in estimates, too, where something covers it."""
    memory = "/dev/shm"
    usual = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="genie-ranks-", dir=usual) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            yield f"/dev/fd/{descriptor}" if sys.platform == "linux" else folder
        finally:
            os.close(descriptor)


@contextmanager
def at_hand(run: Callable[[int], object]) -> Iterator[None]:
    """Within the block, ``run(rank)`` gets what another rank sends: it runs the program as that rank."""
    global _folder, _ask, _wanted
    before = _folder, _ask, dict(_counts)
    stack = contextlib.ExitStack()
    if _folder is None:
        _folder = stack.enter_context(_shared())
    _counts.clear()
    asking, answering = os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(asking[1])
        os.close(answering[0])
        with contextlib.suppress(OSError):
            apart()  # before this one covers its disks
        os.write(answering[1], b"\n")
        _serve(asking[0], answering[1], run)
    os.close(asking[0])
    os.close(answering[1])
    os.read(answering[0], 1)
    _ask = asking[1], answering[0]
    try:
        yield
    finally:
        for descriptor in (asking[1], answering[0]):
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        stack.close()
        _folder, _ask = before[:2]
        _counts.clear()
        _counts.update(before[2])


def _serve(requests: int, answers: int, run: Callable[[int], object]) -> None:
    """The copy of the process: for each request, a process that runs the program as another rank. Does not return."""
    with contextlib.suppress(BaseException), os.fdopen(requests) as source:
        for line in source:
            rank, wanted = line.split()
            pid = forked(lambda rank=int(rank), wanted=wanted: _run_until(run, rank, wanted))  # type: ignore[misc]
            os.waitpid(pid, 0)
            os.write(answers, b"\n")
    os._exit(0)


def forked(body: Callable[[], object]) -> int:
    """The id of a process that does this, silently, and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        body()
    finally:
        os._exit(0)


def _run_until(run: Callable[[int], object], rank: int, wanted: str) -> None:
    global _wanted
    _wanted = wanted
    run(rank)


def sent(source: int, target: int, objects: Any) -> None:
    """A rank sends these."""
    if _folder is None:
        return
    name = _name(source, target)
    path = os.path.join(_folder, name)
    with contextlib.suppress(Exception), by_us():  # what cannot be sent in truth either: the program's own mistake
        with open(f"{path}.new", "wb") as file:
            pickle.dump(objects, file)
        os.replace(f"{path}.new", path)
    if name == _wanted:
        private_files.throw_away()
        os._exit(0)


def received(source: int, target: int) -> Any:
    """What the rank `target` gets from the other; `MISSING` if that one does not send anything."""
    if _folder is None or _ask is None:
        return MISSING
    name = _name(source, target)
    path = os.path.join(_folder, name)
    with by_us():
        if not os.path.exists(path):
            os.write(_ask[0], f"{source} {name}\n".encode())
            os.read(_ask[1], 1)
        if not os.path.exists(path):
            return MISSING
        with open(path, "rb") as file:
            return pickle.load(file)  # noqa: S301  # of our own making


def _name(source: int, target: int) -> str:
    """Of the next message from one to the other."""
    number = _counts[source, target] = _counts.get((source, target), 0) + 1
    return f"{source}-{target}-{number}"
