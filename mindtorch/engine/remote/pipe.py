"""A worker in a child process, which begins with the first message and ends with the program (SPEC R1)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from ..._ext.frames import Stream
from ...base.errors import SessionLost
from .client import RemoteExecutor
from .progress import Progress
from .set_aside import ENDED

__all__ = ["Child", "PipeExecutor", "StreamExecutor"]

# The child finds what the program finds, and nothing of the folder that the program is in comes before it.
_BEGIN = (
    "import sys, os; fd, device, sys.path[:] = int(sys.argv[1]), sys.argv[2], sys.argv[3:]; "
    "sys.argv[:] = ['genie-worker']; os.dup2(2, 1); "
    "from mindtorch.engine.remote.child import main; main(fd, device)"
)
_LOOK = 1000  # ms without an answer, after which it is asked whether the child is still running


class StreamExecutor(RemoteExecutor):
    """An executor whose messages go through a socket to a process of the program's: ``child`` sees to both."""

    _resumes = True

    def __init__(self, child: Child) -> None:
        self._child = child
        super().__init__(child.send, child.post)
        _all.add(self)

    def _exchange(self, every: bool = False, unasked: bool = False) -> None:
        super()._exchange(every, unasked)
        self._child.keep([message.data for message in self._line])

    def _forked(self) -> None:
        """In a child of the program's, which must leave the pipe alone."""
        if self._child.pid is not None:
            self._lost = SessionLost(
                "session lost: a forked process cannot use its parent's worker; "
                "start processes that use the device with the method 'spawn'"
            )
            self._child.leave()


class PipeExecutor(StreamExecutor):
    """An executor whose worker is a child process, on ``device``."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(Child(device))

    def start(self) -> None:
        self._child.begin()

    @property
    def process(self) -> int | None:
        """The child's process id; None before it starts."""
        return self._child.pid


_all: weakref.WeakSet[StreamExecutor] = weakref.WeakSet()


def _after_fork() -> None:
    for executor in tuple(_all):
        executor._forked()


os.register_at_fork(after_in_child=_after_fork)


class Child:
    """The process, and how messages get there and replies back. ``pid``: None until it is needed."""

    def __init__(self, device: str) -> None:
        self.pid: int | None = None
        self._device = device
        self._stream: Any = None
        self._process: Any = None
        self._socket: Any = None
        self._progress = Progress()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            given = [os.fspath(entry) or os.getcwd() for entry in sys.path]
            # Without the environment's own settings of ours: they are for the program. In a session of its own: what
            # is typed at the terminal is, too.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("GENIE_")}
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(theirs.fileno()), self._device, *given],
                pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._socket, self._stream = ours, Stream(ours.fileno())
        self.pid = self._process.pid
        weakref.finalize(self, _end, ours, self._process, os.getpid())

    def send(self, message: bytearray) -> bytes | None:
        """The reply; None where a signal handler has taken it in meanwhile.

        May be called once more with the same object after an exception, or after post().
        """
        stream = self._begun()
        number = stream.ask(message)
        try:
            while (reply := stream.answer(number, _LOOK)) is None and stream.awaits(number):
                self._look()
                self._progress.see(stream.moved)
            self._progress.see(stream.moved)
        except (EOFError, ValueError) as error:
            raise ConnectionError(f"{self._how_it_is()}: {error}") from error
        return reply

    def post(self, message: bytearray) -> None:
        """Send a message whose reply is waited for later, by send()."""
        stream = self._begun()
        stream.ask(message)
        with contextlib.suppress(EOFError, ValueError, MemoryError):  # which send() will meet again
            while not stream.push(_LOOK):
                self._look()
                self._progress.see(stream.moved)

    def begin(self) -> None:
        if self._stream is None:
            self._start()

    def _begun(self) -> Any:
        self.begin()
        return self._stream

    def _look(self) -> None:
        """Raise an error where the child will not answer."""
        with contextlib.suppress(ChildProcessError):
            state = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None and state.si_code == os.CLD_STOPPED:
                raise ValueError("it was stopped")

    def _how_it_is(self) -> str:
        """In words, once it is of no use any more."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.poll()
        what = f"the worker (process {self.pid})"
        if code is None:
            self._process.kill()
            return f"{what} gave no usable reply"
        if code == ENDED:
            return f"{what} had no memory left to receive a message"
        if code < 0:
            return f"{what} was ended by {signal.Signals(-code).name}"
        return f"{what} ended with exit code {code}"

    def keep(self, messages: Iterable[Any]) -> None:
        """What came is not needed any more, but for the answers to these."""
        if self._stream is not None:
            self._stream.keep(messages)

    def leave(self) -> None:
        """This process has nothing to do with the child."""
        self._socket.close()
        self._stream = None


def _end(ours: socket.socket, process: Any, owner: int) -> None:
    if os.getpid() == owner:
        ours.close()
        process.kill()
        process.wait()
