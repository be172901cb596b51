"""What a kept value is named by: each part of it is needed (SPEC L14: the caching hook)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import mindtorch
from mindtorch.engine.cache import content_names
from tests.caching import LAZY, again, nothing_counted, up

pytestmark = pytest.mark.usefixtures(nothing_counted.__name__)


def test_L14_the_same_call_of_the_same_bits_is_found() -> None:
    assert again(lambda: up(1, 2, 3) * 2 + up(1, 1, 1), lambda: up(1, 2, 3) * 2 + up(1, 1, 1))
    assert again(lambda: up(1, 2), lambda: up(1, 2)) is False, "an upload is nothing to be run"


@pytest.mark.parametrize(
    "other",
    [
        lambda: up(1, 2, 4) * 2,  # inputs
        lambda: up(1, 2, 3) * 3,  # numbers
        lambda: up(1, 2, 3) * 2.0,
        lambda: up(1, 2, 3) + 2,  # the operation
        lambda: up(1, 2, 3).mul_(2),  # its overload
        lambda: torch.mul(up(1, 2, 3), up(2, 2, 2)),
        lambda: up(1, 2, 3, dtype=torch.float64) * 2,  # dtype
        lambda: up(1, 2, 3)[None] * 2,  # sizes
        lambda: torch.as_strided(up(1, 2, 3, 4, 5), (3,), (2,)) * 2,  # strides
        lambda: up(0, 1, 2, 3)[1:] * 2,  # offset
        lambda: up(1, -0.0, 3) * 2,  # bits, not values
    ],
)  # fmt: skip
def test_L14_what_differs_is_not_found(other: Callable[[], torch.Tensor]) -> None:
    assert not again(lambda: up(1, 2, 3) * 2, other)


def test_L14_zero_and_minus_zero_are_not_the_same_input() -> None:
    assert not again(lambda: 1 / up(0.0), lambda: 1 / up(-0.0))


def test_L14_what_reads_what_is_part_of_the_name() -> None:
    def first() -> torch.Tensor:
        a, b = up(1, 2), up(3, 4)
        return (a + b) * a

    def second() -> torch.Tensor:
        a, b = up(1, 2), up(3, 4)
        return (a + b) * b

    assert not again(first, second)


def test_L14_dtypes_of_inputs_are_part_of_the_name() -> None:
    number = torch.tensor([1], dtype=torch.int32)
    assert not again(lambda: number.to(LAZY).double(), lambda: number.view(torch.float32).to(LAZY).double())


def test_L14_which_results_are_kept_is_part_of_the_name() -> None:
    def program(keeps: int) -> list[list[float]]:
        x = up(1, 2)
        first = x * 2
        second = first + 1
        third = first * second
        kept = [(first, second)[keeps], third]
        del first, second
        return [t.tolist() for t in reversed(kept)]

    with mindtorch.cache():
        for keeps, expected in ((0, [2, 4]), (1, [3, 5])) * 2:
            assert program(keeps) == [[6, 20], expected]


def test_L14_the_grad_mode_is_part_of_the_name() -> None:
    x = up(1, 2)

    def without() -> torch.Tensor:
        with torch.no_grad():
            return x * 2

    assert again(without, without) and not again(without, lambda: x * 2)


def test_L14_which_inputs_share_memory_is_part_of_the_name() -> None:
    def two(shared: bool) -> list[float]:
        x = up(1, 2)
        a, b = x[:], (x if shared else up(1, 2))[:]
        assert a.tolist() == b.tolist() == [1, 2]  # they are inputs of what comes
        a.add_(b).mul_(b)
        return a.tolist()  # type: ignore[no-any-return]

    with mindtorch.cache():
        for shared, expected in ((False, [2, 8]), (True, [4, 16])) * 2:
            assert two(shared) == expected


def test_L14_which_inputs_are_one_is_part_of_the_name() -> None:
    def apart() -> torch.Tensor:
        a, b = up(1, 2), up(1, 2)
        a.add_(b).mul_(b)
        return a

    def together() -> torch.Tensor:
        a = up(1, 2)
        a.add_(a).mul_(a)
        return a

    def views() -> torch.Tensor:
        a = up(1, 2)
        b = a.view(2)
        a.add_(b).mul_(b)
        return a

    with mindtorch.cache():
        for f, expected in ((apart, [2.0, 8.0]), (together, [4.0, 16.0]), (views, [4.0, 16.0])) * 2:
            assert f().tolist() == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda: torch.set_flush_denormal(True),
        lambda: torch._C._set_mkldnn_enabled(False),
        lambda: torch.set_default_dtype(torch.float64),
    ],
)
def test_L14_settings_are_part_of_the_name(change: Callable[[], object], as_it_was: None) -> None:
    x = torch.randn(8, 8).to(LAZY)

    def product() -> torch.Tensor:
        return x @ x

    def changed() -> torch.Tensor:
        change()
        return x @ x

    assert again(product, product) and not again(product, changed)


@pytest.mark.parametrize(
    "fact", ["VERSION", "torch.__version__", "torch.version.git_version", "hardware.cpu", "os.environ"]
)
def test_L14_the_build_and_the_processor_are_part_of_the_name(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content_names.surroundings.cache_clear()
    before = content_names.surroundings()
    if fact == "hardware.cpu":
        cpu = {**content_names.hardware.cpu(), "instruction_sets": ["none"]}
        monkeypatch.setattr(content_names.hardware, "cpu", lambda: cpu)
    elif fact == "os.environ":
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    else:
        monkeypatch.setattr(f"{content_names.__name__}.{fact}", "another")
    content_names.surroundings.cache_clear()
    try:
        assert content_names.surroundings() != before
        after, x = content_names.surroundings(), up(1, 2)
        for now in (before, after):
            monkeypatch.setattr(content_names, "surroundings", lambda now=now: now)
            assert again(lambda: x + 1, lambda: x + 1)

        def elsewhere() -> torch.Tensor:
            monkeypatch.setattr(content_names, "surroundings", lambda: before)
            return x + 1

        assert not again(lambda: x + 1, elsewhere)
    finally:
        monkeypatch.undo()
        content_names.surroundings.cache_clear()


def test_L14_attention_that_drops_nothing_is_kept() -> None:
    q = torch.randn(1, 2, 4, 8).to(LAZY)

    def attention() -> torch.Tensor:
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, q, q)

    assert again(attention, attention), "a draw of no numbers leaves the generator where it was"
