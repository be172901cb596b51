"""Machines of a cluster: starting one here for others to use, and what there is (SPEC C9, R2)."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..base.errors import UsageError
from . import private_cluster
from .addresses import where
from .broker_client import Link, check_ray

__all__ = ["Node", "default_host", "nodes", "nodes_and_sessions", "started"]

_STARTED = 60.0  # seconds for Ray's daemons to begin
_LISTED = 30.0  # seconds for its tables
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# It ends with the process that has started it, however that ends: 1 is PR_SET_PDEATHSIG.
_RAY = (
    "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
)


class Node(NamedTuple):
    """One that was started here. address: what others connect to; token: what they need for that."""

    address: str
    token: str
    process: subprocess.Popen[bytes]


def nodes(address: str) -> list[dict[str, Any]]:
    """The machines of a cluster, each with ``address``, ``name``, ``id`` (how Ray's begins), ``cpus``, ``gpus``,
    ``accelerator`` (what kind; None where there is none), and the ``memory`` in bytes that Ray counts on. UsageError
    where there is no cluster.
    """
    return _looked(address, False)[0]


def nodes_and_sessions(address: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`nodes`, and the programs that use them (`sessions.sessions`)."""
    return _looked(address, True)


def _looked(address: str, further: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    check_ray()
    link = Link(where(address), cpus=0, gpus=0)
    try:
        if not further:
            return link.nodes, []
        return link.nodes, link.answer(link.ask("sessions"), _LISTED)["sessions"]
    finally:
        link.close()


def default_host(join: str | None) -> str:
    """The address of this machine to those that reach it: nobody but itself, unless it joins others."""
    return private_cluster.own_address() if join is not None and not join.startswith(_LOOPBACK) else _LOOPBACK[0]


@contextlib.contextmanager
def started(
    host: str = "127.0.0.1",
    port: int = 6379,
    join: str | None = None,
    cpus: int | None = None,
    gpus: int | None = None,
    files: Sequence[str] = (),
    more: Sequence[str] = (),
) -> Iterator[Node]:
    """A machine of a cluster, for the block: the first one at ``host:port``, or one more of that at ``join``.

    Whoever has the token can run anything here. It is ``RAY_AUTH_TOKEN`` where that is set, else a new one. files:
    folders in which workers may look for safetensors files. more: options of ``ray start``.

    Raises UsageError where Ray does not start.
    """
    check_ray()
    token = os.environ.get("RAY_AUTH_TOKEN") or (secrets.token_hex(32) if join is None else "")
    if not token:
        raise UsageError(
            "[worker] expected the cluster's token in RAY_AUTH_TOKEN: the first genie worker start printed it"
        )
    if join is None and private_cluster.answers(host, port):
        raise UsageError(f"[worker] expected a free port, got {host}:{port}, which is in use")
    folder = private_cluster.private_folder()
    private_cluster.make(folder)
    variables = private_cluster.environment(dict(os.environ)) | {"RAY_AUTH_TOKEN": token}
    if files:
        variables["GENIE_WORKER_FILES"] = os.pathsep.join(files)
    if host not in _LOOPBACK:
        del variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
    options = ["start", "--block", "--disable-usage-stats", "--log-color=false", f"--node-ip-address={host}"]
    if join is None:
        options += ["--head", f"--port={port}", "--include-dashboard=false"]
        options += [f"--temp-dir={os.path.join(folder, 'r')}"]
    else:
        options.append(f"--address={join}")
    options += [f"--num-{what}={n}" for what, n in (("cpus", cpus), ("gpus", gpus)) if n is not None]
    options += more
    with open(os.path.join(folder, "said"), "w+b") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _RAY, *options], env=variables, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            _wait(process, said, host, port if join is None else None)
            yield Node(f"{host}:{port}" if join is None else join, token, process)
        finally:
            _end(process, folder)


def _wait(process: subprocess.Popen[bytes], said: Any, host: str, port: int | None) -> None:
    """Until Ray says that it has started."""
    end = time.monotonic() + _STARTED
    while time.monotonic() < end:
        said.seek(0)
        text = said.read().decode(errors="replace")
        if process.poll() is not None:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors = [line for line in lines if "Error" in line or "rror:" in line] or lines
            raise UsageError(
                f"[worker] Ray did not start: {errors[-1] if errors else f'exit code {process.returncode}'}"
            )
        if "Ray runtime started" in text and (port is None or private_cluster.answers(host, port)):
            return
        time.sleep(0.1)
    raise UsageError(f"[worker] Ray did not start within {_STARTED:g} s")


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    """End the daemons, which are of the process's session, and whatever they have started.

    ``ray start`` ends its daemons in an order; if all get the signal at once, they wait for each other.
    """
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    private_cluster.clear(folder, process.pid)
