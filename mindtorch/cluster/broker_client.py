"""The program's side of the process that talks to Ray for it (SPEC R2, R4): `broker` is the other one."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

from ..base import hardware
from ..base.errors import SessionLost, UsageError
from ..engine.remote.progress import Waiting
from . import private_cluster
from .ray_errors import DAEMON

__all__ = ["Link", "check_ray"]

# As for a worker of `pipe`: what the program finds is found, nothing of its folder comes first.
_BEGIN = (
    "import sys; fd, sys.path[:] = int(sys.argv[1]), sys.argv[2:]; sys.argv[:] = ['genie-worker']; "
    "from mindtorch.cluster.broker import main; main(fd)"
)
_OPEN = 60.0  # seconds for Ray to start, or to be joined
_BEGUN = 120.0  # seconds for a worker to load torch; the broker gives up before
_STORE = 160 << 20  # bytes of Ray's object store: a few parts of messages are there at a time


def check_ray() -> None:
    """UsageError unless Ray is installed. Not imported: that takes time, and is for another process."""
    if not hardware.has_module("ray"):
        raise UsageError("Ray is not installed: pip install 'mindtorch-genie[ray]'")


class Link:
    """A cluster that was started (``address`` None) or joined. ``nodes``: its machines (see `nodes.nodes`), with so
    many ``gpus``; does it start more where some are missing (``autoscales``)? ``broker``: the process.

    environment: a ``runtime_env``; who: what Ray is to know of the program.
    """

    def __init__(
        self, address: str | None, cpus: int, gpus: int, environment: dict[str, Any] | None = None,
        who: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        check_ray()
        self.address = address
        self._numbers = itertools.count(1)
        self._replies: dict[int, dict[str, Any]] = {}
        path = [os.path.abspath(entry) for entry in sys.path]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GENIE_")}
        self._folder = private_cluster.private_folder() if address is None else None
        variables = (
            private_cluster.environment(variables) if address is None else private_cluster.joining(variables, address)
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Ray has its processes look for modules in the folder that the broker is in, before all others.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(theirs.fileno()), *path], cwd="/",
                pass_fds=(theirs.fileno(),), env=variables, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._socket = ours
        self.broker = self._process.pid
        self.close = weakref.finalize(self, _close, ours, self._process, self._folder, os.getpid())
        _all.add(self)
        try:
            found = self.answer(
                self.ask(
                    "open",
                    address=address,
                    folder=self._folder,
                    cpus=cpus,
                    gpus=gpus,
                    memory=_STORE,
                    path=path,
                    environment=environment,
                    who=who or {},
                ),
                _OPEN,
                "waiting for Ray to start" if address is None else f"waiting for Ray at {address}",
            )
        except BaseException:  # a signal handler's, too
            self._process.kill()
            self.close()
            raise
        self.nodes: list[dict[str, Any]] = found["nodes"]
        self.autoscales: bool = found["autoscales"]
        self.gpus: int = sum(node["gpus"] for node in self.nodes)

    def ask(self, do: str, *, fd: int | None = None, **request: Any) -> int:
        """Number of a request."""
        number = next(self._numbers)
        data = json.dumps({"do": do, "number": number, **request}).encode()
        try:
            socket.send_fds(self._socket, [data], [] if fd is None else [fd])
        except OSError as error:
            raise SessionLost(f"session lost: {self.how_it_is() or error}") from error
        return number

    def answer(self, number: int, seconds: float, what: str = "") -> dict[str, Any]:
        """What came of a request. UsageError for what could not be done. what: is waited for, shown on a terminal."""
        with Waiting(what) as waiting:
            end = time.monotonic() + seconds
            while number not in self._replies:
                left = end - time.monotonic()
                if left <= 0:
                    raise UsageError(f"[connect] no answer from Ray{self._at()} within {seconds:g} s")
                waiting.show()
                if not select.select([self._socket], [], [], min(left, 1.0))[0]:
                    continue
                data = self._socket.recv(1 << 20)
                if not data:
                    raise UsageError(f"[connect] Ray{self._at()} cannot be used: {self.how_it_is() or 'no answer'}")
                reply = json.loads(data)
                if "progress" in reply:  # it is waited for as long as something comes
                    waiting.what, end = reply["progress"], time.monotonic() + seconds
                else:
                    self._replies[reply.pop("number")] = reply
        reply = self._replies.pop(number)
        if "error" in reply:
            raise UsageError(f"[connect] Ray{self._at()}: {reply['error']}")
        return reply

    def _at(self) -> str:
        return "" if self.address is None else f" at {self.address}"

    def begun(self, number: int) -> dict[str, Any]:
        """What came of the request for an actor."""
        return self.answer(number, _BEGUN, "waiting for a worker to start")

    def look(self) -> None:
        """Raise an error where the broker does not run."""
        with contextlib.suppress(ChildProcessError):
            state = os.waitid(os.P_PID, self.broker, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None and state.si_code == os.CLD_STOPPED:
                self._process.kill()
                raise ValueError("it had been stopped")

    def how_it_is(self) -> str:
        """In words, once it has ended; empty if it has not."""
        what = f"the process that talks to Ray ({self.broker})"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.poll()
        if code is None:
            return ""
        if code == DAEMON:
            return f"one of Ray's daemons has ended, and {what}"
        return f"{what} was ended by {signal.Signals(-code).name}" if code < 0 else f"{what} ended with code {code}"

    @property
    def alive(self) -> bool:
        """Can something be asked of it?"""
        return self.close.alive and self._process.poll() is None

    def leave(self) -> None:
        """This process was forked, and has nothing to do with it."""
        self._socket.close()
        self.close.detach()


_all: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in tuple(_all):
        link.leave()


os.register_at_fork(after_in_child=_after_fork)


def _close(ours: socket.socket, process: subprocess.Popen[bytes], folder: str | None, owner: int) -> None:
    if os.getpid() != owner:
        return
    ours.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if folder is not None and os.path.isdir(folder):  # its guard removes it, unless that was ended, too
        private_cluster.clear(folder, process.pid)
