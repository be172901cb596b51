"""C4: loops that wait for values nobody knows end, and the report says so."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch

from mindtorch.base.errors import NoDataError
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import assumptions, waiting_loops
from mindtorch.profile.estimate.estimator import Estimator

pytestmark = pytest.mark.filterwarnings("ignore:.*waits for an unknown value")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a loop one of much work."""
    monkeypatch.setattr(waiting_loops, "MUCH_WORK", 1000)


@pytest.fixture
def session() -> Iterator[None]:
    with Estimator(target=targets.find("h100")):
        yield


def unknown(*size: int) -> torch.Tensor:
    return torch.rand(*size, device="cuda")


def work(step: int) -> torch.Tensor:
    x = unknown(3)
    for _ in range(20):
        x = x.sin()
    return x


def by_its_test() -> int:
    steps = 0
    while (work(steps) < 1).any():
        steps += 1
    return steps


def by_a_number() -> int:
    steps = 0
    while int(work(steps).long().min()) < 500:
        steps += 1
    return steps


def by_two_numbers() -> int:
    steps = 0
    while work(steps)[0].item() < 5 or work(steps)[1].item() > -5:
        steps += 1
        if steps > 3 * waiting_loops.MANY:
            break
    return steps


def by_a_break() -> int:
    for_ever = 0
    while True:
        for_ever += 1
        if not (work(for_ever) < 1).all():
            break
    return for_ever


def by_a_flag() -> int:
    steps, done = 0, False
    while not done:
        steps += 1
        done = (work(steps) > 1).any().item()
    return steps


def goes_on(x: torch.Tensor) -> bool:
    return bool((x < 1).all())


def by_a_function() -> int:
    steps = 0
    while goes_on(work(steps)):
        steps += 1
    return steps


@pytest.mark.parametrize("loop", [by_its_test, by_a_number, by_a_break, by_a_flag, by_a_function])
def test_C4_a_loop_that_only_an_unknown_value_ends_ends_in_bounded_work(session: None, loop: Callable[[], int]) -> None:
    """One of speculative decoding went round for half an hour: 10,000 times."""
    assert waiting_loops.FEW_ROUNDS <= loop() <= waiting_loops.FEW_ROUNDS + 40
    (found,) = waiting_loops.ended()
    assert found[0] == __file__ and found[2] == waiting_loops.FEW_ROUNDS + 1
    assert loop() <= waiting_loops.FEW_ROUNDS + 40 and len(waiting_loops.ended()) == 1  # each time anew


def by_its_length() -> int:
    steps = 0
    while steps < 300 and (work(steps) < 1).any():
        steps += 1
    return steps


def by_another_way_out() -> int:
    steps = 0
    while (work(steps) < 1).any():
        steps += 1
        if steps == 300:
            break
    return steps


def by_one_of_two_breaks() -> int:
    steps = 0
    while True:
        steps += 1
        if (work(steps) > 1).any():
            break
        if steps == 300:
            return steps


def by_its_sequence() -> int:
    for step in count():
        if step == 300 or (work(step) > 1).any():
            break
    return step


def by_what_is_known() -> int:
    steps = 0
    while steps < 300:
        steps += 1
        work(steps).sum().item()
    return steps


@pytest.mark.parametrize(
    "loop", [by_its_length, by_another_way_out, by_one_of_two_breaks, by_its_sequence, by_what_is_known]
)
def test_C4_a_loop_that_may_end_by_itself_does(session: None, loop: Callable[[], int]) -> None:
    assert loop() == 300 and waiting_loops.ended() == []


def test_C4_a_loop_that_no_assumption_ends_is_one_that_cannot_be_told(session: None) -> None:
    x, line = unknown(3), 0
    with pytest.raises(NoDataError, match=r"test_waiting_loops\.py:\d+\): this loop waits for unknown values"):
        while (work(0) < 1).any() or (work(line) == work(line)).all() or x.sum().isfinite():
            line = 1


def test_C4_a_report_says_which_loops_were_ended() -> None:
    with Estimator() as estimator:
        by_its_test()
    (text,) = [words for words in estimator.report()["warnings"] if "loops waited" in words]
    line = by_its_test.__code__.co_firstlineno + 2
    assert text == (
        "loops waited for unknown values, and the estimate ended them "
        f"(test_waiting_loops.py:{line} after 101 iterations)"
    )


def test_C4_what_is_noted_of_masks_is_no_loop(session: None) -> None:
    """10,000 comparisons of known positions with unknown ones were said to be a loop."""
    x, at = torch.arange(4, device="cuda"), unknown(4).long()
    for _ in range(waiting_loops.MANY + 1):
        assert (x >= at).tolist() == [True] * 4
    assert waiting_loops.ended() == [] and assumptions.anything()


@pytest.mark.parametrize("negated", [torch.bitwise_not, torch.logical_not])
def test_C4_what_a_mask_leaves_that_kept_all_is_nothing_in_a_loop(negated: Callable[..., torch.Tensor]) -> None:
    """Non-maximum suppression went round 10,000 times, and failed after that: masks of one line kept none, then."""
    with Estimator() as estimator:
        left, kept = torch.rand(6, 5), []
        while left.size(0):
            same = (left[:, 4] > left[0, 4]) & (left[:, 3] < 1)
            same[0] = True
            kept.append(left[same].mean(0))
            left = left[negated(same)]
        boxes = torch.rand(6, 5)
        high = boxes[:, 4] > 0.5
        parts = boxes[high], boxes[negated(high)]
    assert len(kept) == 1
    assert [len(part) for part in parts] == [6, 6]  # no loop has to end: the largest amount of work
    assert not any("loops waited" in text for text in estimator.report()["warnings"])


def test_C4_threads_that_wait_at_once_do_not_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 raised SystemError then: programs that ran without us failed in estimates."""
    now, most, parse = [0], [0], ast.parse

    def parsing(source: str) -> ast.Module:
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            time.sleep(0.01)
            return parse(source)
        finally:
            now[0] -= 1

    monkeypatch.setattr(waiting_loops.ast, "parse", parsing)
    waiting_loops._bodies.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: waiting_loops._bodies(__file__), range(4)))
    assert most == [1] and found[0] == found[3] != []
