"""M3: small copies of large calls, by which what a call gives is found out: other sizes in the same relations."""

from __future__ import annotations

import functools
import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch.engine.record import trial
from mindtorch.engine.record.shrink import copies, dense, strides

F32 = torch.float32


@pytest.mark.parametrize(
    ("size", "stride", "new", "expected"),
    [
        ((30, 20), (20, 1), (3, 2), (2, 1)),
        ((30, 20), (1, 30), (3, 2), (1, 3)),
        ((30, 20, 10), (10, 300, 1), (4, 3, 2), (2, 8, 1)),
        ((30, 20), (0, 1), (3, 2), (0, 1)),
        ((30, 20), (0, 0), (3, 2), (0, 0)),
        ((30, 20), (40, 1), (3, 2), (4, 1)),  # every second row
        ((30, 20), (60, 1), (3, 2), (4, 1)),  # every third: a gap of as many rows
        ((30, 20), (21, 1), (3, 2), (3, 1)),  # a gap that is no row
        ((30, 20), (19, 1), (3, 2), None),  # rows that overlap
        ((30, 20), (1, 1), (3, 2), None),
        ((30, 20), (2, 59), (3, 2), None),  # every second element: a row's last one is the next row's first
        ((30, 20), (2, 40), (3, 2), None),
        ((30, 20), (2, 60), (3, 2), (2, 6)),
        ((30, 1), (1, 30), (3, 1), (1, 3)),  # what a dimension of size 1 steps over is there
        ((30, 1), (1, 1), (3, 1), (1, 1)),
        ((30, 1), (1, 31), (3, 1), (1, 6)),  # beyond all that is there
        ((30, 1), (1, 29), (3, 1), None),  # within it: nobody knows
        ((30, 1), (1, 0), (3, 1), (1, 0)),
        ((1,), (1,), (1,), (1,)),
        ((1,), (2,), (1,), (2,)),
        ((0, 20), (20, 1), (0, 2), (2, 1)),
        ((), (), (), ()),
    ],
)
def test_M3_strides_of_other_sizes_have_the_same_order_gaps_and_repetitions(
    size: tuple, stride: tuple, new: tuple, expected: tuple | None
) -> None:
    assert strides(size, stride, new) == expected


@pytest.mark.parametrize(
    ("size", "stride", "new", "expected"),
    [
        ((30, 20), (20, 1), (3, 2), (2, 1)),
        ((30, 20), (1, 30), (3, 2), (1, 3)),
        ((30, 20, 10), (10, 300, 1), (4, 3, 2), (2, 8, 1)),
        ((30, 20), (0, 1), (3, 2), (0, 1)),
        ((30, 20), (40, 1), (3, 2), None),
        ((30, 20), (1, 1), (3, 2), (1, 1)),
        ((30, 1), (1, 30), (3, 1), (1, 3)),
        ((30, 1), (1, 1), (3, 1), (1, 1)),
        ((2, 3), (3, 1), (5, 7), (7, 1)),
        ((), (), (), ()),
    ],
)
def test_M3_strides_without_gaps(size: tuple, stride: tuple, new: tuple, expected: tuple | None) -> None:
    assert dense(size, stride, new) == expected


def test_M3_permuted_tensors_stay_permuted() -> None:
    rng = random.Random(0)
    for _ in range(300):
        n = rng.randint(1, 4)
        old, new = ([rng.randint(2, 6) for _ in range(n)] for _ in range(2))
        order = rng.sample(range(n), n)
        before, after = (
            torch.empty([s[k] for k in order]).permute([order.index(k) for k in range(n)]) for s in (old, new)
        )
        for found in (strides, dense):
            assert found(tuple(before.shape), before.stride(), tuple(after.shape)) == after.stride()


def fact(*size: int, stride: tuple[int, ...] | None = None) -> tuple:
    return F32, torch.Size(size), stride, 0, 0, 0


def small(*facts: tuple, args: tuple = (), kwargs: dict | None = None, most: int = 10_000, **other: object) -> list:
    found = copies(args, kwargs or {}, list(facts), most, **other)  # type: ignore[arg-type]
    return [(a, k, [tuple(f[1]) for f in made]) for a, k, made in found]


def test_M3_sizes_that_are_equal_stay_equal_and_small_ones_as_they_are() -> None:
    first = small(fact(100, 4), fact(4, 100), fact(70, 100, 1))[0]
    assert first == ((), {}, [(12, 4), (4, 12), (8, 12, 1)])
    for _args, _kwargs, (one, other, third) in small(fact(100, 4), fact(4, 100), fact(70, 100, 1)):
        assert one == (one[0], 4) and other == (4, one[0]) and third[1:] == (one[0], 1)


