"""``genie check``: would an accelerator take this program? If not, what would it say, and at which line (SPEC C4)."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import traceback
from typing import TYPE_CHECKING, Any

import click

from mindtorch.base import clusters
from mindtorch.program import blame
from mindtorch.program.workload import Request

from .estimate_output import left_alone, writes_nothing
from .exit_codes import exit_code
from .program_command import (
    ProgramCommand,
    ProgramWords,
    assumption_options,
    claimed_stdout,
    program_arguments,
    request_options,
)
from .sizing import chosen_rank, runner

if TYPE_CHECKING:
    from mindtorch.profile.cost.targets import Target
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie check --target h100 train.py --lr 0.1     will it run, will it fit?
  genie check train.py --target h100              the same, without options
  genie check --target l4 model.py:build --input 8x3x224x224
  genie check --target 8xh100 --rank all train.py     every rank that may differ
  genie check --target l4 --batch 8 --seq 4096 config.json
"""


class _CheckCommand(ProgramCommand):
    """``--target`` may also follow a script that is given no arguments of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) >= 3 and args[-2] == "--target" and not args[0].startswith("-") and "--target" not in args[:-2]:
            args = [*args[-2:], *args[:-2]]
        return super().parse_args(ctx, args)


@click.command(
    cls=_CheckCommand,
    name="check",
    epilog=_EPILOG,
    short_help="Check whether a program runs and fits on an accelerator.",
)
@click.option("--target", "target_name", metavar="NAME", required=True, help="The accelerator, as for genie profile.")
@click.option(
    "--rank", "rank_text", metavar="N", help="With several accelerators: the rank to check, or all (default: 0)."
)
@assumption_options()
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; PROGRAM's own output goes to stderr.")
@program_arguments
def command(
    words: ProgramWords,
    request: Request,
    target_name: str,
    rank_text: str | None,
    assume: float | None,
    routing: str | None,
    as_json: bool,
) -> int:
    """Run PROGRAM without data, and report the first uncaught error that the accelerator would raise.

    Exit code 0: it runs and fits. 1: the accelerator refuses it, or the program itself fails. 2: genie cannot tell.
    """
    program = words.parse(request=request)
    accelerator, cluster = clusters.chosen(target_name, rank_text, None, None if program.is_model else words.argument)
    writes_nothing()
    with claimed_stdout(as_json):
        target, outcome, estimator, lost = _run(program, str(accelerator), cluster, assume, routing is not None)
    recording = estimator.recording()
    memory = recording.memory or {"peak_bytes": 0}
    peak = int(memory.get("peak_device_bytes", memory["peak_bytes"]))
    rank = None if cluster is None else estimator.cluster.rank
    found = _refusals(program, target, outcome, recording.assumed)
    if not found and not outcome.interrupted and memory.get("fits") is False:
        found = [_too_much(memory, peak)]
    if not found and not outcome.interrupted and not any(recording.ops):  # the time between them is one
        found = [_nothing_ran(outcome.exit_code)]
    if not found and lost:
        found = [_nothing_of(lost)]
    apart = dict(recording.left_alone)
    if as_json:
        facts = {"target": target.key, "rank": rank, "peak_bytes": peak, "refused": found, **apart}
        click.echo(json.dumps(facts, indent=2))
    else:
        _show(program, target, "" if cluster is None else f", rank {rank} of {cluster.size}", outcome, peak, found)
        if not found and peak and memory["device"] == "cpu" != target.key:
            click.echo("  the program puts nothing on the accelerator: this is host memory")
        for line in left_alone(apart):
            click.echo(f"  {line}")
    if outcome.interrupted:
        return exit_code(outcome)
    if not found:
        return 0
    return 2 if found[0]["kind"] == "not known" else 1


def _run(
    program: Program, target_name: str, cluster: clusters.Cluster | None, assume: float | None, balanced: bool
) -> tuple[Target, Outcome, Any, list[int]]:
    """What happened, the estimator, and the ranks that ended without a word: their processes were ended."""
    import mindtorch
    from mindtorch.profile.cost import targets

    target = targets.find(target_name)
    mindtorch._bootstrap()
    program.estimate = True
    program.device = "cuda" if target.key != "cpu" else None
    run = runner(program, target, cluster, assume=assume, balanced=balanced, oom="raise")
    rank, rows = chosen_rank(program, cluster, run)
    outcome, estimator, _made = run(rank)
    return target, outcome, estimator, [row["rank"] for row in rows or () if row["exit_code"] is None]


def _too_much(memory: dict[str, Any], peak: int) -> dict[str, Any]:
    """No tensor of the program's alone is beyond the capacity, but what torch's allocator and the driver take is."""
    from .units import bytes_text

    at = memory.get("at") or {}
    file, line = at.get("file") or "", int(at.get("line") or 0)
    capacity = bytes_text(int(memory["capacity_bytes"]))
    message = f"{bytes_text(peak)} of {capacity} on the card, including what torch's allocator and the driver reserve"
    return _row("does not fit", "OutOfMemoryError", message, file, line)


def _row(kind: str, error: str, message: str, file: str = "", line: int = 0, note: str = "") -> dict[str, Any]:
    """One of the list, with the text of the line."""
    return {
        "kind": kind,
        "error": error,
        "message": message,
        "file": file,
        "line": line,
        "source": linecache.getline(file, line).strip() if file else "",
        "note": note,
    }


def _nothing_ran(exit_code: int) -> dict[str, Any]:
    ended = f"the program itself ended with exit code {exit_code}" if exit_code else "the program ended"
    return _row("not known", "", f"{ended} and ran no torch operation")


def _nothing_of(ranks: list[int]) -> dict[str, Any]:
    return _row("not known", "", f"rank {', '.join(map(str, ranks))} ended without a result")


def _refusals(
    program: Program, target: Target, outcome: Outcome, assumed: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What ended the program, with the innermost of its own lines; nothing where it ended by itself."""
    error = outcome.error
    if error is None or outcome.interrupted or isinstance(error, SystemExit):
        return []
    import torch

    from .units import assumption

    kind = "refused"
    lacking = target.key != "cpu" and blame.is_of_this_machine(error)
    if outcome.ours or lacking or _of_an_assumption(error, assumed) or (outcome.own and _of_a_branch(error, assumed)):
        kind = "not known"
    elif isinstance(error, torch.OutOfMemoryError):
        kind = "does not fit"
    elif outcome.own:
        kind = "fails"
    file, line = _place(program, error)
    note = ""
    if outcome.ours and not blame.says_so(error):
        note = f"{blame.REPORT} with the line above and the output of genie check --json"
    elif lacking:
        note = blame.TOOLS
    elif kind == "not known" and assumed and not blame.says_so(error):
        last = blame.assumption_behind(error, assumed)
        place = f"{last['file'].rpartition('/')[2]}:{last['line']}"
        what = f"the value that {last['op']} reads" if last["operand"] else last["op"]
        note = f"{what} at {place} was assumed to be {assumption(last['last'])}; --assume sets another value"
    return [_row(kind, type(error).__name__, str(error), file, line, note)]


