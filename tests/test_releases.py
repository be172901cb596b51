"""The command that tries torch releases and Pythons (docs/CHECKS.md), without installing anything."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("releases_command", ROOT / "tests" / "releases.py")
assert _spec is not None and _spec.loader is not None
releases = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = releases  # its dataclasses and tuples look themselves up
_spec.loader.exec_module(releases)

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_L1_a_python_is_found_by_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = releases.interpreter(HERE)
    assert found is not None
    said = subprocess.run([found, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    assert said.stdout.strip() == str(sys.version_info[:2])
    pyenv = tmp_path / "versions" / "9.9.1" / "bin" / "python"
    pyenv.parent.mkdir(parents=True)
    pyenv.touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert releases.interpreter("9.9") == str(pyenv)
    assert releases.interpreter("9.8") is None


def test_L1_a_pair_that_cannot_be_tried_says_why(tmp_path: Path) -> None:
    row = releases.attempt("2.15", "9.8", releases.options([]), tmp_path)
    assert row[:4] == ("2.15", "9.8", 0, 0) and row.why == "no Python 9.8 here"
    assert [line.split() for line in releases.table([row])][1][:4] == ["2.15", "9.8", "0", "0"]


@pytest.mark.parametrize(
    "said, row",
    [
        ("ERROR: No matching distribution found for torch==2.15.*", (0, 0, "the index has no torch 2.15 for Python ")),
        ("there is no version of torch==2.15.* and so", (0, 0, "the index has no torch 2.15 for Python ")),
        ("ERROR: no answer", (0, 1, "ERROR: no answer")),
    ],
)
def test_L1_a_torch_that_is_not_made_for_a_python_is_no_failure_of_ours(
    said: str, row: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "install.py"
    script.write_text(f"import sys\nassert 'torch==2.15.*' in sys.argv\nsys.exit({said!r})")
    monkeypatch.setattr(releases, "wheel", lambda *_: "mindtorch.whl")
    make, install = [sys.executable, "-c", ""], [sys.executable, str(script)]
    monkeypatch.setattr(releases, "installing", lambda *_: (make, install))
    found = releases.attempt("2.15", HERE, releases.options([]), tmp_path)
    assert (found.passed, found.failed) == row[:2] and row[2] in found.why


@pytest.mark.parametrize(
    "said, counted",
    [
        ("3 failed, 41 passed, 1 skipped, 2 errors in 7.0s", (41, 5)),
        ("1 error in 0.1s", (0, 1)),
        ("ends", (0, 0)),
        ("12 passed in 1s", (12, 0)),
    ],
)
def test_L1_results_are_those_of_pytests_last_line(said: str, counted: tuple[int, int]) -> None:
    text = f"FAILED tests/test_a.py::test_x[1] - no\nERROR tests/b/test_c.py::test_y\n{said}\n"
    assert releases.counts(text) == counted
    assert releases.failures(text) == ["test_a.py::test_x[1]", "test_c.py::test_y"]


def test_L1_an_environment_holds_what_was_installed_into_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt(torch: str, python: str, *_: Any) -> Any:
        return releases.Result(torch, python, 1, int("PYTHONPATH" in os.environ), 0.0, "")

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "argv", ["releases", "--torch", "2.15"])
    monkeypatch.setattr(releases, "attempt", attempt)
    assert releases.main() == 0, capsys.readouterr().out


@pytest.mark.whole
def test_L1_the_smoke_test_passes_here_and_fails_where_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nassert os.environ['PATH'] == os.path.dirname(sys.executable)")
    assert releases.smoke(sys.executable, tmp_path, str(program)) == (7, 0, "")
    monkeypatch.setattr(releases, "SMOKE", "print('imported')\nraise SystemExit('no torch')")
    assert releases.smoke(sys.executable, tmp_path) == (0, 1, f"{Path(sys.executable).name} -c: no torch")


def test_L1_the_tree_is_copied_without_what_git_ignores(tmp_path: Path) -> None:
    inside = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], cwd=ROOT, capture_output=True)
    if inside.returncode:  # continuous integration runs on a copy
        with pytest.raises(subprocess.CalledProcessError):
            releases.copy_tree(tmp_path)
        return
    releases.copy_tree(tmp_path)
    assert (tmp_path / "pyproject.toml").is_file() and not list(tmp_path.rglob("*.so"))


def test_L1_what_pytest_printed_is_kept_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with releases.workplace(tmp_path / "kept") as folder:
        (folder / "said").touch()
    assert (tmp_path / "kept" / "said").is_file()
    with pytest.raises(SystemExit):  # a folder that exists has something else in it
        releases.options(["--keep", str(tmp_path / "kept")])
    assert "exists already" in capsys.readouterr().err
    with releases.workplace(None) as folder:
        assert folder.is_dir()
    assert not folder.exists()
