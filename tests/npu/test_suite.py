"""N7: tests of NPUs, as they are, on a library that is as unkind as devices are.

The whole of them: ``pytest tests/npu --npu unkind`` (docs/CHECKS.md).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

#: What asks for memory, streams, events and copies, and what calls operators side by side: the latter with --whole.
UNKIND = ("aclnn_calls", "copies", "events", "load", "memory", "streams", "aclnn", "backward", "faults", "kernel_rows")
#: Of them, what has threads of its own take turns, and what reads an environment: no device has a part in it.
KIND = "neighbours_that_become_free or environment_says"


@pytest.mark.long
def test_N7_the_npu_tests_pass_where_the_library_is_unkind(pytestconfig, unkind, whole, tmp_path):
    """In a process of its own: how the library behaves is decided when it is loaded, and a process has one."""
    if unkind:
        pytest.skip("is what this run does")
    chosen, least = (UNKIND, 550) if whole else (UNKIND[:6], 100)
    files = ["-k", "" if whole else f"not ({KIND})"]
    files += [str(Path(__file__).with_name(f"test_{name}.py")) for name in chosen]
    devices = f"--npu-devices={pytestconfig.getoption('--npu-devices')}"
    done = subprocess.run(
        [sys.executable, *"-m pytest -q -p no:xdist -p no:cacheprovider --npu unkind".split(), devices,
         f"--basetemp={tmp_path / 'inner'}", *files],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and passed and int(passed[1]) > least, done.stdout[-5000:] + done.stderr[-5000:]
