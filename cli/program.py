"""Commands that take a program: which options are genie's, and what stdout is for while the user's program runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from mindtorch.program.program import Program, split_argument
from mindtorch.program.workload import Request

from .output import OutputFile

__all__ = [
    "ProgramCommand", "claimed_stdout", "hint_torch_npu", "parse_program", "program_arguments", "torch_npu_for",
]  # fmt: skip


class ProgramCommand(click.Command):
    """Everything after a script is the script's (SPEC C1). A model (``model.py:name``, ``config.json``) takes no
    arguments of its own, so options after it are genie's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        argument, after = values.get("argument"), values.get("script_args")
        if isinstance(argument, str) and not values.get("as_module") and split_argument(argument)[0] != "script":
            ctx.allow_interspersed_args = True
            place = len(args) - len(after if isinstance(after, (list, tuple)) else ()) - 1
            if place and args[place - 1] == "--":
                args = [*args[: place - 1], *args[place:]]
        return super().parse_args(ctx, args)


def program_arguments(function: Any) -> Any:
    """PROGRAM, the script's arguments, ``-m`` and ``--input``."""
    function = click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")(function)
    function = click.argument("argument", metavar="PROGRAM")(function)
    function = click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as in python -m PROGRAM.")(
        function
    )
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="An input of a model, e.g. 1x3x224x224 or 'ids=1x128:int64<50257' (integers are 0 without a bound). "
        "Once per input, in order or by name; batch.ids=1x128:int64 is the entry ids of a dict named batch.",
    )(function)


def parse_program(
    argument: str,
    script_args: tuple[str, ...],
    inputs: tuple[str, ...],
    *files: OutputFile | None,
    request: Request | None = None,
    as_module: bool = False,
) -> Program:
    """The program, and the promise that every output file can be written and none replaces the program."""
    program = Program.parse(argument, script_args, inputs, request, as_module)
    program.reported = True
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


@contextlib.contextmanager
def torch_npu_for(estimate: bool, kind: str | None = None) -> Iterator[None]:
    """A program that imports torch_npu finds ours, where the real one is not installed and it would be used: an NPU is
    there, or in an estimate.

    kind: what torch calls the accelerator that an estimate is of; None: it is of none.
    """
    from mindtorch import npu
    from mindtorch.npu import finder

    if estimate and kind not in (None, "npu"):
        yield  # a program that may do without it does so
        return
    # Libraries that look for it without being asked to are answered on the chip that was named, and nowhere else.
    finder.watch((lambda: True) if estimate else npu.is_available, probes=kind == "npu")
    try:
        yield
    finally:
        finder.unwatch()


def hint_torch_npu(error: BaseException | None) -> None:
    """What to do when the program ended for want of torch_npu."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
        from mindtorch import npu

        why = npu.why_unavailable() or "an estimate of another accelerator does without it"
        click.echo(
            f"genie: torch_npu is not installed, and mindtorch's replacement was not used: {why}; genie profile "
            "--target 910b runs such a program anywhere, without data",
            err=True,
        )
