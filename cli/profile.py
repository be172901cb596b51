"""``genie profile``: run a program unmodified and show where its time, memory and FLOPs went (SPEC C1, C2, C8)."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from mindtorch.base import clusters
from mindtorch.base.formats import Format
from mindtorch.base.import_hooks import without_collecting
from mindtorch.base.ranks import Rank
from mindtorch.profile.report.export import FORMATS
from mindtorch.program.workload import Request

from .advice import CHANGES, advice, halved
from .closing_lines import last_words, worth_showing
from .estimate_output import writes_nothing
from .iteration_progress import HowFar, Iterations, note
from .output import OutputFile, output_options, say_written
from .program_command import (
    Option,
    ProgramCommand,
    ProgramWords,
    assumption_options,
    check_needs,
    claimed_stdout,
    kept_words,
    option,
    program_arguments,
    request_options,
    torch_npu_for,
)
from .sizing import estimate, explain, made_report

if TYPE_CHECKING:
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["command"]

_EPILOG = """\b
Examples:
  genie profile train.py --lr 0.1      options after the script are the script's
  genie profile --by line --top 30 train.py       genie's own come before it
  genie profile -m pkg.train --lr 0.1  as python -m pkg.train --lr 0.1
  genie profile model.py:build --input 1x3x224x224     a model built in a file
  genie profile config.json            a transformers model with random weights
  genie profile config.json --batch 8 --seq 1024 --dtype bfloat16
  genie profile config.json --decode 32    prefill, then 32 steps with its cache
  genie profile config.json --train        forward, backward and AdamW step
  genie profile --html report.html train.py     a page to look at in a browser
  genie profile --json - train.py > profile.json  train.py prints to stderr then
  genie profile --target h100 train.py     nothing is computed: does it fit?
  genie profile --target h100 --seq 2048 config.json
"""


class _TargetOption(Option):
    """Its help names the accelerators there are, which are read when it is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from mindtorch.profile.cost.targets import names

        self.help = (
            f"Estimate for {', '.join(names())}, or the accelerator in FILE.toml. Energy is shown where the idle power "
            "of its board is known (idle_w in the file)."
        )
        return super().get_help_record(ctx)


