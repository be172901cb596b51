"""C4: memory in an estimate is what a measured run has, and each storage names the call that made it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mindtorch._ext.signals import by_signal_handler
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def masks() -> None:
    x = torch.randn(512, 512)
    for _ in range(20):
        y = x[x > 0]
        y = None  # noqa: F841 - dropped


def grouped(dtype: torch.dtype) -> Callable[[], None]:
    def run() -> None:
        a, b = torch.randn(64, 32, dtype=dtype), torch.randn(2, 32, 32, dtype=dtype)
        offs = torch.tensor([4, 64], dtype=torch.int32)
        for _ in range(5):
            y = F.grouped_mm(a, b, offs=offs)
            y = None  # noqa: F841 - dropped

    return run


def estimated(program: Callable[[], Any], **options: Any) -> dict[str, Any]:
    with Estimator(**options) as estimator:
        program()
    return estimator.report()["memory"]


def test_C4_masks_that_the_program_drops_do_not_add_up() -> None:
    # What is taken is unknown: assumed to be all, at one place in memory each time.
    assert estimated(masks)["peak_bytes"] == (4 + 1 + 4) * 512 * 512
    with Profiler() as profiler:
        masks()
    measured = profiler.report()["totals"]["peak_bytes"]
    assert (4 + 1) * 512 * 512 < measured <= (2 * 4 + 1 + 16) * 512 * 512


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_C4_results_of_calls_that_are_not_recorded_are_those_calls(dtype: torch.dtype) -> None:
    memory = estimated(grouped(dtype))
    size = dtype.itemsize
    assert memory["peak_bytes"] == size * (64 * 32 + 2 * 32 * 32 + 64 * 32) + 8
    made = {row["op"]: row["count"] for row in memory["largest"] if row["bytes"] > 8}
    assert made == {"aten::randn": made["aten::randn"], "aten::_grouped_mm": 1}
    assert memory["at"]["op"] == "aten::_grouped_mm"


def test_L9_who_raised_an_error_is_found_out_without_keeping_it() -> None:
    def fails(number: int) -> None:
        raise ValueError(number)

    def catches(number: int) -> None:
        try:
            fails(number)
        except ValueError as error:
            assert not by_signal_handler(error)

    gc.collect()
    for number in range(3):
        catches(number)
    assert gc.collect() == 0


def test_C2_a_module_that_only_makes_views_holds_what_is_there_in_backward_too() -> None:
    """Measured, nn.Flatten held what was there as it was called, and nothing of the backward pass."""

    def step() -> None:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
        )
        net(torch.ones(50, 3, 8, 8)).sum().backward()

    with Profiler() as measured:
        step()
    with Estimator() as estimator:
        step()
    peaks = [
        {row["path"]: row["peak_bytes"] for row in seen.report()["modules"] if row["path"]}
        for seen in (measured, estimator)
    ]
    assert peaks[0] == peaks[1] and len(peaks[0]) == 5


LOSSES = [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.binary_cross_entropy, F.l1_loss, F.huber_loss]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_C4_losses_keep_the_memory_that_torch_makes_them_in(loss: Callable[..., Any], reduction: str) -> None:
    """Some are as large as the predictions, though of one number: a list of them fills the card."""

    def program() -> None:
        x = torch.rand(512, 64, requires_grad=True)
        kept = [loss(x, torch.rand(512, 64), reduction=reduction) for _ in range(3)]
        sum(each.sum() for each in kept).backward()  # type: ignore[union-attr]

    with Profiler() as profiler:
        program()
    measured, found = profiler.report()["memory"], estimated(program)
    assert (found["peak_bytes"], found["categories"]) == (measured["peak_bytes"], measured["categories"])


def _trained(kept: Callable[[torch.nn.Module], Any], copied: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    held, static = kept(model), torch.empty(512, 64)
    for _ in range(3):
        batch = torch.randn(512, 64)
        model(static.copy_(batch) if copied else batch).abs().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad)
                p.grad = None
    del held


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("kept", [
    lambda model: None, lambda model: [p.detach().clone() for p in model.parameters()],
    lambda model: {name: value.clone() for name, value in model.state_dict().items()}, copy.deepcopy,
    lambda model: torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone(),
])  # fmt: skip
def test_C4_static_inputs_and_clones_of_weights_are_counted_once(kept: Callable[..., Any], copied: bool) -> None:
    def program() -> None:
        _trained(kept, copied)

    with Profiler() as profiler:
        program()
    measured, found = profiler.report()["memory"], estimated(program)
    assert (found["peak_bytes"], found["categories"]) == (measured["peak_bytes"], measured["categories"])
