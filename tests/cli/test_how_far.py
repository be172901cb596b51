"""SPEC C8: where a long run is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.cli import how_far
from mindtorch.cli.how_far import HowFar
from mindtorch.cli.main import cli

LOOP = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""
BUILD = "import torch\ndef build(): return torch.nn.Linear(4, 2)\n"


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(how_far, "time", found)
    monkeypatch.setattr(how_far, "_terminal", lambda: True)
    return found


def test_C8_a_long_run_says_where_it_is_more_and_more_seldom(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    tell = HowFar(20)
    for second in range(61):
        clock.now = 100.0 + second
        tell(second)
        said += [(second, line) for line in capsys.readouterr().err.splitlines()]
    assert said[0] == (5, "genie: 5 of 20 iterations after 5 s")
    assert [second for second, _ in said] == [5, 10, 15, 23, 35, 53]
    assert said[-1] == (53, "genie: 53 iterations after 53 s")  # more than it was told of


def test_C8_a_rank_is_named(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    tell = HowFar(None, "rank 3 of 8")
    clock.now += 5
    tell(1)
    assert capsys.readouterr().err == "genie: rank 3 of 8, 1 iteration after 5 s\n"


def test_C8_nothing_is_said_where_nobody_looks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(how_far, "_terminal", lambda: False)
    tell = HowFar(20)
    clock.now += 100
    tell(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("program", ["loop.py", "model.py:build"])
@pytest.mark.parametrize("mode", [[], ["--device", "meta"]])
def test_C8_profiles_and_estimates_say_where_they_are(
    program: str, mode: list[str], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(how_far, "_FIRST", 0.0)
    Path("loop.py").write_text(LOOP)
    Path("model.py").write_text(BUILD)
    options = ["--input", "3x4"] if ":" in program else []
    result = CliRunner().invoke(cli, ["profile", *mode, "--steps", "3", "--warmup", "2", program, *options])
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if "iteration" in line and line.startswith("genie: ")]
    assert said[:4] == [f"genie: {n} of 5 iterations after 0 s" for n in (1, 2, 3, 4)]