@click.command(
    cls=ProgramCommand, name="profile", epilog=_EPILOG, short_help="Show where a program's time, memory and FLOPs go."
)
@click.option("--by", type=click.Choice(["module", "op", "line", "phase"]), help="Show one table in full.")
@click.option("--top", type=click.IntRange(min=1), help="Rows to show in the op and line tables.")
@click.option("--depth", type=click.IntRange(min=0), help="Levels of the module tree (default: as many as fit a page).")
@click.option(
    "--sort",
    type=click.Choice(["self", "total", "flops", "calls", "bytes", "name"]),
    help="Order of the tables (default: self time; the module tree in program order).",
)
@option(
    "--steps",
    type=click.IntRange(min=1),
    kept=True,
    help="Iterations to measure: of the training loop, or rounds of calls without gradients (default: all of a script, "
    "1 of a model).",
)
@option(
    "--warmup",
    type=click.IntRange(min=0),
    kept=True,
    help="Iterations to leave out at the start (default: 0 for a script, 1 for a model).",
)
@option(
    "--device",
    type=click.Choice(["meta"]),
    kept=True,
    help="Run without data: estimate sizes and FLOPs, for no particular device.",
)
@option("--target", "target_name", metavar="NAME", cls=_TargetOption, kept=True)
@option(
    "--rank",
    "rank_text",
    metavar="N",
    kept=True,
    help="With several accelerators (--target 8xh100): the rank to estimate (default: 0), or all.",
)
@option(
    "--interconnect",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GBIT",
    kept=True,
    help="With several machines: network bandwidth of each accelerator in Gb/s (default: 400 for h100).",
)
@assumption_options(needs="estimate")
@option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    type=click.Choice(tuple(CHANGES)),
    needs="estimate",
    kept=True,
    help=f"Make this change to the program; one of {', '.join(CHANGES)}. May be repeated.",
)
@option("--advise", is_flag=True, needs="estimate", help="Suggest changes, each with its estimate.")
@option(
    "--oom",
    type=click.Choice(["report", "raise"]),
    needs="accelerator",
    kept=True,
    help="Report what does not fit (default), or raise torch.OutOfMemoryError at the program's line.",
)
@click.option(
    "--hits",
    is_flag=True,
    help="Count how often each line of the program's own files runs, and show the counts. This slows Python down.",
)
@option("--shapes", is_flag=True, needs="measured", help="Show the shapes of each op's calls, also in JSON and trace.")
@option(
    "--predict",
    metavar="NAME",
    needs="measured",
    help="Measure here, and show the times predicted for a target next to the measured ones.",
)
@request_options
@output_options(FORMATS)
@program_arguments
@click.pass_context
def command(
    context: click.Context,
    words: ProgramWords,
    request: Request,
    by: str | None,
    top: int | None,
    depth: int | None,
    sort: str | None,
    target_name: str | None,
    rank_text: str | None,
    interconnect: float | None,
    changes: tuple[str, ...],
    advise: bool,
    shapes: bool,
    **asked: Any,
) -> int:
    """Run PROGRAM unmodified and show its time, memory and FLOPs by phase, module and op.

    PROGRAM is a script, a module (-m), or a model: FILE.py:NAME, or the config.json of a transformers model. A model is
    called in eval mode without gradients, unless --train says otherwise. With "-" as an output file, genie
    does not show the report, and the output of the program goes to stderr.
    """
    files = {name: asked[name] for name in (each.name.replace("-", "_") for each in FORMATS)}
    rank, of_all = Rank.of_process(), files["json"]
    if rank is not None:
        files = {name: file and file.of_rank(rank.rank) for name, file in files.items()}
    wanted = [(each, file) for each in FORMATS if (file := files[each.name.replace("-", "_")]) is not None]
    if words.argument.endswith(".json"):
        request = halved(changes, request)
    program = words.parse(*files.values(), request=request)
    merged_file = None if rank is None else _merged_file(of_all, files["json"], program)
    target = clusters.chosen(target_name, rank_text, interconnect, None if program.is_model else words.argument)
    check_needs(context, wanted, target_name)
    if "half-seq" in changes and program.kind != "config":
        raise click.UsageError("--what-if half-seq is for a config.json: a program chooses its own lengths")

    by = by or ("line" if asked["hits"] else None)  # which alone shows them
    to_stdout = any(file.is_stdout for _, file in wanted)
    with claimed_stdout(to_stdout):
        outcome, report, profiler = _observe(context.params, program, target, by == "line", bool(wanted))
        outcome.show()
    if report is None:  # it never came to running: the program's own error has been shown
        return outcome.exit_code

    # The program has ended, and what is made from now on is shown: nobody has to search for garbage.
    context.with_resource(without_collecting())
    own = kept_words(context)
    _complete(report, rank, program, own if advise else None)
    _write_all(wanted, report, profiler, rank, merged_file)
    if not to_stdout and worth_showing(outcome, report) and (rank is None or rank.rank == 0):  # equal ranks, one page
        _show(report if shapes else {**report, "shapes": None}, program, own, by, top, depth, sort)
    say_written(wanted)
    return last_words(program, outcome, report, context.command)


def _observe(
    asked: dict[str, Any],
    program: Program,
    target: tuple[str | None, clusters.Cluster | None],
    by_line: bool,
    in_files: bool,
) -> tuple[Any, dict[str, Any] | None, Any]:
    """Run the program as the options say, or estimate it: how it ended, the report, and what observed it."""
    page = asked["html"] is not None
    options: dict[str, Any] = {"lines": by_line or page or asked["flame"] is not None, "hits": asked["hits"]}
    often = asked["steps"], asked["warmup"]
    if asked["device"] is None and asked["target_name"] is None:
        options["shapes"] = asked["shapes"] or page  # the page shows all that there is
        return _measure(program, *often, asked["predict"], in_files, **options)
    options |= {"assume": asked["assume"], "balanced": asked["routing"] is not None, "oom": asked["oom"] or "report"}
    writes_nothing()
    return estimate(program, *often, *target, asked["changes"], **options)


