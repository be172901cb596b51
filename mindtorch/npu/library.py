"""Finding and loading the AscendCL library, and why it cannot be used (SPEC N1). torch is never imported here."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from mindtorch._ext import acl, blocks, in_flight, pool, streams
from mindtorch.base import config, hardware
from mindtorch.base.errors import NPUError, NPUOutOfMemoryError
from mindtorch.base.sourceline import text_of
from mindtorch.base.torch_warnings import listen
from mindtorch.devices import names as devices

from ..devices.places import BY_TYPE, NPU, type_of
from . import backward

__all__ = [
    "device_index",
    "ensure_loaded",
    "is_test_library",
    "is_the_accelerator",
    "not_found",
    "stands_aside",
    "why_unavailable",
]

# What a device's work may end with, beside 507xxx: time that is over, an overflow.
_LATE = frozenset({107019, 107020, 207003})
_lock = threading.Lock()
_nothing_at: tuple[str | None, ...] | None = None  # what named the places where no library was found


@functools.cache
def _out_of_memory_class(theirs: type[Exception]) -> type[NPUOutOfMemoryError]:
    return type("NPUOutOfMemoryError", (NPUOutOfMemoryError, theirs), {"__module__": NPUOutOfMemoryError.__module__})


def _failed(function: str, code: int, name: str, detail: str) -> NPUError:
    error = NPUError(function, code, name, detail)
    if 507000 <= code < 508000 or code in _LATE:
        device = in_flight.bound_device()
        calls, error.more_before = in_flight.unfinished(device)
        error.device = f"npu:{device}"
        error.in_flight = tuple((op, text_of(place)) for op, place in calls)
    return error


def _out_of_memory(*values: Any) -> NPUOutOfMemoryError:
    """Also the class that programs catch, ``torch.OutOfMemoryError``, where torch is loaded."""
    theirs = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return (_out_of_memory_class(theirs) if isinstance(theirs, type) else NPUOutOfMemoryError)(*values)


def not_found() -> str:
    """That there is no library, and where it was looked for."""
    named = os.environ.get("GENIE_ACL_LIBRARY")
    if named:
        return f"GENIE_ACL_LIBRARY names {named}, which is not a file"
    places = ", ".join([*hardware.ascend_search_paths(), "the loader's own path"])
    return f"libascendcl.so not found (looked in {places})"


def _load() -> str | None:
    """Load the library, once; why that cannot be done, or None."""
    if acl.is_loaded():
        return None
    with _lock:
        if acl.is_loaded():
            return None
        path = hardware.find_ascendcl()
        if path is None:
            return not_found()
        try:
            acl.load(path)
        except OSError as error:
            text = str(error)
            return text if path in text else f"{path} cannot be loaded: {text}"
        except ImportError as error:
            return str(error)
    return None


def ensure_loaded() -> None:
    """Load the library; RuntimeError with the reason where it cannot be."""
    reason = _load()
    if reason is not None:
        raise RuntimeError(f"npu is not available: {reason}")
    listen()


def _prepare() -> bytes | None:
    """Before the first use: load the library; the path of the configuration that it is to be given."""
    ensure_loaded()
    path = config.npu_init_config()
    return None if path is None else os.fsencode(path)


def why_unavailable() -> str | None:
    """Why no NPU can be used: the library was not found (and where it was looked for) or cannot be loaded, a function
    is missing, there is no device, the driver's own error. None where there is one."""
    reason = _load()
    if reason is not None:
        return reason
    try:
        count = pool.device_count()
    except RuntimeError as error:
        return f"{acl.library_path()} sees no device: {error}"
    return None if count else f"{acl.library_path()} sees no device"


def is_test_library() -> bool:
    """Whether what is loaded is a test library over host memory, not hardware (SPEC N7)."""
    return acl.is_test_library()


@functools.cache
def stands_aside() -> bool:
    """Whether torch_npu is installed and works: ``npu`` tensors are then torch's own (SPEC N6)."""
    if not hardware.has_module("torch_npu"):
        return False
    import importlib

    try:
        importlib.import_module("torch_npu")
        torch: Any = importlib.import_module("torch")
        return bool(torch.npu.is_available())
    except (ImportError, OSError, RuntimeError, AttributeError):  # `genie devices` says which
        return False


def is_the_accelerator() -> bool:
    """Whether an NPU is what programs mean that name no type of device: by an integer, or by pinned memory.

    That is so where one is there and torch has no accelerator itself; the recording device is none. torch is loaded.
    """
    global _nothing_at
    theirs = sys.modules["torch"].accelerator.current_accelerator(check_available=True)
    if stands_aside() or (theirs is not None and theirs.type != "npu"):  # that is ours, too (`npu.compat`)
        return False
    if acl.is_loaded():
        return why_unavailable() is None
    places = tuple(map(os.environ.get, hardware.ASCEND_VARIABLES))  # looking there takes a thousand times as long
    if places == _nothing_at:
        return False
    found = why_unavailable() is None
    _nothing_at = None if acl.is_loaded() else places
    return found


def _numbered(index: int) -> devices.device | None:
    return devices.device("npu", index) if is_the_accelerator() else None


def device_index(device: Any) -> int:
    """The index that ``device`` names: a number, ``"npu:1"``, a device; the thread's current one where it names none.

    ValueError for another type of device. The index is not compared with what there is.
    """
    if device is None:
        return streams.current_device()
    if hasattr(device, "__index__"):
        return int(device)
    if hasattr(device, "idx"):  # the context manager mindtorch.npu.device
        return int(device.idx)
    chosen = device
    if isinstance(device, str):
        chosen = devices.device(device)
    if BY_TYPE.get(type_of(chosen)) is not NPU:
        raise ValueError(f"Expected a npu device, but got: {device}")
    return streams.current_device() if chosen.index is None else chosen.index


acl.configure(_failed, _out_of_memory)
blocks.configure(config.npu_memory_fraction)
pool.configure(_prepare)
streams.configure(device_index, functools.partial(devices.device, "npu"))
streams.on_choice(backward.chosen, backward.follow)
devices.register_numbered(_numbered)
