"""Runs the NPU tests for every chip, way of waiting, number of devices and kind of test library; prints a table.

``python tests/npu/grid.py [--jobs 2] [PYTEST ARGUMENTS]``, at the root of a checkout. Without arguments: the files of
tests that use a second device or ask whether streams wait for other devices' events. Exit code 1 if a cell failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
CHIPS = ("Ascend910B1", "Ascend910_9391", "Ascend310P3", "Ascend910A")


class Cell(NamedTuple):
    chip: str
    waits: str  # 1: the library's streams wait for other devices' events
    devices: int
    npu: str

    def run(self, arguments: Iterable[str]) -> bool:
        environment = {
            **os.environ, "GENIE_TEST_NPU_CHIP": self.chip, "GENIE_TEST_NPU_FOREIGN_WAITS": self.waits,
        }  # fmt: skip
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            own = ("-q", "-n", "0", f"--basetemp={folder}/t", f"--npu-devices={self.devices}", f"--npu={self.npu}")
            command = [sys.executable, "-m", "pytest", *own, *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        for line in lines:
            if line.startswith(("FAILED", "ERROR")):
                print(f"    {line}")
        end = lines[-1] if lines else f"exit code {done.returncode}"
        print(*self, f"{time.monotonic() - begun:.0f} s", end.strip("= "), sep="\t", flush=True)
        return done.returncode == 0


def cells() -> list[Cell]:
    return [Cell(*each) for each in itertools.product(CHIPS, "01", (1, 2, 8), ("kind", "unkind"))]


def files() -> list[str]:
    """The files of tests in which more than chips' own operators depends on the cell."""
    depends = re.compile(r"npu:[1-9{]|device_count|waits_abroad")
    return [str(path) for path in sorted(HERE.glob("test_*.py")) if depends.search(path.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="number of cells to run at a time")
    options, arguments = parser.parse_known_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        passed = list(pool.map(lambda cell: cell.run(arguments or files()), cells()))
    print(f"{sum(passed)} of {len(passed)} passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
