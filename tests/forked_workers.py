"""Workers of `PipeExecutor` in forks of a process that has imported torch: to import it takes most of their start."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl: whose parent has ended is a child of this process

# The fork that is served ends at once, so its child, the worker, becomes one of the tests' process. Its words are those
# of the command that would have started it, with the number that the socket has here.
_BEGIN = """
import os, socket, sys
path, begin, *words = sys.argv[1:]
way = socket.socket(socket.AF_UNIX)
way.connect(path)
_, (fd, *standard), _, _ = socket.recv_fds(way, 1, 3)
if os.fork():
    os._exit(0)
os.setsid()
for number, given in enumerate(standard, 1):
    os.dup2(given, number)
    os.close(given)
way.sendall(str(os.getpid()).encode())
way.close()
sys.argv[:] = ["-c", str(fd), *words]
exec(begin, {"__name__": "__main__"})
"""


class _Process:
    """A child of this process: what `subprocess.Popen` is asked for of a worker."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float = 60) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


class ForkedWorkers:
    """Stands in for the module ``subprocess`` where workers are started."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, forked: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
        self._forked, self._path, self._lock = forked, str(folder / "way"), threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._path)
        self._listening.listen()

    def Popen(self, command: Sequence[str], pass_fds: Sequence[int], env: Mapping[str, str], **_: Any) -> _Process:
        python, how, begin, number, *words = command
        assert (python, how, [number]) == (sys.executable, "-c", [str(fd) for fd in pass_fds])
        with self._lock:
            answered = SimpleNamespace(way=None)

            def answer() -> None:
                answered.way = self._listening.accept()[0]
                socket.send_fds(answered.way, [b"."], [*pass_fds, 1, 2])

            answering = threading.Thread(target=answer, daemon=True)
            answering.start()
            prctl = ctypes.CDLL(None).prctl
            prctl(_SUBREAPER, 1)
            try:
                done = self._forked("-c", _BEGIN, self._path, begin, *words, environment=env)
            finally:
                prctl(_SUBREAPER, 0)
            assert done.returncode == 0, done.stderr
            answering.join()
            with answered.way:
                return _Process(int(answered.way.recv(32)))
