"""``genie run``: a program as it is, its tensors on another device (SPEC C9)."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack

import click

from mindtorch.base.errors import UsageError
from mindtorch.program.program import Program

from .program import ProgramCommand

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie run train.py --lr 0.1                   options after the script are the script's
  genie run --executor pipe -m pkg.train        python -m pkg.train, computed by another process
  genie run --map cuda train.py                 what the program says of cuda means remote_accelerator
  GENIE_EXECUTOR=pipe genie run train.py        the executor is that of the environment
"""


@click.command(name="run", cls=ProgramCommand, epilog=_EPILOG, short_help="Run a program on another device.")
@click.option(
    "--device",
    metavar="DEVICE",
    help="Where tensors are made that name no device: remote_accelerator[:i], the default; with --map, only if given.",
)
@click.option(
    "--map", "mapped", type=click.Choice(["cuda"]), help="What the program says of CUDA means remote_accelerator."
)
@click.option(
    "--executor",
    type=click.Choice(["local", "loopback", "pipe", "ray"]),
    help="What computes; default: GENIE_EXECUTOR, or local.",
)
@click.option("--address", metavar="ADDRESS", help="Of the cluster, with --executor ray.")
@click.option(
    "-m", "as_module", is_flag=True, help="PROGRAM is a module: run as python -m PROGRAM, what follows is its own."
)
@click.argument("argument", metavar="PROGRAM")
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    argument: str,
    script_args: tuple[str, ...],
    device: str | None,
    mapped: str | None,
    executor: str | None,
    address: str | None,
    as_module: bool,
) -> int:
    """Run PROGRAM, a script or a module (-m), unchanged: as python would, but on remote_accelerator.

    Tensors that name no device are made there. Its output, exit code and traceback are its own.
    """
    index = None if device is None and mapped else _index(device or "remote_accelerator")
    program = Program.parse(argument, script_args, as_module=as_module)
    if program.is_model:
        raise UsageError(f"{argument} is a model, which does not run by itself: give a script, or a module (-m)")
    _choose(executor, address)
    # On a machine with CUDA, too, torch is to know the device by its name: the program has been told to use it.
    os.environ.setdefault("GENIE_REGISTER_DEVICE", "always")
    import mindtorch

    mindtorch._bootstrap()
    from mindtorch.patch.cuda_names import cuda_is_ours
    from mindtorch.patch.default_device import default_device

    moved = ExitStack()
    atexit.register(moved.close)  # after what the program registers, which runs as the program does
    if mapped:
        moved.enter_context(cuda_is_ours())
    if index is not None:
        moved.enter_context(default_device(index))
    outcome = program.run()
    outcome.show()
    return outcome.exit_code


def _index(name: str) -> int:
    """The index of the recording device that is meant."""
    from mindtorch.devices.names import device

    try:
        asked = device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: {error}") from error
    if asked.type != "remote_accelerator":
        raise UsageError(f"--device {name}: expected remote_accelerator[:i]; on {asked.type}, run it with python")
    return asked.index or 0


def _choose(executor: str | None, address: str | None) -> None:
    """Let the environment say what computes: also to processes that the program starts."""
    if address is not None and executor != "ray":
        raise UsageError("--address is for --executor ray")
    if executor is not None:
        os.environ["GENIE_EXECUTOR"] = executor
    if executor == "ray":
        import mindtorch

        connect = getattr(mindtorch, "connect", None)
        if connect is None:
            raise UsageError("--executor ray: this version of mindtorch has no Ray transport")
        connect(address)
