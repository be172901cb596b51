"""Programs of strangers: each run plainly and under the command, at the same time, with a time limit of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 240  # seconds; what hangs, hangs for ever


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Both(NamedTuple):
    """A program's plain run, its run under the command, and the report or graph that came of it."""

    plain: Ran
    genie: Ran
    report: dict[str, Any]


def _end(process: subprocess.Popen[str], what: str) -> Ran:
    try:
        stdout, stderr = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        pytest.fail(f"{what} did not end within {LIMIT} s\n{stdout}\n{stderr}")
    return Ran(process.returncode, stdout, stderr)


@pytest.fixture
def programs() -> Path:
    return PROGRAMS


@pytest.fixture
def limit() -> int:
    return LIMIT


@pytest.fixture
def both(tmp_path: Path) -> Callable[..., Both]:
    """Runs a program plainly and as ``genie COMMAND --json FILE … program``; output and exit code must be the same."""

    def run(name: str, command: str = "profile", *options: str, arguments: tuple[str, ...] = (), stdin: str = "",
            genie: tuple[str, ...] | None = None) -> Both:  # fmt: skip
        path = str(PROGRAMS / name)
        out = tmp_path / f"{command}.json"
        entry = genie or (sys.executable, "-m", "mindtorch.cli.main")
        lines = {
            "plain": [sys.executable, path, *arguments],
            "genie": [*entry, command, "--json", str(out), *options, path, *arguments],
        }
        processes = {}
        for which, line in lines.items():
            folder = tmp_path / which
            folder.mkdir(exist_ok=True)
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "COLUMNS": "100"}
            processes[which] = subprocess.Popen(line, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
            if stdin:
                processes[which].stdin.write(stdin)  # type: ignore[union-attr]
                processes[which].stdin.close()  # type: ignore[union-attr]
                processes[which].stdin = None
        plain, under = (_end(processes[which], " ".join(lines[which])) for which in ("plain", "genie"))
        assert under.code == plain.code, under.stderr
        if command == "profile":
            lines_after = iter(under.stdout.splitlines())  # the report comes between, before exit handlers
            assert all(line in lines_after for line in plain.stdout.splitlines()), under.stdout
        for line in plain.stderr.splitlines():
            assert line in under.stderr, under.stderr
        return Both(plain, under, json.loads(out.read_text()) if out.exists() else {})

    return run
