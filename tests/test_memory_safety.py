"""The extension's own tests under AddressSanitizer and UBSan, and with each of its allocations failing in turn."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Every file of the extension's tests. The sanitized ones leave out what takes long and touches no other code.
SLICE = ["tests/ext", "--deselect", "tests/ext/test_tables.py::test_S5_changing_shapes_do_not_grow_the_tables_and_no_id_"
         "in_use_is_lost", "-k", "not a_million_ops and not (repeats_itself and (gradients or modules))"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded as Linux does it")


def run(command: list[str], env: Mapping[str, str], cwd: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """The C compiler that builds the extension."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    found = shutil.which(command[0]) or shutil.which("cc")
    if found is None:
        pytest.skip(f"no C compiler: neither {command[0]} nor cc is on the path")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip(f"no Python.h in {sysconfig.get_path('include')}")
    return [found]


# ---- sanitizers ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sanitizer(compiler: list[str]) -> dict[str, str]:
    """What has to be in the environment of a Python that loads the sanitized extension."""
    libraries = []
    for name in ("libasan.so", "libstdc++.so"):  # the second, since torch throws C++ exceptions: asan must find them
        path = run([*compiler, f"-print-file-name={name}"], {}, ROOT, 60).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"{compiler[0]} has no {name}")
        libraries.append(path)
    return {
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",  # Python keeps much until the end; test_leaks.py counts instead
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=67",
    }


@pytest.fixture(scope="module")
def sanitized(sanitizer: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which ``import mindtorch`` finds a build with sanitizers."""
    work = tmp_path_factory.mktemp("sanitized")
    build = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(work / "lib"), "--build-temp", str(work)]
    done = run(build, {"GENIE_BUILD": "asan"}, ROOT, 1200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return {**sanitizer, "PYTHONPATH": str(work / "lib")}


def test_L9_the_extension_under_sanitizers(sanitized: dict[str, str], request: pytest.FixtureRequest,
                                           tmp_path: Path) -> None:
    whole = request.config.getoption("--sanitize")
    chosen = shlex.split(whole) if whole else SLICE
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
               "--rootdir", str(ROOT), f"--basetemp={tmp_path / 'inner'}", *chosen]
    done = run(command, sanitized, ROOT, 24 * 3600 if whole else 1800)
    printed = done.stdout + done.stderr
    reported = re.findall(r"^.*(?:AddressSanitizer|runtime error:|UndefinedBehaviorSanitizer).*$", printed, re.MULTILINE)
    assert not reported, "\n".join([*reported, printed[-10_000:]])
    assert done.returncode == 0, printed[-10_000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), printed[-10_000:]
    if not whole:
        assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 50


def test_L9_the_sanitizers_are_at_work(sanitized: dict[str, str], tmp_path: Path) -> None:
    """A read beyond the end of a table of the extension's, provoked from outside, is reported."""
    code = """
import ctypes, sys
from mindtorch._ext import location
sys.stdout.write(location.__file__)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
p = libc.malloc(ctypes.c_size_t(32))
libc.memset(ctypes.c_void_p(p), 0, ctypes.c_size_t(33))
"""
    done = run([sys.executable, "-c", code], sanitized, tmp_path, 300)
    assert done.stdout.startswith(sanitized["PYTHONPATH"]), "another build was imported"
    assert done.returncode == 66 and "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]


# ---- allocations that fail -------------------------------------------------------------------------------------------
def test_L9_any_allocation_may_fail(compiler: list[str], tmp_path: Path) -> None:
    """Each scenario with its first, second, … allocation failing: MemoryError or no error, and the engine works on."""
    library = tmp_path / "faults.so"
    source = ROOT / "tests" / "ext" / "faults.c"
    built = run([*compiler, "-O1", "-g", "-fPIC", "-shared", "-I", sysconfig.get_path("include"), str(source),
                 "-o", str(library), "-ldl"], {}, tmp_path, 300)
    assert built.returncode == 0, built.stderr
    done = run([sys.executable, "-X", "faulthandler", str(source.with_name("faults_run.py")), str(library)],
               {"LD_PRELOAD": str(library)}, tmp_path, 1800)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    counts = dict(re.findall(r"^(\w+): (\d+) allocations failed", done.stdout, re.MULTILINE))
    assert counts and all(int(n) > 0 for n in counts.values()), done.stdout
    assert len(counts) >= 20 and sum(map(int, counts.values())) > 300, done.stdout
