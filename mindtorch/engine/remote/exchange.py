"""What is asked of a worker, in messages, and what becomes of them when something comes in between (SPEC R1, R4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..._ext.signals import by_signal_handler
from ...base.errors import MaterializationError, SessionLost
from ...base.torch_warnings import relay
from ..execute import ambient, values
from . import hello, replies
from .chosen_passes import PASSES
from .lineage import Lineage, Parcel
from .wire import WireError, dumps, loads

__all__ = ["Session", "again", "no_memory"]

log = logging.getLogger("mindtorch.remote")

_LOOKING = frozenset({"call", "run"})  # requests that torch's settings matter to
_WAITING = 8 << 20  # bytes of requests that are kept back for the next message with a question

_UNDER_WAY = 4  # messages that have been sent and are not waited for


Entry = tuple[tuple, Callable[[Any], None] | None]  # a request, and who wants to know the answer
Send = Callable[[bytearray], bytes | bytearray | None]
Post = Callable[[bytearray], None]
Repeat = Callable[[bytearray, Sequence[Parcel]], bytes | bytearray | None]


class _Refused(ConnectionError):
    """By a worker that is there."""


class _Message:
    """Requests that go together, and who wants to know the answers."""

    __slots__ = ("answers", "awaited", "behind", "data", "nbytes", "parcels", "posted", "requests", "sent")

    def __init__(self) -> None:
        self.requests: list[Entry] = []
        self.behind: list[Entry] = []  # what goes in a message behind it, which is not waited for
        self.nbytes = 0  # roughly
        self.data: bytearray | None = None
        self.posted = self.sent = False
        self.awaited = True  # does the program wait for the reply, or was it sent while that goes on?
        self.answers: list[Any] | None = None
        self.parcels: list[Any] = []  # what other workers give, and this takes

    def greets(self) -> bool:
        return bool(self.requests) and self.requests[0][0][0] == "hello"

    def encoded(self) -> bytearray:
        """Always the same object."""
        if self.data is None:
            self.data = dumps([request for request, _answer in self.requests])
        return self.data


class Session:
    """Asks where ``send(message) -> reply`` leads to a `Worker`.

    ``post(message)``, if there is such, sends one without waiting; ``send`` is called with the same object later, in
    the order of the messages, and gives its reply. ``stats``: messages, those of them whose reply was waited for at
    once, plans that were told, and bytes up and down; without the first message, in which the sides get to know each
    other.
    """

    #: May ``send`` and ``post`` be called with the same object again, after a signal handler has raised out of them?
    _resumes = False
    #: Names of settings that the worker has of its own, whatever the program's are.
    _kept_there: frozenset[str] = frozenset()
    #: Keeps what another worker needs to be what this one was; None: a lost worker is the end of the session.
    _lineage: Lineage | None = None

    def __init__(self, send: Send, post: Post | None = None) -> None:
        self._send, self._post = send, post
        self._lock = values.lock  # which nobody else has in a child that was forked
        self._line = [_Message()]  # oldest first; all but the last are to be sent, or have been, and wait for answers
        self._hello: _Message | None = _Message()
        self._hello.requests.append((("hello", tuple(hello.this_side())), self._greeted))
        self._settings: Sequence[Any] = self._told_to_it(cuda=True)
        self._ambient: dict[str, Any] = {}  # what the worker's settings are
        self._lost: SessionLost | None = None
        self._failures: dict[int, MaterializationError] = {}  # that were told, by number
        self._alive: Mapping[int, int] = {}  # bytes of each storage that something here can name, by number
        self._epochs = [0, 0]  # the last failure that was told here, and the last that the worker knows was
        self.stats = {"messages": 0, "waits": 0, "plans": 0, "bytes_up": 0, "bytes_down": 0}

    def _ask(self, *request: Any, answer: Callable[[Any], None] | None = None, nbytes: int = 64) -> None:
        """Put a request into the next message."""
        with self._lock:
            if self._lost is not None:
                raise again(self._lost)
            message = self._line[-1]
            settings = self._news(request[0])
            message.requests.extend([*settings, (request, answer)])
            self._told_settings(settings)
            self._grown(nbytes)

    def _news(self, name: str) -> list[Entry]:
        """The settings that have changed, as they go into a message before a request that looks at them."""
        if not self._settings or name not in _LOOKING:
            return []
        found = ambient.changed(self._settings, self._ambient)
        return [(("settings", found), None)] if found else []

    def _told_to_it(self, cuda: bool) -> list[ambient.Mirrored]:
        return [each for each in (*ambient.mirrored(cuda), *PASSES) if each.name not in self._kept_there]

    def _told_settings(self, entries: list[Entry]) -> None:
        """What `_news` gave is in a message. Had something come in between, it would be told again."""
        for (_name, found), _ in entries:
            self._ambient.update(found)

    def _grown(self, nbytes: int) -> None:
        """So much more is in the message that is not sent yet."""
        message = self._line[-1]
        message.nbytes += nbytes
        if message.nbytes > _WAITING:
            self._exchange()

    def _exchange(self, every: bool = False, unasked: bool = False) -> None:
        """Send what waits, and hand out the answers. Raises the first failure that came of what is waited for; of what
        was sent ahead, and where the program has asked for nothing (``unasked``), only where ``every`` is to be told,
        or something was not written.

        A signal handler of the program's may raise at any point: the message is then dealt with by the next exchange.
        """
        with self._lock:
            line = self._line
            behind = line[-1].behind
            self._seal(awaited=True)
            failed: Exception | None = None
            while len(line) > 1 and not (behind and not any(message.awaited for message in line[:-1])):
                error = self._oldest(every)
                if not unasked or getattr(error, "lost_write", True):
                    failed = failed or error
            if self._lost is not None:
                raise again(self._lost)
            if failed is not None:
                raise failed

    def _wait(self) -> None:
        """Have the answers to reads."""
        self._exchange()

    def _take_in_while(self, comes: Callable[[], bool]) -> None:
        """Take in replies to what was sent ahead until one of them brings it. Raises as `_exchange` does."""
        with self._lock:
            if comes() and len(self._line) > 1:
                self.stats["waits"] += 1
            while comes() and len(self._line) > 1:
                failed = self._oldest(every=False)
                if failed is not None:
                    raise failed

    def _oldest(self, every: bool) -> Exception | None:
        """Take in the reply that has been waited for longest. Returns the failure that is to be told now."""
        message, error = self._line[0], None
        if message.answers is None:
            message.answers = self._answers_to(message)
        if self._line[0] is message and message.answers is not None:
            error = self._hand_out(message, message.answers)
            if not (message.awaited or every or getattr(error, "lost_write", True)):
                error = None
            if self._line[0] is message:  # else the answer was the end of the session
                del self._line[0]
        # Else a signal handler of the program's has seen to it, by a read of its own.
        return error

    def _send_on(self) -> None:
        """Send what waits, and do not wait for the reply: the next exchange takes that in first.

        But for too many that are under way: no worker is to have a heap of them. Raises as `_exchange` does then.
        """
        with self._lock:
            if self._line[-1].requests:
                self._seal(awaited=False)
            try:
                self._post_all()
            except MemoryError as error:
                self._without_memory(error)
            except Exception as error:  # noqa: BLE001 - a signal handler raises through it, all else ends the session
                if not self._again(error):
                    self._broken(error)
            while len(self._line) > _UNDER_WAY + 1:
                failed = self._oldest(every=False)
                if failed is not None:
                    raise failed

    def _seal(self, awaited: bool) -> None:
        """What is asked for from now on goes into another message."""
        line = self._line
        message = line[-1]
        if self._lost is None:
            message.requests.extend(self._closing())
        if message.requests:
            message.awaited = awaited
            told, known = self._epochs
            if told != known:
                message.requests.insert(0, (("seen", told), None))
                self._epochs[1] = told
            if self._hello is not None:
                line.insert(0, self._hello)
                self._hello = None
            added = [_Message()]
            if message.behind:
                added.insert(0, _Message())
                added[0].requests, added[0].awaited = message.behind, False
            line.extend(added)

    def _post_all(self, last: _Message | None = None) -> None:
        """Send what is sealed, up to the ``last`` if that is one of them. Nothing before the sides know each other."""
        if self._post is not None and not self._line[0].greets():
            for message in self._line[:-1]:
                if not (message.posted or message.sent):
                    self._bring_parcels(message)
                    self._post(message.encoded())
                    message.posted = True  # not before: none must overtake one that a signal handler has held up
                if message is last:
                    return

    def _answers_to(self, message: _Message) -> list[Any] | None:
        if message.sent and not self._resumes:
            self._lose("the program interrupted a message")
        try:
            self._post_all()
            message.sent = True
            began = time.monotonic()
            reply = self._send(message.encoded())
            answers = None if reply is None else self._opened(message, reply)
            if reply is not None and self._lineage is not None:
                taken = [(parcel.ticket, parcel.nbytes) for parcel in message.parcels]
                if not self._lineage.add(message.encoded(), reply, time.monotonic() - began, taken):
                    self._no_lineage()
            return answers
        except MemoryError as error:
            self._without_memory(error)
        except Exception as error:  # noqa: BLE001 - a signal handler raises through it, all else ends the session
            if self._again(error):
                return self._answers_to(message)
            self._broken(error)

    def _again(self, error: Exception) -> bool:
        """Go on with another worker, which is what the lost one was? All that has no reply is to be sent to it."""
        lineage = self._lineage
        if lineage is None or not isinstance(error, ConnectionError) or isinstance(error, _Refused):
            return False
        if by_signal_handler(error) or not lineage.may_repeat(self._line[0]) or (send := self._renewed()) is None:
            return False
        try:
            same = lineage.repeat(send)
        except BaseException as worse:  # the new one has a part of it; a signal handler may be why
            self._lost = SessionLost(f"session lost: {error}; rebuilding its values was interrupted")
            if by_signal_handler(worse) or not isinstance(worse, ConnectionError):
                raise
            self._lose(str(worse), worse)
        if not same:
            self._lose(f"{error}; its values cannot be rebuilt bit for bit", error)
        for message in self._line:
            message.posted = message.sent = False
        self.stats["rebuilt"] = self.stats.get("rebuilt", 0) + 1
        log.warning("%s; a new worker has repeated its %d messages, with the same results", error, len(lineage))
        return True

    def _renewed(self) -> Repeat | None:
        """What asks another worker, which knows of nothing; None where there is none."""
        return None

    def _no_lineage(self) -> None:
        """What happens now is told by no message, or would not give the same once more: nothing is rebuilt any more."""
        if self._lineage is not None:
            self._lineage.drop()

    def _bring_parcels(self, message: _Message) -> None:
        """Have what a message takes from other workers be there before it."""

    def _without_memory(self, error: MemoryError) -> NoReturn:
        """The program has no memory for a message or a reply, which is dealt with by the next exchange."""
        if not self._resumes:
            self._broken(error)
        raise no_memory("no memory in the program for a message to the worker or its reply") from error

    def _broken(self, error: Exception) -> NoReturn:
        """An exchange did not come to its end: for good, unless a signal handler is why."""
        if by_signal_handler(error):
            raise error
        known = isinstance(error, (ConnectionError, WireError))
        self._lose(str(error) if known else f"{type(error).__name__}: {error}", error)

    def _opened(self, message: _Message, reply: bytes | bytearray) -> list[Any]:
        answers = loads(reply)
        if isinstance(answers, tuple) and answers[:1] == ("refused",):
            raise _Refused("the worker refused a message: " + ": ".join(map(str, answers[1:])))
        if not isinstance(answers, list) or not 0 <= len(answers) - len(message.requests) <= 1:
            raise WireError(f"expected {len(message.requests)} answers, got {answers!r:.200}")
        if not message.greets():
            self.stats["messages"] += 1
            self.stats["waits"] += message.awaited
            self.stats["bytes_up"] += len(message.data or b"")
            self.stats["bytes_down"] += len(reply)
        return answers

    def _hand_out(self, message: _Message, answers: list[Any]) -> Exception | None:
        failed: Exception | None = None
        try:
            if len(answers) > len(message.requests):
                replies.check_warnings(answers[-1])
            for (request, answer), given in zip(message.requests, answers):
                try:
                    replies.check(request, given, self._known_here())
                    if answer is not None:
                        answer(given)
                except WireError:
                    raise
                except Exception as error:  # raised when all have been told
                    if by_signal_handler(error):
                        raise
                    failed = failed or error
        except WireError as error:
            self._broken(error)
        if len(answers) > len(message.requests):
            relay(answers[-1])
        return failed

    def _known_here(self) -> replies.Known:
        return replies.Known(self._failures, self._alive)

    def _greeted(self, answer: tuple) -> None:
        side, device = answer
        try:
            hello.check(side, "a worker")
        except WireError as error:
            self._lose(str(error), error)
        if self._settings and device != "cuda":
            self._settings = self._told_to_it(cuda=False)

    def _lose(self, why: str, cause: BaseException | None = None) -> NoReturn:
        """Nobody knows any more what the worker has and has done."""
        with self._lock:
            self._lost = SessionLost(f"session lost: {why}")
            self._line[:] = [_Message()]
        raise again(self._lost) from cause

    def _closing(self) -> list[tuple]:
        """Requests, and who wants the answers, that go with every message."""
        return []

    def _question(self, *request: Any) -> Any:
        """The answer to a request, which is the last of its message."""
        found: list[Any] = []
        self._ask(*request, answer=found.append)
        if not found:
            self._exchange()
        return found[0]


def no_memory(text: str) -> MaterializationError:
    """The error of what fails for lack of memory. What it needs is still there."""
    return MaterializationError.also(torch.OutOfMemoryError)(text)


def again(failure: MaterializationError, lost_write: bool = False) -> MaterializationError:
    """A kept failure, to be raised once more: a new object, so that tracebacks do not pile up."""
    fresh = type(failure)(*failure.args)
    fresh.__cause__ = failure.__cause__
    fresh.lost_write = lost_write
    return fresh
