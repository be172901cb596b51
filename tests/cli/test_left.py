"""C8: a program that ends by os._exit has a report of what ran until then, and ends as it would under plain Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
ENTRY = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"
PROGRAM = """
import atexit, multiprocessing, os, sys, threading, time
import torch

atexit.register(print, "an exit handler")
how = sys.argv[1]
model = torch.nn.Linear(4, 4)
for step in range(4):
    model(torch.ones(2, 4)).sum().backward()
torch.save(model, "model.pt")
if how == "child":
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(5,))
    child.start()
    child.join()
    print("child", child.exitcode)
elif how == "hangs":
    threading.Thread(target=time.sleep, args=(300,)).start()
print("leaves", flush=True)
if how == "thread":
    threading.Thread(target=os._exit, args=(3,)).start()
    time.sleep(60)
elif how == "caught":
    try:
        os._exit(3)
    except BaseException:
        pass
    sys.exit(1)
os._exit(3)
"""


@pytest.fixture
def run(tmp_path: Path, forked: Callable[..., subprocess.CompletedProcess[str]]) -> Run:
    """The program in the test's folder by a command of genie's: (exit code, output, errors)."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def ran(how: str, *command: str) -> tuple[int, str, str]:
        done = forked("-c", ENTRY, *command, "train.py", how, folder=tmp_path, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return ran


@pytest.mark.parametrize(("how", "command"), [
    ("at its end", ("profile",)), ("at its end", ("profile", "--target", "h100")), ("at its end", ("graph",)),
    ("hangs", ("profile",)), ("child", ("profile",)), ("caught", ("profile",)),
])  # fmt: skip
def test_C8_what_leaves_by_os_exit_has_a_report(tmp_path: Path, run: Run, how: str, command: tuple[str, ...]) -> None:
    printed = "child 5\nleaves\n" if how == "child" else "leaves\n"
    code, out, err = run(how, *command, "--json", "report.json")
    assert (code, out[: len(printed)]) == (3, printed), err
    assert "an exit handler" not in out and "Traceback" not in err and "ended with" in err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nodes"] if command == ("graph",) else report["totals"]["ops"] and report["exit_code"] == 3
    assert (tmp_path / "model.pt").exists() == ("--target" not in command)


def test_C8_os_exit_in_another_thread_ends_at_once_and_says_so(run: Run) -> None:
    code, out, err = run("thread", "profile")
    assert (code, out) == (3, "leaves\n") and "os._exit(3) in a thread of its own: no report" in err


def test_C4_check_says_what_it_found_of_a_program_that_leaves(tmp_path: Path, run: Run) -> None:
    code, out, err = run("at its end", "check", "--target", "h100")
    assert out.startswith("leaves\ntrain.py: ") and "an exit handler" not in out, err
    assert code == (0 if "runs and fits" in out else 1)
    assert not (tmp_path / "model.pt").exists()
