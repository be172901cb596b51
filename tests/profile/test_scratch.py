"""C4: predicted peak memory within 3 % of the measured one, with what CPU kernels take while they run.

The rules are those of oneDNN for AVX2: both it and torch are held to that, so the same is tested on every x86 machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="rules of kernels for x86")


@pytest.fixture(scope="module")
def found() -> dict[str, list[list[Any]]]:
    """program and call → [name, predicted, measured] of what scratch_programs.py ran."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(HERE / "scratch_programs.py")], capture_output=True, text=True,
                          env=environment, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, list[list[Any]]] = json.loads(done.stdout.splitlines()[-1])
    return result


def off(rows: list[list[Any]]) -> list[str]:
    assert len(rows) > 5
    return [f"{name}: {mine} predicted, {theirs} measured" for name, mine, theirs in rows
            if abs(mine - theirs) > 0.03 * theirs]  # fmt: skip


def test_C4_predicted_peak_is_the_measured_one(found: dict[str, list[list[Any]]]) -> None:
    assert off(found["programs"]) == []


def test_C4_scratch_of_single_calls(found: dict[str, list[list[Any]]]) -> None:
    """Operands, results and scratch of a call, against the allocator's events while it runs."""
    assert off(found["calls"]) == []


def test_C4_what_an_lstm_keeps_for_its_backward_pass(found: dict[str, list[list[Any]]]) -> None:
    assert [row for row in found["workspaces"] if row[1] != row[2]] == [] and len(found["workspaces"]) > 3
