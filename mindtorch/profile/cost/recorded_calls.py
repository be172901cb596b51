"""How long recorded calls take on the machines of workers: what plans for several of them ask (SPEC R5).

A CPU of this machine is measured, once; a GPU is looked up by its name. Of others nothing is known. Plans are compared
by the speed of a usual CPU, so that a program gets the same one each time.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

import torch

from mindtorch._ext import lazy as _core
from mindtorch.base.errors import UsageError
from mindtorch.engine.execute import values
from mindtorch.engine.execute.machine import Call, Machine
from mindtorch.engine.remote.run_time import Computing
from mindtorch.ops.op_row import MATRIX_TAGS
from mindtorch.profile.cost import cpu, op_time, targets
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work, work

__all__ = ["computing"]

#: What recording a call takes, with what the worker does around it; what dividing it takes; and a part, for both sides:
#: in times that the program's own processor takes from one small call to the next. From asv_bench/placements.py.
RECORDED, DIVIDED, PART = 5.5, 4.0, 250.0
#: Of a core of a usual server: seconds from one small call to the next, FLOP/s of products and of all else, bytes/s.
LAUNCH, MATRIX_RATE, VECTOR_RATE, BANDWIDTH = 4e-6, 8e10, 4e9, 5e10


def computing(calls: Sequence[Call | None], machines: Sequence[Machine], footprint: int) -> Computing | None:
    """Seconds of each call on each machine; None where one of those is not known. footprint: bytes that the program
    holds. Takes a second or two when a CPU is asked about for the first time.
    """
    found = [_target(machine) for machine in machines]
    known = [target for target in found if target is not None]
    if len(known) < len(found):
        return None
    works = {call: _work(*call) for call in dict.fromkeys(calls) if call is not None}
    timed: dict[int, list[float]] = {}  # by target
    for target in known:
        if id(target) not in timed:
            each = {call: _seconds(made, target, footprint) for call, made in works.items()}
            timed[id(target)] = [0.0 if call is None else each[call] for call in calls]
    shares = [
        (machine.node, max(machine.processors / machine.threads, 1.0)) if machine.kind == "cpu" else (k, math.inf)
        for k, machine in enumerate(machines)
    ]
    by_worker = [timed[id(target)] for target in known]
    usually = [0.0 if call is None else _usual(works[call]) for call in calls] if machines else []
    usual = [usually if machine.kind == "cpu" else each for machine, each in zip(machines, by_worker, strict=True)]
    return _computing(by_worker, shares, cpu.target().launch_s, _computing(usual, shares, LAUNCH))


def _computing(
    seconds: Sequence[Sequence[float]], shares: Any, launch: float, usual: Computing | None = None
) -> Computing:
    return Computing(seconds, shares, RECORDED * launch, DIVIDED * launch, PART * launch, usual)


def _usual(made: Work) -> float:
    """Seconds on a core of a usual server, by its roofline."""
    rate = MATRIX_RATE if made.tag in MATRIX_TAGS else VECTOR_RATE
    return LAUNCH + max((made.flops or 0) / rate, made.bytes / BANDWIDTH)


def _target(machine: Machine) -> Target | None:
    if machine.kind == "cpu":
        return cpu.target(machine.threads) if machine.node == platform.node() else None
    try:
        return targets.find(machine.name)
    except UsageError:
        return None


def _seconds(made: Work, target: Target, footprint: int) -> float:
    cost = op_time.estimate(made, target, footprint)
    return max(cost.seconds, target.launch_s) if cost.family else cost.seconds


def _work(call: int, floats: tuple[float, ...]) -> Work:
    given = tuple(_like(values.tape.interner.meta(meta)) for meta in _core.input_metas(call))
    args, kwargs = _core.call_template(call, given, None, floats)
    made = tuple(_like(_core.sig_output_meta(call, k)) for k in range(_core.sig_outputs(call))) or given[:1]
    return work(_core.sig_info(call).func, args, kwargs, made[0] if len(made) == 1 else made)


def _like(meta: tuple[Any, ...]) -> torch.Tensor:
    dtype, sizes, strides, *_ = meta
    if strides is None:
        return torch.empty(sizes, dtype=dtype, device="meta")
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
