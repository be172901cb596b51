"""The README is what a newcomer pastes and CI runs, so it is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def command(word: str) -> str:
    (line,) = re.findall(rf"<!-- command: {word} -->\n```sh\n(.+)\n```", README)
    return line


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("profile", "genie profile examples/gpt2.py"),
        ("test", "pytest -n 2 --dist worksteal"),
    ],
)
def test_layout_readme_commands_are_one_line_from_nothing(word: str, end: str) -> None:
    line = command(word)
    assert line.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt ")
    assert line.endswith(f" && {end}")


def test_layout_ci_runs_the_readmes_test_command() -> None:
    assert "<!-- command: test -->" in (ROOT / ".ci" / "run").read_text()


def test_L11_every_environment_variable_is_in_the_readmes_table() -> None:
    sources = [ROOT / "setup.py"]
    for folder in ("mindtorch", "cli", "_ext"):
        sources += [path for suffix in ("py", "pyx") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    used = {name for path in sources for name in re.findall(r"\bGENIE_[A-Z_]+\b", path.read_text())}
    documented = set(re.findall(r"^\| `(GENIE_[A-Z_]+)` \|", README, re.MULTILINE))
    assert documented - used == set(), "the README promises what nothing reads"
    assert used - documented == set(), "missing from the README's table"


def test_layout_files_the_readme_names_exist() -> None:
    named = set(re.findall(r"(?:^|[ `])((?:examples|tests|asv_bench|\.ci)/[\w./]+)", README))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
