"""SPEC L13: ``genie graph --passes`` says what the optimization engine did in a program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli
from mindtorch.engine import passes

SCRIPT = """
import torch
x = torch.linspace(0, 1, 1000)
for _ in range(6):
    y = ((x + 1) * 2).exp() + x.sin() + x.sin()
    for _ in range(3):
        y = torch.sqrt(y)
    print(f"{y.sum().item():.6f}")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    return "script.py"


def graph(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["graph", *args], prog_name="genie")
    return result.exit_code, result.stdout, result.stderr


def test_L13_a_line_for_each_pass_says_what_it_did(script: str) -> None:
    before = passes.set_passes(None)
    code, out, _ = graph("--passes", script)
    lines = out.splitlines()
    assert code == 0 and len({*lines[:6]}) == 1  # what the program prints
    assert re.match(r"\d+ recorded calls ran, in \d+ segments; ", lines[6])
    found = {line[:23].strip(): line[23:] for line in lines[7:]}
    assert re.fullmatch(r"[1-9]\d* calls, [\d.]+ KiB not allocated", found["in place"])
    assert re.fullmatch(r"[1-9]\d* calls?, [\d.]+ KiB not allocated \(off by default\)", found["common subexpressions"])
    assert "direct calls" in found
    assert [each.name for each in passes.set_passes(before)] == [each.name for each in before]  # as it was


def test_L13_passes_are_shown_of_scripts_alone(script: str) -> None:
    code, out, err = graph("--passes", "--init", script)
    assert code == 2 and not out and "--passes shows no graph and cannot be combined with other options" in err
    code, out, err = graph("--passes", f"{script}:NAME")
    assert code == 2 and not out and "--passes is for scripts and modules" in err


def test_L13_the_programs_exit_code_is_kept(script: str) -> None:
    Path(script).write_text(SCRIPT + "raise SystemExit(3)\n")
    assert graph("--passes", script)[0] == 3
