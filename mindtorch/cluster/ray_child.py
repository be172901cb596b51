"""An actor on a cluster, as its executor speaks with it: through the broker's socket (SPEC R2, R4)."""

from __future__ import annotations

import json
import os
import socket
import weakref
from typing import Any, NamedTuple

from .._ext.frames import Stream
from ..engine.remote.pipe import Child
from .broker_client import Link
from .ray_errors import ERROR

__all__ = ["Place", "RayChild"]

_BEGINS = 60.0  # seconds for a worker for which there is room
_WORKS = 3600.0  # for it to do what it is asked for before


class Place(NamedTuple):
    """Of an actor: what it asks of Ray (see `Resources.bundle`), which ``part`` of the room that was reserved for
    several, its name in Ray's dashboard, and its threads, if they are not the program's."""

    bundle: dict[str, float] | None = None
    room: int | None = None
    part: int = 0
    name: str | None = None
    threads: int | None = None


class RayChild(Child):
    """The actor, and the socket by which messages get to it: the broker is at the other end.

    heir_of: the number of the one that it is for; it has what that one's broker kept.
    """

    def __init__(self, link: Link, device: str, place: Place, heir_of: int | None = None) -> None:
        super().__init__(device)
        self.node = ""
        self.link, self.place = link, place
        ours, theirs = socket.socketpair()
        with theirs:
            self.number = self.link.ask(
                "actor", fd=theirs.fileno(), device=device, seconds=_BEGINS, heir_of=heir_of, **place._asdict()
            )
        self._socket = ours
        self.close: Any = weakref.finalize(self, _close, ours, os.getpid())

    def wait(self) -> None:
        """Until it has begun."""
        found = self.link.begun(self.number)
        self.pid, self.node = found["process"], found["node"]
        self._stream = Stream(self._socket.fileno())

    def number_of(self, message: bytearray) -> int:
        """Of one that was sent."""
        return self._begun().ask(message)

    def bring(
        self, ticket: int, nbytes: int, keep: bool, giver: RayChild | None = None, after: int = 0, again: bool = False
    ) -> None:
        """Let what the giver puts aside with its message number ``after`` be here before the next message.

        giver: None: it is kept already. keep: for an heir of this one. again: can both be rebuilt if they are lost?
        """
        actor = 0 if giver is None else giver.number
        self._tell("bring", actor=actor, after=after, ticket=ticket, nbytes=nbytes, keep=keep, again=again)

    def put_aside_only(self, tickets: list[int]) -> None:
        """Nobody will want anything else of what was put aside."""
        self._tell("put_aside_only", tickets=tickets)

    def keep_no_parcels(self) -> None:
        """There will be no heir."""
        self._tell("keep_no_parcels")

    def _tell(self, do: str, **told: Any) -> None:
        self._begun().put(json.dumps({"do": do, **told}).encode(), 0)

    def why_ended(self) -> str:
        """Empty if it has not. Waits until what it does is done."""
        return str(self.link.answer(self.link.ask("why_ended", actor=self.number), _WORKS)["why"])

    def send(self, message: bytearray) -> bytes | None:
        reply = super().send(message)
        if reply is not None and reply.startswith(ERROR):
            raise ConnectionError(reply[len(ERROR) :].decode())
        return reply

    def _start(self) -> None:
        raise ConnectionError(self._how_it_is())

    def _look(self) -> None:
        self.link.look()

    def _how_it_is(self) -> str:
        return self.link.how_it_is() or f"the worker (process {self.pid} on node {self.node}) was released"

    def end(self) -> None:
        """Nobody uses the socket's number any more, which may soon be another one's."""
        self._stream = None
        self.close()

    def leave(self) -> None:
        super().leave()
        self.close.detach()


def _close(ours: socket.socket, owner: int) -> None:
    if os.getpid() == owner:
        ours.close()