def test_M3_a_size_that_may_mean_something_stays_as_it_is_in_later_copies() -> None:
    found = [made for _a, _k, made in small(fact(5), fact(6), fact(7))]
    assert found[0] == [(8,), (12,), (16,)]
    kept = [{size for (size,) in made} & {5, 6, 7} for made in found]
    assert kept == [set(), {5}, {6}, {7}, {5, 6}, {5, 7}, {6, 7}]


def test_M3_multiples_stay_multiples_in_a_copy() -> None:
    found = [made for _a, _k, made in small(fact(50), fact(100), fact(150), fact(200), fact(250))]
    assert any((b, c, d) == (2 * a, 3 * a, 4 * a) and e not in (a, b, c, d) for ((a,), (b,), (c,), (d,), (e,)) in found)


def test_M3_arguments_that_are_sizes_follow_and_others_stay() -> None:
    given = {"args": (100, [70, 3], 100.0, "100", True, torch.Size([100])), "kwargs": {"dim": 100, "size": (70,)}}
    args, kwargs, _made = small(fact(100, 70), **given)[0]  # type: ignore[arg-type]
    assert args == (12, [8, 3], 100.0, "100", True, torch.Size([12])) and kwargs == {"dim": 12, "size": (8,)}
    args, kwargs, _made = small(fact(100, 70), as_they_are=(0, "dim"), **given)[0]  # type: ignore[arg-type]
    assert args[0] == 100 and args[1] == [8, 3] and kwargs == {"dim": 100, "size": (8,)}


@pytest.mark.parametrize("product", [(20, 30), (30, 40), (20, 30, 40)])
def test_M3_products_of_neighbouring_sizes_follow(product: tuple[int, ...]) -> None:
    (number,), _kwargs, ((a, b, c),) = small(fact(20, 30, 40), args=(math.prod(product),))[0]
    new = {20: a, 30: b, 40: c}
    assert number == math.prod(new[n] for n in product) and number < math.prod(product)
    (number,), _kwargs, _made = small(fact(20, 30, 40), args=(20 * 40,))[0]
    assert number == 20 * 40, "they are no neighbours"


def test_M3_a_number_that_is_a_size_and_a_product_stays_with_what_it_is_made_of() -> None:
    for (number,), _kwargs, ((a, b), (c,)) in small(fact(6, 7), fact(42), args=(42,)):
        assert (a, b, c, number) == (6, 7, 42, 42)


@pytest.mark.parametrize("most", [7, 8, 8 * 12 - 1, 8 * 12, 8 * 12 + 1])
def test_M3_no_copy_has_more_elements_than_may_be(most: int) -> None:
    found = small(fact(100, 70), most=most)
    assert len(found) == (most >= 8 * 12) and all(math.prod(made[0]) <= most for _a, _k, made in found)
    together = small(fact(100), fact(70), most=20)
    assert [made for _a, _k, made in together] == [[(12,), (8,)]]
    assert small(fact(100), fact(70), most=19) == []


def test_M3_elements_that_share_memory_have_no_copy() -> None:
    assert small(fact(30, 20, stride=(1, 1))) == []
    assert small(fact(30, 20, stride=(20, 1)))[0][2] == [(12, 8)]


def test_M3_sizes_come_from_numbers_where_no_tensor_has_some() -> None:
    (args, _kwargs, made), *_ = small(fact(2, 2), args=(100, 50))
    assert args == (12, 8) and made == [(2, 2)]


def test_M3_copies_are_smaller_than_what_they_are_of() -> None:
    for size in itertools.product((1, 3, 50, 100), repeat=3):
        (_args, _kwargs, (made,)), *_ = small(fact(*size))
        assert [a == b for a, b in itertools.combinations(size, 2)] == [
            a == b for a, b in itertools.combinations(made, 2)
        ]
        assert all(
            (old <= 4 and new == old) or (old > 4 and 8 <= new < old) for old, new in zip(size, made, strict=True)
        )


@pytest.mark.parametrize("large", [False, True])
def test_L9_where_no_copy_can_be_made_nothing_is_known(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.shrink, "copies", lambda *_: iter(()))
    call = SimpleNamespace(name="aten::relu", call=torch.ops.aten.relu.default)
    assert trial._on_copies(call, (), {}, [], (), lambda *_: None, large) is None


