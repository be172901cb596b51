"""SPEC C8: where a long run is."""

from __future__ import annotations

import _thread
import io
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mindtorch.base.errors import UsageError
from mindtorch.cli import iteration_progress
from mindtorch.cli.iteration_progress import HowFar, Iterations
from mindtorch.cli.main import cli

WAITS = "    for _ in waits_here(): __import__('time').sleep(0.01)"
LOOP = f"""
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    optimizer.zero_grad()
{WAITS}
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""
BUILD = f"""
import torch
class Net(torch.nn.Linear):
  def forward(self, x):
{WAITS}
    return super().forward(x)
def build(): return Net(4, 2)
"""


def main(words: list[str]) -> int:
    """Exit code, with standard error as it is."""
    try:
        return int(cli.main(words, "genie") or 0)
    except SystemExit as end:
        return int(end.code or 0)


class Watched(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Called by the test itself: pytest sets standard error after fixtures."""
    found = Watched()
    monkeypatch.setattr("sys.stderr", found)
    return found


def test_C8_a_long_run_says_where_it_is_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is what moves the clock here, and an iteration ends every second."""
    terminal = watched(monkeypatch)
    clock, ended = Clock(), Iterations(20)
    monkeypatch.setattr(iteration_progress, "time", clock)
    said = HowFar(ended.words)
    said._began = clock.now

    def wait(timeout: float) -> bool:
        assert timeout >= 0
        clock.now += timeout
        ended(round(clock.now - 100))
        return clock.now > 161

    said._over = SimpleNamespace(acquire=wait)  # type: ignore[assignment]
    said._gone.acquire()
    said._run()
    lines = terminal.getvalue().splitlines()
    assert lines[0] == "genie: 5 of 20 iterations after 5 s"
    assert [int(line.split()[-2]) for line in lines] == [5, 10, 15, 22, 34, 51]
    assert lines[-1] == "genie: 51 iterations after 51 s"  # more than it was told of
    assert not said._gone.locked()


def test_C8_a_rank_is_named() -> None:
    ended = Iterations(None, "rank 3 of 8")
    ended(1)
    assert ended.words() == "rank 3 of 8, 1 iteration"


def test_C8_nothing_is_said_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(iteration_progress, "_FIRST", 0.0)
    threads = _thread._count()
    with HowFar(lambda: "working"):
        assert _thread._count() == threads, "no thread either"
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_C8_a_stream_that_ends_meanwhile_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    said = threading.Event()

    def words() -> str:
        said.set()
        return "working"

    monkeypatch.setattr(iteration_progress, "_FIRST", 0.0)
    monkeypatch.setattr(Watched, "write", _fails)
    with HowFar(words):
        assert said.wait(30)
    assert terminal.getvalue() == ""


def _fails(*_: object) -> int:
    raise OSError("the terminal is gone")


@pytest.mark.parametrize("program", ["loop.py", "model.py:build"])
@pytest.mark.parametrize("mode", [[], ["--device", "meta"]])
def test_C8_profiles_and_estimates_say_where_they_are_within_an_iteration(
    program: str, mode: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program waits within its third iteration until it was said where it waits."""
    terminal = watched(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(iteration_progress, "_FIRST", 0.01)
    monkeypatch.setattr(iteration_progress, "_LATER", 1.0)
    line = (LOOP if program == "loop.py" else BUILD).splitlines().index(WAITS) + 1
    said = f", at {program.partition(':')[0]}:{line}\n"
    passed: list[int] = []

    def waits_here() -> Iterator[None]:
        passed.append(1)
        began = time.monotonic()
        while len(passed) == 3 and said not in terminal.getvalue() and time.monotonic() - began < 60:
            yield

    monkeypatch.setattr("builtins.waits_here", waits_here, raising=False)
    Path("loop.py").write_text(LOOP)
    Path("model.py").write_text(BUILD)
    options = ["--input", "3x4"] if ":" in program else []
    words = ["profile", *mode, "--steps", "3", "--warmup", "2", program, *options]
    assert main(words) == 0
    words = [text for text in terminal.getvalue().splitlines(keepends=True) if text.endswith(said)]
    assert re.fullmatch(r"genie: 2 of 5 iterations after \d+ s, at \S+\n", words[-1])


def test_C8_a_comparison_says_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)

    def compare(*_: object) -> None:
        began = time.monotonic()
        while not terminal.getvalue() and time.monotonic() - began < 60:
            time.sleep(0.01)
        raise UsageError("that was long")

    monkeypatch.setattr(iteration_progress, "_FIRST", 0.0)
    monkeypatch.setattr("mindtorch.profile.report.difference.compare", compare)
    (tmp_path / "a.json").write_text("{}")
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    assert terminal.getvalue().startswith("genie: still comparing after 0 s\n")


def test_C8_whether_anybody_looks_is_asked_in_one_place() -> None:
    root = Path(__file__).resolve().parents[2]
    asked = [path for folder in ("cli", "mindtorch") for path in (root / folder).rglob("*.py")
             if re.search(r"stderr\.isatty", path.read_text())]  # fmt: skip
    assert [path.name for path in asked] == ["terminal.py"]
