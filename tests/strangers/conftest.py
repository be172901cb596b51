"""Programs of strangers: each run plainly and under the command, at the same time, with a time limit of its own."""

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


def _start(line: list[str], stdin: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(line, cwd=folder, env={**os.environ, "COLUMNS": "100", **environment}, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    if stdin:
        process.stdin.write(stdin)  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
        process.stdin = None
    return process


@pytest.fixture
def together(tmp_path: Path) -> Callable[..., dict[str, Ran]]:
    """Runs command lines at the same time, each in a folder of its own or all in one; how each of them ended."""

    def run(lines: dict[str, list[str]], stdin: str = "", folder: Path | None = None,
            **environment: str) -> dict[str, Ran]:  # fmt: skip
        processes = {}
        for which, line in lines.items():
            place = tmp_path / which
            place.mkdir(exist_ok=True)
            cache = str(place / "inductor")
            processes[which] = _start(line, stdin, folder or place, TORCHINDUCTOR_CACHE_DIR=cache, **environment)
        return {which: _end(process, " ".join(lines[which])) for which, process in processes.items()}

    return run


@pytest.fixture
def both(tmp_path: Path, together: Callable[..., dict[str, Ran]]) -> Callable[..., Both]:
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
        ran = together(lines, stdin)
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
