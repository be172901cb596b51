"""SPEC C7: ``genie devices``."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.base import hardware
from mindtorch.cli import probe
from mindtorch.cli.main import cli
from mindtorch.npu.operators import MATH, OPERATORS

TYPES = ["cpu", "cuda", "meta", "npu", "remote_accelerator"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -c" would import the source folder


def genie(*args: str):
    return CliRunner().invoke(cli, ["devices", *args], prog_name="genie")


@pytest.fixture(autouse=True)
def _no_npu(monkeypatch):
    for name in ("GENIE_ACL_LIBRARY", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_C7_every_type_with_a_reason_where_it_cannot_be_used():
    result = genie("--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert [row["type"] for row in answer["devices"]] == TYPES
    for row in answer["devices"]:
        assert row["available"] is (row["reason"] is None)
    by_type = {row["type"]: row for row in answer["devices"]}
    assert by_type["cpu"]["available"] and by_type["meta"]["available"] and by_type["remote_accelerator"]["available"]
    assert answer["versions"]["torch"] and answer["versions"]["python"]


def test_C7_text_says_the_same_within_80_columns():
    result = genie()
    assert result.exit_code == 0
    for kind in TYPES:
        assert kind in result.stdout
    assert "not available" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout


@pytest.mark.skipif(hardware.find_ascendcl() is not None, reason="this machine has the Ascend library")
def test_C7_devices_npu_exit_code_3_with_the_places_searched():
    result = genie("npu")
    assert result.exit_code == 3
    assert "libascendcl.so not found" in result.stdout
    assert "/usr/local/Ascend/ascend-toolkit/latest/lib64" in result.stdout.replace("\n", "")
    answer = json.loads(genie("npu:1", "--json").stdout)["devices"][0]
    assert (answer["type"], answer["index"], answer["available"]) == ("npu", 1, False)
    assert answer["enable"]


@pytest.mark.parametrize("name", ["cpu", "cpu:0", "meta", "meta:1", "remote_accelerator", "remote_accelerator:3"])
def test_C7_devices_exit_code_0(name):
    assert genie(name).exit_code == 0


@pytest.mark.parametrize("name", ["foo", "npu:", "npu:-1", "npu:01", "", "npu:1:2", "cuda:999"])
def test_C7_unknown_device_is_one_line_and_exit_code_2(name):
    result = genie(name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and "npu" in result.stderr and "remote_accelerator" in result.stderr


def test_C7_named_library_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GENIE_ACL_LIBRARY", "/nowhere/libfake.so")
    row = probe.describe("npu")
    assert not row["available"] and "/nowhere/libfake.so" in row["reason"]


def test_C7_library_search_order(monkeypatch, tmp_path):
    for name in ("home", "toolkit", "loader"):
        (tmp_path / name / "lib64").mkdir(parents=True)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "home"))
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "loader" / "lib64"))
    places = hardware.ascend_search_paths()
    expected = [str(tmp_path / name / "lib64") for name in ("home", "toolkit", "loader")]
    assert places[:3] == expected
    for place in reversed(expected):
        with open(f"{place}/libascendcl.so", "wb"):
            pass
        assert hardware.find_ascendcl() == f"{place}/libascendcl.so"
    row = probe.describe("npu")  # a file that is there is not yet a device that works
    assert not row["available"] and "libascendcl.so" in row["reason"]


def test_C7_cuda_reasons(monkeypatch):
    found = {"version": "13.0", "devices": [{"index": 0, "name": "Some GPU", "memory": 80 << 30}]}
    monkeypatch.setattr(hardware, "cuda_driver", lambda: found)
    monkeypatch.setattr(probe, "_torch_cuda_build", lambda: None)
    row = probe.describe("cuda")
    assert not row["available"] and "without CUDA" in row["reason"] and "pytorch.org" in row["enable"]
    monkeypatch.setattr(probe, "_torch_cuda_build", lambda: "13.0")
    assert "counted from 0" in probe.describe("cuda", 1)["reason"]
    monkeypatch.setattr(hardware, "cuda_driver", lambda: {"reason": "no NVIDIA driver", "devices": []})
    assert "no NVIDIA driver" in probe.describe("cuda")["reason"]


def test_C7_cuda_build_is_read_without_importing_torch():
    import torch

    assert probe._torch_cuda_build() == torch.version.cuda


def test_C7_cpu_facts():
    details = probe.describe("cpu")["details"]
    assert details["logical_cores"] >= details["usable_cores"] >= 1
    memory = details["memory"]
    assert 0 < memory["available"] <= memory["total"]
    assert details["name"] and details["architecture"]


def test_C7_limits_of_a_container(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n",
        "/sys/fs/cgroup/memory.max": "1073741824\n",
        "/sys/fs/cgroup/memory.current": "536870912\n",
        "/sys/fs/cgroup/cpu.max": "150000 100000\n",
        "/proc/cpuinfo": "model name\t: Chip\nphysical id\t: 0\ncore id\t: 0\nflags\t: avx2 avx512f amx_tile lahf_lm\n"
        "\nphysical id\t: 0\ncore id\t: 0\n",
    }
    monkeypatch.setattr(hardware, "_read", lambda path: files.get(path, ""))
    details = hardware.cpu()
    assert details["memory"] == {"total": 8 << 30, "available": 512 << 20, "limit": 1 << 30}
    assert details["cpu_limit"] == 1.5
    assert details["physical_cores"] == 1
    assert details["instruction_sets"] == ["avx2", "avx512f", "amx_tile"]
    monkeypatch.setattr(hardware, "_read", lambda path: "")  # a system that says nothing
    assert hardware.cpu()["memory"]["limit"] is None


def test_C7_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['genie', 'devices', 'npu']\n"
        "from mindtorch.cli.main import entry\n"
        "try:\n    entry()\nfinally:\n    assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    assert "npu" in done.stdout and done.stderr == ""


FAKE_DRIVER = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return START; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = COUNT; return 0; }
int cuDeviceGet(int *handle, int index) { *handle = index + 40; return 0; }
int cuDeviceGetName(char *name, int room, int handle) {
    strncpy(name, handle == 41 ? "Second" : "First", room);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int handle) { *bytes = (size_t)80 << 30; return 0; }
"""


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(0, 2, {"version": "12.8", "names": ["First", "Second"], "reason": None}),
     (0, 0, {"version": "12.8", "names": [], "reason": "CUDA_VISIBLE_DEVICES"}),
     (100, 1, {"version": None, "names": [], "reason": "no CUDA-capable device"})],
)  # fmt: skip
def test_C7_what_the_nvidia_driver_answers(tmp_path, start, count, expected):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler")
    (tmp_path / "cuda.c").write_text(FAKE_DRIVER)
    library = tmp_path / "libcuda.so.1"
    flags = [f"-DSTART={start}", f"-DCOUNT={count}", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(tmp_path / "cuda.c"), "-o", str(library)], check=True)
    code = (
        "import json, sys; sys.argv = ['genie']\n"
        "from mindtorch.base.hardware import cuda_driver; print(json.dumps(cuda_driver()))"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found.get("version") == expected["version"]
    assert [device["name"] for device in found["devices"]] == expected["names"]
    assert all(device["memory"] == 80 << 30 for device in found["devices"])
    assert (expected["reason"] or "") in found.get("reason", "")
    assert ("reason" in found) is (expected["reason"] is not None)


@pytest.mark.parametrize(("value", "usable"), [("cpu", True), ("meta", False), ("npu", False), ("nonsense", False)])
def test_C7_remote_accelerator_is_as_usable_as_what_it_runs_on(monkeypatch, value, usable):
    monkeypatch.setenv("GENIE_EXECUTOR_DEVICE", value)
    row = probe.describe("remote_accelerator")
    assert row["available"] is usable and row["details"]["runs_on"] == value
    assert usable or "GENIE_EXECUTOR_DEVICE" in row["reason"]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("local", "with torch, in the program"),
        ("pipe", "in a child process"),
        ("loopback", "through messages, in the"),
        ("ray", "on a Ray cluster, started with the program"),
        ("package.module:Class", "an executor of your own"),
    ],
)
def test_C7_remote_accelerator_names_the_executor(monkeypatch, value, where):
    monkeypatch.setenv("GENIE_EXECUTOR", value)
    details = probe.describe("remote_accelerator")["details"]
    assert details["executor"] == value and where in details["where"]
    shown = " ".join(CliRunner().invoke(cli, ["devices", "remote_accelerator"]).stdout.split())
    assert f"executor {value}: " in shown and where in shown


