"""What is said after a report: why there is little in it, and how the program ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mindtorch.program import blame

from .exit_codes import exit_code, interruption
from .program_command import hint_torch_npu
from .units import assumption, counted

if TYPE_CHECKING:
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["hint_options", "last_words", "ran_anything", "say_whose", "worth_showing"]


def last_words(program: Program, outcome: Outcome, report: dict[str, Any], command: click.Command) -> int:
    """Say on stderr what the report does not; the program's exit code. ``command``: the one with genie's options.

    Of a program that failed at most two lines, after its own traceback: how it ended, and what may have been the cause.
    """
    if program.is_model:
        say_whose(program, outcome)
    if outcome.interrupted:
        click.echo(f"genie: {interruption(outcome)}; the report covers what ran until then", err=True)
    elif outcome.exit_code and not program.is_model:
        how = f"os._exit({outcome.exit_code})" if outcome.left else f"exit code {outcome.exit_code}"
        ended = f"genie: {program.argument} ended with {how}"
        if ran_anything(report) and not worth_showing(outcome, report):
            ops = (report["totals"].get("ops") or 0) + (report["startup"].get("ops") or 0)
            ended += f" after {counted(ops, 'op')}: too little for a report; --json FILE writes one anyway"
        click.echo(ended, err=True)
        if not (
            hint_options(program, outcome, command)
            or say_whose(program, outcome)
            or _hint_tools(program, outcome)
            or _hint_assumed(outcome, report)
        ):
            hint_torch_npu(outcome.error)
    elif not ran_anything(report) and report.get("unseen"):
        unseen = " and ".join(counted(row["count"], row["what"]) for row in report["unseen"])
        click.echo(f"genie: {program.argument} ran no torch op itself; genie does not see what {unseen} ran", err=True)
    elif not ran_anything(report):
        names = program.candidates() if program.kind == "script" else []
        hint = (
            f"; to profile a model it defines: genie profile {program.path}:{names[0]} --input SHAPE" if names else ""
        )
        others = f" (also {', '.join(names[1:6])})" if len(names) > 1 else ""
        click.echo(f"genie: {program.argument} ran no torch op{hint}{others}", err=True)
    return exit_code(outcome)


def say_whose(program: Program, outcome: Outcome) -> bool:
    """Of an estimate that ended by an error of ours: say that it is one; whether it was."""
    ours = program.estimate and outcome.ours and outcome.error is not None and not blame.says_so(outcome.error)
    if ours:
        click.echo(f"genie: {blame.REPORT}", err=True)
    return ours


def ran_anything(report: dict[str, Any]) -> bool:
    """Whether there is a single op to show; a script that failed before its first one has only its error."""
    return bool((report.get("totals") or {}).get("ops") or (report.get("startup") or {}).get("ops"))


def worth_showing(outcome: Outcome, report: dict[str, Any]) -> bool:
    """Whether there is anything to read in it. Of a program that failed only where it had come further than its first
    iteration, or where it says what did not fit; of one that chose its exit code, where it called a model."""
    if not ran_anything(report) or not outcome.exit_code or outcome.interrupted:
        return ran_anything(report)
    if type(outcome.error).__name__ == "OutOfMemoryError":
        return True
    if outcome.left or isinstance(outcome.error, SystemExit):
        return any(row.get("calls") for row in report.get("modules") or [])
    return bool((report.get("steps") or {}).get("count", 0) > 1)


def _hint_tools(program: Program, outcome: Outcome) -> bool:
    """Of an estimate that ended since this machine lacks what builds a program's kernels."""
    lacking = program.estimate and outcome.error is not None and blame.is_of_this_machine(outcome.error)
    if lacking:
        click.echo(f"genie: {blame.TOOLS}", err=True)
    return lacking


def _hint_assumed(outcome: Outcome, report: dict[str, Any]) -> bool:
    """A program that failed may have done so for what an estimate took a value for."""
    if not report.get("assumed") or (outcome.error is not None and blame.says_so(outcome.error)):
        return False
    row = blame.assumption_behind(outcome.error, report["assumed"])
    click.echo(
        f"genie: before that, the program read an unknown value at {row['file']}:{row['line']}, assumed to be "
        f"{assumption(row['last'])}; --assume sets another value",
        err=True,
    )
    return True


def hint_options(program: Program, outcome: Outcome, command: click.Command) -> bool:
    """A script that refuses an option of genie's: the option was put behind the script."""
    if not isinstance(outcome.error, SystemExit):
        return False  # it went on with it: the option is its own, too
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    misplaced = [word for word in program.script_args if word.split("=")[0] in options]
    if misplaced:
        click.echo(
            f"genie: {' '.join(misplaced)} was given to {program.argument}; put genie's options before it", err=True
        )
    return bool(misplaced)
