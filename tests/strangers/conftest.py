"""Programs of strangers: each run plainly and under the command, with a time limit of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 240  # seconds; what hangs, hangs for ever
#: How a line of torch's own log begins: level and day, time, process.
LOGGED = re.compile(r"^([VDIWEC])\d{4} [\d:.]+ \d+ ", re.MULTILINE)


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Both(NamedTuple):
    """A program's plain run, its run under the command, and the report or graph that came of it."""

    plain: Ran
    genie: Ran
    report: dict[str, Any]


@pytest.fixture
def programs() -> Path:
    return PROGRAMS


@pytest.fixture
def limit() -> int:
    return LIMIT


@pytest.fixture
def each(tmp_path: Path, forked: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., dict[str, Ran]]:
    """Runs command lines, each in a folder of its own or all in one; how each of them ended.

    In forks of a process that has imported torch, unless there is something to read or torch is to be imported by them.
    """

    def run(lines: dict[str, list[str]], stdin: str = "", folder: Path | None = None, anew: bool = False,
            **environment: str) -> dict[str, Ran]:  # fmt: skip
        ran = {}
        for which, line in lines.items():
            place = tmp_path / which
            place.mkdir(exist_ok=True)
            inside = {"TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "COLUMNS": "100", **environment}
            if anew or stdin or line[0] != sys.executable:
                done = subprocess.run(line, cwd=folder or place, env=os.environ | inside, text=True, input=stdin,
                                      capture_output=True, timeout=LIMIT, check=False)  # fmt: skip
            else:
                done = forked(*line[1:], folder=folder or place, environment=os.environ | inside)
            ran[which] = Ran(done.returncode, done.stdout, done.stderr)
        return ran

    return run


@pytest.fixture
def both(tmp_path: Path, each: Callable[..., dict[str, Ran]]) -> Callable[..., Both]:
    """Runs a program plainly and as ``genie COMMAND --json FILE … program``; output and exit code must be the same."""

    def run(name: str, command: str = "profile", *options: str, arguments: tuple[str, ...] = (), stdin: str = "",
            genie: tuple[str, ...] | None = None, anew: bool = False) -> Both:  # fmt: skip
        path = str(PROGRAMS / name)
        out = tmp_path / f"{command}.json"
        entry = genie or (sys.executable, "-m", "mindtorch.cli.main")
        lines = {
            "plain": [sys.executable, path, *arguments],
            "genie": [*entry, command, "--json", str(out), *options, path, *arguments],
        }
        ran = each(lines, stdin, anew=anew)
        plain, under = ran["plain"], ran["genie"]
        assert under.code == plain.code, under.stderr
        if command == "profile":
            lines_after = iter(under.stdout.splitlines())  # the report comes between, before exit handlers
            assert all(line in lines_after for line in plain.stdout.splitlines()), under.stdout
        said = LOGGED.sub(r"\1 ", under.stderr)
        for line in LOGGED.sub(r"\1 ", plain.stderr).splitlines():
            assert line in said, under.stderr
        return Both(plain, under, json.loads(out.read_text()) if out.exists() else {})

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [(report, dict(report.user_properties)) for report in reports if "strangers" in report.nodeid]
    rows = [(report, found) for report, found in rows if "calls" in found]
    if not rows:
        return
    terminalreporter.section("strangers' programs: genie's figures beside torch's")
    line = "{:24} {:>16} {:>26} {:>20} {:>10}  {}"
    terminalreporter.write_line(line.format("program", "calls", "FLOPs of products", "peak of tensors", "kernels'", ""))
    for report, found in sorted(rows, key=lambda row: row[0].nodeid):
        peak = found.get("peak")
        pairs = (found.get(name, ())[:2] for name in ("calls", "FLOPs", "peak"))
        figures = (" / ".join(f"{value:,}" for value in pair) for pair in pairs)
        name = report.nodeid.partition("[")[2].rstrip("]")
        own = "" if peak is None else f"{peak[2] - peak[1]:,}"
        terminalreporter.write_line(line.format(name, *figures, own, "" if report.passed else "DIFFERS"))
