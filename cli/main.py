"""The ``genie`` group: subcommands are imported when they are named, errors become one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from mindtorch.base.errors import UsageError

from .exit_codes import BY_SIGINT, BY_SIGTERM, ENDS_WITH_THE_COMMAND

__all__ = ["cli", "entry"]

_COMMANDS = (
    "profile",
    "diff",
    "graph",
    "run",
    "check",
    "devices",
    "worker",
    "calibrate",
)  # each is the module of that name in this package, with a `command`


class Genie(click.Group):
    """Lazy group with the exit codes of SPEC C8: 2 for a request that cannot be met, 130 for Ctrl-C."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if near := _nearest(cmd_name):
                ctx.fail(f"No such command '{cmd_name}'. Did you mean '{near}'?")
            return None
        command: click.Command = importlib.import_module(f"{__package__}.{cmd_name}").command
        return command

    def main(  # type: ignore[override]  # click overloads the return type by standalone_mode
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        code: Any
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = 0
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "genie"
            _complain(error.format_message(), where, f" (see {where} --help)")
            code = 2
        except UsageError as error:
            _complain(str(error), "genie")
            code = 2
        except click.ClickException as error:
            _complain(error.format_message(), "genie")
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted", "genie")
            code = 130
        except BrokenPipeError:  # `genie ... | head`: the reader has what it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except OSError as error:
            if error.filename is not None:  # not about our own output
                raise
            if error.errno == errno.ENOENT:  # of what has no name, the current directory alone can be missing
                _complain("the current directory no longer exists", "genie")
                sys.exit(2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor try again when the interpreter ends
            _complain(f"cannot write to standard output: {error.strerror}", "genie")
            code = (
                2 if (sys.argv[1:] if args is None else args)[:1] == ["check"] else 1
            )  # there, 1 is said of the target
        code = code if isinstance(code, int) else 0
        if (leaving := sys.modules.get("mindtorch.program.os_exit")) is not None:
            leaving.leave(code)
        sys.exit(code)


def _nearest(name: str) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, _COMMANDS, 1)), None)


def _complain(message: str, where: str, more: str = "") -> None:
    line = " ".join(message.split())
    click.echo(f"{where}: {line.removesuffix('.')}{more}", err=True)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from mindtorch.base.hardware import package_version

    click.echo(f"genie {package_version('mindtorch-genie') or '(not installed)'}, torch {package_version('torch')}")
    ctx.exit()


_EPILOG = """\b
Examples:
  genie profile train.py --lr 0.1     options after the script are the script's
  genie profile model.py:build --input 1x3x224x224
  genie diff before.json after.json   compare two reports
  genie graph model.py:build --input 1x128:int64 --dot graph.dot
  genie run train.py --lr 0.1         the same, computed by another executor
  genie check --target h100 train.py  does it run and fit there?
  genie devices npu                   exit code 3 when it cannot be used
"""


@click.group(cls=Genie, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the versions."
)
def cli() -> None:
    """See what any PyTorch program does: ops, modules, phases, bytes and FLOPs. The program stays unmodified."""


def _open_closed_streams() -> None:
    """Where the shell closed one (``>&-``), Python has None for it, and the next file to be opened takes its place."""
    for name, flags, mode in ("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)  # the lowest that is free: its own
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def entry() -> None:
    """The console script: the process ends with the command."""
    _open_closed_streams()
    try:
        cli.main(prog_name="genie", obj=ENDS_WITH_THE_COMMAND)
    except SystemExit as end:
        if end.code == BY_SIGTERM:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os.kill(os.getpid(), signal.SIGTERM)
        if end.code != BY_SIGINT:
            raise
    # So that whoever called, a shell's loop, ends too: Python does this with an interrupt that nobody has caught.
    sys.excepthook = lambda *_error: None  # it has been shown
    raise KeyboardInterrupt


if __name__ == "__main__":
    entry()
