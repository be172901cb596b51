"""An executor whose worker is an actor on a Ray cluster (SPEC R2, R4)."""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any

from .._ext.frames import Stream
from ..engine.remote.pipe import Child, StreamExecutor
from .endings import ERROR
from .link import Link

__all__ = ["RayExecutor", "executors"]


class RayExecutor(StreamExecutor):
    """An executor whose worker is an actor on the cluster that `mindtorch.connect` has started or joined, on
    ``device``: ``cpu``, or ``cuda`` for a GPU of its own. Whoever has one started keeps it alive; its values are freed
    with it. UsageError where the cluster has no room for it.

    ``process``, also in ``stats``: the number of the worker's process, on its ``node``.
    """

    _child: _Actor

    def __init__(self, link: Link, device: str = "cpu", actor: _Actor | None = None) -> None:
        child = _Actor(link, device) if actor is None else actor
        child.wait()
        super().__init__(child)
        self.stats["process"] = child.pid or 0

    @property
    def process(self) -> int | None:
        return self._child.pid

    @property
    def node(self) -> str:
        """How Ray's name of the worker's node begins."""
        return self._child.node

    def close(self) -> None:
        """End the worker."""
        self._child.close()


def executors(link: Link, device: str, workers: int) -> list[RayExecutor]:
    """So many, whose workers begin together."""
    actors = [_Actor(link, device) for _ in range(workers)]
    return [RayExecutor(link, device, actor) for actor in actors]


class _Actor(Child):
    """The actor, and the socket by which messages get to it: the broker is at the other end."""

    def __init__(self, link: Link, device: str) -> None:
        super().__init__(device)
        self.node = ""
        self._link = link
        ours, theirs = socket.socketpair()
        with theirs:
            self._number = link.ask("actor", fd=theirs.fileno(), device=device, seconds=60)
        self._socket = ours
        self.close: Any = weakref.finalize(self, _close, ours, os.getpid())

    def wait(self) -> None:
        """Until it has begun."""
        found = self._link.begun(self._number)
        self.pid, self.node = found["process"], found["node"]
        self._stream = Stream(self._socket.fileno())

    def send(self, message: bytearray) -> bytes | None:
        reply = super().send(message)
        if reply is not None and reply.startswith(ERROR):
            raise ConnectionError(reply[len(ERROR) :].decode())
        return reply

    def _start(self) -> None:
        raise ConnectionError(f"the worker (process {self.pid}) was let go")

    def _look(self) -> None:
        self._link.look()

    def _how_it_is(self) -> str:
        return self._link.how_it_is()

    def leave(self) -> None:
        super().leave()
        self.close.detach()


def _close(ours: socket.socket, owner: int) -> None:
    if os.getpid() == owner:
        ours.close()