def _of_an_assumption(error: BaseException, assumed: list[dict[str, Any]]) -> bool:
    """Whether another value than was assumed may have kept the program from this error.

    One of Python's own, after something was assumed; any error, in a call that has read what was assumed; one of sizes,
    after a mask that nobody knows decided on some.
    """
    import torch

    from mindtorch import ops

    if not assumed or isinstance(error, torch.OutOfMemoryError):
        return False
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    in_torch = bool(frames) and f"{os.sep}torch{os.sep}" in frames[-1][0]
    if isinstance(error, _PYTHONS) and not in_torch:
        return True
    if _OF_SIZES.search(str(error)) and any(ops.about(f"aten::{row['op']}").sizes_from_values for row in assumed):
        return True
    return any((row["file"], row["line"]) in frames for row in assumed)


def _of_a_branch(error: BaseException, assumed: list[dict[str, Any]]) -> bool:
    """Whether an error that the program's own code raises may come of a way that it took for what was assumed.

    What is missing on this machine is missing whichever way it goes.
    """
    from mindtorch import ops

    decided = any(row["op"] == "bool" or ops.about(f"aten::{row['op']}").sizes_from_values for row in assumed)
    return decided and not isinstance(error, (ImportError, OSError))


_OF_SIZES = re.compile(r"\b(sizes?|shapes?|elements?|length|out of bounds|out of range|larger than)\b")


_PYTHONS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, StopIteration, ValueError)


def _place(program: Program, error: BaseException) -> tuple[str, int]:
    """Of the frames in the program's own folder the innermost; else the innermost that is no library's."""
    from mindtorch.profile.report.lines import package_of

    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    folder = os.path.dirname(os.path.abspath(program.path))
    own = [f for f in frames if not f.filename.startswith("<") and package_of(f.filename) in ("", "standard library")]
    here = [f for f in own if os.path.abspath(f.filename).startswith(folder + os.sep)]
    for found in (here, own, frames):
        if found:
            return found[-1].filename, found[-1].lineno or 0
    return "", 0


def _show(
    program: Program, target: Target, rank: str, outcome: Outcome, peak: int, found: list[dict[str, Any]]
) -> None:
    from .units import bytes_text

    words = {
        "refused": "rejects this",
        "does not fit": "does not have the memory for this",
        "not known": "may accept this: an estimate cannot tell",
        "fails": "is not the cause: the program itself fails",
    }
    for each in found:
        file = each["file"]
        with contextlib.suppress(OSError, ValueError):  # there is no current directory; on another drive
            relative = os.path.relpath(file) if file else ""
            file = relative if relative and not relative.startswith("..") else file
        place = f"{file}:{each['line']}" if file else program.argument
        click.echo(f"{place}: {target.name}{rank} {words[each['kind']]}")
        if each["source"]:
            click.echo(f"    {each['source']}")
        click.echo(f"  {each['error']}: {each['message']}" if each["error"] else f"  {each['message']}")
        if each["note"]:
            click.echo(f"  {each['note']}")
    if found or outcome.interrupted:
        return
    click.echo(f"{program.argument}: runs and fits on {target.name}{rank}; peak {bytes_text(peak, '0 B')}")
    if outcome.exit_code:
        click.echo(f"  the program itself ended with exit code {outcome.exit_code}")
