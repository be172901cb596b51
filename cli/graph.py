"""``genie graph``: the operations a program records, as text, JSON, DOT, SVG or a page (SPEC C6)."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mindtorch.base.formats import Format
from mindtorch.base.ranks import Rank
from mindtorch.program.program import split_argument

from .child_command import made
from .closing_lines import hint_options
from .estimate_output import left_alone, numbers_marked, writes_nothing
from .exit_codes import exit_code, interruption
from .iteration_progress import note
from .output import OutputFile, output_options, say_written
from .program_command import (
    ProgramCommand,
    ProgramWords,
    claimed_stdout,
    hint_torch_npu,
    program_arguments,
    torch_npu_for,
)
from .units import assumption, counted

if TYPE_CHECKING:
    from mindtorch.graph import ComputationGraph
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["command"]


class _Pattern(click.ParamType):
    name = "pattern"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or not all(value.split(".")):
            self.fail(f"{value!r} is not a module path; expected names and dots, e.g. h.0 or 'h.*.attn'", param, ctx)
        return value


_PATTERN = _Pattern()


class _View(NamedTuple):
    """What of a graph is wanted, in which the formats differ. title: what ran. beside: other programs and their graphs.

    layout: of the JSON.
    """

    title: str
    depth: int | None
    focus: str
    init: bool
    beside: Sequence[tuple[str, ComputationGraph]]
    layout: str

    def of_picture(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if key != "layout"}


_PICTURES = ("svg", "html")  # which close modules themselves
_NETWORKX = "networkx-json"
_OF_A_PROGRAM = ("argument", "script_args", "as_module", "inputs", "layout")

#: What ``genie graph`` can write; `write` gives the text of a graph.
FORMATS = (
    Format(
        "json",
        "Write nodes and edges as JSON; - for stdout.",
        rb'\{\s*"schema_version":\s*\d+,\s*"counts":\s*\{\s*"nodes"',
        lambda graph, view: graph.to_networkx_json() if view.layout == _NETWORKX else graph.to_json(),
    ),
    Format(
        "dot",
        "Write Graphviz DOT; - for stdout.",
        rb'digraph computation \{\s*rankdir=TB; compound=true; fontname="Helvetica";',
        lambda graph, view: graph.to_dot(view.init),
    ),
    Format(
        "svg",
        "Write a picture: modules as boxes, identical modules drawn once, patterns by name.",
        rb"<svg [^>]*>\s*<!-- genie graph -->",
        lambda graph, view: graph.to_svg(**view.of_picture()),
    ),
    Format(
        "html",
        "Write one HTML file for a browser: the picture, with boxes to open and a search.",
        rb"<!doctype html>\s<!-- genie graph: ",
        lambda graph, view: graph.to_html(**view.of_picture()),
    ),
)

_EPILOG = """\b
Examples:
  genie graph model.py:build --input 1x3x224x224
  genie graph --dot graph.dot train.py --epochs 1
  genie graph --html graph.html train.py
  genie graph --svg attn.svg --focus h.0.attn model.py:build --input 1x128:int64
  genie graph --html both.html --beside new.py old.py       side by side
  genie graph --json - model.py:build --input 1x128:int64
  genie graph --depth 1 train.py       two levels of modules
  genie graph --module 'h.0' model.py:build --input 1x128:int64
  genie graph --why attention train.py     where it is, and the evidence
  genie graph --passes train.py        what the optimization engine does with it
  genie graph --steps 1 train.py       until the loop's first iteration ends
  genie graph --device meta train.py   nothing is computed
