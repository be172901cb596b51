"""What is said after a report: why there is little in it, and how the program ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from mindtorch.program import blame

from .program import hint_torch_npu
from .units import counted

if TYPE_CHECKING:
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["last_words", "ran_anything", "say_whose"]


def last_words(program: Program, outcome: Outcome, report: dict[str, Any], options: Collection[str]) -> int:
    """Say on stderr what the report does not; the program's exit code. ``options``: the command's own, as ``--by``."""
    if outcome.exit_code and report.get("assumed") and not outcome.interrupted:
        row = report["assumed"][0]
        place = f"{row['file']}:{row['line']}"
        click.echo(
            f"genie: before that, the program read what an estimate does not know, at {place}, and it was taken for "
            f"{row['value']}; --assume chooses another number",
            err=True,
        )
    say_whose(program, outcome)
    if outcome.interrupted:
        click.echo("genie: interrupted; the report covers what ran until then", err=True)
    elif outcome.exit_code and not program.is_model:
        click.echo(f"genie: {program.argument} ended with exit code {outcome.exit_code}", err=True)
        _hint_options(program, options)
        hint_torch_npu(outcome.error)
    elif not ran_anything(report) and report.get("unseen"):
        unseen = " and ".join(counted(row["count"], row["what"]) for row in report["unseen"])
        click.echo(f"genie: {program.argument} ran no torch op itself; what {unseen} ran is not seen", err=True)
    elif not ran_anything(report):
        names = program.candidates() if program.kind == "script" else []
        hint = (
            f"; to profile a model it defines: genie profile {program.path}:{names[0]} --input SHAPE" if names else ""
        )
        others = f" (also {', '.join(names[1:6])})" if len(names) > 1 else ""
        click.echo(f"genie: {program.argument} ran no torch op{hint}{others}", err=True)
    return outcome.exit_code


def say_whose(program: Program, outcome: Outcome) -> None:
    """Of an estimate that ended by an error of ours: that it is one."""
    if program.estimate and outcome.ours and outcome.error is not None and not blame.says_so(outcome.error):
        click.echo(f"genie: {blame.REPORT}", err=True)


def ran_anything(report: dict[str, Any]) -> bool:
    """Whether there is a single op to show; a script that failed before its first one has only its error."""
    return bool((report.get("totals") or {}).get("ops") or (report.get("startup") or {}).get("ops"))


def _hint_options(program: Program, options: Collection[str]) -> None:
    """A script that refuses an option of genie's: the option was put behind the script."""
    misplaced = [word for word in program.script_args if word.split("=")[0] in options]
    if misplaced:
        click.echo(
            f"genie: {' '.join(misplaced)} was given to {program.argument}; options for genie go before it", err=True
        )
