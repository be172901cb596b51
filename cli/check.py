"""``genie check``: would an accelerator take this program? If not, what would it say, and at which line (SPEC C4)."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import traceback
from typing import TYPE_CHECKING, Any

import click

from mindtorch.program.workload import DTYPES, Request

from .program import ProgramCommand, claimed_stdout, parse_program, program_arguments, torch_npu_for

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
  genie check --target l4 --batch 8 --seq 4096 config.json
"""


class _CheckCommand(ProgramCommand):
    """``--target`` may also follow a script that is given no arguments of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) >= 3 and args[-2] == "--target" and not args[0].startswith("-") and "--target" not in args[:-2]:
            args = [*args[-2:], *args[:-2]]
        return super().parse_args(ctx, args)


@click.command(
    cls=_CheckCommand, name="check", epilog=_EPILOG, short_help="Would an accelerator take it? Exit code 0 or 1."
)
@click.option("--target", "target_name", metavar="NAME", required=True, help="The accelerator, as of genie profile.")
@click.option("--assume", type=float, metavar="NUMBER", help="What values that nobody knows are taken for (default 0).")
@click.option("--routing", type=click.Choice(["balanced"]), help="Choices among unknown values choose all alike.")
@click.option("--seq", type=click.IntRange(min=1), metavar="N", help="Of a config.json: tokens of a sequence.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Of a config.json: sequences.")
@click.option("--decode", type=click.IntRange(min=1), metavar="N", help="Of a config.json: tokens to generate.")
@click.option("--train", is_flag=True, help="Of a config.json: a training step with AdamW.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of a config.json: what the weights are made of.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON; what PROGRAM prints goes to stderr.")
@program_arguments
def command(
    argument: str,
    script_args: tuple[str, ...],
    as_module: bool,
    inputs: tuple[str, ...],
    target_name: str,
    assume: float | None,
    routing: str | None,
    seq: int | None,
    batch: int | None,
    decode: int | None,
    train: bool,
    dtype: str | None,
    as_json: bool,
) -> int:
    """Run PROGRAM without data, and list what the accelerator refuses: the first error that nobody catches.

    Exit code 0: nothing is refused, and it fits. 1: something is. 2: it cannot be told.
    """
    request = Request(seq, batch, decode, train, dtype)
    program = parse_program(argument, script_args, inputs, request=request, as_module=as_module)
    with claimed_stdout(as_json):
        target, outcome, peak = _run(program, target_name, assume or 0.0, routing is not None)
    found = _refusals(program, outcome)
    if as_json:
        click.echo(json.dumps({"target": target.key, "peak_bytes": peak, "refused": found}, indent=2))
    else:
        _show(program, target, outcome, peak, found)
    if outcome.interrupted:
        return 130
    if not found:
        return 0
    return 2 if found[0]["kind"] == "not known" else 1


def _run(program: Program, target_name: str, assume: float, balanced: bool) -> tuple[Target, Outcome, int]:
    import mindtorch
    from mindtorch.profile.cost import targets

    target = targets.find(target_name)
    mindtorch._bootstrap()
    from mindtorch.profile.estimate.estimator import Estimator

    program.estimate = True
    program.device = "cuda" if target.key != "cpu" else None
    estimator = Estimator(target=target, assume=assume, balanced=balanced, oom="raise")
    with estimator, torch_npu_for(True, target.device):
        outcome = program.run(1, 0, estimator.stage if program.is_model else None)
    memory = estimator.recording().memory
    return target, outcome, 0 if memory is None else int(memory["peak_bytes"])


def _refusals(program: Program, outcome: Outcome) -> list[dict[str, Any]]:
    """What ended the program, with the innermost of its own lines; nothing where it ended by itself."""
    error = outcome.error
    if error is None or outcome.interrupted or isinstance(error, SystemExit):
        return []
    import torch

    from mindtorch.base.errors import NoDataError, UnsupportedOperationError

    kind = "refused"
    if isinstance(error, (NoDataError, UnsupportedOperationError)):
        kind = "not known"
    elif isinstance(error, torch.OutOfMemoryError):
        kind = "does not fit"
    file, line = _place(program, error)
    return [
        {
            "kind": kind,
            "error": type(error).__name__,
            "message": str(error),
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).strip() if file else "",
        }
    ]


def _place(program: Program, error: BaseException) -> tuple[str, int]:
    """Of the frames in the program's own folder the innermost; else the innermost that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    folder = os.path.dirname(os.path.abspath(program.path))
    libraries = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "<")
    own = [f for f in frames if not any(part in f.filename for part in libraries)]
    here = [f for f in own if os.path.abspath(f.filename).startswith(folder + os.sep)]
    for found in (here, own, frames):
        if found:
            return found[-1].filename, found[-1].lineno or 0
    return "", 0


def _show(program: Program, target: Target, outcome: Outcome, peak: int, found: list[dict[str, Any]]) -> None:
    from .units import bytes_text

    words = {
        "refused": "does not take this",
        "does not fit": "has not the memory for this",
        "not known": "may take this: an estimate cannot tell",
    }
    for each in found:
        file = each["file"]
        with contextlib.suppress(ValueError):  # on another drive
            relative = os.path.relpath(file) if file else ""
            file = relative if relative and not relative.startswith("..") else file
        click.echo(f"{file}:{each['line']}: {target.name} {words[each['kind']]}")
        if each["source"]:
            click.echo(f"    {each['source']}")
        click.echo(f"  {each['error']}: {each['message']}")
    if found or outcome.interrupted:
        return
    click.echo(f"{program.argument}: {target.name} takes all of it, {bytes_text(peak, '0 B')} at most")
    if outcome.exit_code:
        click.echo(f"  it ended with exit code {outcome.exit_code}, of its own accord")
