"""Environment variables that say how mindtorch works, with their defaults (SPEC L11; docs/ENVIRONMENT.md has all)."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from .errors import UsageError

if TYPE_CHECKING:
    from .resources import Resources

_FALSE = {"0", "false", "no", "off", ""}
_TRUE = {"1", "true", "yes", "on"}


def check() -> None:
    """Raise UsageError now for any variable with a value that is none: not when it is first needed."""
    for read in (
        auto_enable, log_intercepts, enable_aten_impl, register_device, max_pending_ops, max_pending_bytes, unsupported,
        executor, _check_executor_device, address, workers, _check_resources, wait, worker_memory, worker_files,
        lineage, npu_native, private_mounts, profile_devices,
    ):  # fmt: skip
        read()


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.strip().lower() not in _FALSE | _TRUE:
        raise UsageError(f"{name}: expected 1 or 0, got {value!r}")
    return value.strip().lower() in _TRUE


def auto_enable() -> bool:
    """``GENIE_AUTO_ENABLE`` (default 1): hook torch when mindtorch is imported."""
    return _flag("GENIE_AUTO_ENABLE", True)


def log_intercepts() -> bool:
    """``GENIE_LOG_INTERCEPTS`` (default 0): log each captured op to the logger ``mindtorch.intercept``."""
    return _flag("GENIE_LOG_INTERCEPTS", False)


def enable_aten_impl() -> bool:
    """``GENIE_ENABLE_ATEN_IMPL`` (default 0): claim torch's slot at import, with its kernels for creation calls."""
    return _flag("GENIE_ENABLE_ATEN_IMPL", False)


def private_mounts() -> bool:
    """``GENIE_PRIVATE_MOUNTS`` (default 1): an estimate by the command covers the disks where the kernel permits it."""
    return _flag("GENIE_PRIVATE_MOUNTS", True)


def npu_native() -> bool:
    """``GENIE_NPU_NATIVE`` (default 1): run ops that have an NPU kernel there; 0: all through the CPU."""
    return _flag("GENIE_NPU_NATIVE", True)


def npu_waits() -> bool:
    """``ASCEND_LAUNCH_BLOCKING`` (default 0), as in torch_npu: 1: wait for each op on an NPU: its error is its own."""
    return os.environ.get("ASCEND_LAUNCH_BLOCKING", "0") == "1"


def npu_memory_fraction() -> float:
    """``per_process_memory_fraction`` of ``PYTORCH_NPU_ALLOC_CONF``, as in torch_npu: from 0 to 1 (default).

    Its other options are for torch_npu's allocator, and not looked at.
    """
    told = os.environ.get("PYTORCH_NPU_ALLOC_CONF", "").replace(" ", "")
    value = dict(entry.partition(":")[::2] for entry in told.split(",")).get("per_process_memory_fraction", "1")
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1
    if not 0 <= fraction <= 1:
        raise UsageError(
            f"PYTORCH_NPU_ALLOC_CONF: expected per_process_memory_fraction from 0 to 1, got {value!r} in {told!r}"
        )
    return fraction


def npu_init_config() -> str | None:
    """``TORCH_ACL_INIT_CONFIG_PATH``, as in torch_npu: a file in JSON that is given to aclInit.

    RuntimeError, which says why no NPU is available, where it is no such file.
    """
    path = os.environ.get("TORCH_ACL_INIT_CONFIG_PATH")
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            json.load(file)
    except OSError as error:
        raise RuntimeError(f"TORCH_ACL_INIT_CONFIG_PATH: the path {path} is invalid: {error.strerror}") from None
    except ValueError as error:
        raise RuntimeError(f"TORCH_ACL_INIT_CONFIG_PATH: Failed to parse user acl json {path}: {error}") from None
    return path


