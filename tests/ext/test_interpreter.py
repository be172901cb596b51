"""What is known of CPython beyond its documented interface stands in one module, is proved, and has a way around."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindtorch._ext import context, location

ROOT = Path(__file__).resolve().parents[2]
#: Names of CPython's own structs, private functions and counts of references, and questions about its release.
BEYOND = re.compile(
    r"\bPy(Function|Code|Frame|CFunction|MethodDescr|GetSetDescr|MemberDescr|WrapperDescr|HeapType|Cell)Object\b"
    r"|\b_Py\w+|->\s*tp_\w+|\bPy_REFCNT\b|\bob_refcnt\b|PyWeakref_GET_OBJECT|internal/pycore|PY_VERSION_HEX"
)


AS_FREE_THREADED = "import runpy, setuptools, sysconfig; sysconfig.get_config_vars(); sys.abiflags = 't'"


def test_S4_one_module_knows_the_structs_of_cpython() -> None:
    found = []
    for path in sorted([*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "_ext").glob("*.pxd")]):
        if path.stem != "interpreter":
            lines = enumerate(path.read_text().splitlines(), 1)
            found += [f"{path.name}:{number}: {line.strip()}" for number, line in lines if BEYOND.search(line)]
    assert not found, "\n".join(["only _ext/interpreter may name these:", *found])
    assert BEYOND.search((ROOT / "_ext" / "interpreter.pxd").read_text())


def test_L9_lines_are_the_same_by_public_functions_alone() -> None:
    def here() -> list[tuple[str, int, str] | None]:
        return [location.location(each) for each in (context.get_location(), inner(), next(later()))]

    def inner() -> int:
        return (lambda: context.get_location())()

    def later():
        yield context.get_location()

    inside = location.look_inside(True)
    try:
        first = here()
        assert location.look_inside(False) is False
        assert here() == first
        assert [name for _, _, name in first if name] == ["here", "<lambda>", "later"]
    finally:
        assert location.look_inside(True) is inside
    assert inside is (sys.version_info[:2] == (3, 11)), "the interpreter's own frames are read where they are known"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("sys.abiflags = 't'; import mindtorch", "ImportError: [mindtorch]"),
        (f"{AS_FREE_THREADED}; runpy.run_path({str(ROOT / 'setup.py')!r})", "mindtorch-genie"),
    ],
)
def test_L1_a_free_threaded_python_is_refused_in_one_sentence(code: str, kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith(kind)
    assert "global interpreter lock" in said and "free-threaded" in said