def test_C7_an_executor_that_there_is_not_is_the_reason(monkeypatch):
    monkeypatch.setenv("GENIE_EXECUTOR", "tape")
    row = probe.describe("remote_accelerator")
    assert not row["available"] and "GENIE_EXECUTOR" in row["reason"] and row["details"]["executor"] is None
    assert CliRunner().invoke(cli, ["devices", "remote_accelerator"]).exit_code == 3


@pytest.fixture(scope="module")
def acl_library():
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs a C compiler")
    spec = importlib.util.spec_from_file_location("acl_library", Path(__file__).parents[1] / "npu" / "acl_library.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def acl_test_library(acl_library, tmp_path_factory):
    return str(acl_library.build(tmp_path_factory.getbasetemp()))


def genie_process(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The library is loaded once per process, so each of these has its own."""
    code = "import sys; sys.argv[0] = 'genie'\nfrom mindtorch.cli.main import entry\nentry()"
    command = [sys.executable, "-c", code, "devices", *args]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


def test_C7_a_test_library_is_not_hardware(acl_test_library):
    done = genie_process("npu:1", "--json", GENIE_ACL_LIBRARY=acl_test_library)
    assert done.returncode == 3, done.stderr
    row = json.loads(done.stdout)["devices"][0]
    assert row["available"] is False
    assert row["reason"] == f"{acl_test_library} is a test library over host memory, not hardware"
    assert row["details"]["runtime"] == "1.15.0"
    size = 1 << 30
    assert row["details"]["devices"] == [{"index": 1, "name": "Ascend910B1-GenieTest", "memory": size, "free": size}]
    text = genie_process("npu", GENIE_ACL_LIBRARY=acl_test_library, GENIE_TEST_NPU_DEVICES="3")
    assert text.returncode == 3
    shown = " ".join(text.stdout.split())
    assert "is a test library over host memory, not hardware" in shown
    assert "runtime AscendCL 1.15.0" in shown and "npu:2 Ascend910B1-GenieTest" in shown
    assert "1.00 GiB available of 1.00" in shown
    every = {"found": len(OPERATORS), "of": len(OPERATORS), "libraries": [], "not_opened": []}
    assert row["details"]["operators"] == every
    assert f"operators {len(OPERATORS)} of {len(OPERATORS)} that mindtorch calls" in shown


def test_C7_the_operators_of_split_libraries_are_counted(acl_library, tmp_path):
    library = str(acl_library.build_split(tmp_path))
    row = json.loads(genie_process("npu", "--json", GENIE_ACL_LIBRARY=library).stdout)["devices"][0]
    libraries = [str(tmp_path / f"libopapi_{name}.so") for name in ("math", "nn")]
    every = {"found": len(OPERATORS), "of": len(OPERATORS), "libraries": libraries, "not_opened": []}
    assert row["details"]["operators"] == every
    (tmp_path / "libopapi_nn.so").write_text("no library")
    shown = " ".join(genie_process("npu", GENIE_ACL_LIBRARY=library).stdout.split())
    assert f"operators {len(MATH)} of {len(OPERATORS)} that mindtorch calls, in" in shown
    assert "the others run through the CPU" in shown
    assert "cannot be opened: " in shown and "file too short" in shown


def test_C7_npu_reasons(acl_test_library):
    said = genie_process("npu", GENIE_ACL_LIBRARY=acl_test_library, GENIE_TEST_NPU_DEVICES="0")
    assert said.returncode == 3 and "sees no device" in " ".join(said.stdout.split())
    said = genie_process("npu", "--json", GENIE_ACL_LIBRARY=shutil.which("cc") or "")
    assert said.returncode == 3 and "cc" in json.loads(said.stdout)["devices"][0]["reason"]


def test_C7_npu_that_is_hardware(monkeypatch, acl_test_library):
    """What is told of a library that is no test library; one device of the two cannot be set up."""
    from mindtorch import npu
    from mindtorch._ext import acl
    from mindtorch.npu import api

    def properties(index):
        if index == 1:
            raise RuntimeError("[aclrtSetDevice] error 507033 (ACL_ERROR_RT_DEV_SETUP_ERROR): busy")
        return api.DeviceProperties("Ascend910B1", 64 << 30, 24, 48, 1)

    monkeypatch.setenv("GENIE_ACL_LIBRARY", acl_test_library)
    monkeypatch.setattr(npu, "why_unavailable", lambda: None)
    monkeypatch.setattr(npu, "is_test_library", lambda: False)
    monkeypatch.setattr(acl, "version", lambda: "1.13.0")
    monkeypatch.setattr(api, "device_count", lambda: 2)
    monkeypatch.setattr(api, "get_device_properties", properties)
    monkeypatch.setattr(api, "mem_get_info", lambda index: (60 << 30, 64 << 30))
    row = probe.describe("npu")
    assert row["available"] and row["details"]["devices"][0]["name"] == "Ascend910B1"
    shown = " ".join(genie("npu").stdout.split())
    assert "npu:0 Ascend910B1" in shown and "60.0 GiB available of 64.0" in shown
    assert "npu:1 cannot be used: [aclrtSetDevice] error 507033" in shown
    assert genie("npu").exit_code == 0 and genie("npu:0").exit_code == 0
    row = probe.describe("npu", 1)
    assert not row["available"] and "507033" in row["reason"]
    row = probe.describe("npu", 2)
    assert not row["available"] and row["reason"] == "npu:2 does not exist: 2 device(s), counted from 0"
