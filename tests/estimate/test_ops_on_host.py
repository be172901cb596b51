"""C4: what a program computes on the CPU, beside the accelerator, takes nothing of the accelerator's time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")


def estimate(here: bool, there: bool) -> dict[str, Any]:
    with Estimator(target=L4) as estimator:
        if here:
            x = torch.randn(2048, 2048)
            for _ in range(10):
                x = x @ x
        if there:
            y = torch.empty(2048, 2048, device="cuda")
            y @ y
    return estimator.report()


def device_s(report: dict[str, Any]) -> float:
    return sum(row["self_s"] for row in report["ops"] if row["name"] == "aten::mm")


def test_C4_ops_on_the_cpu_take_nothing_of_the_accelerators_time() -> None:
    """A dataset's transforms were a third of the time on the L4, as its launches."""
    both, alone = estimate(True, True), estimate(False, True)
    assert device_s(both) == device_s(alone) > 0
    assert both["totals"]["bound_s"] == alone["totals"]["bound_s"]
    mm = next(row for row in both["ops"] if row["name"] == "aten::mm")
    assert mm["calls"] == 11 and mm["flops"] == 11 * 2 * 2048**3 and mm["host_flops"] == 10 * 2 * 2048**3
    assert both["totals"]["host_flops"] == mm["host_flops"] and alone["totals"]["host_flops"] == 0
    assert any("11 ops compute on CPU tensors" in note for note in both["warnings"])
    assert not any("on CPU tensors" in note for note in alone["warnings"])


def test_C4_a_program_that_keeps_to_the_cpu_is_told_what_it_would_take_on_the_accelerator() -> None:
    report = estimate(True, False)
    assert device_s(report) > 0 and report["totals"]["host_flops"] == 0
    assert any("the program puts nothing on the accelerator" in note for note in report["warnings"])


def test_C4_small_known_tensors_on_the_cpu_are_the_hosts_too() -> None:
    """What a dataset makes of bytes that are known: an image of 32 × 32."""
    with Estimator(target=L4) as estimator:
        torch.ones(4, device="cuda") + 1
        for _ in range(3):
            torch.arange(1024).reshape(32, 32).div(255).sub_(0.5)
            torch.arange(1024, device="cuda").mul_(2)
    times = {row["name"]: row["self_s"] for row in estimator.report()["ops"]}
    assert times["aten::div"] == times["aten::sub_"] == 0 < times["aten::mul_"]


@pytest.mark.parametrize("name", ["cuda", "npu"])
def test_C4_both_names_of_an_npu_are_the_accelerators(name: str) -> None:
    """Of a program that says "cuda", the report said that it puts nothing there, and that it fits there; and nothing of
    what torch's allocator takes."""
    with Estimator(target=targets.find("910b")) as estimator:
        torch.nn.Linear(1024, 1024).to(name)(torch.ones(2, 1024, device=name))
    report = estimator.report()
    memory = report["memory"]
    assert memory["peak_device_bytes"] >= memory["peak_reserved_bytes"] >= memory["peak_allocated_bytes"] > 4 * 2**20
    assert memory["fits"] and not [note for note in report["warnings"] if "puts nothing" in note]


def test_C4_what_computes_on_cpu_tensors_is_told_not_all_that_runs() -> None:
    """ "11,029 ops run on CPU tensors" was said of 108,000: the others were views and reads."""
    with Estimator(target=L4) as estimator:
        x = torch.empty(1024, 1024, device="cuda") @ torch.empty(1024, 1024, device="cuda")
        here = torch.ones(2048, 2048)
        for _ in range(10):
            here = (here @ here).t()
        del x
    assert any("11 ops compute on CPU tensors: counted" in note for note in estimator.report()["warnings"])
