"""What happens to workers, clusters and networks in tests, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from mindtorch._ext.frames import Stream
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_child import Place, RayChild
from mindtorch.cluster.ray_executor import RayExecutor

from ..remote.test_slow_network import bad_line


def strike(whom: RayExecutor | int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # another fault has ended it
        os.kill(whom if isinstance(whom, int) else whom.stats["process"], how)


def limit(worker: RayExecutor, more: int | None) -> None:
    """Let a worker have so many bytes more of memory than it has now; None: any number."""
    process = worker.stats["process"]
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        if more is None:
            soft = resource.RLIM_INFINITY
        else:
            with open(f"/proc/{process}/statm") as file:
                soft = int(file.read().split()[0]) * resource.getpagesize() + more
        resource.prlimit(process, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


class Late(RayChild):
    """A worker at the other end of a bad line."""

    def __init__(self, link: Link, seed: int) -> None:
        super().__init__(link, "cpu", Place())
        self._seed = seed

    def wait(self) -> None:
        super().wait()
        self._socket = bad_line(self._socket, self._seed)
        self._stream = Stream(self._socket.fileno())
        self.close.detach()
        self.close = weakref.finalize(self, self._socket.close)


@contextlib.contextmanager
def small_disk() -> Iterator[str]:
    """A folder with 64 MiB of room, in which the program's temporary files are. OSError where none can be made."""
    folder, before = tempfile.mkdtemp(prefix="gd", dir="/tmp"), tempfile.tempdir
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], check=True, capture_output=True)
        try:
            tempfile.tempdir = folder
            yield folder
        finally:
            tempfile.tempdir = before
            subprocess.run(["umount", "-l", folder], check=True, capture_output=True)
    finally:
        os.rmdir(folder)


def fill(folder: str) -> None:
    """Until there is no room."""
    with contextlib.suppress(OSError), open(f"{folder}/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


# ---- other processes -------------------------------------------------------------------------------------------------
GENIE = [sys.executable, "-m", "mindtorch"]
TOKEN = "e" * 64


def outside() -> dict[str, str]:
    """An environment for programs that are to know nothing of this one's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}


def processes(session: int) -> list[tuple[int, str]]:
    """Those of a session, with their names."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(name)) == session and "Z" not in Path(f"/proc/{name}/stat").read_text().rpartition(")")[2]:
                found.append((int(name), Path(f"/proc/{name}/comm").read_text().strip()))
    return found


def marked(mark: str) -> list[int]:
    """Processes with this variable in their environment."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in Path(f"/proc/{int(name)}/environ").read_bytes():
                found.append(int(name))
    return found


def until(done: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait for it, for so long at most."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def nothing_left(broker: int, folder: str | None) -> None:
    """Of a cluster that a program had started."""
    until(lambda: not processes(broker), f"processes of an ended cluster: {processes(broker)}")
    assert folder is not None and not os.path.exists(folder)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@contextlib.contextmanager
def two_namespaces() -> Iterator[list[str]]:
    """Two networks with a link between them: 10.77.8.1 and 10.77.8.2. OSError, CalledProcessError where none can be
    made."""
    names = [f"g{os.getpid()}{side}" for side in "ab"]
    ip("netns", "add", names[0])
    try:
        ip("netns", "add", names[1])
        ip("link", "add", f"{names[0]}v", "type", "veth", "peer", "name", f"{names[1]}v")
        for number, name in enumerate(names, 1):
            ip("link", "set", f"{name}v", "netns", name)
            ip("-n", name, "addr", "add", f"10.77.8.{number}/24", "dev", f"{name}v")
            ip("-n", name, "link", "set", f"{name}v", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def cluster_behind_a_link() -> Iterator[list[str]]:
    """Two networks, a node with room for workers in the first and one for programs in the second: (their names, the
    cluster's address)."""
    with two_namespaces() as names, contextlib.ExitStack() as stack:
        for place, more in ((0, ["--cpus", "2"]), (1, ["--join", "10.77.8.1:6379", "--cpus", "0"])):
            node = subprocess.Popen(
                ["ip", "netns", "exec", names[place], *GENIE, "worker", "start", "--host", f"10.77.8.{place + 1}",
                 *more],
                env=outside() | {"RAY_AUTH_TOKEN": TOKEN}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            stack.callback(node.communicate, timeout=40)
            stack.callback(node.terminate)
            assert node.stdout is not None and "ready" in node.stdout.readline()
        yield [*names, "10.77.8.1:6379"]
