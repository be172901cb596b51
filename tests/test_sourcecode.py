"""Lint as tests: ruff, mypy, cython-lint and the stubs gate a merge (house rule 11)."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CYTHON = sorted(str(path) for pattern in ("*.pyx", "*.pxd") for path in (ROOT / "_ext").glob(pattern))
EXTENSIONS = sorted(path.stem for path in (ROOT / "_ext").glob("*.pyx"))
# What is longer than a sitting says why; where `LINES` says, a file must be split. A Cython module gets more, because a
# split there turns internal calls into calls between modules.
SITTING = 400
LINES = {".py": 500, ".pyi": 500, ".pxd": 500, ".pyx": 860}

# Stubs are compared with what the compiler made. Only names that Cython adds by itself may differ.
STUB_ALLOWED = [
    r"mindtorch\._ext\..*__(pyx_\w+|test|reduce_cython|setstate_cython)__",
    r"mindtorch\._ext\.blocks\.Pinned\.__buffer__",  # seen from Python 3.12 on
]


def check(*command: str, cwd: Path = ROOT, path: Path | None = None) -> None:
    # cython-lint calls pycodestyle by its name, which need not be on the path of an environment that is not activated.
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    env = {**os.environ, "PATH": beside, **({"PYTHONPATH": str(path), "MYPYPATH": str(path)} if path else {})}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command[:3])}\n{(done.stdout + done.stderr)[-6000:]}", pytrace=False)


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources laid out as installed, which is how mypy has to see them."""
    stage = tmp_path_factory.mktemp("stage")
    skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    for folder, target in (("mindtorch", "mindtorch"), ("cli", "mindtorch/cli"), ("_ext", "mindtorch/_ext")):
        shutil.copytree(ROOT / folder, stage / target, ignore=skipped)
    for name in EXTENSIONS:  # the compiled modules come from the installed package, however it was installed
        spec = importlib.util.find_spec(f"mindtorch._ext.{name}")
        if spec and spec.origin:
            shutil.copy(spec.origin, stage / "mindtorch" / "_ext")
    return stage


def test_lint_ruff() -> None:
    check("ruff", "check", "--no-cache", "--quiet", "--output-format=concise", ".")


def test_lint_one_format() -> None:
    check("ruff", "format", "--no-cache", "--quiet", "--check", ".")


def test_lint_cython() -> None:
    check("cython_lint.cython_lint", *CYTHON)


def test_lint_no_list_comprehensions_in_cython() -> None:
    """Cython 3.3 gives up the new item twice when the list of a comprehension cannot grow: memory that is in use."""
    found = []
    for path in sorted((ROOT / "_ext").glob("*.pyx")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\[[^\[\]]+ for \w[\w, ]* in ", line.split("#")[0]):
                found.append(f"{path.name}:{number}: {line.strip()}")
    assert not found, "\n".join(["append in a loop instead:", *found])


def test_lint_tables_that_change_are_copied_first() -> None:
    """``list(table.items())`` makes tuples: until Python 3.12 any of them may begin a collection, whose finalizers, or
    another thread meanwhile, change the table, and it raises. ``table.copy()`` makes none."""
    listed = re.compile(r"\bin list\([^()]*(\([^()]*\))?[^()]*\.items\(\)\)(?!\[)")
    found = []
    for path in (*map(Path, CYTHON), *(p for folder in ("mindtorch", "cli") for p in (ROOT / folder).rglob("*.py"))):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if listed.search(line):
                found.append(f"{path.name}:{number}: {line.strip()}")
    assert not found, "\n".join(["table.copy().items() instead:", *found])


def test_lint_mypy(staged: Path, tmp_path: Path) -> None:
    config = str(ROOT / "pyproject.toml")
    check("mypy", "--config-file", config, "--cache-dir", str(tmp_path), "-p", "mindtorch", cwd=staged)


def test_lint_stubs_match_what_was_compiled(staged: Path, tmp_path: Path) -> None:
    missing = [name for name in EXTENSIONS if not (ROOT / "_ext" / f"{name}.pyi").exists()]
    assert missing == [], "every extension module has a stub"
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("\n".join(STUB_ALLOWED))
    names = [f"mindtorch._ext.{name}" for name in EXTENSIONS]
    # What other modules say in their types is for mypy, above: looked up here, it would take most of the time.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nfollow_imports = skip\n\n[mypy-mindtorch._ext.*]\nfollow_imports = normal\n")
    options = [
        "--mypy-config-file",
        str(config),
        "--allowlist",
        str(allowed),
        "--ignore-unused-allowlist",
        "--ignore-disjoint-bases",
    ]
    check("mypy.stubtest", *options, *names, cwd=tmp_path, path=staged)


@pytest.mark.parametrize("folder", ["mindtorch", "_ext", "cli", "tests", "asv_bench", "examples"])
def test_lint_files_can_be_read_in_one_sitting(folder: str) -> None:
    paths = [path for suffix in LINES for path in (ROOT / folder).rglob(f"*{suffix}")]
    lengths = {path: len(path.read_text().splitlines()) for path in paths}
    assert {str(path): length for path, length in lengths.items() if length > LINES[path.suffix]} == {}


def test_layout_long_modules_say_why_they_are_one_file() -> None:
    """Executors behind messages are left out while they grow."""
    paths = [path for folder in ("mindtorch", "cli") for path in (ROOT / folder).rglob("*.py")]
    long = [path for path in paths if len(path.read_text().splitlines()) > SITTING]
    found = {str(path) for path in long if "One file: " not in (ast.get_docstring(ast.parse(path.read_text())) or "")}
    assert long and not found


def test_lint_no_swallowed_exceptions() -> None:
    """``except Exception: pass`` and its like, in Cython too, where ruff does not look."""
    found = []
    bare = {"except:", "except Exception:", "except BaseException:"}
    for path in map(Path, CYTHON):
        lines = path.read_text().splitlines()
        for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""]), 1):
            if line.strip() in bare and following.strip() == "pass":
                found.append(f"{path.name}:{number}")
    assert found == []
