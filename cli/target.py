"""Commands that take a target: which options are genie's, and what stdout is for while the user's program runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from mindtorch.program.run import Program, split_target
from mindtorch.program.workload import Request

from .output import OutputFile

__all__ = ["TargetCommand", "claimed_stdout", "parse_target", "target_arguments"]


class TargetCommand(click.Command):
    """Everything after a script is the script's (SPEC C1). A model (``model.py:name``, ``config.json``) takes no
    arguments of its own, so options after it are genie's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        target, after = values.get("target"), values.get("script_args")
        if isinstance(target, str) and not values.get("as_module") and split_target(target)[0] != "script":
            ctx.allow_interspersed_args = True
            place = len(args) - len(after if isinstance(after, (list, tuple)) else ()) - 1
            if place and args[place - 1] == "--":
                args = [*args[: place - 1], *args[place:]]
        return super().parse_args(ctx, args)


def target_arguments(function: Any) -> Any:
    """TARGET, the script's arguments, ``-m`` and ``--input``."""
    function = click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")(function)
    function = click.argument("target")(function)
    function = click.option(
        "-m", "as_module", is_flag=True, help="TARGET is a module: run as python -m TARGET, what follows is its own."
    )(function)
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="An input of a model, e.g. 1x3x224x224 or 'ids=1x128:int64<50257' (integers are 0 without a bound). "
        "Once per input, in order or by name; batch.ids=1x128:int64 is the entry ids of a dict named batch.",
    )(function)


def parse_target(
    target: str,
    script_args: tuple[str, ...],
    inputs: tuple[str, ...],
    *files: OutputFile | None,
    request: Request | None = None,
    as_module: bool = False,
) -> Program:
    """The program, and the promise that every output file can be written and none replaces the program."""
    program = Program.parse(target, script_args, inputs, request, as_module)
    given = [file for file in files if file is not None]
    for index, file in enumerate(given):
        file.check(program.path)
        if any(file.same_as(other) for other in given[:index]):
            raise click.UsageError(f"{file.name} is given for two outputs")
    return program


@contextlib.contextmanager
def claimed_stdout(claim: bool) -> Iterator[None]:
    """With ``claim``, what the user's program prints goes to stderr meanwhile, its child processes' and C code's
    output included: stdout is then the JSON and nothing else."""
    if not claim:
        yield
        return
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # a stand-in without a file descriptor (tests, notebooks)
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    saved = os.dup(number)
    os.dup2(sys.stderr.fileno(), number)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(saved, number)
        os.close(saved)
