"""SPEC C8 and S11: the command as a whole."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

ENTRY = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in the checkout, "python -c" would import the source folder


def genie(*args: str):
    return CliRunner().invoke(cli, list(args), prog_name="genie")


@pytest.mark.parametrize("args", [[], ["profile"], ["diff"], ["graph"], ["run"], ["check"], ["devices"]])
def test_C8_help_has_examples_and_fits_80_columns(args):
    result = genie(*args, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 82  # click indents the block by two


def test_C8_commands_are_listed():
    listed = genie("--help").stdout.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "] == [
        "profile", "diff", "graph", "run", "check", "devices", "worker", "calibrate"
    ]  # fmt: skip


def test_C8_bare_genie_prints_its_help_as_help():
    bare, asked = (CliRunner().invoke(cli, args, prog_name="genie") for args in ([], ["--help"]))
    assert bare.exit_code == 0 and bare.stderr == "" and bare.stdout == asked.stdout


def test_C8_unknown_command():
    result = genie("nonesuch")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "nonesuch" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("profil", "profile"), ("Profile", "profile"), ("grahp", "graph"), ("device", "devices")]
)
def test_C8_an_unknown_command_names_the_nearest(typed, meant):
    for more in ([], ["--help"], ["x.py"]):
        result = genie(typed, *more)
        assert result.exit_code == 2
        assert result.stderr == f"genie: No such command '{typed}'. Did you mean '{meant}'? (see genie --help)\n"
    assert "mean" not in genie("nonesuch").stderr


def test_C8_version():
    result = genie("--version")
    assert result.exit_code == 0 and result.stdout.startswith("genie ") and "torch 2" in result.stdout


@pytest.mark.parametrize("args", [["--help"], ["profile", "--help"], ["profile", "nowhere.py"], ["devices", "npu"]])
def test_S11_no_torch_no_numpy(args):
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: sys.stderr.write('HEAVY' * bool({'torch', 'numpy'} & set(sys.modules))))\n" + ENTRY
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert "HEAVY" not in done.stderr and "Traceback" not in done.stderr


def test_S11_help_does_not_import_rich():
    code = "import atexit, sys\natexit.register(lambda: sys.stderr.write('RICH' * ('rich' in sys.modules)))\n" + ENTRY
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.stderr == ""


def test_S11_help_is_quick():
    """Within 0.2 s, because it imports little: of others click only."""
    code = (
        "import atexit, sys\nbefore = set(sys.modules)\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(set(sys.modules) - before)))\n" + ENTRY
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    imported = done.stderr.split()
    assert {name.partition(".")[0] for name in imported} - {*sys.stdlib_module_names} == {"mindtorch", "click"}
    assert len(imported) < (130 if sys.version_info >= (3, 11) else 133)  # with Python's own


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
@pytest.mark.parametrize(
    "args", [["--version"], ["nonesuch"], ["devices", "cpu"], ["check", "--target", "h100", "p.py"]]
)
def test_C8_closed_streams_are_no_error(closed, args, tmp_path, forked):
    """AttributeError: 'NoneType' object has no attribute 'flush'."""
    (tmp_path / "p.py").write_text(
        "import torch\nprint(torch.ones(2).sum().item())\nassert open('p.py').fileno() > 2\n"
    )
    code = f"import os, sys\nfor name, fd in zip(('stdin', 'stdout', 'stderr'), range(3)):\n    if fd in {closed}:\n"
    ran = forked("-c", code + "        os.close(fd)\n        setattr(sys, name, None)\n" + ENTRY, *args)
    assert ran.returncode == (2 if args == ["nonesuch"] else 0), ran.stderr
    assert "Traceback" not in ran.stderr and bool(ran.stdout) == (1 not in closed and args != ["nonesuch"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_C8_full_disk_behind_stdout_is_called_so_where_a_file_goes_there(tmp_path, forked):
    (tmp_path / "one.py").write_text("import torch\ntorch.ones(2) + 1\n")
    lost = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); "
    ran = forked("-c", lost + ENTRY, "profile", "--json", "-", "one.py")
    assert ran.returncode == 1 and ran.stderr == "genie: cannot write to standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_C10_full_disk_behind_stdout_says_nothing_of_the_target(tmp_path, forked):
    """Exit code 1 said that the accelerator refuses the program."""
    (tmp_path / "one.py").write_text("import torch\ntorch.ones(2) + 1\n")
    lost = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); "
    ran = forked("-c", lost + ENTRY, "check", "--target", "h100", "one.py")
    assert ran.returncode == 2 and ran.stderr == "genie: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("code", ["0", "3", "'no'"])
def test_C8_model_file_that_ends_the_process_is_refused(tmp_path, code):
    """A script, taken for a model's file: genie ended with exit code 0, and said nothing."""
    (tmp_path / "ends.py").write_text(f"import sys\nsys.exit({code})\n")
    (tmp_path / "made.py").write_text(f"import sys\ndef build():\n    sys.exit({code})\n")
    for name, what in ("ends.py", "ends.py, when it was imported,"), ("made.py", "made.py:build()"):
        result = genie("profile", f"{name}:build", "--input", "1x3")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1] == f"genie: {what} called sys.exit({code}); expected a model"


def test_C8_a_current_folder_that_is_gone_is_one_line(monkeypatch, capsys):
    """It was said of standard output, which has nothing to do with it."""

    def removed(*args, **kwargs):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")  # as os.getcwd() does, without a name

    monkeypatch.setattr(click.Group, "main", removed)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check"], prog_name="genie")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "genie: the current directory no longer exists\n"
