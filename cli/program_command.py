"""Commands that take a program: which words are genie's, and what stdout is for while the user's program runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import click

from mindtorch.program.program import split_argument

__all__ = ["ProgramCommand", "claimed_stdout", "hint_torch_npu", "torch_npu_for"]


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
