"""Random programs give the same again and again, whatever a worker makes ready of what repeats (SPEC R1, L13)."""

from __future__ import annotations

import random
import types
import warnings
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext import replay
from mindtorch.engine import passes
from mindtorch.engine.remote.plans import Plan

DEFAULT = 25
Step = tuple[str, int, int, int]


def _never_repeats(plan: Plan, fill: Any = Plan.fill) -> bool:
    fill(plan)
    plan.ready.steps[:] = [None] * len(plan.steps)
    return False


@pytest.mark.only_on("local")
@pytest.mark.parametrize("after", [1, 200])
def test_L13_random_programs_that_repeat_keep_their_bits_on_a_worker(
    after: int, programs: types.SimpleNamespace, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a run of which the worker makes nothing ready. after: runs of a call, before it does without Python."""
    draw = random.Random(pytestconfig.getoption("--programs"))

    def ran(steps: list[Step]) -> Any:
        torch.manual_seed(0)
        machine = programs.machine("remote_accelerator:0").run(steps)
        mindtorch.flush("test")
        return machine

    before = mindtorch.set_executor(mindtorch.LoopbackExecutor("cpu"))
    counted = passes.counts()[0]
    often = replay.native_after(after)
    try:
        for _ in range((pytestconfig.getoption("--programs") or 5 * DEFAULT) // 5):
            steps = [
                (draw.choice(programs.kinds), draw.randrange(12), draw.randrange(12), draw.randrange(12))
                for _ in range(draw.randint(5, 60))
            ]
            steps = steps if draw.random() < 0.5 else [("no_gradients", 0, 0, 0), *steps]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch says of the program's own calls
                with monkeypatch.context() as patch:
                    patch.setattr(Plan, "fill", _never_repeats)
                    expected = ran(steps)
                for _ in range(4):  # a call is made ready in the second one, and so are those that read it
                    programs.compare(ran(steps), expected, memory=False)
            del expected
    finally:
        mindtorch.set_executor(before)
        replay.native_after(often)
    by_default = {each.name for each in passes.in_use()}
    if after == 1 and passes.native_prover() is not None:
        by_default.add("native calls")
    now = passes.counts()[0]
    assert by_default == {name for name in by_default if now.get(name, 0) > counted.get(name, 0)} != set()
