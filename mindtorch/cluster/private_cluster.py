"""A cluster of our own on this machine: its private folder, its environment, and what becomes of it at the end (R3)."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from contextlib import suppress
from typing import Any

__all__ = [
    "answers",
    "clear",
    "environment",
    "joining",
    "make",
    "own_address",
    "private_folder",
    "store",
    "without_services",
]

# Names of sockets have at most 107 bytes, and Ray's session adds "/r/session_<26>_<pid>/sockets/plasma_store" and more.
_LONGEST = 36


def private_folder() -> str:
    """The name of a new folder, which `make` makes. Whoever makes it removes it: a program that is killed does not."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(parent) <= _LONGEST - len("/genie-12345678") and os.access(parent, os.W_OK | os.X_OK):
            return os.path.join(parent, f"genie-{secrets.token_hex(4)}")
    raise OSError(f"expected a folder for temporary files with a name of at most 20 bytes, got {tempfile.gettempdir()}")


def make(folder: str) -> None:
    """Make it, so that nobody else can look into it: Ray's own below it would be open to all."""
    os.mkdir(folder, 0o700)


def environment(given: dict[str, str]) -> dict[str, str]:
    """For a cluster that listens on the loopback address alone, and to whom has this session's token."""
    foreign = ("RAY_ADDRESS", "RAY_JOB_", "RAY_RAYLET_", "RAY_RUNTIME_", "RAY_AUTH_", "RAY_CLIENT_")
    kept = {name: value for name, value in given.items() if not name.startswith(foreign)}
    return {
        **kept,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's way to say: on 127.0.0.1, not on every address
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # they would not have the actors' environment
        "RAY_enable_worker_prestart": "0",
        **quiet(),
    }


def joining(given: dict[str, str], address: str) -> dict[str, str]:
    """For a cluster that somebody has started."""
    made = {**given, **quiet()}
    if "RAY_AUTH_TOKEN" in given:
        made.setdefault("RAY_AUTH_MODE", "token")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if (host.startswith("127.") or host == "localhost") and not answers(own_address(), port):
        made["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray takes the address for that of this machine
    return made


def answers(host: str, port: int | str) -> bool:
    """Does somebody listen there?"""
    with suppress(OSError, OverflowError):
        socket.create_connection((host, int(port)), timeout=1).close()
        return True
    return False


def own_address() -> str:
    """This machine's in its network, as Ray finds it. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect(("8.8.8.8", 80))
        return str(asking.getsockname()[0])
    return "127.0.0.1"


def quiet() -> dict[str, str]:
    """Variables that keep Ray from writing to the terminal, and from starting by itself."""
    return {
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that asks after the end would start another cluster
    }


def without_services(node: Any) -> None:
    """Let Ray's class of a node start neither the dashboard, the autoscaler nor the one that reads logs.

    They take more time and memory than all the rest, and nobody looks at what they do.
    """
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        assert callable(getattr(node, name))  # of another release of Ray's
        setattr(node, name, lambda *args, **kwargs: None)


def store(folder: str, memory: int) -> dict[str, Any]:
    """Where Ray's object store is, if that is not to be shared memory."""
    with suppress(OSError):
        found = os.statvfs("/dev/shm")
        if found.f_bavail * found.f_frsize > memory * 5 // 4:
            return {}
    return {"_plasma_directory": folder}


def clear(folder: str, session: int) -> None:
    """End whatever of the cluster is still there, in its broker's session, and remove its folder."""
    quiet = 0
    for _ in range(40):
        left = _left(folder, session)
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        quiet = 0 if left or os.path.exists(folder) else quiet + 1
        if quiet == 3:  # one that had only begun may have made files since
            return
        time.sleep(0.05)


def _left(folder: str, session: int) -> list[int]:
    """Processes of a session that have a file below a folder open or were told of it, as each of Ray's."""
    found = []
    for name in os.listdir("/proc"):
        process = int(name) if name.isdigit() else 0
        with suppress(OSError):
            if process and process != os.getpid() and os.getsid(process) == session:
                files = f"/proc/{name}/fd"
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    told = f"{folder}/".encode() in file.read()
                if told or any(os.readlink(f"{files}/{fd}").startswith(folder + "/") for fd in os.listdir(files)):
                    found.append(process)
    return found