def _merged_file(of_all: OutputFile | None, of_rank: OutputFile | None, program: Program) -> OutputFile | None:
    """The file for the reports of all ranks together, checked; None if none is wanted."""
    if of_all is None or of_rank is None or of_all.is_stdout:
        return None
    of_all.check(program.path)
    of_rank.discard()  # what is there afterwards is of this run
    return of_all


def _complete(report: dict[str, Any], rank: Rank | None, program: Program, options: list[str] | None) -> None:
    """Add the process's rank, and advice if there are `options`: those that each estimate repeats."""
    report["rank"] = None if rank is None else rank.facts()
    if options is not None:
        note("estimating changes ...")
        report["advice"] = advice(report, options, program.command)


def _measure(
    program: Program, steps: int | None, warmup: int | None, predict: str | None, whole: bool, **options: bool
) -> tuple[Outcome, dict[str, Any] | None, Any]:
    """Run it under the profiler. The report is None when a model could not be built or called at all.

    whole: also of a program that ran nothing. Else its report is what could not be seen, which needs no tables.
    """
    begun = time.perf_counter_ns()
    import torch  # noqa: F401  # the program would have to wait for this one too: part of its start-up

    waited = time.perf_counter_ns() - begun
    import mindtorch

    mindtorch._bootstrap(wait=True)
    with without_collecting():
        from mindtorch.profile import Profiler
        from mindtorch.profile.measure.empty_report import report_of_nothing

    target = None
    if predict is not None:
        from mindtorch.profile.cost import targets

        target = targets.find(predict)
    if not program.is_model:
        begun = time.perf_counter_ns() - waited
        profiler = Profiler(warmup=warmup or 0, steps=steps, begun_ns=begun, target=target, **options)
        profiler.on_iteration = ended = Iterations(None if steps is None else steps + (warmup or 0))
        with HowFar(ended.words, line=True), profiler, torch_npu_for(estimate=False):
            outcome = program.run()
    else:
        before, calls = 1 if warmup is None else warmup, steps or 1
        begun = time.perf_counter_ns() - waited
        profiler = Profiler(begun_ns=begun, target=target, **options)
        profiler.on_iteration = ended = Iterations(before + calls)
        note(f"building and running {program.argument} ...")
        with HowFar(ended.words, line=True), profiler, torch_npu_for(estimate=False):
            outcome = program.run(calls, before, profiler.stage)  # it says itself when an iteration begins
        if outcome.error is not None and not outcome.interrupted:
            explain(program, outcome)
            return outcome, None, None
    if not whole and (nothing := report_of_nothing(profiler)) is not None:
        return outcome, nothing, profiler
    with without_collecting():
        return outcome, made_report(program, outcome, profiler), profiler


def _write_all(
    wanted: list[tuple[Format, OutputFile]],
    report: dict[str, Any],
    profiler: Any,
    rank: Rank | None,
    merged_file: OutputFile | None,
) -> None:
    for each, file in wanted:
        _write(each, file, report, profiler)
    if rank is not None and merged_file is not None:
        from .merged_reports import merge_ranks  # which few runs need

        merge_ranks(rank, merged_file)


def _write(each: Format, file: OutputFile, report: dict[str, Any], profiler: Any) -> None:
    said: list[str | None] = []
    file.write(lambda path: said.append(each.write(report, profiler.recording, path)))
    for words in filter(None, said):
        click.echo(f"genie: {file.name} {words}", err=True)


def _show(report: dict[str, Any], program: Program, options: list[str], *view: Any) -> None:
    import shlex

    from .next_commands import suggest
    from .render import canvas
    from .report import View, render_report

    wanted = View(*view)
    following = suggest(program.command, options, report, wanted.by)
    text = render_report(report, canvas(), wanted, shlex.join(program.command), following)
    sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        click.echo(text, nl=False, color=True)
