"""The broker's way to one actor: passes on its messages and replies, and sees whether it still runs (SPEC R2, R4)."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from typing import Any

from .._ext.frames import Stream
from .actor import PART, state_of
from .feeder import Feeder
from .ray_errors import ERROR, ended
from .reservations import Room

__all__ = ["Line"]

_PARTS = 4  # of a message or reply that are under way at a time
_MESSAGES = 8  # that are, or
_BYTES = 64 << 20  # so many bytes of them, if that is more than one
_LOOK = 1.0  # seconds without an answer, after which it is asked whether the actor's process runs
_STOPPED = "is not running: it was stopped"
_PROBE = 5.0  # the same for a process on another node


class Line:
    """Passes on messages to an actor, and its replies back. Ends it when nobody listens any more."""

    def __init__(
        self, fd: int, actor: Any, process: int, node: str, here: bool, runtime: dict[str, Any],
        lines: dict[int, Line], its: Room | None,
    ) -> None:  # fmt: skip
        self._fd, self._actor, self._lines, self._its = fd, actor, lines, its
        self._process, self._node, self._here, self._runtime = process, node, here, runtime
        self._under_way: queue.SimpleQueue[tuple[int, Any, int]] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._messages = self._bytes = 0
        self._fired = 0  # number of the last message that the actor has been given
        self._over = False  # and it gets no more
        self._lost: str | None = None
        self._deaf = False  # does nobody listen any more?
        self._kept: dict[int, list[Any]] | None = {}  # what others gave, in parts, by ticket; None: an heir has it
        self._handing = threading.Lock()
        self._upwards = threading.Thread(target=self._up, daemon=True)

    def start(self) -> None:
        self._upwards.start()
        threading.Thread(target=self._down, daemon=True).start()

    # ---- to the actor ------------------------------------------------------------------------------------------------
    def _up(self) -> None:
        import ray

        stream = Stream(self._fd)
        try:
            while True:
                number, message = stream.receive()
                if not number:
                    told = json.loads(message)
                    getattr(self, f"_{told.pop('do')}")(**told)
                    continue
                size = len(message)
                with self._room:
                    while self._messages and (self._messages == _MESSAGES or self._bytes + size > _BYTES):
                        self._room.wait()
                    if self._deaf:
                        break
                    self._messages += 1
                    self._bytes += size
                self._under_way.put((number, self._fire(message), size))
                del message
                with self._room:
                    self._fired = number
                    self._room.notify_all()
        except (EOFError, ValueError):  # the program has let the worker go
            pass
        ray.kill(self._actor)
        self._under_way.put((0, None, 0))
        with self._room:
            self._over = True
            self._room.notify_all()

    def _bring(self, actor: int, after: int, ticket: int, nbytes: int, keep: bool, again: bool) -> None:
        """Let the actor have what another one gives with its message number ``after``, straight from there.

        actor: 0: what is kept. again: where the other one has ended, end this, too: both can be rebuilt, it comes then.
        """
        import ray

        there = self._lines[actor] if actor else self
        if actor:
            there._until_fired(after)
        with self._handing:
            if self._kept is None:
                return
            kept = self._kept.setdefault(ticket, []) if keep else None
            try:
                self._hand(there._actor if actor else None, ticket, nbytes, there, kept)
            except ray.exceptions.RayError:
                # If it is this one, its next reply says so; what did not come is missed where it is to be taken.
                if actor and there.why_ended():
                    self._kept.pop(ticket, None)
                    if again:
                        self._end(ConnectionError("waited for values of a worker that has ended"))

    def _hand(self, giver: Any, ticket: int, nbytes: int, there: Line, kept: list[Any] | None = None) -> None:
        """A parcel of another actor's, in parts. there: whose process may be found stopped meanwhile, besides this.

        kept: parts that have come from there already; gets the others. giver: None: there are no others.
        """
        coming: list[Any] = []
        for number, begin in enumerate(range(0, max(nbytes, 1), PART)):
            if kept is not None and number < len(kept):
                part = kept[number]
            elif giver is None:
                return
            else:
                part = giver.parcel.remote(ticket, begin, begin + PART >= nbytes)
                if kept is not None:
                    kept.append(part)
            coming.append(self._actor.bring.remote(ticket, part))
            del part
            if len(coming) == _PARTS:
                self._come(coming.pop(0), there)
        for ref in coming:
            self._come(ref, there)

    def inherit(self, line: Line) -> None:
        """Keep what another one kept, which is of no use any more."""
        with line._handing:
            self._kept, line._kept = line._kept, None

    def _keep_no_parcels(self) -> None:
        if self._kept:
            self._kept.clear()

    def _put_aside_only(self, tickets: list[int]) -> None:
        self._actor.put_aside_only.remote(tickets)

    def why_ended(self) -> str:
        """Empty if it has not; asks it, which waits until what it does is done."""
        if self._lost is None:
            try:
                self._wait_for(self._actor.is_there.remote())
            except Exception as error:  # noqa: BLE001 - told to the program
                self._end(error)
        return self._lost or ""

    def feeder(self, path: list[str] | None, source: str, args: bytes, seed: int) -> tuple[Any, str]:
        """An actor beside this one, which calls a function that gives batches; why it could not, else an empty text."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = ray.remote(Feeder)
        made = remote.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=False), max_restarts=0,
            max_task_retries=0, enable_task_events=False, runtime_env=self._runtime,
        ).remote()  # fmt: skip
        return made, ray.get(made.begin.remote(path, source, args, seed))

    def feed(self, feeder: Any, first: int) -> bytes | str | None:
        """Let the actor have the next batch: its description; None after the last; a text that says what failed."""
        import ray

        found = ray.get(feeder.next.remote(first))
        if found is None or isinstance(found, str):
            return found
        described, sizes = found
        for ticket, nbytes in enumerate(sizes, first):
            self._hand(feeder, ticket, nbytes, self)
        return bytes(described)

    def _until_fired(self, message: int) -> None:
        with self._room:
            self._room.wait_for(lambda: self._fired >= message or self._over)

    def save(self, after: int, path: str, described: bytes) -> str:
        """Have the actor write what it puts aside with its message number ``after``: why it could not."""
        self._until_fired(after)
        return str(self._wait_for(self._actor.save.remote(path, described)))

    def load(self, path: str, first: int) -> bytes | str:
        """Have the actor put aside what is in a file. A description, or why it could not."""
        found: bytes | str = self._wait_for(self._actor.load.remote(path, first))
        return found

    def _come(self, ref: Any, there: Line) -> None:
        """Wait for a part. RayError where it does not come."""
        import ray

        while True:
            try:
                return ray.get(ref, timeout=_LOOK if self._here and there._here else _PROBE)
            except ray.exceptions.GetTimeoutError:
                for line in (self, there):
                    if line._is_stopped():
                        line._end(ConnectionError(_STOPPED))
                if self._lost is not None:  # the giver may take its time, and an heir waits for what is kept
                    raise ray.exceptions.RayError(self._lost) from None

    def _fire(self, message: bytes) -> Any:
        """The reply that is to come; or why there is none."""
        try:
            begin = 0
            parts: list[Any] = []
            with memoryview(message) as view:
                while len(view) - begin > PART:
                    if len(parts) == _PARTS:
                        self._wait_for(parts.pop(0))
                    parts.append(self._actor.part.remote(bytes(view[begin : begin + PART])))
                    begin += PART
                return self._actor.answer.remote(bytes(view[begin:]) if begin else message)
        except Exception as error:  # noqa: BLE001 - told in place of the reply
            return error

    # ---- and back ----------------------------------------------------------------------------------------------------
    def _down(self) -> None:
        stream = Stream(self._fd)
        try:
            while True:
                number, reply, size = self._under_way.get()
                if not number:
                    break
                stream.put(self._reply(reply), number)
                stream.flush()
                del reply
                with self._room:
                    self._messages -= 1
                    self._bytes -= size
                    self._room.notify_all()
        except EOFError:
            with self._room:
                self._deaf, self._messages = True, 0
                self._room.notify_all()
        self._upwards.join()
        self._kept = None
        os.close(self._fd)
        if self._its is not None:
            self._its.leave()

    def _reply(self, reply: Any) -> bytes | bytearray:
        """What comes, or why nothing does: then the actor is of no use any more."""
        if self._lost is None:
            try:
                if isinstance(reply, Exception):
                    raise reply
                found = self._wait_for(reply)
                return self._all(*found) if isinstance(found, tuple) else found
            except Exception as error:  # noqa: BLE001 - told to the program
                self._end(error)
        return ERROR + (self._lost or "").encode()

    def _end(self, error: Exception) -> None:
        """The actor is of no use any more."""
        import ray

        self._lost = self._lost or ended(error, self._process, self._node)
        ray.kill(self._actor)
        if self._here and state_of(self._process) in ("T", "t"):  # it does not hear of that
            os.kill(self._process, signal.SIGKILL)

    def _all(self, number: int, size: int) -> bytearray:
        """A reply that does not go with one call."""
        whole = bytearray()
        coming: list[Any] = []
        begin = 0
        while len(whole) < size:
            while begin < size and len(coming) < _PARTS:
                coming.append(self._actor.rest.remote(number, begin))
                begin += PART
            whole += self._wait_for(coming.pop(0))
        return whole

    def _wait_for(self, ref: Any) -> Any:
        import ray

        while True:
            try:
                return ray.get(ref, timeout=_LOOK if self._here else _PROBE)
            except ray.exceptions.GetTimeoutError:
                if self._is_stopped():
                    raise ConnectionError(_STOPPED) from None

    def _is_stopped(self) -> bool:
        return (state_of(self._process) if self._here else self._probe()) in ("T", "t")

    def _probe(self) -> str:
        """How the process is, on another node; empty while that does not answer, of which Ray takes care."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(self._node, soft=False)
        remote: Any = ray.remote(state_of)
        asked = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy, runtime_env=self._runtime)
        try:
            return str(ray.get(asked.remote(self._process), timeout=30))
        except ray.exceptions.RayError:
            return ""
