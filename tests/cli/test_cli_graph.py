"""SPEC C6: ``genie graph`` as text, JSON and DOT."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return torch.relu(self.layer(x))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "use.py").write_text(NET + "\nprint('said')\nNet()(torch.ones(3, 4)).sum().backward()\n")
    return tmp_path


def genie(*args: str):
    return CliRunner().invoke(cli, ["graph", *args], prog_name="genie")


def test_C6_text(here):
    result = genie("net.py:Net", "--input", "3x4")
    assert result.exit_code == 0, result.output
    assert "layer" in result.stdout and "relu" in result.stdout


def test_C6_json(here):
    result = genie("net.py:Net", "--input", "3x4", "--json", "-")
    assert result.exit_code == 0, result.output
    graph = json.loads(result.stdout)
    assert graph["nodes"] and "edges" in graph


def test_C6_dot_to_a_file_and_json_beside_it(here):
    result = genie("--dot", "g.dot", "--json", "g.json", "use.py")
    assert result.exit_code == 0, result.output
    assert (here / "g.dot").read_text().lstrip().startswith("digraph")
    json.loads((here / "g.json").read_text())
    assert result.stdout == "said\n"


def test_C6_script_prints_before_the_graph(here):
    result = genie("use.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("said\n")


@pytest.mark.parametrize(
    ("args", "word"),
    [(["nowhere.py"], "does not exist"), (["net.py:nope"], "Net"), (["--dot", ".", "use.py"], "directory"),
     (["net.py:Net", "--input", "x"], "[NAME=]SHAPE")],
)  # fmt: skip
def test_C8_bad_requests(here, args, word):
    before = sorted(os.listdir(here))
    result = genie(*args)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and word in result.stderr
    assert [name for name in sorted(os.listdir(here)) if name != "__pycache__"] == before


def test_C8_script_that_fails_keeps_its_exit_code_and_what_it_recorded(here):
    (here / "bad.py").write_text("import torch\ntorch.ones(2) + 1\nraise SystemExit(4)")
    result = genie("bad.py")
    assert result.exit_code == 4 and "add" in result.stdout


def test_C8_input_that_does_not_fit(here):
    result = genie("net.py:Net", "--input", "3x5")
    assert result.exit_code == 2 and "3x5 (float32)" in result.stderr and result.stdout == ""
