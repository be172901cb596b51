"""Set-up of the NPU tests: a library with the AscendCL interface over host memory, built here."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone

import acl_library
from acl_calls import Npu


@pytest.fixture(scope="session", autouse=True)
def unkind(pytestconfig: pytest.Config) -> Iterator[bool]:
    """Whether every test library in this process, and in those that it starts, is as unkind as devices are."""
    chosen = pytestconfig.getoption("--npu") == "unkind"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ASCEND_CUSTOM_OPP_PATH", "ASCEND_OPP_PATH"):
            patch.delenv(name, raising=False)  # operators of this machine are not for the test library
        if chosen:
            patch.setenv("GENIE_TEST_NPU_UNKIND", "1")
        yield chosen


@pytest.fixture(scope="session")
def acl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library, compiled; what ``GENIE_ACL_LIBRARY`` may name. ``ACL_TEST_FOLDER``: where it is kept."""
    return acl_library.build(Path(os.environ.get("ACL_TEST_FOLDER") or tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def acl_copy(acl_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library again, with a state of its own: what the product has open in the other is not disturbed."""
    return Path(shutil.copy(acl_path, tmp_path_factory.mktemp("copy")))


@pytest.fixture
def acl(acl_copy: Path) -> Iterator[acl_library.Library]:
    """The copy as freshly loaded, before any ``aclInit``. The test fails for what it left or did wrong."""
    library = acl_library.Library(acl_copy)
    library.reset()
    yield library
    library.release()
    problems = library.violations() + library.leaks()
    library.reset()
    assert problems == []


@pytest.fixture
def calls(acl: acl_library.Library) -> Npu:
    """Calls of the copy, initialized, with device 0 set."""
    calls = Npu(acl)
    calls("aclInit", None)
    calls("aclrtSetDevice", 0)
    return calls


@pytest.fixture(scope="session")
def npu_library(acl_path: Path, pytestconfig: pytest.Config) -> acl_library.Library:
    """The test library that mindtorch has loaded in this process. A copy: nothing resets it, as the tests of the
    library do with theirs."""
    path = shutil.copy(acl_path, acl_path.with_name("libascendcl-bound.so"))
    os.environ["GENIE_TEST_NPU_DEVICES"] = str(pytestconfig.getoption("--npu-devices"))
    os.environ["GENIE_ACL_LIBRARY"] = str(path)
    try:
        from mindtorch.npu import library

        library.ensure_loaded()
        return acl_library.Library(path)
    finally:
        del os.environ["GENIE_ACL_LIBRARY"], os.environ["GENIE_TEST_NPU_DEVICES"]


@pytest.fixture
def library(npu_library: acl_library.Library) -> Iterator[acl_library.Library]:
    """The same; afterwards, what was on the devices is over, and nothing was done wrong."""
    import mindtorch

    npu_library.clear()
    before = mindtorch.npu.current_device()
    yield npu_library
    npu_library.release()
    mindtorch.npu.set_device(before)
    for index in range(mindtorch.npu.device_count()):
        mindtorch.npu.set_stream(mindtorch.npu.default_stream(index))
        mindtorch.npu.synchronize(index)
    mindtorch.npu.set_device(before)
    assert npu_library.violations() == []


@pytest.fixture
def npu(library: acl_library.Library) -> ModuleType:
    """``mindtorch.npu`` on the test library."""
    import mindtorch

    return mindtorch.npu


@pytest.fixture
def device(npu_library: acl_library.Library) -> Iterator[Any]:
    """npu:0 with the product's own pool and allocator; no description or executor may be left at the end."""
    from native_calls import Device

    import mindtorch

    npu_library.clear()
    yield Device(npu_library)
    npu_library.release()
    for index in range(mindtorch.npu.device_count()):
        mindtorch.npu.synchronize(index)
    assert npu_library.violations() == []
    assert [line for line in npu_library.leaks() if " acl" in line] == []


@pytest.fixture
def devices(npu: ModuleType) -> Callable[[int], None]:
    """Skips the test where there are fewer NPUs."""

    def need(count: int) -> None:
        if npu.device_count() < count:
            pytest.skip(f"needs {count} devices")

    return need


@pytest.fixture(scope="session")
def in_npu_process(
    in_python: Callable[..., Any], acl_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Runs code in a process of its own on the test library; what it printed. Nothing may be left or wrong at its end.

    torch is only imported where the code asks for it: ``import mindtorch`` behaves as under ``genie``.
    """
    return _on_library(in_python, "genie", acl_path, tmp_path_factory)


@pytest.fixture(scope="session")
def in_npu_program(
    after_a_step: Callable[..., Any], acl_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """The same for a program that imports torch, which takes most of such a process's time: in a fork that has."""
    return _on_library(after_a_step, "program", acl_path, tmp_path_factory)


def _on_library(
    start: Callable[..., Any], program: str, acl_path: Path, folders: pytest.TempPathFactory
) -> Callable[..., str]:
    begin = f"import sys; sys.argv = [{program!r}]; sys.path.append({str(Path(__file__).parent)!r})\n"

    def run(code: str, devices: int = 2, path: Path = acl_path, **environment: str) -> str:
        report = folders.mktemp("report") / "report.txt"
        done = start(
            begin + textwrap.dedent(code), GENIE_ACL_LIBRARY=str(path), GENIE_TEST_NPU_DEVICES=str(devices),
            GENIE_TEST_NPU_REPORT=str(report), **environment,
        )  # fmt: skip
        assert report.read_text() == "end of process\n", report.read_text()
        return done.stdout

    return run
