"""Facts about this machine that cost little to find out: processor, memory, accelerator libraries. No torch import."""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Any

__all__ = [
    "ASCEND_VARIABLES",
    "ascend_search_paths",
    "available_memory",
    "cpu",
    "cuda_driver",
    "find_ascendcl",
    "package_version",
]

# What says where the AscendCL library may be.
ASCEND_VARIABLES = ("GENIE_ACL_LIBRARY", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH")

# Instruction sets that matter to tensor code, as /proc/cpuinfo names them, widest last.
_X86 = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16")  # fmt: skip
_ARM = ("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme")


def package_version(name: str) -> str | None:
    """The installed version of a distribution, read from its metadata (nothing is imported)."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _meminfo(key: str) -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_number(v2: str, v1: str) -> int | None:
    for path in (f"/sys/fs/cgroup/{v2}", f"/sys/fs/cgroup/{v1}"):
        text = _read(path).split()
        if text and text[0].isdigit():
            return int(text[0])
    return None


def _memory() -> dict[str, int | None]:
    """Bytes: installed, available now, and the container's limit (None without one)."""
    total, available = _meminfo("MemTotal"), _meminfo("MemAvailable")
    if total is None:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            total = None
    limit = _cgroup_number("memory.max", "memory/memory.limit_in_bytes")
    if limit is not None and total is not None and limit >= total:
        limit = None  # cgroup v1 writes "no limit" as a huge number
    if limit is not None and available is not None:
        used = _cgroup_number("memory.current", "memory/memory.usage_in_bytes") or 0
        available = max(0, min(available, limit - used))
    return {"total": total, "available": available, "limit": limit}


def available_memory() -> int | None:
    """Bytes that could be used now, the container's limit considered; None where the system does not say."""
    return _memory()["available"]


def _cpu_limit() -> float | None:
    """Cores' worth of time the container may use; None without a limit."""
    text = _read("/sys/fs/cgroup/cpu.max").split()
    if len(text) == 2 and text[0].isdigit():
        return int(text[0]) / int(text[1])
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    return None


def cpu() -> dict[str, Any]:
    """Name, cores (physical, logical, usable by this process), memory in bytes, instruction sets."""
    name = ""
    flags: set[str] = set()
    cores: set[tuple[str, str]] = set()
    package = core = ""
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Hardware", "cpu model") and not name:
            name = value
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
        elif key == "physical id":
            package = value
        elif key == "core id":
            core = value
            cores.add((package, core))
    known = [flag for flag in (*_X86, *_ARM) if flag in flags]
    if "asimd" in known:
        known[known.index("asimd")] = "neon"
    logical = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return {
        "name": name or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "physical_cores": len(cores) or None,
        "logical_cores": logical,
        "usable_cores": affinity,
        "cpu_limit": _cpu_limit(),
        "memory": _memory(),
        "instruction_sets": known,
    }


def cuda_driver() -> dict[str, Any]:
    """What the NVIDIA driver says, asked without torch: ``version`` (highest CUDA it supports), ``devices``
    (name, memory in bytes), or ``reason`` why there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return {"reason": f"no NVIDIA driver ({name} not found)", "devices": []}
    code = driver.cuInit(0)
    if code != 0:
        reasons = {
            100: "no CUDA-capable device",
            999: "unknown driver error",
            803: "driver and library versions differ",
        }
        return {"reason": f"driver cannot start: {reasons.get(code, 'error')} (cuInit {code})", "devices": []}
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        handle, label, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(handle), index)
        driver.cuDeviceGetName(label, 256, handle)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
        devices.append({"index": index, "name": label.value.decode(errors="replace"), "memory": size.value})
    found: dict[str, Any] = {"version": version, "devices": devices}
    if not devices:
        found["reason"] = "the driver sees no device (CUDA_VISIBLE_DEVICES?)"
    release = _read("/sys/module/nvidia/version").strip()
    if release:
        found["driver"] = release
    return found


def ascend_search_paths() -> list[str]:
    """Where the AscendCL library may be, in the order it is searched (SPEC N1). Files or folders; may not exist."""
    places = []
    if os.environ.get("GENIE_ACL_LIBRARY"):
        places.append(os.environ["GENIE_ACL_LIBRARY"])
    homes = (os.environ.get(variable) for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
    places += [os.path.join(home, "lib64") for home in homes if home]
    places += [place for place in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if place]
    root = "/usr/local/Ascend"
    places.append(f"{root}/ascend-toolkit/latest/lib64")
    for pattern in ("cann-*", "ascend-toolkit/*"):
        for home in sorted(glob.glob(f"{root}/{pattern}"), reverse=True):
            places += [f"{home}/lib64", f"{home}/aarch64-linux/lib64"]
    return list(dict.fromkeys(places))


def find_ascendcl() -> str | None:
    """The path of ``libascendcl.so``, or its bare name when the system's loader knows it; None when absent.

    A ``GENIE_ACL_LIBRARY`` that is set decides alone: what the user named is what is used or reported missing.
    """
    named = os.environ.get("GENIE_ACL_LIBRARY")
    if named:
        return named if os.path.isfile(named) else None
    for place in ascend_search_paths():
        path = os.path.join(place, "libascendcl.so")
        if os.path.isfile(path):
            return path
    try:  # the loader's own search; ctypes.util.find_library would start a compiler to ask the same
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return None
    return "libascendcl.so"


def has_module(name: str) -> bool:
    """Whether a top-level module could be imported. A folder of that name without code is none: there is /tmp/ray."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None
