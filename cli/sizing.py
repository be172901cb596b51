"""The runs behind ``genie profile --target``: without data, one rank of several, or all of them (SPEC C4)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mindtorch.base import clusters
from mindtorch.base.ranks import local_ranks

from .closing_lines import say_whose
from .estimate_output import numbers_marked
from .iteration_progress import HowFar, Iterations
from .program_command import torch_npu_for

if TYPE_CHECKING:
    from mindtorch.profile.cost.targets import Target
    from mindtorch.program.outcome import Outcome
    from mindtorch.program.program import Program

__all__ = ["chosen_rank", "estimate", "explain", "made_report", "runner"]


def estimate(
    program: Program,
    steps: int | None,
    warmup: int | None,
    target_name: str | None,
    cluster: clusters.Cluster | None,
    changes: tuple[str, ...],
    **options: Any,
) -> tuple[Outcome, dict[str, Any] | None, Any]:
    """What happened, the report (None when a model could not be built or called at all) and the profiler."""
    import mindtorch
    from mindtorch.profile.cost import targets

    chosen = None if target_name is None else targets.find(target_name)
    mindtorch._bootstrap()
    from mindtorch.profile.estimate.what_if import AROUND, changed

    program.estimate = True
    program.device = "cuda" if chosen is not None and chosen.key != "cpu" else None
    run = runner(program, chosen, cluster, changes, steps, warmup, **options)
    with changed([name for name in changes if name in AROUND]) as around:
        rank, rows = chosen_rank(program, cluster, run)
        outcome, estimator, made = run(rank)
        if program.is_model and outcome.error is not None and not outcome.interrupted:
            explain(program, outcome)
            return outcome, None, None
        report = made_report(program, outcome, estimator)
    report["warnings"] += [f"what if: {note}" for note in dict.fromkeys([*around, *made])]
    if rows is not None:
        report["ranks"] = rows
    return outcome, report, estimator


def runner(
    program: Program,
    target: Target | None,
    cluster: clusters.Cluster | None,
    changes: tuple[str, ...] = (),
    steps: int | None = None,
    warmup: int | None = None,
    **options: Any,
) -> Callable[[int | None], tuple[Outcome, Any, list[str]]]:
    """What runs the program as a rank, without data: what happened, the profiler, and what `changes` were made."""
    from mindtorch.profile.estimate import other_ranks
    from mindtorch.profile.estimate.estimator import Estimator
    from mindtorch.profile.estimate.what_if import AROUND, changed

    told = program.is_model  # it says itself when an iteration begins
    before = warmup or 0

    def run(rank: int | None) -> tuple[Outcome, Any, list[str]]:
        place = None if cluster is None or rank is None else dataclasses.replace(cluster, rank=rank)
        estimator = Estimator(
            target=target, devices=local_ranks() if place is None else place.local_size,
            warmup=0 if told else before, steps=steps, cluster=place, **options,
        )  # fmt: skip
        which = "" if place is None else f"rank {rank} of {place.size}"
        estimator.on_iteration = ended = Iterations(None if steps is None else steps + before, which)
        with contextlib.ExitStack() as stack:
            stack.enter_context(HowFar(ended.words, line=True))
            if place is not None:
                stack.enter_context(other_ranks.at_hand(run))
            stack.enter_context(estimator)
            stack.enter_context(torch_npu_for(True, None if target is None else target.device))
            made = stack.enter_context(changed([name for name in changes if name not in AROUND]))
            stack.enter_context(numbers_marked())
            outcome = program.run(steps or 1, before, estimator.stage if told else None)
        return outcome, estimator, made

    return run


def chosen_rank(
    program: Program, cluster: clusters.Cluster | None, run: Callable[[int | None], tuple[Outcome, Any, list[str]]]
) -> tuple[int | None, list[dict[str, Any]] | None]:
    """The rank to show, and a row for each where all are asked for: then it is one that failed, or holds most."""
    from mindtorch.profile.estimate.all_ranks import every_rank, worth_showing

    if cluster is None or cluster.rank != clusters.ALL_RANKS:
        return None if cluster is None else cluster.rank, None
    rows = every_rank(cluster.size, lambda rank: made_report(program, *run(rank)[:2]))
    return worth_showing(rows), rows


def made_report(program: Program, outcome: Outcome, profiler: Any) -> dict[str, Any]:
    """The report of a run that has ended, with what the program was asked for."""
    workload = program.workload
    report: dict[str, Any] = profiler.report(
        command=program.command,
        exit_code=outcome.exit_code,
        interrupted=outcome.interrupted,
        workload=None if workload is None else workload.facts(),
    )
    if workload is not None:
        report["warnings"] += workload.plan.notes
    return report


def explain(program: Program, outcome: Outcome) -> None:
    """After the model's own error, one line with what it was called with; a request that failed exits with 2."""
    outcome.show()
    if isinstance(outcome.error, SystemExit):
        return
    say_whose(program, outcome)
    if program.model is not None:
        click.echo(f"genie: {program.argument} failed when called with {program.describe_inputs()}", err=True)
        outcome.exit_code = 2
