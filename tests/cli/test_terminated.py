"""C8: a program that SIGTERM ends has a report of what ran until then, and ends by it as under plain Python."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mindtorch.program import termination
from mindtorch.program.outcome import captured

Run = Callable[..., tuple[int, str, str]]
ENTRY = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"
PROGRAM = """
import functools, multiprocessing, os, signal, sys, time
import torch

print = functools.partial(print, flush=True)

def save(number, frame):
    print("saved")
    sys.exit(7)

def child(how):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    print("child", process.exitcode)

how = sys.argv[1]
print(signal.getsignal(signal.SIGTERM).name)
if how == "handled":
    print(signal.signal(signal.SIGTERM, save).name)
elif how == "put back":
    signal.signal(signal.SIGTERM, save)
    print(signal.signal(signal.SIGTERM, signal.SIG_DFL).__name__)
elif how == "forks":
    child(how)
model = torch.nn.Linear(4, 4)
for step in range(10**6):
    try:
        model(torch.ones(2, 4)).sum().backward()
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
    except Exception:
        print("not reached")
"""


@pytest.fixture
def run(tmp_path: Path, forked: Callable[..., subprocess.CompletedProcess[str]]) -> Run:
    """The program in the test's folder, under python or by a command of genie's: (exit code, output, errors)."""

    def ran(how: str, *command: str) -> tuple[int, str, str]:
        done = forked(*(("-c", ENTRY) if command else ()), *command, "train.py", how, folder=tmp_path, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return ran


@pytest.mark.parametrize(("how", "command"), [
    ("default", ("profile",)), ("default", ("profile", "--target", "h100")), ("default", ("graph",)),
    ("handled", ("profile",)), ("put back", ("profile",)), ("forks", ("profile",)),
])  # fmt: skip
def test_C8_what_sigterm_ends_has_a_report_and_ends_by_it(
    tmp_path: Path, run: Run, how: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    code, printed, _ = run(how)
    assert code == (7 if how == "handled" else -signal.SIGTERM)
    under, out, err = run(how, *command, "--json", "report.json")
    assert (under, out[: len(printed)]) == (code, printed), err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nodes"] if command == ("graph",) else report["totals"]["ops"]
    if how != "handled":
        assert "genie: ended by SIGTERM; the" in err and "Traceback" not in err
        assert command == ("graph",) or (report["interrupted"] and report["exit_code"] == termination.EXIT_CODE)


def test_C8_a_program_that_goes_on_after_sigterm_is_ended_all_the_same(tmp_path: Path, run: Run) -> None:
    (tmp_path / "train.py").write_text("""
import os, signal, time
from mindtorch.program import termination
termination.PATIENCE = 0.2
print("begins", flush=True)
while True:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except BaseException:
        time.sleep(600)
""")
    code, printed, _ = run("", "profile")
    assert (code, printed) == (-signal.SIGTERM, "begins\n")


def test_C8_what_handles_sigterm_already_is_left_alone() -> None:
    def handler(number: int, frame: object) -> None:
        raise ValueError

    kept = signal.signal(signal.SIGTERM, handler)
    try:
        with termination.ending_with_a_report():
            assert signal.getsignal(signal.SIGTERM) is handler
            assert isinstance(captured(lambda: signal.raise_signal(signal.SIGTERM)).error, ValueError)
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_C8_afterwards_nothing_is_left_of_it() -> None:
    set_, get = signal.signal, signal.getsignal
    assert get(signal.SIGTERM) == signal.SIG_DFL

    def program() -> None:
        with termination.ending_with_a_report():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL != get(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    outcome = captured(program)
    assert outcome.terminated and outcome.interrupted and outcome.exit_code == termination.EXIT_CODE
    assert (signal.signal, signal.getsignal) == (set_, get) and get(signal.SIGTERM) == signal.SIG_DFL
