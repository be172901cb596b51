"""Random programs give what eager gives (SPEC L7, R1, R5). More of them: ``pytest tests/programs --programs 20000``.

A third as many run behind messages, as many on several workers at random, and a tenth on large tensors in many layouts.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

import mindtorch
from tests.executors import Anywhere, using

DEFAULT = 300
SEARCH = [hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink]


def anywhere() -> mindtorch.Executor:
    return Anywhere([mindtorch.LoopbackExecutor() for _ in range(3)], 1 << 30)


@pytest.mark.parametrize("where", [mindtorch.LocalExecutor, mindtorch.LoopbackExecutor, anywhere])
def test_L7_R1_R5_random_programs(
    where: Callable[[], mindtorch.Executor], programs: types.SimpleNamespace, pytestconfig: pytest.Config
) -> None:
    number = st.integers(0, 11)
    step = st.tuples(st.sampled_from(programs.kinds), number, number, number)
    program = st.integers(5, 60).flatmap(lambda n: st.lists(step, min_size=n, max_size=n))
    here = where is mindtorch.LocalExecutor
    count = (pytestconfig.getoption("--programs") or DEFAULT) // (1 if here else 3)
    ran = 0

    @hypothesis.settings(
        max_examples=count, phases=SEARCH, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.booleans(), program)
    def run(gradients: bool, steps: list[tuple[str, int, int, int]]) -> None:
        nonlocal ran
        ran += 1
        Anywhere.dice.seed(len(steps))  # a program that is tried again runs where it ran
        programs.run_both(steps if gradients else [("no_gradients", 0, 0, 0), *steps], memory=here)

    with using(where()):
        run()
    assert ran >= count


def test_L7_random_programs_on_large_tensors(programs: types.SimpleNamespace, pytestconfig: pytest.Config) -> None:
    number = st.integers(0, 11)
    layouts = tuple(kind for kind in programs.large.steps if kind not in programs.kinds and kind != "no_gradients")
    kind = st.one_of(st.sampled_from(layouts), st.sampled_from(programs.kinds))
    step = st.tuples(kind, number, number, number)
    program = st.integers(5, 30).flatmap(lambda n: st.lists(step, min_size=n, max_size=n))
    count = (pytestconfig.getoption("--programs") or DEFAULT) // 10

    @hypothesis.settings(
        max_examples=count, phases=SEARCH, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.booleans(), program)
    def run(gradients: bool, steps: list[tuple[str, int, int, int]]) -> None:
        programs.run_both(steps if gradients else [("no_gradients", 0, 0, 0), *steps], programs.large)

    run()


def test_L7_every_kind_of_step_can_succeed(programs: types.SimpleNamespace) -> None:
    """A step that always raised would test nothing."""
    assert programs.never_succeed() == []
    assert programs.never_succeed_on_large_tensors() == []
