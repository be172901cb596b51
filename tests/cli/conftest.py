"""Set-up of the command's tests: they run programs in this process, whose modules stay imported, models and all.

Or in processes of their own: those of ``genie run``, which are compared with python.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest


@pytest.fixture(autouse=True)
def only_models_of_this_test(alone: None) -> None:
    pass


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Runs:
    """Runs programs by python and by ``genie run``."""

    GENIE = (sys.executable, "-m", "mindtorch.cli.main", "run")
    LIMIT = 240  # seconds

    def write(self, text: str, name: str = "script.py") -> str:
        Path(name).write_text(textwrap.dedent(text))
        return name

    def run(self, *line: str) -> Ran:
        return self._end(self._begin(*line))

    def together(self, *lines: list[str]) -> list[Ran]:
        """Command lines at the same time."""
        return [self._end(process) for process in [self._begin(*line) for line in lines]]

    def _begin(self, *line: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(line, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)

    def _end(self, process: subprocess.Popen[str]) -> Ran:
        try:
            out, err = process.communicate(timeout=self.LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Ran(process.returncode, out, err)

    def both(self, text: str, *args: str, options: tuple[str, ...] = ()) -> list[Ran]:
        """The script by python and by genie run."""
        name = self.write(text)
        return self.together([sys.executable, name, *args], [*self.GENIE, *options, name, *args])

    def same(self, text: str, *args: str, options: tuple[str, ...] = ()) -> Ran:
        """The latter, which has printed the same."""
        plain, under = self.both(text, *args, options=options)
        assert plain.code == 0, plain.err
        assert (under.code, under.out) == (plain.code, plain.out), under.err
        return under


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Runs:
    """In a folder of the test's own, with the environment's defaults."""
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -m" would import the source folder
    for name in ("GENIE_EXECUTOR", "GENIE_EXECUTOR_DEVICE", "GENIE_REGISTER_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return Runs()
