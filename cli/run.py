"""``genie run``: a program as it is, its tensors on another device (SPEC C9)."""

from __future__ import annotations

import atexit
import os
import re
import time
from contextlib import ExitStack, suppress

import click

from mindtorch.base.errors import UsageError
from mindtorch.program.program import Program

from .exit_codes import BY_SIGINT, ENDS_WITH_THE_COMMAND
from .program_command import ProgramCommand, module_option

__all__ = ["command"]

_MANY_READS = 1000  # fewer of them are what any training reads of its losses

_EPILOG = """\b
Examples:
  genie run train.py --lr 0.1              options after the script are its own
  genie run --executor pipe -m pkg.train   a module, computed by a child process
  genie run --map cuda train.py            cuda means remote_accelerator
  genie run --device remote_accelerator:1 train.py
  genie run --executor pipe --explain train.py                which lines wait
  genie run --executor pipe --workers 3 --map cuda train.py   too large for one
  genie run --executor ray --resources gpus=0.5 --wait train.py   half a GPU
"""


class WaitingCommand(ProgramCommand):
    """``--wait`` takes a number where one follows; what else follows is the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [each for each in self.params if isinstance(each, click.Option) and not each.is_flag]
        valued = {name for option in options for name in option.opts}
        made, place = list(args), 0
        while place < len(made) and made[place].startswith("-") and made[place] != "--":  # then comes the program
            if made[place] == "--wait" and not re.fullmatch(r"[\d.]+|forever", "".join(made[place + 1 : place + 2])):
                made[place] = "--wait=forever"
            place += 2 if made[place] in valued else 1
        return super().parse_args(ctx, made)


@click.command(name="run", cls=WaitingCommand, epilog=_EPILOG, short_help="Run a program on remote_accelerator.")
@click.option(
    "--device",
    metavar="DEVICE",
    help="Default device: remote_accelerator[:i]. With --map alone, the CPU stays the default.",
)
@click.option(
    "--map", "mapped", type=click.Choice(["cuda"]), help="Use remote_accelerator where the program asks for CUDA."
)
@click.option(
    "--executor",
    metavar="local|loopback|pipe|ray|MODULE:CLASS",
    help="The executor that computes; overrides GENIE_EXECUTOR.",
)
@click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster; overrides GENIE_ADDRESS.")
@click.option(
    "--workers",
    type=click.IntRange(1, 128),
    metavar="N",
    help="With --executor ray or pipe: number of workers, remote_accelerator:0 to N-1. A model too large for one is "
    "divided among all.",
)
@click.option(
    "--resources",
    metavar="NAME=VALUE,...",
    help="What each worker on the Ray cluster reserves, and where: cpus, gpus, memory, custom.NAME, placement, node, "
    "labels.NAME, runtime_env, name. Also JSON, or a .json file. Overrides GENIE_RESOURCES.",
)
@click.option(
    "--wait",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value="forever",
    help="Wait for free resources on the Ray cluster: SECONDS, or as long as it takes. Overrides GENIE_WAIT.",
)
@click.option("--plan", is_flag=True, help="Show how the program's model is divided among the workers, and stop.")
@click.option("--explain", is_flag=True, help="At the end, list the lines that waited for values from the executor.")
@module_option
@click.argument("argument", metavar="PROGRAM")
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    argument: str,
    script_args: tuple[str, ...],
    device: str | None,
    mapped: str | None,
    executor: str | None,
    address: str | None,
    workers: int | None,
    resources: str | None,
    wait: str | None,
    plan: bool,
    explain: bool,
    as_module: bool,
) -> int:
    """Run PROGRAM, a script or a module (-m), as python would, but on remote_accelerator.

    Tensors for which the program names no device are created there. Output, exit code and traceback are the program's.
    """
    index = None if device is None and mapped else _index(device or "remote_accelerator")
    program = Program.parse(argument, script_args, as_module=as_module)
    if program.is_model:
        raise UsageError(f"{argument} is a model, which nothing calls: give a script, or a module (-m)")
    stack = ExitStack()
    atexit.register(stack.close)  # after what the program registers, which runs as the program does
    try:
        _choose(executor, address, workers, stack)
        _ask_for(resources, wait, stack)
        _move(index, mapped is not None, stack)
        _show_plans(plan, stack)
        begun = time.perf_counter()
        outcome = program.run()
        seconds = time.perf_counter() - begun
        outcome.show(interrupts=True)
        if plan:
            _plan_the_rest()
        else:
            _say_where_it_ran(index is None)
            if explain:
                _explain(seconds)
            else:
                _say_what_it_waited_for(seconds)
    finally:
        ends = click.get_current_context().find_root().obj == ENDS_WITH_THE_COMMAND
        if not ends:
            atexit.unregister(stack.close)
            stack.close()
    return BY_SIGINT if outcome.interrupted and ends else outcome.exit_code


def _show_plans(only: bool, stack: ExitStack) -> None:
    """Let plans be shown when they are made; only: and the program end then."""
    from mindtorch.base import config

    if only and (config.executor() not in ("ray", "pipe") or (config.workers() or 1) < 2):
        raise UsageError("--plan is for several workers: --executor ray or pipe, and --workers 2 or more")
    if config.executor() not in ("ray", "pipe"):
        return
    from mindtorch.engine.remote import placing

    from .plan_table import lines

    def show(plans: list[placing.Plan]) -> None:
        for line in lines(plans):
            click.echo(f"genie run: {line}" if not line.startswith(" ") else line, err=not only)
        if only:
            click.echo("  what the program asks for later is planned when it does")

    stack.callback(placing.tell, *placing.tell(show, only))


def _plan_the_rest() -> None:
    """Of a program that has ended before it asked for a value of its model's."""
    from mindtorch.engine.execute import values
    from mindtorch.engine.remote import placing

    if not placing.has_planned(modules=True):
        with suppress(SystemExit):
            values.flush("plan")
    if not placing.has_planned():
        click.echo("genie run: nothing to plan: the program ran no module on remote_accelerator:0", err=True)


