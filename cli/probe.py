"""What ``genie devices`` finds out, one function per type. torch is imported only where nothing else can tell."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable
from typing import Any

from mindtorch.base import config, hardware
from mindtorch.base.errors import UsageError
from mindtorch.base.torch_names import RELEASES
from mindtorch.devices.names import DEVICE_TYPES, device

__all__ = ["DEVICE_TYPES", "describe", "torch_lost", "versions"]


def versions() -> dict[str, str | None]:
    """Installed versions, from metadata."""
    return {
        "mindtorch": hardware.package_version("mindtorch-genie"),
        "torch": hardware.package_version("torch"),
        "python": platform.python_version(),
    }


def torch_lost() -> dict[str, str]:
    """What the installed torch does not have of what mindtorch relies on -> what that costs.

    The tests prove that the releases in `torch_facts.RELEASES` have it all; others are asked, which imports torch.
    """
    if not hardware.has_module("torch"):
        return {}
    release = ".".join((hardware.package_version("torch") or "").split("+")[0].split(".")[:2])
    if release in RELEASES and "torch" not in sys.modules:
        return {}
    from mindtorch.base import torch_facts

    torch_facts.check()
    return dict(torch_facts.lost)


def describe(kind: str, index: int | None = None) -> dict[str, Any]:
    """``type``, ``index``, ``available``, ``reason`` and ``enable`` (None when available), ``details``."""
    available, reason, enable, details = _PROBES[kind](index)
    return {
        "type": kind,
        "index": index,
        "available": available,
        "reason": None if available else reason,
        "enable": None if available else enable,
        "details": details,
    }


_Answer = tuple[bool, str | None, str | None, dict[str, Any]]
_INSTALL_TORCH = "pip install torch"


def _with_torch(details: dict[str, Any]) -> _Answer:
    if not hardware.has_module("torch"):
        return False, "torch is not installed", _INSTALL_TORCH, details
    return True, None, None, details


def _cpu(_index: int | None) -> _Answer:
    return _with_torch(hardware.cpu())


def _meta(_index: int | None) -> _Answer:
    return _with_torch({"note": "shapes, dtypes and strides without data, to size a model that does not fit in memory"})


def _ray() -> dict[str, Any]:
    address = config.address()
    return {
        "where": "on a Ray cluster" + (", started with the program" if address == "local" else f" ({address})"),
        "runs_on": os.environ.get("GENIE_EXECUTOR_DEVICE", "its GPUs, or its CPU where it has none"),
    }


#: By what GENIE_EXECUTOR says: where recordings would run, found out without starting anything.
_EXECUTORS: dict[str, Callable[[], dict[str, Any]]] = {
    "local": lambda: {"where": "with torch, in the program's process"},
    "loopback": lambda: {"where": "through messages, in the program's process"},
    "pipe": lambda: {"where": "in a child process of the program, on this machine"},
    "ray": _ray,
}


def _remote(index: int | None) -> _Answer:
    runs_on = config.executor_device()
    details: dict[str, Any] = {
        "executor": None,
        "runs_on": runs_on,
        "note": "operations are recorded, and run when their results are read",
    }
    try:
        name = config.executor()
        details |= _EXECUTORS.get(name, lambda: {"where": "an executor of your own"})() | {"executor": name}
    except UsageError as error:
        return False, str(error), "see docs/EXECUTORS.md", details
    if not hardware.has_module("torch"):
        return False, "torch is not installed", _INSTALL_TORCH, details
    if details["executor"] == "ray" and not hardware.has_module("ray"):
        return False, "Ray is not installed", "pip install 'mindtorch-genie[ray]'", details
    if details["executor"] == "ray" and config.address() != "local":
        return _cluster(config.address(), index, details)
    if importlib.util.find_spec("mindtorch._ext.tape") is None:
        return False, "mindtorch's compiled modules are missing", "reinstall mindtorch-genie from a wheel", details
    try:
        chosen = device(runs_on)
    except RuntimeError as error:
        return False, f"GENIE_EXECUTOR_DEVICE: {error}", "set it to cpu or cuda[:i]", details
    below = describe(chosen.type, chosen.index)
    if chosen.type not in ("cpu", "cuda") or not below["available"]:
        why = below["reason"] or "is not a device to compute on"
        return False, f"GENIE_EXECUTOR_DEVICE={runs_on}: {why}", "set it to cpu or cuda[:i]", details
    return True, None, None, details


def _cluster(address: str, index: int | None, details: dict[str, Any]) -> _Answer:
    """The machines of a cluster that runs."""
    from mindtorch.cluster.nodes import nodes

    try:
        details["nodes"] = found = nodes(address)
    except UsageError as error:
        return False, str(error), "genie worker start, there or on another machine; GENIE_ADDRESS says where", details
    workers = sum(node["gpus"] for node in found) or 1
    if index is not None and index >= workers and any(node["gpus"] for node in found):
        why = f"remote_accelerator:{index} does not exist: the cluster has {workers} GPU(s), counted from 0"
        return False, why, "genie worker start on a machine that has more", details
    return True, None, None, details


def _torch_cuda_build() -> str | None:
    """The CUDA version this torch was built for, read from its ``version.py`` without importing it."""
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations or []) if spec else []:
        try:
            with open(os.path.join(place, "version.py"), encoding="utf-8") as file:
                match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", file.read(), re.MULTILINE)
        except OSError:
            continue
        return match.group(1) if match else None
    return None


def _cuda(index: int | None) -> _Answer:
    driver = hardware.cuda_driver()
    torch_version, build = hardware.package_version("torch"), _torch_cuda_build()
    details: dict[str, Any] = {
        "driver": driver.get("driver"),
        "driver_cuda": driver.get("version"),
        "torch_cuda": build,
        "devices": driver["devices"],
    }
    reasons, enable = [], []
    if torch_version is None:
        reasons.append("torch is not installed")
    elif build is None:
        reasons.append(f"torch {torch_version} is built without CUDA")
        enable.append("install a CUDA build of torch: https://pytorch.org/get-started/locally")
    if driver.get("reason"):
        reasons.append(driver["reason"])
        enable.insert(0, "needs an NVIDIA GPU and its driver (nvidia-smi shows both)")
    elif index is not None and index >= len(driver["devices"]):
        reasons.append(f"cuda:{index} does not exist: {len(driver['devices'])} device(s), counted from 0")
        enable.append("see CUDA_VISIBLE_DEVICES")
    if reasons:
        return False, "; ".join(reasons), "; ".join(enable) or None, details
    # Driver and build are there; whether they get along only torch can tell.
    import torch

    if not torch.cuda.is_available():
        return False, f"torch cannot start CUDA {build} on this driver", "update the NVIDIA driver", details
    for found in details["devices"]:
        if found["index"] < torch.cuda.device_count():
            found["free"], found["memory"] = torch.cuda.mem_get_info(found["index"])
            found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(found["index"])))
    return True, None, None, details


_ENABLE_NPU = (
    "install the Ascend driver and CANN toolkit and source /usr/local/Ascend/ascend-toolkit/set_env.sh, "
    "or set GENIE_ACL_LIBRARY to libascendcl.so"
)
_VISIBLE_NPU = "see npu-smi info and ASCEND_RT_VISIBLE_DEVICES"


def _npu(index: int | None) -> _Answer:
    library = hardware.find_ascendcl()
    details: dict[str, Any] = {
        "library": library,
        "searched": hardware.ascend_search_paths(),
        "torch_npu": hardware.package_version("torch_npu"),
    }
    if details["torch_npu"] is not None:
        return _torch_npu(index, details)
    return _ascend(index, details)


def _ascend(index: int | None, details: dict[str, Any]) -> _Answer:
    """What AscendCL itself says, asked without torch."""
    from mindtorch import npu
    from mindtorch._ext import acl
    from mindtorch.npu import api, operators

    reason = npu.why_unavailable() if details["library"] else npu.library.not_found()
    details["runtime"] = acl.version()
    if reason is not None:
        return False, reason, _ENABLE_NPU, details
    details["operators"] = {
        "found": len(operators.found()),
        "of": len(operators.OPERATORS),
        "libraries": list(acl.operator_libraries()),
        "not_opened": list(acl.closed_operator_libraries()),
    }
    count = api.device_count()
    details["devices"] = [_ascend_device(i) for i in range(count) if index in (None, i)]
    if npu.is_test_library():
        why = f"{details['library']} is a test library over host memory, not hardware"
        return False, why, _ENABLE_NPU, details
    if index is not None and index >= count:
        return False, f"npu:{index} does not exist: {count} device(s), counted from 0", _VISIBLE_NPU, details
    errors = [found["error"] for found in details["devices"] if "error" in found]
    if len(errors) == len(details["devices"]):
        return False, errors[0], "see npu-smi info", details
    return True, None, None, details


def _ascend_device(index: int) -> dict[str, Any]:
    from mindtorch.npu import api

    try:
        found = api.get_device_properties(index)
        free, total = api.mem_get_info(index)
    except RuntimeError as error:
        return {"index": index, "name": None, "error": str(error)}
    return {"index": index, "name": found.name, "memory": total, "free": free}


def _torch_npu(index: int | None, details: dict[str, Any]) -> _Answer:
    """With torch_npu installed, its own word counts."""
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch_npu")
        count = torch.npu.device_count() if torch.npu.is_available() else 0
        details["devices"] = [{"index": i, "name": torch.npu.get_device_name(i)} for i in range(count)]
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return False, f"torch_npu {details['torch_npu']} does not start: {why}", _ENABLE_NPU, details
    if count == 0:
        return False, "torch_npu sees no device", _VISIBLE_NPU, details
    if index is not None and index >= count:
        return False, f"npu:{index} does not exist: {count} device(s), counted from 0", None, details
    return True, None, None, details


_PROBES = {"cpu": _cpu, "cuda": _cuda, "meta": _meta, "npu": _npu, "remote_accelerator": _remote}
