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
from mindtorch.program.workload import DTYPES, Request

from .advice import CHANGES, advice, halved
from .closing_lines import last_words, worth_showing
from .estimate_output import writes_nothing
from .iteration_progress import HowFar, Iterations, note
from .output import OutputFile, output_options
from .program import (
    ProgramCommand,
    claimed_stdout,
    parse_program,
    program_arguments,
    torch_npu_for,
)
from .sizing import estimate, explain, made_report

if TYPE_CHECKING:
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

    from .report import View

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


class _TargetOption(click.Option):
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
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Iterations to measure: of the training loop, or rounds of calls without gradients (default: all of a script, "
    "1 of a model).",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    help="Iterations to leave out at the start (default: 0 for a script, 1 for a model).",
)
@click.option(
    "--device",
    type=click.Choice(["meta"]),
    help="Run without data: estimate sizes and FLOPs, for no particular device.",
)
@click.option(
    "--target",
    "target_name",
    metavar="NAME",
    cls=_TargetOption,
)
@click.option(
    "--rank",
    "rank_text",
    metavar="N",
    help="With several accelerators (--target 8xh100): the rank to estimate (default: 0), or all.",
)
@click.option(
    "--interconnect",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GBIT",
    help="With several machines: network bandwidth of each accelerator in Gb/s (default: 400 for h100).",
)
@click.option(
    "--assume",
    type=float,
    metavar="NUMBER",
    help="Estimate: the value assumed for tensor elements that it cannot know (default 0, False; floats 1e-12).",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    type=click.Choice(tuple(CHANGES)),
    help=f"Estimate: also estimate the program with this change; one of {', '.join(CHANGES)}. May be repeated.",
)
@click.option("--advise", is_flag=True, help="Estimate: suggest changes, each with its estimate.")
@click.option(
    "--routing",
    type=click.Choice(["balanced"]),
    help="Estimate: choices among unknown scores (topk, argmax …) always pick all candidates in turn.",
)
@click.option(
    "--oom",
    type=click.Choice(["report", "raise"]),
    help="Estimate: report what does not fit (default), or raise torch.OutOfMemoryError at the program's line.",
)
@click.option(
    "--hits",
    is_flag=True,
    help="Count how often each line of the program's own files runs, and show the counts. This slows Python down.",
)
@click.option("--shapes", is_flag=True, help="Show the shapes of each op's calls, also in JSON and trace.")
@click.option(
    "--predict",
    metavar="NAME",
    help="Measure here, and show the times predicted for a target next to the measured ones.",
)
@click.option(
    "--seq", type=click.IntRange(min=1), metavar="N", help="For a config.json: tokens per sequence (default: 128)."
)
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="For a config.json: sequences per batch (default: 1)."
)
@click.option(
    "--decode",
    type=click.IntRange(min=1),
    metavar="N",
    help="For a config.json: fill the key-value cache with the sequence (phase prefill), then generate N tokens, one "
    "at a time (phase decode).",
)
@click.option(
    "--train",
    is_flag=True,
    help="For a config.json: a training step with AdamW. The first step, which allocates the optimizer's state, is not "
    "counted. With --decode, both run, one after the other.",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="For a config.json: dtype of the weights (default: the file's, else float32).",
)
@output_options(FORMATS)
@program_arguments
def command(
    argument: str,
    script_args: tuple[str, ...],
    as_module: bool,
    inputs: tuple[str, ...],
    by: str | None,
    top: int | None,
    depth: int | None,
    sort: str | None,
    steps: int | None,
    warmup: int | None,
    device: str | None,
    target_name: str | None,
    rank_text: str | None,
    interconnect: float | None,
    assume: float | None,
    routing: str | None,
    oom: str | None,
    predict: str | None,
    changes: tuple[str, ...],
    advise: bool,
    hits: bool,
    shapes: bool,
    seq: int | None,
    batch: int | None,
    decode: int | None,
    train: bool,
    dtype: str | None,
    **files: OutputFile | None,
) -> int:
    """Run PROGRAM unmodified and show its time, memory and FLOPs by phase, module and op.

    PROGRAM is a script, a module (-m), or a model: FILE.py:NAME, or the config.json of a transformers model. A model is
    called in eval mode without gradients, unless --train says otherwise. With "-" as an output file, genie
    does not show the report, and the output of the program goes to stderr.
    """
    rank = Rank.of_process()
    merged_file = None
    if rank is not None:
        merged_file = None if (file := files["json"]) is None or file.is_stdout else file
        files = {name: file and file.of_rank(rank.rank) for name, file in files.items()}
    wanted = [(each, file) for each in FORMATS if (file := files[each.name.replace("-", "_")]) is not None]
    if argument.endswith(".json"):
        batch, seq = halved(changes, batch, seq)
    request = Request(seq, batch, decode, train, dtype)
    program = parse_program(argument, script_args, inputs, *files.values(), request=request, as_module=as_module)
    if merged_file is not None and (file := files["json"]) is not None:
        merged_file.check(program.path)
        file.discard()  # what is there afterwards is of this run
    to_stdout = any(file.is_stdout for _, file in wanted)

    accelerator, cluster = clusters.chosen(target_name, rank_text, interconnect, None if program.is_model else argument)
    sized = device is not None or target_name is not None
    if sized and (of_times := [each.name for each, _ in wanted if each.measured]):
        raise click.UsageError(f"--{of_times[0]} shows measured times: leave out --device and --target")
    if sized and target_name is None and (of_times := [each.name for each, _ in wanted if each.timed]):
        raise click.UsageError(f"--{of_times[0]} shows times: add --target NAME, or leave out --device")
    if target_name in (None, "cpu") and (of_cards := [each.name for each, _ in wanted if each.sized]):
        raise click.UsageError(f"--{of_cards[0]} needs a GPU or NPU as target: add --target NAME")
    if binary := [each.name for each, file in wanted if each.binary and file.is_stdout]:
        raise click.UsageError(f"--{binary[0]} writes binary data: give a file name, not -")
    if sized and predict is not None:
        raise click.UsageError("--predict is for a measured run; --target already predicts")
    if sized and shapes:
        raise click.UsageError("--shapes is for a measured run: leave out --device and --target")
    if assume is not None and not sized:
        raise click.UsageError("--assume is for an estimate: add --device meta or --target NAME")
    if "half-seq" in changes and program.kind != "config":
        raise click.UsageError("--what-if half-seq is for a config.json: a program chooses its own lengths")
    if (changes or advise) and not sized:
        raise click.UsageError("--what-if and --advise are for an estimate: add --device meta or --target NAME")

    if routing is not None and not sized:
        raise click.UsageError("--routing is for an estimate: add --device meta or --target NAME")
    if oom is not None and target_name is None:
        raise click.UsageError("--oom is for an estimate of an accelerator: add --target NAME")

    if hits and by is None:
        by = "line"  # which alone shows them
    followed = by == "line" or files["html"] is not None or files["flame"] is not None
    of_lines = {"lines": followed, "hits": hits}
    if sized:
        writes_nothing()
    with claimed_stdout(to_stdout):
        if sized:
            options = {"assume": assume, "balanced": routing is not None, "oom": oom or "report", **of_lines}
            outcome, report, profiler = estimate(program, steps, warmup, accelerator, cluster, changes, **options)
        else:
            of_lines["shapes"] = shapes or files["html"] is not None  # the page shows all that there is
            outcome, report, profiler = _measure(program, steps, warmup, predict, bool(wanted), **of_lines)
        outcome.show()
    if report is None:  # it never came to running: the program's own error has been shown
        return outcome.exit_code

    # The program has ended, and what is made from now on is shown: nobody has to search for garbage.
    click.get_current_context().with_resource(without_collecting())
    report["rank"] = None if rank is None else rank.facts()
    own = [*(["--device", device] if device else []), *(["--target", target_name] if target_name else [])]
    own += ["--rank", rank_text] if rank_text else []
    own += ["--interconnect", f"{interconnect:g}"] if interconnect is not None else []
    own += ["--assume", f"{assume:g}"] if assume is not None else []
    own += ["--routing", routing] if routing is not None else []
    own += ["--oom", oom] if oom is not None else []
    own += [word for value in inputs for word in ("--input", value)] + program.request.words()
    if advise:
        note("estimating changes ...")
        counts = [
            word for name, n in (("--steps", steps), ("--warmup", warmup)) if n is not None for word in (name, str(n))
        ]
        report["advice"] = advice(report, [*own, *counts], program.command)
    for each, file in wanted:
        _write(each, file, report, profiler)
    if rank is not None and merged_file is not None:
        from .merged_reports import merge_ranks  # which few runs need

        merge_ranks(rank, merged_file)
    if not to_stdout and worth_showing(outcome, report) and (rank is None or rank.rank == 0):  # equal ranks, one page
        from .report import View  # with rich

        _show(report if shapes else {**report, "shapes": None}, program, own, View(by, top, depth, sort))
    for _, file in wanted:
        if not file.is_stdout:
            click.echo(f"genie: wrote {file.name}", err=True)
    return last_words(program, outcome, report, command)


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


def _write(each: Format, file: OutputFile, report: dict[str, Any], profiler: Any) -> None:
    said: list[str | None] = []
    file.write(lambda path: said.append(each.write(report, profiler.recording, path)))
    for words in filter(None, said):
        click.echo(f"genie: {file.name} {words}", err=True)


def _show(report: dict[str, Any], program: Program, options: list[str], view: View) -> None:
    import shlex

    from .next_commands import suggest
    from .render import canvas
    from .report import render_report

    following = suggest(program.command, options, report, view.by)
    text = render_report(report, canvas(), view, shlex.join(program.command), following)
    sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        click.echo(text, nl=False, color=True)
