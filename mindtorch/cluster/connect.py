"""``mindtorch.connect()``: accelerators on a Ray cluster, from now on (SPEC R2)."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..base import VERSION, config
from ..base.errors import UsageError
from ..base.resources import Resources
from ..devices.places import type_of
from ..engine.execute import Executor, LocalExecutor, values
from ..engine.remote.placing import PlacingExecutor
from ..engine.remote.spread import SpreadExecutor
from .addresses import where
from .broker_client import Link, check_ray
from .ray_executor import RayExecutor, executors

__all__ = ["connect", "default_executor", "disconnect"]

_MOST = 128  # devices that are told apart

_link: Link | None = None
_ours: list[RayExecutor] = []
_before: Executor | None = None


def connect(
    address: str | None = None, workers: int | None = None, device: str | None = None,
    resources: Resources | Mapping[str, Any] | str | None = None, wait: float | None = None,
) -> Executor:  # fmt: skip
    """Put the accelerators on a Ray cluster: ``remote_accelerator:i`` is the i-th worker, a Ray actor.

    Values computed so far move there, as with `set_executor`. Needs ``pip install 'mindtorch-genie[ray]'``.

    address: ``"local"``: a new cluster on this machine, which listens only on the loopback address and ends with the
        program; ``"host:port"``: the one that runs there, with this machine as a node; ``"auto"``: the one that ``ray
        start`` or ``genie worker start`` started on this machine; ``"ray://host[:port]"``: through Ray's client, from a
        machine that is not a node (needs ``ray[client]``). None: what ``GENIE_ADDRESS`` says, else ``"local"``.
    workers: number of workers. None: what ``GENIE_WORKERS`` says, else one for each GPU of the cluster, or one if
        ``device`` is ``"cpu"``.
    device: ``"cuda"``: a GPU for each; ``"cpu"``. None: ``GENIE_EXECUTOR_DEVICE``, else GPUs if there are any or if
        ``resources`` asks for them.
    resources: what each worker reserves, and where: a `Resources`, a mapping, or text such as
        ``"gpus=0.5,cpus=2,placement=spread"``. None: what ``GENIE_RESOURCES`` says.
    wait: seconds to wait for the resources of all workers; ``math.inf``: as long as it takes. None: what ``GENIE_WAIT``
        says, else 10 seconds, or 600 if the cluster can start machines (an autoscaler).

    Returns the executor. Raises UsageError if Ray is missing, no cluster is at the address, its resources are not
    enough, or there is a connection already. `disconnect` undoes it.
    """
    global _before
    with values.lock:
        if _link is not None and _link.alive:
            raise UsageError("[connect] already connected to a cluster: mindtorch.disconnect() first")
        made = _made(address, workers, device, resources, wait)
        _before = values.set_executor(made)
        return made


def disconnect() -> None:
    """Move all values back, end the workers, and the cluster if `connect` started it. Does nothing without a
    connection.

    Then the executor is again the one from before `connect`, else the local one.
    """
    global _link, _before
    with values.lock:
        if _link is None:
            return
        if _is_ours(values.executor()):
            back = _before
            if back is None or _is_ours(back):
                back = LocalExecutor(config.executor_device())
            values.set_executor(back)
        link, _link, _before = _link, None, None
        for executor in _ours:
            executor.close()
        _ours.clear()
        link.close()


def default_executor() -> Executor:
    """For ``GENIE_EXECUTOR=ray``: new workers, on the cluster that there is."""
    return _made(None, None, None, None, None)


def _made(
    address: str | None, workers: int | None, device: str | None,
    resources: Resources | Mapping[str, Any] | str | None, wait: float | None,
) -> Executor:  # fmt: skip
    global _link
    if device is None and "GENIE_EXECUTOR_DEVICE" in os.environ:
        device = config.executor_device()
    kind = type_of(device)
    if kind not in (None, "cpu", "cuda"):
        raise UsageError(f"[connect] device: expected 'cpu' or 'cuda', got {device!r}")
    check_ray()
    workers = config.workers() if workers is None else workers
    if workers is not None and (type(workers) is not int or not 1 <= workers <= _MOST):
        raise UsageError(f"[connect] workers: expected a number from 1 to {_MOST}, got {workers!r}")
    asked = config.resources() if resources is None else Resources.of(resources)
    if asked.gpus is not None:
        if kind == "cpu":
            raise UsageError(f"[connect] expected device 'cuda' where resources ask for {asked.gpus:g} GPU, got 'cpu'")
        kind = "cuda"
    wait = config.wait() if wait is None else wait
    if wait is not None and (isinstance(wait, bool) or not isinstance(wait, (int, float)) or not wait >= 0):
        raise UsageError(f"[connect] wait: expected a number of seconds, got {wait!r}")
    name = f"{_user()} {asked.name or _program()}"
    link = _link
    if link is None or not link.alive:
        if link is not None:
            link.close()
        _ours.clear()
        found_at = where(config.address() if address is None else address)
        gpus = torch.cuda.device_count() if found_at is None and kind != "cpu" else 0
        if found_at is None and kind == "cuda":
            _check_gpus((workers or 1) * (asked.gpus or 1), gpus)
        who = {
            "job_name": name, "mindtorch": VERSION, "user": _user(), "program": asked.name or _program(),
            "host": socket.gethostname(), "process": str(os.getpid()),
        }  # fmt: skip
        link = Link(found_at, max(os.cpu_count() or 1, workers or 1), gpus, asked.environment, who)
    try:
        if kind is None:
            kind = "cuda" if link.gpus else "cpu"
        if kind == "cuda" and wait is None and not link.autoscales:
            _check_gpus((workers or 1) * (asked.gpus or 1), link.gpus)
        many = workers or (max(link.gpus, 1) if kind == "cuda" else 1)
        found = executors(link, kind, many, config.lineage(), asked, wait, name)
    except BaseException:  # a signal handler's, too
        if link is not _link:
            link.close()
        raise
    _link = link
    _ours.extend(found)
    return _together(found, asked)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # of a number that has no name on this machine
        return str(os.getuid())


def _program() -> str:
    """As it is called: the script's name."""
    return os.path.basename(getattr(sys, "argv", [""])[0]) or "python"


def _check_gpus(wanted: float, there: int) -> None:
    if wanted > there:
        raise UsageError(f"[connect] expected {wanted:g} GPUs, one for each worker; the cluster has {there}")


def _together(found: list[RayExecutor], asked: Resources) -> Executor:
    """One executor of several."""
    limit = config.worker_memory() or (None if asked.memory is None else int(asked.memory))
    return found[0] if len(found) == 1 else PlacingExecutor(found, limit)


def _is_ours(executor: Any) -> bool:
    """Is it, or does it wrap, one of this file's?"""
    while not isinstance(executor, (RayExecutor, type(None))):
        executor = executor.executors[0] if isinstance(executor, SpreadExecutor) else getattr(executor, "inner", None)
    return executor is not None