def npu_capability() -> tuple[int, int] | None:
    """``TORCH_NPU_DEVICE_CAPABILITY``: ``9.0``; None, as in torch_npu, where it is not set or is no such number."""
    found = re.fullmatch(r"(\d+)\.(\d+)", os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", ""))
    return (int(found[1]), int(found[2])) if found else None


#: By kind of device, the variable that says how its ops are timed.
PROFILES = {"cuda": "GENIE_PROFILE_CUDA", "npu": "GENIE_PROFILE_NPU"}


def profile_device(kind: str) -> str:
    """``GENIE_PROFILE_CUDA``, ``GENIE_PROFILE_NPU`` (``trace``): how a measured profile times ops on such devices:
    ``trace``, by torch's own tracer or by events around each launch, or ``wait``, for each op.
    """
    name = PROFILES[kind]
    value = os.environ.get(name, "trace").strip().lower()
    if value not in ("trace", "wait"):
        raise UsageError(f"{name}: expected trace or wait, got {value!r}")
    return value


def profile_devices() -> dict[str, str]:
    """`profile_device` of both kinds."""
    return {kind: profile_device(kind) for kind in PROFILES}


def register_device() -> str:
    """``GENIE_REGISTER_DEVICE`` (``auto``): claim torch's slot for a foreign device: ``auto`` (when ours is first used;
    not on a machine with CUDA, where that would take over ``torch.accelerator``), ``always`` (at import) or ``never``.
    """
    value = os.environ.get("GENIE_REGISTER_DEVICE", "auto").strip().lower()
    if value not in ("auto", "always", "never"):
        raise UsageError(f"GENIE_REGISTER_DEVICE: expected auto, always or never, got {value!r}")
    return value


def max_pending_ops() -> int:
    """``GENIE_MAX_PENDING_OPS`` (default 2097152): recorded ops that may wait before everything visible is run."""
    return _positive("GENIE_MAX_PENDING_OPS", 1 << 21, "ops")


def max_pending_bytes() -> int:
    """``GENIE_MAX_PENDING_BYTES`` (default 1 GiB): values that only recorded ops keep alive, before they are run."""
    return _positive("GENIE_MAX_PENDING_BYTES", 1 << 30, "bytes")


def _positive(name: str, default: int, of: str) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{name}: expected a positive number of {of}, got {value!r}")
    return int(value)


def unsupported() -> str:
    """``GENIE_UNSUPPORTED`` (``error``): what to do with an op torch does not have either: ``error`` or ``zeros``."""
    value = os.environ.get("GENIE_UNSUPPORTED", "error").strip().lower()
    if value not in ("error", "zeros"):
        raise UsageError(f"GENIE_UNSUPPORTED: expected error or zeros, got {value!r}")
    return value


#: The executors of this package.
EXECUTORS = ("local", "loopback", "pipe", "ray")


def executor() -> str:
    """``GENIE_EXECUTOR`` (``local``): what runs recordings. ``local``: torch, here; ``loopback``: the same behind
    messages, which become bytes on the way; ``pipe``: as messages to a child process; ``ray``: to an actor of a
    Ray cluster; ``package.module:Class``, or a name under the entry points ``mindtorch.executors``: somebody else's.
    """
    return executor_named(os.environ.get("GENIE_EXECUTOR", "local"), "GENIE_EXECUTOR")


def executor_named(value: str, what: str) -> str:
    """``value`` as `executor` has it. UsageError: `what`, which has that value, names none."""
    value = value.strip()
    if value.lower() in EXECUTORS:
        return value.lower()
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", value):
        return value
    from . import plugins  # few name one by an entry point, and reading those takes time

    offered = plugins.names("mindtorch.executors")
    if value in offered:
        return value
    raise UsageError(f"{what}: expected {', '.join((*EXECUTORS, *offered))} or package.module:Class, got {value!r}")


def executor_was_asked_for() -> bool:
    """Does ``GENIE_EXECUTOR`` say what runs recordings?"""
    return "GENIE_EXECUTOR" in os.environ


def address() -> str:
    """``GENIE_ADDRESS`` (``local``): of the Ray cluster: ``local``, ``auto``, ``host:port`` or ``ray://host[:port]``."""
    value = os.environ.get("GENIE_ADDRESS", "local").strip()
    if value not in ("local", "auto") and not re.fullmatch(r"(ray://)?[^/\s]+:\d+|ray://[^/\s]+", value):
        raise UsageError(f"GENIE_ADDRESS: expected local, auto, host:port or ray://host[:port], got {value!r}")
    return value


def workers() -> int | None:
    """``GENIE_WORKERS``: how many workers on a Ray cluster, or in child processes. None: one for each GPU, or one."""
    return _number_of("workers", "GENIE_WORKERS")


def _number_of(what: str, variable: str) -> int | None:
    value = os.environ.get(variable, "").strip()
    if value and not (value.isdecimal() and int(value)):
        raise UsageError(f"{variable}: expected a number of {what}, got {value!r}")
    return int(value) if value else None


def resources() -> Resources:
    """``GENIE_RESOURCES``: what each worker on a Ray cluster reserves, and where (`Resources.of`)."""
    from .resources import Resources

    return Resources.of(os.environ.get("GENIE_RESOURCES") or None, "GENIE_RESOURCES")


def _check_resources() -> None:
    if os.environ.get("GENIE_RESOURCES"):
        resources()


def wait() -> float | None:
    """``GENIE_WAIT``: seconds to wait for room on a Ray cluster; ``forever``: infinity. None: as long as is usual."""
    value = os.environ.get("GENIE_WAIT", "").strip().lower()
    if not value:
        return None
    if value != "forever" and not re.fullmatch(r"\d+(\.\d+)?", value):
        raise UsageError(f"GENIE_WAIT: expected a number of seconds or forever, got {value!r}")
    return float("inf") if value == "forever" else float(value)


def worker_memory() -> int | None:
    """``GENIE_WORKER_MEMORY``: bytes of values that each of several workers may have. None: what it says is free."""
    return _number_of("bytes", "GENIE_WORKER_MEMORY")


def worker_files() -> list[str]:
    """``GENIE_WORKER_FILES``: folders, as in ``PATH``, in which a machine's workers may look for safetensors files."""
    found = [folder for folder in os.environ.get("GENIE_WORKER_FILES", "").split(os.pathsep) if folder]
    for folder in found:
        if not os.path.isabs(folder):
            raise UsageError(f"GENIE_WORKER_FILES: expected the full paths of folders, got {folder!r}")
    return found


def lineage() -> int:
    """``GENIE_LINEAGE`` (256 MiB): bytes of messages to a worker that are kept, to rebuild what it had; 0: none."""
    value = os.environ.get("GENIE_LINEAGE", str(256 << 20)).strip()
    if not value.isdecimal():
        raise UsageError(f"GENIE_LINEAGE: expected a number of bytes, 0 for none, got {value!r}")
    return int(value)


def executor_device() -> str:
    """``GENIE_EXECUTOR_DEVICE`` (``cpu``): where the in-process executor computes, ``cpu`` or ``cuda[:i]``."""
    return os.environ.get("GENIE_EXECUTOR_DEVICE", "cpu").strip().lower()


def _check_executor_device() -> None:
    kind, colon, index = executor_device().partition(":")
    if not (executor_device() == "cpu" or (kind == "cuda" and (not colon or index.isdecimal()))):
        raise UsageError(f"GENIE_EXECUTOR_DEVICE: expected cpu or cuda[:index], got {executor_device()!r}")
