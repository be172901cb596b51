"""C10: ``genie check`` on sixty programs that a chip runs and sixty that it refuses, by torch's own sources."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner

from mindtorch.cli.main import cli

START = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nC = 'cuda'\n"


class Program(NamedTuple):
    """words: of the error; source: of torch's, where it is raised."""

    kind: str
    target: str
    source: str
    words: str
    text: str


def programs() -> Iterator[Program]:
    text = Path(__file__).with_name("checked_programs.txt").read_text(encoding="utf-8")
    for block in text.split("\n==== ")[1:]:
        head, _, program = block.partition("\n")
        kind, target, source, words = (*(part.strip() for part in head.split("|")), "", "")[:4]
        yield Program(kind, target, source, words, program)


EVERY = list(programs())
RUNS, REFUSED = ([row for row in EVERY if row.kind == kind] for kind in ("runs", "refused"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    gc.collect()  # an error keeps tensors alive, which the next program's card would hold
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    yield tmp_path
    torch.use_deterministic_algorithms(False)
    gc.collect()


def check(here: Path, row: Program) -> tuple[int, list[dict[str, Any]]]:
    (here / "program.py").write_text(START + row.text)
    result = CliRunner().invoke(cli, ["check", "--target", row.target, "--json", "program.py"], prog_name="genie")
    found: list[dict[str, Any]] = json.loads(result.stdout)["refused"]
    return result.exit_code, found


def test_C10_there_are_sixty_of_each() -> None:
    assert (len(RUNS), len(REFUSED), len({row.text + row.target for row in EVERY})) == (60, 60, 120)
    assert all(row.source for row in REFUSED)


@pytest.mark.sample(12)
@pytest.mark.parametrize("row", RUNS, ids=[f"{at}-{row.target}" for at, row in enumerate(RUNS)])
def test_C10_what_a_chip_runs_is_not_refused(here: Path, row: Program) -> None:
    assert check(here, row) == (0, [])


@pytest.mark.sample(12)
@pytest.mark.parametrize("row", REFUSED, ids=[f"{at}-{row.target}" for at, row in enumerate(REFUSED)])
def test_C10_what_a_chip_refuses_is_refused_in_torchs_words(here: Path, row: Program) -> None:
    code, found = check(here, row)
    assert code == 1 and row.words in found[0]["message"], found
    assert len(START.splitlines()) < found[0]["line"] <= len((START + row.text).splitlines())