@pytest.mark.parametrize(("elements", "copied"), [(1 << 14, False), ((1 << 14) + 1, True)])
def test_L9_calls_of_up_to_so_many_elements_are_tried_as_they_are(
    elements: int, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    monkeypatch.setattr(trial, "_on_copies", lambda *_: tried.append(True))
    monkeypatch.setattr(trial, "_passes_as_it_is", lambda *_: tried.append(False) or True)
    facts = [(torch.float32, torch.Size([elements]), (1,), 0)]
    assert trial.passes(SimpleNamespace(name="aten::relu"), (), {}, facts, ([],), lambda *_: None)
    assert tried[0] is copied


# ---- what is made of a copy ------------------------------------------------------------------------------------------
AS_PREDICTED, REFUSED, UNFIT = trial._AS_PREDICTED, trial._REFUSED, trial._UNFIT
MOST = 1 << 18


def called(name: str = "aten::relu", call: Any = torch.relu, random: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, call=call, random=random)


def plain(*size: int, dtype: torch.dtype = F32, stride: tuple | None = None) -> tuple:
    """What is predicted of a result, or is known of an argument."""
    return (dtype, torch.Size(size), stride, 0, 0, 0)


@pytest.mark.parametrize("elements", [(1 << 14) + 1, MOST, MOST + 1])
@pytest.mark.parametrize("verdict", [True, False, None])
def test_L9_what_no_copy_tells_of_the_call_itself_does_where_it_is_small(
    elements: int, verdict: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(trial, "_on_copies", lambda *given: tried.append(given[-1]) or verdict)
    monkeypatch.setattr(trial, "_passes_as_it_is", lambda *given: tried.append(given[-1]) or False)
    facts, spec = [plain(elements - 7)], ([plain(7)],)
    found = trial.passes(called(), (), {}, facts, spec, lambda *_: None)
    if verdict is None and elements <= MOST:
        assert (found, tried) == (False, [False, False])
    else:
        assert (found, tried) == (verdict is not False, [elements > MOST])


@pytest.mark.parametrize("elements", [MOST, MOST + 1])
def test_L9_what_has_to_be_tried_is_tried_as_it_is_or_runs_at_once(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(trial, "_passes_as_it_is", lambda *given: asked.append(given[-1]) or True)
    facts = [plain(2, elements // 2, stride=(1, 2)), plain(elements % 2)]  # no strides that descend
    assert trial.passes(called("aten::index"), (), {}, facts, ([],), lambda *_: None) is (elements == MOST)
    assert asked == [True] * (elements == MOST)


@pytest.mark.parametrize(("size", "stride", "descending"), [
    ((2, 3), None, True), ((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((2, 3), (1, 1), True),
    ((2, 0), (1, 1), False), ((0,), None, False), ((), None, True), ((1, 3), (3, 1), True),
])  # fmt: skip
def test_L9_strides_that_descend(size: tuple[int, ...], stride: tuple | None, descending: bool) -> None:
    assert trial._descending(plain(*size, stride=stride)) is descending


@pytest.mark.parametrize(("verdicts", "small", "large"), [
    ([AS_PREDICTED], True, True),
    ([REFUSED], None, False),
    ([REFUSED, REFUSED], None, False),
    ([REFUSED, AS_PREDICTED], None, True),
    ([REFUSED, UNFIT], None, False),
    ([UNFIT], None, None),
    ([UNFIT, UNFIT, AS_PREDICTED], True, True),
    ([UNFIT, REFUSED], None, False),
    ([{0: ((2, 3), (1, 2))}, AS_PREDICTED], None, True),
    ([{0: ((2, 3), (4, 1))}, AS_PREDICTED], None, False),  # no strides of a dense tensor
])  # fmt: skip
def test_L9_one_copy_that_is_taken_speaks_for_the_call(
    verdicts: list[Any], small: bool | None, large: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial.shrink, "copies", lambda *_: iter([((), {}, [])] * len(verdicts)))
    for expected, is_large in ((small, False), (large, True)):
        given = iter(verdicts)
        monkeypatch.setattr(trial, "_try", lambda *_, given=given: next(given))
        spec = ([plain(20, 30)],)
        assert trial._on_copies(called(), (), {}, [], spec, lambda *_: None, is_large) is expected
        relaid = is_large and isinstance(verdicts[0], dict) and expected
        assert spec[0][0][2] == ((1, 20) if relaid else None)


@pytest.mark.parametrize(("given", "verdict"), [
    (torch.zeros(2, 3), AS_PREDICTED),
    (torch.zeros(3, 2).t(), {0: ((2, 3), (1, 2))}),
    (torch.zeros(2, 3, dtype=torch.float64), REFUSED),
    (torch.zeros(3, 2), REFUSED),
    (torch.zeros(2, 3)._neg_view(), REFUSED),
    (3.0, REFUSED),
    (trial._RELAID, REFUSED),
    (RuntimeError("no"), REFUSED),
    (torch.linalg.LinAlgError("singular"), AS_PREDICTED),
])  # fmt: skip
def test_L9_a_copy_is_judged_by_what_the_kernel_gives(
    given: object, verdict: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_run", lambda *_: given)
    assert trial._judge(called(), (), {}, [], lambda *_: ([plain(2, 3)], (), None)) == verdict


@pytest.mark.parametrize(("asked", "size", "given", "passes"), [
    (False, (2, 3), torch.zeros(3, 2).t(), True),
    (False, (2, 3), torch.zeros(3, 2), False),
    (True, (2, 3), torch.zeros(3, 2), True),
    (True, (2, 3), torch.zeros(2, 3, dtype=torch.int32), False),
    (True, (2, 3), None, False),
    (False, (2, 3), trial._RELAID, False),
    (True, (2, 3), RuntimeError("no"), False),
    (False, (2, 3), torch.linalg.LinAlgError("singular"), True),
    (True, (2, 3), torch.linalg.LinAlgError("singular"), False),
])  # fmt: skip
def test_L9_what_was_tried_as_it_is_is_laid_out_as_the_kernel_did(
    asked: bool, size: tuple[int, ...], given: Any, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_run", lambda *_: given)
    spec = ([plain(*size)], (), None)
    assert trial._passes_as_it_is(called(), (), {}, [], spec, asked) is passes
    if passes and isinstance(given, torch.Tensor):
        expected = given.stride() if given.stride() != (2, 1) else None
        assert spec[0][0] == (F32, given.shape, expected, 0, 0, 0)


@pytest.mark.parametrize("elements", [MOST, MOST + 1])
def test_L9_a_copy_whose_results_are_too_large_does_not_fit(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_run", lambda *_: (torch.zeros(elements - 5), torch.zeros(5)))
    spec = ([plain(elements - 5), plain(5)], (), (0, 0, 1))
    found = trial._judge(called(), (), {}, [], lambda *_: spec)
    assert found == (AS_PREDICTED if elements == MOST else UNFIT)
    assert trial._judge(called(), (), {}, [], lambda *_: None) == UNFIT


def test_L9_only_fresh_results_are_compared() -> None:
    x, y = torch.zeros(2), torch.ones(3)
    assert trial._results(x, ([], (), None)) == [(0, x)]
    assert trial._results((x, y), ([], (), (0, -1, 0))) == [(0, y)]
    assert trial._results([x, y], ([], (), (0, 1, None))) == [(1, x)]


def test_L9_verdicts_are_kept_by_what_tells_calls_apart_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple] = []
    monkeypatch.setattr(trial, "_verdicts", {})
    monkeypatch.setattr(trial, "_MOST_REMEMBERED", 2)
    monkeypatch.setattr(trial, "_judge", lambda info, args, *_: judged.append(args) or AS_PREDICTED)
    info = object()

    def attempt(*args: object) -> None:
        assert trial._try(info, args, {}, [plain(2)], lambda *_: None) == AS_PREDICTED  # type: ignore[arg-type]

    for n in (1, 1, True, 1.0, 1):
        attempt(n)
    assert judged == [(1,), (True,), (1.0,), (1,)]  # the third had no room, and what was kept is gone
    attempt({}), attempt({})
    assert len(judged) == 6  # what cannot be hashed is judged each time
    trial.forget()
    with torch.inference_mode():
        attempt(1)
    with torch.no_grad():
        attempt(1)
    assert len(judged) == 8


def test_L9_a_kernel_is_asked_with_zeros_ones_and_halves_and_draws_nothing() -> None:
    seen: list[Any] = []

    def kernel(error: Exception | None, *args: torch.Tensor, **_: object) -> torch.Tensor:
        seen.append([a.tolist() for a in args])
        torch.rand(2)
        if error is not None:
            raise error
        return args[0]

    facts = [plain(2, dtype=torch.int64), plain(1), plain(1, dtype=torch.bool), plain(1, dtype=torch.complex64)]
    holes = tuple(t.to("remote_accelerator:0") for t in (torch.zeros(2, dtype=torch.int64), *torch.zeros(3, 1)))
    before = torch.default_generator.get_state()

    def ask(error: Exception | None, name: str = "aten::relu") -> object:
        seen.clear()
        return trial._run(called(name, functools.partial(kernel, error), random=True), holes, {}, facts)

    zeros, ones = ([[n] * 2, [0.5], [bool(n)], [0.5 + 0j]] for n in (0, 1))
    assert isinstance(ask(None), torch.Tensor) and seen == [zeros]
    assert isinstance(ask(RuntimeError("no")), RuntimeError) and seen == [zeros, ones]
    assert isinstance(ask(torch.linalg.LinAlgError("no")), RuntimeError) and seen == [zeros]
    assert isinstance(ask(None, "aten::lu_solve"), torch.Tensor) and seen == [ones]
    assert torch.equal(torch.default_generator.get_state(), before)
    resized = called(call=lambda t, *_: t.resize_(5))
    assert trial._run(resized, holes, {}, facts) is trial._RELAID
