"""Random programs give what eager gives when their values come out of a cache (SPEC L14)."""

from __future__ import annotations

import types
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

import mindtorch
from mindtorch.engine.remote.placing import PlacingExecutor
from tests.executors import Anywhere, using

DEFAULT = 60


def anywhere() -> mindtorch.Executor:
    """Three workers, on which each record is anywhere."""
    return Anywhere([mindtorch.LoopbackExecutor() for _ in range(3)])


def placed() -> mindtorch.Executor:
    """Three workers, each of which has memory for a part."""
    return PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(3)], limit=1 << 12)


@pytest.mark.parametrize("where", [mindtorch.LocalExecutor, mindtorch.LoopbackExecutor, anywhere, placed])
def test_L14_random_programs_have_eager_s_bits_out_of_a_cache(
    where: Callable[[], mindtorch.Executor], programs: types.SimpleNamespace, pytestconfig: pytest.Config
) -> None:
    number = st.integers(0, 11)
    step = st.tuples(st.sampled_from(programs.kinds), number, number, number)
    program = st.integers(5, 40).flatmap(lambda n: st.lists(step, min_size=n, max_size=n))
    count = pytestconfig.getoption("--programs") or DEFAULT
    cache = mindtorch.cache()
    mindtorch.reset_stats()

    @hypothesis.settings(
        max_examples=count, phases=[hypothesis.Phase.generate], database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.booleans(), program)
    def run(gradients: bool, steps: list[tuple[str, int, int, int]]) -> None:
        steps = steps if gradients else [("no_gradients", 0, 0, 0), *steps]
        for _again in range(2):
            with cache:
                programs.run_both(steps, memory=where is mindtorch.LocalExecutor)

    with using(where()):
        run()
    counted = mindtorch.stats()
    # Where each part is anywhere, its second run is seldom where the values of the first one are.
    assert counted["cache_hits"] > counted["cache_misses"] / (200 if where is anywhere else 4) > 0
