"""Where a cluster is, as `mindtorch.connect` and the commands are told it (SPEC R2). Loads no torch."""

from __future__ import annotations

import importlib.util
import os
import socket
from contextlib import suppress

from ..base.errors import UsageError
from . import private_cluster

__all__ = ["HERE", "where"]

_PORT = 10001  # of ray://
HERE = "127.0.0.1:6379"  # where `genie worker start` starts one unless something else is said
_AUTO = "/tmp/ray/ray_current_cluster"  # where `ray start` writes down its address


def where(address: str) -> str | None:
    """The address of a cluster that is there, None for one of our own. UsageError where nobody answers: Ray itself
    would try for minutes, and end the process.
    """
    if address == "local":
        return None
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or _started()
    scheme, _, name = address.rpartition("://")
    host, colon, port = name.partition(":") if not name.startswith("[") else name.rpartition(":")
    if scheme == "ray" and not colon:
        port = str(_PORT)
    if scheme not in ("", "ray") or not host or not port.isdecimal():
        raise UsageError(f"[connect] address: expected local, auto, host:port or ray://host[:port], got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"[connect] expected a Ray cluster at {address}, got no answer: {error}") from None
    if scheme and importlib.util.find_spec("grpc") is None:
        raise UsageError(f"[connect] {address} needs Ray's client, which is not installed: pip install 'ray[client]'")
    return address


def _started() -> str:
    """What `ray start` has written down, or `genie worker start` begins unless it is told otherwise."""
    with suppress(OSError):
        with open(_AUTO) as file:
            return file.read().strip()
    if private_cluster.answers(*HERE.split(":")):
        return HERE
    raise UsageError(
        "[connect] expected a Ray cluster on this machine, found none: start one with genie worker start or "
        "ray start --head, or give its address"
    )
