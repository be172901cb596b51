"""``genie graph --passes``: what each pass of the optimization engine did in a program (SPEC L13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mindtorch.base.errors import UsageError

from .exit_codes import BY_SIGINT
from .units import bytes_text, counted

if TYPE_CHECKING:
    from mindtorch.program.program import Program

__all__ = ["show_passes"]


def show_passes(program: Program) -> int:
    """Run the program on remote_accelerator with all passes, and print a line for each. Returns its exit code."""
    if program.is_model:
        raise UsageError(
            f"{program.argument} is a model, and nothing reads its results: --passes is for scripts and modules"
        )
    import mindtorch

    mindtorch._bootstrap()
    from mindtorch.engine import passes
    from mindtorch.patch.default_device import default_device

    known = passes.known_passes()
    before = passes.set_passes(known)
    mindtorch.reset_stats()
    try:
        with default_device(0):
            outcome = program.run()
            outcome.show(interrupts=True)
            mindtorch.flush("end")
            stats = mindtorch.stats()
    finally:
        passes.set_passes(before)
    ran, dropped = counted(stats["ops_executed"], "recorded call"), counted(stats["ops_dropped"], "call")
    click.echo(
        f"{ran} ran, in {counted(stats['segments'], 'segment')}; {dropped} never ran because nothing could read "
        "the result"
    )
    width = max(len(each.name) for each in known)
    for each in known:
        calls, nbytes = stats["passes"].get(each.name, 0), stats["bytes_saved"].get(each.name, 0)
        saved = f", {bytes_text(nbytes)} not allocated" if nbytes else ""
        click.echo(f"{each.name:{width}}  {counted(calls, 'call')}{saved}{'' if each.on else ' (off by default)'}")
    return BY_SIGINT if outcome.interrupted else outcome.exit_code
