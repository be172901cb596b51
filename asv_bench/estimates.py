"""Estimates of programs by several tables of factors: each program runs once, in a process of its own.

Processes are forked from one that has imported torch and nothing else that an estimate leaves traces in.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindtorch.profile.cost import factors

_PRELOADED = ("torch", "mindtorch.cli.main", "mindtorch.cli.profile", "mindtorch.profile.estimate.estimator")

_HOPPER = """
[hopper]
name = "{name}"
source = "data sheet"
memory_bytes = {memory}
memory_bandwidth = {bandwidth}
launch_s = 5e-6
capability = [9, 0]
processors = {processors}
matrix = {{ float32 = {single}, bfloat16 = {half} }}
vector = {{ float32 = {single} }}
"""
_RTX_5090 = """
[blackwell]
name = "NVIDIA GeForce RTX 5090 32 GB"
source = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A (dense, accumulating in float32)"
memory_bytes = 34.2e9
memory_bandwidth = 1.792e12
launch_s = 5e-6
capability = [12, 0]
processors = 170
clock_hz = 2.407e9
l2_bytes = 100e6
power_w = 575
ecc = false
matrix = { float32 = 104.8e12, tf32 = 104.8e12, bfloat16 = 209.5e12, float16 = 209.5e12 }
vector = { float32 = 104.8e12 }
"""
#: Chips that the package does not know; of Hopper's, with the memory that torch told of.
SHEETS = {
    "h20": _HOPPER.format(name="H20 96 GB", memory=102e9, bandwidth=4.0e12, processors=78, single=44e12, half=148e12),
    "rtx5090": _RTX_5090,
    "h100-96gb": _HOPPER.format(
        name="H100 96 GB", memory=102e9, bandwidth=2.4e12, processors=132, single=67e12, half=989e12
    ),
}
Table = Mapping[str, Any]
Totals = dict[str, float]


def estimated(target: str, program: str) -> Totals:
    """Of one step of a program, after one: ``bound_s``, ``about_s``, ``about_low_s``, ``about_high_s``, and joules
    (``energy_j``, ``energy_low_j``, ``energy_high_j``) where those of the target are known."""
    return by_tables(target, program, {"": factors.fitted()})[""]


def estimated_each(given: Iterable[tuple[str, str]]) -> list[Totals]:
    """`estimated` of each target and program, as many at once as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda one: estimated(*one), given))


def by_tables(target: str, program: str, tables: Mapping[str, Table]) -> dict[str, Totals]:
    """The same with each of some tables of factors (as of `factors.fitted`)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    ours, theirs = context.Pipe(False)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "program.py")
        script.write_text(program)
        child = context.Process(target=_run, args=(theirs, _named(target, folder), str(script), dict(tables)))
        child.start()
        theirs.close()
        try:
            found: dict[str, Totals] = ours.recv()
        except EOFError:
            raise RuntimeError(f"a program has no estimate for {target}:\n{program}") from None
        finally:
            child.join()
    return found


def _named(target: str, folder: str) -> str:
    """What genie calls a target: the package's name of it, else a file in the folder."""
    number, chip = re.fullmatch(r"(\d+x)?(.*)", target).groups("")  # type: ignore[union-attr]
    if chip not in SHEETS:
        return target
    file = Path(folder, "target.toml")
    file.write_text(SHEETS[chip])
    return f"{number}{file}"


def memory(target: str, program: str) -> dict[str, Any]:
    """The memory of a program's report."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    with tempfile.TemporaryDirectory() as folder:
        script, report = Path(folder, "program.py"), Path(folder, "report.json")
        script.write_text(program)
        child = context.Process(target=_profile, args=(_named(target, folder), str(script), str(report)))
        child.start()
        child.join()
        if not report.exists():
            raise RuntimeError(f"a program has no estimate for {target}:\n{program}")
        found: dict[str, Any] = json.loads(report.read_text())["memory"]
    return found


def _profile(target: str, script: str, report: str) -> None:
    from mindtorch.cli import main

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main.cli(["profile", "--target", target, "--json", report, script], prog_name="genie")


def _run(send: Connection, target: str, script: str, tables: Mapping[str, Table]) -> None:
    from mindtorch.cli import main
    from mindtorch.profile.estimate import estimator

    reads: list[Any] = []
    reading, close = estimator.reading, estimator.Estimator._close

    def remembered(calls: Any) -> Any:
        reads.append(reading(calls))
        return reads[-1]

    def closed(self: estimator.Estimator) -> None:
        close(self)
        send.send({name: _again(self, table, reads[-1]) for name, table in tables.items()})
        os._exit(0)

    estimator.reading, estimator.Estimator._close = remembered, closed  # type: ignore[method-assign]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main.cli(["profile", "--target", target, "--warmup", "1", "--steps", "1", script], prog_name="genie")


def _again(ended: Any, table: Table, reads: Any) -> Totals:
    """Of an estimator that has ended, with other factors."""
    from mindtorch.profile.cost.energy import board
    from mindtorch.profile.estimate.estimator import STAGES
    from mindtorch.profile.report.joules import Energy
    from mindtorch.profile.report.recording import stage_tables
    from mindtorch.profile.report.rows import PHASE, SIG, grouped, told_as

    with factors.using(table):
        if ended.cluster is not None:
            for number in ended._calls.collectives.values():
                ended._calls.works[number] = None  # how long it is waited for is found anew
            ended._communicate(ended.memory, ended.cluster)
        forecast = ended._forecast = ended._predict(ended.memory)
        for stage in STAGES:
            if stage in ended._stretches and stage != "rest":
                ended._sum_up(ended.memory, stage, reads)
        seen = ended.recording()
        assert seen.reached == "main" and len(seen.marks) - seen.warmup == 1, "of the step after the warm-up"
        rows = grouped(told_as(stage_tables(seen)[0]["main"]), SIG, PHASE)
        launched = seen.stages["main"].launched
        found: Totals = forecast.totals(rows, launched)
        if (on := board(seen.target)) is not None:
            energy = Energy(forecast, on, launched)
            found["energy_j"] = sum(energy.by_phase(rows).values())
            found["energy_low_j"], found["energy_high_j"] = energy.interval(found["energy_j"], found)
    return found