"""


@click.command(
    cls=ProgramCommand, name="graph", epilog=_EPILOG, short_help="Show the operations of a program as a graph."
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Levels of modules to expand (0: only the outermost); a deeper module is one node.",
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    type=_PATTERN,
    metavar="PATTERN",
    help="Show only modules with this path and those below, e.g. h.0, 'h.*.attn', GPT2.h.0; --depth counts from there. "
    "May be repeated.",
)
@click.option(
    "--focus",
    type=_PATTERN,
    metavar="PATTERN",
    help="In --svg and --html: show only modules with this path and their neighbours.",
)
@click.option(
    "--beside",
    "others",
    multiple=True,
    metavar="PROGRAM",
    help="In --svg and --html: show another program side by side with this one; quote it if it has arguments. May be "
    "repeated.",
)
@click.option(
    "--format",
    "layout",
    type=click.Choice(["json", _NETWORKX]),
    default="json",
    help="Format of --json: genie's, or what networkx.node_link_graph reads. Without --json, it goes to stdout.",
)
@click.option(
    "--why",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Instead of the graph, print where this pattern is (attention, feed-forward …), the evidence, and why "
    "similar code does not count as one. May be repeated.",
)
@click.option(
    "--passes",
    is_flag=True,
    help="Instead of the graph, print what each pass of the optimization engine did to the program on "
    "remote_accelerator.",
)
@click.option("--init", is_flag=True, help="Show the operations that initialize parameters (default: as one line).")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Record this many iterations: of the training loop, or rounds of calls without gradients (default: all of a "
    "script, 1 of a model).",
)
@click.option("--device", type=click.Choice(["meta"]), help="Compute nothing: run on tensors without data.")
@output_options(FORMATS)
@program_arguments
def command(
    words: ProgramWords,
    depth: int | None,
    modules: tuple[str, ...],
    focus: str | None,
    others: tuple[str, ...],
    layout: str,
    patterns: tuple[str, ...],
    passes: bool,
    init: bool,
    steps: int | None,
    device: str | None,
    **files: OutputFile | None,
) -> int:
    """Run PROGRAM unmodified and print the graph of every operation it ran.

    Text goes to stdout, after the program's own output; with --json, --dot, --svg or --html the graph goes to that file
    instead. Each form says what --depth, --module and --steps leave out.
    """
    rank = Rank.of_process()
    if rank is not None:  # each its own file
        files = {name: file and file.of_rank(rank.rank) for name, file in files.items()}
    if layout == _NETWORKX and files["json"] is None:
        files["json"] = OutputFile("-")
    program = words.parse(*files.values())
    wanted = [(each, file) for each in FORMATS if (file := files[each.name]) is not None]
    _check_formats(wanted, focus, others, patterns)
    if passes:
        if wanted or patterns or modules or init or (depth, focus, steps, device) != (None, None, None, None):
            raise click.UsageError("--passes shows no graph and cannot be combined with other options")
        from .graph_passes import show_passes

        return show_passes(program)
    if patterns:
        _check(patterns, device)
    commands = [_command_for(each, words.inputs, steps, device) for each in others]
    made_beside = [_graph_of(each, line) for each, line in zip(others, commands)]
    if device is not None:
        writes_nothing()
    with claimed_stdout(any(file.is_stdout for _, file in wanted)):
        outcome, graph = _record(program, steps, device)
        if outcome.error is not None and program.is_model:
            return outcome.exit_code
    beside = [(each, graph.from_dict(data)) for each, data in zip(others, made_beside)]
    beside = [(each, one.reduced(modules) if modules else one) for each, one in beside]
    view = _View(" ".join((words.argument, *words.script_args)), depth, focus or "", init, beside, layout)
    from mindtorch.graph.analysis import describe

    describe(graph)
    part = graph.reduced(modules) if modules else graph
    closed = graph.reduced(modules, depth) if depth is not None else part
    for each, file in wanted:
        file.write_text(each.write(part if each.name in _PICTURES else closed, view) or "")
    if patterns or not wanted:
        _print(part if patterns else closed, patterns, init)
    say_written(wanted)
    _say_how_it_ended(program, outcome)
    return exit_code(outcome)


def _check_formats(
    wanted: Sequence[tuple[Format, OutputFile]], focus: str | None, others: Sequence[str], patterns: Sequence[str]
) -> None:
    """UsageError where an option does not apply to any of the wanted formats."""
    is_picture = any(each.name in _PICTURES for each, _ in wanted)
    if focus is not None and not is_picture:
        raise click.UsageError("--focus is for --svg and --html; --module is for all formats")
    if others and not is_picture:
        raise click.UsageError("--beside is for --svg and --html")
    if patterns and any(file.is_stdout for _, file in wanted):
        raise click.UsageError("--why prints to stdout, so the graph needs a file name")


def _say_how_it_ended(program: Program, outcome: Outcome) -> None:
    if outcome.interrupted:
        click.echo(f"genie: {interruption(outcome)}; the graph covers what ran until then", err=True)
    elif outcome.exit_code:
        click.echo(f"genie: {program.argument} ended with exit code {outcome.exit_code}", err=True)
        if not hint_options(program, outcome, command):
            hint_torch_npu(outcome.error)


def _print(graph: ComputationGraph, patterns: tuple[str, ...], init: bool) -> None:
    """The graph as text, or where these patterns are in it."""
    from .render import printable, terminal_width

    if patterns:
        from mindtorch.graph.patterns import explain

        text = "\n".join(explain(graph, name) for name in patterns)
    else:
        text = graph.to_text(terminal_width(), init)
    click.echo(printable(text.rstrip("\n")))


def _command_for(other: str, inputs: tuple[str, ...], steps: int | None, device: str | None) -> list[str]:
    """What makes the graph of a program beside this one, whose inputs it gets where it is a model and names none.

    UsageError where that is no program.
    """
    try:
        words = shlex.split(other)
    except ValueError as error:
        raise click.UsageError(f"--beside {other!r}: {error}") from error
    asked = command.make_context("genie graph --beside", list(words)).params
    if any(value for name, value in asked.items() if name not in _OF_A_PROGRAM):
        raise click.UsageError(f"--beside {other!r}: expected a program, its arguments and --input, got another option")
    is_model = not asked["as_module"] and split_argument(asked["argument"])[0] != "script"
    given = inputs if is_model and not asked["inputs"] else ()
    ProgramWords(asked["argument"], asked["script_args"], asked["as_module"], given or asked["inputs"]).parse()
    options = [word for each in given for word in ("--input", each)]
    options += ["--steps", str(steps)] if steps is not None else []
    options += ["--device", device] if device is not None else []
    return ["graph", "--json", "-", *options, *words]


def _graph_of(other: str, words: Sequence[str]) -> dict[str, Any]:
    """By a process of its own, as two programs may have modules of one name."""
    note(f"running {other} ...")
    return made(words, lambda code: f"--beside {other!r}: genie graph ended with exit code {code}")


def _check(patterns: tuple[str, ...], device: str | None) -> None:
    """Before the program runs: UsageError where no pattern has such a name."""
    import mindtorch

    mindtorch._bootstrap(wait=device is None)
    from mindtorch.graph.patterns.explain import check_name

    for name in patterns:
        check_name(name)


def _record(program: Program, steps: int | None, device: str | None) -> tuple[Outcome, ComputationGraph]:
    """Run it, and say what the graph leaves out without having been asked."""
    import mindtorch

    mindtorch._bootstrap(wait=device is None)
    from mindtorch.base.children import ChildWatch
    from mindtorch.graph import ComputationGraph, capture, stop
    from mindtorch.profile.estimate import known_values, private_files
    from mindtorch.profile.estimate.estimating import estimating
    from mindtorch.profile.measure.collect import compiled_frames
    from mindtorch.profile.measure.loop import Loop

    graph, assumed, apart = ComputationGraph(), [], []
    loop = None if program.is_model or steps is None else Loop(steps, lambda: len(graph), lambda: stop(graph))
    program.estimate = device is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_npu_for(device is not None))
        if device is not None:
            stack.enter_context(estimating())
            stack.enter_context(numbers_marked())
        outcome = program.load()
        if outcome.error is None:
            children = stack.enter_context(ChildWatch()).found
            graph, frames = stack.enter_context(capture()), compiled_frames()
            if loop is None:
                outcome = program.run(steps or 1)
            else:
                with loop:
                    outcome = program.run()
                if loop.end is not None:
                    graph = graph.reduced(until=loop.end)
                    graph.left_out = {"after_steps": steps}  # nobody counted what that was
                else:
                    few = counted(steps or 0, "iteration")
                    click.echo(f"genie: the program ended after fewer than {few}: the graph covers all of it", err=True)
            if compiled := compiled_frames() - frames:
                unseen = counted(compiled, "compiled function")
                click.echo(f"genie: the graph leaves out operations of {unseen}", err=True)
            if children:
                unseen = counted(sum(children.values()), "child process")
                click.echo(f"genie: the graph leaves out operations of {unseen}: {', '.join(children)}", err=True)
            assumed = known_values.assumed() if device is not None else []
            apart = left_alone(private_files.left_alone())
    for words in apart:
        click.echo(f"genie: {words}", err=True)
    if assumed:
        lines = ", ".join(f"{row['file']}:{row['line']} ({assumption(row['value'])})" for row in assumed[:3])
        click.echo(f"genie: unknown values were assumed: {lines}", err=True)
    outcome.show()
    if outcome.error is not None and program.model is not None and not outcome.interrupted:
        click.echo(f"genie: {program.argument} failed when called with {program.describe_inputs()}", err=True)
        outcome.exit_code = 2
    return outcome, graph
