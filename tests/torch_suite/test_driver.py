"""The driver of PyTorch's own tests (SPEC L7), on a file of ours with a test for each thing that can happen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="torch's test machinery needs it: pip install 'mindtorch-genie[test]'")
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # the driver's own modules; importlib mode leaves the path alone

import run as driver  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of test files."""
    made = tmp_path_factory.mktemp("torch_tests")
    shutil.copy(HERE / "sample.py", made / "test_sample.py")
    return made


def run(*arguments: Any) -> tuple[str, dict[str, int]]:
    """What the command prints, and the last row of its table."""
    command = [sys.executable, str(HERE / "run.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    *_, head, row = done.stdout.splitlines() or ["", ""]
    assert head.split()[0] == "file", done.stdout + done.stderr
    return done.stdout, dict(zip(driver.COLUMNS, map(int, row.split()[1:])))


def test_L7_every_outcome_is_told_beside_the_cpus(folder: Path, tmp_path: Path) -> None:
    reasons = tmp_path / "reasons.toml"
    reasons.write_text('[[reason]]\nwhy = "says cpu"\ntests = ["test_sample::TestSampleCPU.test_excused_*"]\n')
    printed, row = run(folder, "--timeout", 4, "--results", tmp_path / "kept", "--reasons", reasons)
    assert row == {
        "passed": 4,
        "differs": 1,
        "crashed": 1,
        "hung": 1,
        "not applicable": 1,
        "skipped": 1,
        "fails on CPU": 2,
    }, printed
    told = [line for line in printed.splitlines() if line.startswith(("differs:", "crashed:", "hung:"))]
    assert told == [
        f"{what}: test_sample::TestSampleCPU.test_{name}_cpu (CPU: passed; here: {status})"
        for what, name, status in (
            ("crashed", "crash", "crashed"),
            ("hung", "hang", "hung"),
            ("differs", "name", "failed"),
        )
    ]
    kept = json.loads((tmp_path / "kept" / "test_sample.device.remote_accelerator.json").read_text())
    assert "Segmentation fault" in kept["TestSampleCPU.test_crash_cpu"]["error"]


@pytest.mark.whole
def test_L7_other_tests_run_with_the_default_device(folder: Path) -> None:
    assert run(folder, "test_sample", "--kind", "plain")[1]["passed"] == 1


def test_L7_every_test_that_is_left_out_has_a_reason() -> None:
    rows = driver.reasons()
    assert rows and all(why and pattern.count("::") == 1 for pattern, why in rows)
    assert len({pattern for pattern, _ in rows}) == len(rows)
    assert driver.why_not("test_torch::TestTorchDeviceTypeCPU.test_lazy_clone_view_cpu_float32", rows)
    assert driver.why_not("test_torch::TestTorchDeviceTypeCPU.test_clone_cpu", rows) is None