def _say_where_it_ran(stays: bool) -> None:
    """One line, where the program had parameters and none of them has ever been on the device. stays: only what asks
    for CUDA goes there."""
    from mindtorch.engine.tensor.classes import parameters

    if parameters.plain and not parameters.ours:
        why = "the program chooses another device itself; --map cuda is for programs that ask for CUDA"
        if stays:
            why = "the program did not move them to CUDA; without --map cuda, they start there if it names no device"
        click.echo(f"genie run: none of the program's parameters was ever on remote_accelerator: {why}", err=True)


def _say_what_it_waited_for(seconds: float) -> None:
    """One line, where another process computed, and the program spent most of its time with many reads."""
    from mindtorch.base import config
    from mindtorch.base.words import counted
    from mindtorch.engine.execute import counters, triggers

    from .waits_table import line_of

    places = triggers.waits()
    reads, waited = sum(row.reads for row in places), sum(row.seconds for row in places)
    if config.executor() in ("local", "loopback") or reads < _MANY_READS or waited < seconds / 2:
        return
    most = places[0]
    operations = round(counters.stats()["ops_executed"] / reads)
    click.echo(
        f"genie run: {reads:,} reads of values took {waited:.1f} s of {seconds:.1f} s, {most.reads:,} of them at "
        f"{line_of(most)} ({most.seconds:.1f} s). Each read waits for the executor, on average for "
        f"{counted(operations, 'operation')}; fewer reads of larger tensors wait less. --explain lists the lines",
        err=True,
    )


def _explain(seconds: float) -> None:
    """Where the program waited, a line each, on standard error, where its own output is not."""
    from mindtorch.engine.execute import triggers

    from .waits_table import lines

    for line in lines(triggers.waits(), seconds):
        click.echo(line, err=True)


def _index(name: str) -> int:
    """The index of the recording device that is meant."""
    from mindtorch.devices.names import device

    try:
        asked = device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: {error}") from error
    if asked.type != "remote_accelerator":
        raise UsageError(f"--device {name}: expected remote_accelerator[:i]; to run on {asked.type}, use python")
    return asked.index or 0


def _choose(executor: str | None, address: str | None, workers: int | None, stack: ExitStack) -> None:
    """Say what computes, in the environment: to processes that the program starts, too."""
    from mindtorch.base import config

    executor = None if executor is None else config.executor_named(executor, "--executor")
    if address is not None and executor != "ray":
        raise UsageError("--address is for --executor ray")
    if workers is not None and executor not in ("ray", "pipe"):
        raise UsageError("--workers is for --executor ray and --executor pipe")
    if executor is not None:
        _set("GENIE_EXECUTOR", executor, stack)
    if config.executor() == "ray":
        from mindtorch.cluster.broker_client import check_ray

        check_ray()
    if address is not None:
        _set("GENIE_ADDRESS", address, stack)
    if config.executor() == "ray":
        from mindtorch.cluster.addresses import where

        where(config.address())  # now, and not in the middle of the program, where nobody is there
    if workers is not None:
        _set("GENIE_WORKERS", str(workers), stack)
    if "GENIE_REGISTER_DEVICE" not in os.environ:
        _set("GENIE_REGISTER_DEVICE", "always", stack)  # on a machine with CUDA, too: the program is to use the device


def _ask_for(resources: str | None, wait: str | None, stack: ExitStack) -> None:
    """What is asked of a Ray cluster, in the environment, too."""
    from mindtorch.base import config

    for option, value in (("--resources", resources), ("--wait", wait)):
        if value is not None and config.executor() != "ray":
            raise UsageError(f"{option} is for --executor ray")
    if resources is not None:
        from mindtorch.base.resources import Resources

        Resources.of(resources, "--resources")
        _set("GENIE_RESOURCES", resources, stack)
    if wait is not None:
        _set("GENIE_WAIT", wait, stack)
        config.wait()


def _set(name: str, value: str, stack: ExitStack) -> None:
    before = os.environ.get(name)
    stack.callback(os.environ.pop, name, None) if before is None else stack.callback(os.environ.update, {name: before})
    os.environ[name] = value


def _move(index: int | None, cuda: bool, stack: ExitStack) -> None:
    import mindtorch

    mindtorch._bootstrap()
    from mindtorch.patch.cuda_names import cuda_is_ours
    from mindtorch.patch.default_device import default_device

    if cuda:
        stack.enter_context(cuda_is_ours())
    if index is not None:
        stack.enter_context(default_device(index))
