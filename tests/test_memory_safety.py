"""The extension's own tests under AddressSanitizer and UBSan, and with each of its allocations failing in turn."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mindtorch._ext import location

ROOT = Path(__file__).resolve().parent.parent
# Of the extension's tests, those that come to the modules below, without what repeats the same for long.
LONG = (
    "a_million_ops or changing_shapes or freed_values or repeats_itself or memory_returns or survivor or compact"
    " or never_seen_again or ever_new_scalars or were_large"  # what is evicted while it is in use has a test of its own
    " or nearly_full"  # tables that grow and collide: so do those of what_the_tables_say_that_they_hold
)
FILES = ("context", "context_model", "dispatch", "leaks", "ledger", "location", "standin", "tables", "tape")
SLICE = [f"tests/ext/test_{name}.py" for name in FILES]

#: What is built with sanitizers: the modules with memory of their own that those tests are about. To compile all takes
#: minutes; ``--whole`` and ``--sanitize`` do.
MODULES = ("context", "intern", "keys", "lazy", "location", "replay", "standin", "tape", "template")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded as Linux does it")


def run(command: list[str], env: Mapping[str, str], cwd: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """The C compiler that builds the extension."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = command[1:2] if Path(command[0]).name in ("ccache", "sccache") and command[1:] else command[:1]
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
        # Python keeps much until the end: test_leaks.py counts instead. Tests ask for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    }


@pytest.fixture  # of one test: each process of the tests would build it
def sanitized(
    sanitizer: dict[str, str],
    translated: Callable[[Path], None],
    pytestconfig: pytest.Config,
    whole: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """The environment in which ``import mindtorch`` finds a build with sanitizers."""
    work = tmp_path_factory.mktemp("sanitized")
    for name in ("_ext", "mindtorch", "cli"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, work)
    translated(work / "temp")
    every = {path.stem for path in (ROOT / "_ext").glob("*.pyx")}
    modules = every if whole or pytestconfig.getoption("--sanitize") else MODULES
    build = [sys.executable, str(ROOT / "tests" / "compiling.py"), "build --build-lib lib --build-temp temp", *modules]
    done = run(build, {"GENIE_BUILD": "asan"}, work, 1200)
    assert done.returncode == 0, "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower() and "__PYX_ERR" not in line
    )[-5000:]
    built = work / "lib" / "mindtorch" / "_ext"
    assert {path.name.partition(".")[0] for path in built.glob("*.so")} == set(modules)
    for path in Path(location.__file__).parent.glob("*.so"):
        if not (built / path.name).exists():
            shutil.copy(path, built)
    return {**sanitizer, "PYTHONPATH": str(work / "lib")}


def reports(env: Mapping[str, str], folder: Path) -> tuple[dict[str, str], Callable[[], str]]:
    """The environment with reports going to files (pytest takes hold of stderr), and what reads them."""
    env = dict(env)
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
        env[name] += f":log_path={folder / 'report'}"
    return env, lambda: "".join(path.read_text(errors="replace") for path in sorted(folder.glob("report.*")))


@pytest.mark.long
def test_L9_the_extension_under_sanitizers(
    sanitized: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "at_work").mkdir()
    are_at_work(sanitized, tmp_path / "at_work")
    whole = request.config.getoption("--sanitize")
    files = ["tests/ext"] if request.config.getoption("--whole") else SLICE
    chosen = shlex.split(whole) if whole else [*files, "-k", f"not ({LONG})"]
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        f"--basetemp={tmp_path / 'inner'}",
        *chosen,
    ]
    env, reported = reports(sanitized, tmp_path)
    done = run(command, env, ROOT, 24 * 3600 if whole else 1800)
    printed = done.stdout[-5000:] + done.stderr[-5000:]
    assert not re.search(r"ERROR: AddressSanitizer|runtime error:", reported()), reported()[:10_000] + printed
    assert done.returncode == 0, printed
    passed = re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed and (whole or int(passed[-1]) > 50), printed


def are_at_work(sanitized: dict[str, str], tmp_path: Path) -> None:
    """The extension is instrumented, and a write beyond the end of an allocation is reported."""
    code = """
import ctypes
from mindtorch._ext import location
print(location.__file__, flush=True)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(32))), 0, ctypes.c_size_t(33))
"""
    env, reported = reports(sanitized, tmp_path)
    done = run([sys.executable, "-c", code], env, tmp_path, 300)
    file = Path(done.stdout.strip())
    assert file.is_relative_to(sanitized["PYTHONPATH"]), f"another build was imported: {file}\n{done.stderr}"
    assert all(name in file.read_bytes() for name in (b"__asan_report_load", b"__ubsan_handle")), file
    assert done.returncode == 66 and "heap-buffer-overflow" in reported(), reported() + done.stderr


# ---- allocations that fail -------------------------------------------------------------------------------------------
def test_L9_any_allocation_may_fail(compiler: list[str], tmp_path: Path) -> None:
    """Each scenario with its first, second, … allocation failing: MemoryError or no error, and the engine works on."""
    library = tmp_path / "faults.so"
    source = ROOT / "tests" / "ext" / "faults.c"
    built = run(
        [
            *compiler,
            "-O1",
            "-g",
            "-fPIC",
            "-shared",
            "-I",
            sysconfig.get_path("include"),
            str(source),
            "-o",
            str(library),
            "-ldl",
        ],
        {},
        tmp_path,
        300,
    )
    assert built.returncode == 0, built.stderr
    done = run(
        [sys.executable, "-X", "faulthandler", str(source.with_name("faults_run.py")), str(library)],
        {"LD_PRELOAD": str(library)},
        tmp_path,
        1800,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    counts = dict(re.findall(r"^(\w+): (\d+) allocations failed", done.stdout, re.MULTILINE))
    # A call that is known takes a kept wrapper and allocates nothing, whatever number is in it.
    known = ("known_call", "new_number")
    assert counts and all(int(n) > 0 for name, n in counts.items() if name not in known), done.stdout
    assert len(counts) >= 20 and sum(map(int, counts.values())) > 300, done.stdout
