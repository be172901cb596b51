"""Random programs that a worker runs again and again give what eager gives (SPEC R1, L13)."""

from __future__ import annotations

import random
import types

import pytest

import mindtorch
from mindtorch.engine import passes

DEFAULT = 25
#: Through messages, `torch.sum` into its own input is no error, as it is in eager.
EXCEPT = {"sum_out"}


@pytest.mark.only_on("local")
def test_L13_random_programs_that_repeat_keep_their_bits_on_a_worker(
    programs: types.SimpleNamespace, pytestconfig: pytest.Config
) -> None:
    draw = random.Random(pytestconfig.getoption("--programs"))
    kinds = [kind for kind in programs.kinds if kind not in EXCEPT]
    before = mindtorch.set_executor(mindtorch.LoopbackExecutor("cpu"))
    counted = passes.counts()[0]
    try:
        for _ in range((pytestconfig.getoption("--programs") or 5 * DEFAULT) // 5):
            steps = [
                (draw.choice(kinds), draw.randrange(12), draw.randrange(12), draw.randrange(12))
                for _ in range(draw.randint(5, 60))
            ]
            steps = steps if draw.random() < 0.5 else [("no_gradients", 0, 0, 0), *steps]
            for _ in range(4):  # a call is made ready in the second one, and so are those that read it
                programs.run_both(steps, memory=False)
    finally:
        mindtorch.set_executor(before)
    by_default = {each.name for each in passes.in_use()}
    after = passes.counts()[0]
    assert by_default == {name for name in by_default if after.get(name, 0) > counted.get(name, 0)} != set()
