"""Set-up of the command's tests: they run programs in this process, whose modules stay imported, models and all.

Or in processes of their own: those of ``genie run``, which are compared with python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mindtorch.cli import child_command


@pytest.fixture(autouse=True)
def only_models_of_this_test(alone: None) -> None:
    pass


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own. Files whose tests all have programs there put them into one of theirs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Runs:
    """Runs programs by python and by ``genie run``: in forks, whose torch is imported already."""

    LIMIT = 240  # seconds
    GENIE = (sys.executable, "-m", "mindtorch.cli.main", "run")

    def __init__(self, forked: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self._forked = forked

    def write(self, text: str, name: str = "script.py") -> str:
        Path(name).write_text(textwrap.dedent(text))
        return name

    def run(self, *line: str) -> Ran:
        assert line[0] == sys.executable
        done = self._forked(*line[1:])
        return Ran(done.returncode, done.stdout, done.stderr)

    def each(self, *lines: list[str]) -> list[Ran]:
        return [self.run(*line) for line in lines]

    def anew(self, *line: str) -> Ran:
        """In a process that has imported nothing: for what is printed of the stack."""
        done = subprocess.run(
            line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=self.LIMIT, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def both(self, text: str, *args: str, options: tuple[str, ...] = ()) -> list[Ran]:
        """The script by python and by genie run."""
        name = self.write(text)
        return self.each([sys.executable, name, *args], [*self.GENIE, *options, name, *args])

    def same(self, text: str, *args: str, options: tuple[str, ...] = ()) -> Ran:
        """The latter, which has printed the same."""
        plain, under = self.both(text, *args, options=options)
        assert plain.code == 0, plain.err
        assert (under.code, under.out) == (plain.code, plain.out), under.err
        return under


@pytest.fixture
def runs(tmp_path, monkeypatch, forked) -> Runs:
    """In a folder of the test's own, with the environment's defaults."""
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -m" would import the source folder
    for name in ("GENIE_EXECUTOR", "GENIE_EXECUTOR_DEVICE", "GENIE_REGISTER_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return Runs(forked)


@pytest.fixture
def children_in_forks(monkeypatch, forked) -> None:
    """What a command in this process starts python for, with the same words, runs in forks that have imported torch."""
    real = subprocess.run

    def run(words, **options):
        if words[0] != sys.executable:
            return real(words, **options)
        place = {"folder": options.get("cwd"), "environment": options.get("env", os.environ)}
        return forked(*words[1:], **place)

    def ran(words: list[str], **options) -> tuple[int, str, str]:
        assert words[0] == sys.executable
        done = run(words, **options)
        print(done.stderr, end="", file=sys.stderr)
        return done.returncode, done.stdout, done.stderr

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(child_command, "ran", ran)
