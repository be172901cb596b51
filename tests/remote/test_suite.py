"""R1: tests of lazy tensors, as they are, on an executor behind messages.

The whole of them: ``pytest --executor loopback tests/test_lazy_*.py`` (docs/EXECUTORS.md says what differs).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
SLICE = ("creation", "sharing", "training", "devices", "sequences", "products", "layouts", "techniques")


def test_R1_tests_of_lazy_tensors_pass_behind_messages(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """In a process of its own: which executor there is, is decided when it is first used."""
    files = [str(TESTS / f"test_lazy_{name}.py") for name in SLICE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--executor", "loopback", f"--basetemp={tmp_path / 'inner'}", *files],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed and int(passed[1]) > 500, done.stdout[-5000:]
