"""``genie graph``: the operations a program records, as text, JSON or DOT (SPEC C6)."""

from __future__ import annotations

import json
from typing import Any

import click

from mindtorch.ranks import Rank

from .output import OUTPUT, OutputFile
from .target import TargetCommand, claimed_stdout, parse_target, target_arguments
from .units import counted

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie graph model.py:build --input 1x3x224x224
  genie graph --dot graph.dot train.py --epochs 1
  genie graph --json - model.py:build --input 1x128:int64
"""


@click.command(cls=TargetCommand, name="graph", epilog=_EPILOG, short_help="The graph of every operation it makes.")
@click.option("--json", "json_file", type=OUTPUT, metavar="FILE", help="Write nodes and edges as JSON; - for stdout.")
@click.option("--dot", "dot_file", type=OUTPUT, metavar="FILE", help="Write Graphviz DOT; - for stdout.")
@target_arguments
def command(
    target: str,
    script_args: tuple[str, ...],
    as_module: bool,
    inputs: tuple[str, ...],
    json_file: OutputFile | None,
    dot_file: OutputFile | None,
) -> int:
    """Run TARGET unmodified and print the graph of every operation it made.

    Text goes to stdout, after what the program prints itself; with --json or --dot the graph goes there instead.
    """
    rank = Rank.of_process()
    if rank is not None:  # each its own file
        json_file, dot_file = (None if file is None else file.of_rank(rank.rank) for file in (json_file, dot_file))
    program = parse_target(target, script_args, inputs, json_file, dot_file, as_module=as_module)
    files = [file for file in (json_file, dot_file) if file is not None]
    with claimed_stdout(any(file.is_stdout for file in files)):
        import mindtorch

        mindtorch._bootstrap(wait=True)
        from mindtorch.children import ChildWatch
        from mindtorch.graph import capture

        outcome = program.load()
        if outcome.error is None:
            with ChildWatch() as children, capture() as graph:
                outcome = program.run()
            if started := sum(children.found.values()):
                unseen = counted(started, "child process")
                click.echo(f"genie: the graph leaves out what {unseen} ran: {', '.join(children.found)}", err=True)
        outcome.show()
        if outcome.error is not None and program.model is not None and not outcome.interrupted:
            click.echo(f"genie: {program.target} failed when called with {program.describe_inputs()}", err=True)
            outcome.exit_code = 2
            return outcome.exit_code
        if outcome.error is not None and program.is_model:
            return outcome.exit_code
    if json_file is not None:
        json_file.write_text(_as_text(graph.to_json()))
    if dot_file is not None:
        dot_file.write_text(_as_text(graph.to_dot()))
    if not files:
        from .render import printable, terminal_width

        click.echo(printable(graph.to_text(terminal_width()).rstrip("\n")))
    for file in files:
        if not file.is_stdout:
            click.echo(f"genie: wrote {file.name}", err=True)
    if outcome.interrupted:
        click.echo("genie: interrupted; the graph covers what ran until then", err=True)
    elif outcome.exit_code:
        click.echo(f"genie: {program.target} ended with exit code {outcome.exit_code}", err=True)
    return outcome.exit_code


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False) + "\n"
