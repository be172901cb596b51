"""R1: tests of lazy tensors, as they are, on an executor behind messages.

The whole of them: ``pytest --executor loopback tests/test_lazy_*.py``, or ``pipe`` or ``ray`` (docs/EXECUTORS.md: what
differs).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
#: Executor → files of tests, and how many tests pass in them at least: what shares memory, moves modules, trains, and
#: what is not strided. What one call gives is the same whatever runs it, and tests/remote asks for the rest.
SLICES = {
    "loopback": (["test_lazy_sharing.py", "test_lazy_sparse.py", "test_lazy_jagged.py"], 200),
    "pipe": (["test_lazy_sharing.py", "test_lazy_warnings.py", "test_lazy_techniques.py"], 50),
    "ray": (["test_lazy_sharing.py"], 10),
}


@pytest.mark.long
@pytest.mark.sample(2)  # tests/cluster is about Ray
@pytest.mark.parametrize("executor", SLICES)
def test_R1_tests_of_lazy_tensors_pass_behind_messages(
    executor: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """In a process of its own: which executor there is, is decided when it is first used."""
    if executor == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
    names, least = SLICES[executor]
    files = [str(TESTS / name) for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--executor", executor, f"--basetemp={tmp_path / 'inner'}", *files],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed and int(passed[1]) > least, done.stdout[-5000:]
