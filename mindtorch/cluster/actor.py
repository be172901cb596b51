"""What runs in Ray's processes: the actor that answers messages, and a look at whether one of them still runs.

Imported there and by the broker, neither of which may load torch before it needs it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["PART", "Actor", "Gives", "look_in", "machine", "state_of"]

PART = 8 << 20  # bytes of a message that go with one call at most


class Gives:
    """Has parcels that other workers may take. ``bytes``, or the number of a failure in their place; see `Worker`."""

    def __init__(self) -> None:
        self._parcels: dict[int, bytes | bytearray | int] = {}

    def parcel(self, ticket: int, begin: int, last: bool) -> bytes | int:
        """A part of what is put aside for another worker; or an int, which is all there is."""
        found = self._parcels[ticket] if not last else self._parcels.pop(ticket)
        return found if isinstance(found, int) else bytes(found[begin : begin + PART])


def look_in(path: list[str]) -> None:
    """Find modules in the program's ``sys.path``, behind what a runtime_env gives, which Ray puts first."""
    sys.path[:] = [*(entry for entry in sys.path if "/runtime_resources/" in entry), *path]


class Actor(Gives):
    """Has a `Worker` and gives it the messages of one program, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._serve: Callable[[bytes | bytearray], bytearray] | None = None
        self._come = bytearray()  # parts of a message whose last one has not come
        self._replies: dict[int, bytearray] = {}  # those that do not go with one call, until all of them has
        self._number = 0
        self._memory: Any = None  # see `Worker`
        self._folders: list[str] = []

    def begin(self, device: str, path: list[str] | None, threads: int | None) -> tuple[int, str, str]:
        """(this process, Ray's name of its node, `machine`). ``path``: the program's ``sys.path``, if that is here;
        ``threads``: of torch's, None: as the program says.
        """
        import ray

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the program
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler runs into an assertion of Ray's
        if path is not None:
            look_in(path)
        from ..base import config
        from ..engine.remote.child import serving
        from ..engine.remote.set_aside import SetAside

        self._folders = config.worker_files() if path is None else ["/"]
        self._memory = SetAside.of_a_process()
        self._serve = serving(device, self._memory, self._parcels, self._folders)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        return os.getpid(), ray.get_runtime_context().get_node_id(), machine()

    def is_there(self) -> None:
        """Answer."""

    def part(self, data: bytes) -> None:
        """The next of a message that does not go with one call."""
        self._come += data

    def answer(self, message: bytes) -> bytes | tuple[int, int]:
        """The reply to a message, or to the parts that came and this one. (number, size) of one that is longer."""
        assert self._serve is not None
        if self._come:
            whole, self._come = self._come, bytearray()
            whole += message
            reply = self._serve(whole)
        else:
            reply = self._serve(message)
        self._memory.release()  # Ray needs it for the next message
        if len(reply) <= PART:
            return bytes(reply)
        self._number += 1
        self._replies[self._number] = reply
        return self._number, len(reply)

    def rest(self, number: int, begin: int) -> bytes:
        """So much of a long reply as goes with one call."""
        with memoryview(self._replies[number]) as reply:
            found = bytes(reply[begin : begin + PART])
            last = begin + PART >= len(reply)
        if last:
            del self._replies[number]
        return found

    def bring(self, ticket: int, part: bytes | int) -> None:
        """A part of what another worker has given. Ray takes it here from there."""
        if isinstance(part, int):
            self._parcels[ticket] = part
        else:
            held = self._parcels.setdefault(ticket, bytearray())
            assert isinstance(held, bytearray)
            held += part

    def put_aside_only(self, tickets: list[int]) -> None:
        """Forget what else is put aside for other workers."""
        for ticket in self._parcels.keys() - set(tickets):
            del self._parcels[ticket]

    def save(self, path: str, described: bytes) -> str:
        """Write a checkpoint (`worker_files.write`). Why that failed; empty if it did not."""
        from .worker_files import write

        try:
            write(path, described, self._parcels, self._folders)
        except (OSError, ValueError, RuntimeError) as error:
            return str(error)
        return ""

    def load(self, path: str, first: int) -> bytes | str:
        """Read a checkpoint (`worker_files.read`). Why that failed, as a string."""
        import pickle

        from .worker_files import read

        try:
            return read(path, first, self._parcels, self._folders)
        except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
            return str(error)


def machine() -> str:
    """Where the numbers of processes mean the same as here."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def state_of(process: int) -> str:
    """The letter that Linux has for how a process of this machine is; empty if it does not say."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
