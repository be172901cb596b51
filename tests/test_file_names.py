"""C2: two files of one name are told apart, wherever a report names a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.base.file_names import short_names
from mindtorch.cli.main import cli
from mindtorch.profile.measure.run_queue import RunQueue


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ([], []),
        (["/x/a.py", "/x/b.py", "/x/a.py"], ["a.py", "b.py", "a.py"]),
        (["/x/a/t.py", "/x/b/t.py"], ["a/t.py", "b/t.py"]),
        (["/x/a/m/t.py", "/x/b/m/t.py", "/x/t.py"], ["a/m/t.py", "b/m/t.py", "/x/t.py"]),
        (["t.py", "/t.py"], ["t.py", "/t.py"]),
        (["", "<string>"], ["", "<string>"]),
        (["/x/engine/__init__.py", "/x/a.py"], ["engine/__init__.py", "a.py"]),
        (["/x/e/__init__.py", "/y/e/__init__.py"], ["x/e/__init__.py", "y/e/__init__.py"]),
    ],
)
def test_C2_files_have_as_many_folders_as_tell_them_apart(files: list[str], names: list[str]) -> None:
    found = short_names(files)
    assert [found[file] for file in files] == names


MODEL = """
import time
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(512, 512)

    def forward(self, x):
        return self.inner(x).relu() + x


def rest():
    return sum(i * i for i in range(3_000_000))
"""
PROGRAM = """
import torch
from a.net import Net as A, rest
from b.net import Net as B

one, two = A(), B()
for _ in range(4):
    one(torch.ones(4096, 512)).sum().backward(), two(torch.ones(4096, 512)).sum().backward()
    rest()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "net.py").write_text(MODEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_C2_lines_of_two_files_of_one_name_are_told_apart(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunQueue, "look", lambda self: 0)  # what other programs cost is none of it
    line = ["profile", "--by", "line", "--json", "r.json", "--flame", "f.json", "--trace", "t.json", "program.py"]
    found = CliRunner().invoke(cli, line, prog_name="genie")
    assert found.exit_code == 0, found.output
    assert "a/net.py:11" in found.output and "b/net.py:11" in found.output
    report = json.loads((here / "r.json").read_text())
    (row,) = [row for row in report["findings"] if row["id"] == "python-line"]
    assert "(a/net.py:15)" in row["text"]
    for file in ("f.json", "t.json"):
        text = (here / file).read_text()
        assert "a/net.py:11" in text and "b/net.py:11" in text and "(net.py:11" not in text, file
    found = CliRunner().invoke(cli, ["profile", "program.py"], prog_name="genie")
    memory = found.output.partition("Memory  at the peak")[2].partition("Modules")[0]
    assert "/net.py:11" in memory and "(net.py" not in memory
