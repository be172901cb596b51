"""Random programs give the same when another thread makes their calls while they record (SPEC L16)."""

from __future__ import annotations

import random
import types
import warnings
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext import ahead
from tests.native import CAN, not_yet_ahead, soon

DEFAULT = 60
Step = tuple[str, int, int, int]

pytestmark = [CAN, pytest.mark.usefixtures(soon.__name__, not_yet_ahead.__name__)]


def _ran(programs: types.SimpleNamespace, steps: list[Step]) -> Any:
    torch.manual_seed(0)
    machine = programs.machine("remote_accelerator:0").run(steps)
    mindtorch.flush("test")
    return machine


@pytest.mark.only_on("local")
@pytest.mark.parametrize("after", [1, 4])
def test_L16_random_programs_keep_their_bits(
    after: int, programs: types.SimpleNamespace, pytestconfig: pytest.Config
) -> None:
    draw = random.Random(pytestconfig.getoption("--programs"))
    before = ahead.counts()
    ahead.hand_over_after(0)
    for _ in range(pytestconfig.getoption("--programs") or DEFAULT):
        steps = [
            (draw.choice(programs.kinds), draw.randrange(12), draw.randrange(12), draw.randrange(12))
            for _ in range(draw.randint(5, 60))
        ]
        steps = steps if draw.random() < 0.5 else [("no_gradients", 0, 0, 0), *steps]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of the program's own calls
            for _ in range(3):  # until calls are made without Python
                expected = _ran(programs, steps)
            ahead.hand_over_after(after)
            for _ in range(2):
                programs.compare(_ran(programs, steps), expected, memory=False)
            ahead.hand_over_after(0)
        del expected
    assert ahead.counts()[0] > before[0]
