"""Random programs give what eager gives with each pass on every segment, seen before or not (SPEC L13, L7)."""

from __future__ import annotations

import types
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import mindtorch
from mindtorch._ext import replay
from mindtorch.engine import passes
from mindtorch.engine.passes import optimizer

DEFAULT = 25
SEARCH = [hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink]

#: Computes something twice: what else is drawn goes by the modules that were imported, and need not.
TWICE = [
    ("gram", 6, 6, 2), ("greater", 1, 0, 7), ("to_dtype_copy", 11, 3, 5), ("greater", 6, 0, 8), ("transpose", 0, 0, 5),
    ("pick_by_list", 1, 1, 5), ("shift_rows", 7, 3, 2), ("shift_rows", 7, 5, 8),
]  # fmt: skip

#: What the other passes look for.
COPIES = [
    ("of_a_copy", 0, 1, 0), ("cast_and_back", 1, 1, 1), ("with_a_mask", 0, 3, 1), ("with_positions", 2, 5, 0),
    ("copy_or_source_written", 3, 1, 1),
]  # fmt: skip


@pytest.fixture
def at_once() -> Iterator[None]:
    """Every segment is looked at when it comes for the first time, however short it is; calls when they come again."""
    forms = passes.optimizer_on(torch.device("cpu")).forms
    mindtorch.flush("test")
    before = forms.after, forms.fewest
    forms.after = forms.fewest = 1
    often = replay.native_after(1)
    yield
    replay.native_after(often)
    forms.after, forms.fewest = before


#: Those that change what one executor runs by itself; tests/executors.py lets random programs run twice on several.
HERE = [each.name for each in passes.known_passes() if each.name != "recompute"]


@pytest.mark.only_on("local")
@pytest.mark.parametrize("names", [*[[name] for name in HERE], None], ids=str)
def test_L13_random_programs_keep_their_bits(
    programs: types.SimpleNamespace, pytestconfig: pytest.Config, names: list[str] | None, at_once: None
) -> None:
    number = st.integers(0, 11)
    step = st.tuples(st.sampled_from(programs.kinds), number, number, number)
    program = st.integers(5, 60).flatmap(lambda n: st.lists(step, min_size=n, max_size=n))
    wanted = HERE if names is None else names
    before = passes.set_passes(wanted)
    counted = passes.counts()[0]

    @hypothesis.settings(
        max_examples=(pytestconfig.getoption("--programs") or 5 * DEFAULT) // 5,
        phases=SEARCH,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.booleans(), program, st.booleans())
    @hypothesis.example(gradients=True, steps=TWICE, large=False)
    @hypothesis.example(gradients=False, steps=COPIES, large=False)
    def run(gradients: bool, steps: list[tuple[str, int, int, int]], large: bool) -> None:
        steps = steps if gradients else [("no_gradients", 0, 0, 0), *steps]
        machine = programs.large if large and len(steps) < 30 else None
        for _ in range(2):  # what a call gives is compared with what was predicted when it runs for the first time
            programs.run_both(steps, *([machine] if machine else []))

    try:
        run()
    finally:
        after, failed = passes.counts()[0], dict(optimizer._failed)
        passes.set_passes(before)
    assert not failed  # else it was left out
    for name in wanted:
        assert after.get(name, 0) > counted.get(name, 0)
