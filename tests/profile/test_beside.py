"""SPEC C2, C3: where figures of a watched run are not those of a plain one, the report says so."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mindtorch.profile.estimate.estimator import Estimator


def counts(profiler: profile) -> dict[str, int]:
    return {event.key: event.count for event in profiler.key_averages()}


def test_C2_a_profiler_of_the_programs_own_sees_ops_twice_and_the_report_says_so(record):
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    place = torch.autograd.profiler
    enable = place._enable_profiler
    found = []

    def program():
        for _ in range(2):
            with profile(activities=[ProfilerActivity.CPU]) as own:
                layer(x)
            found.append(counts(own))

    program()
    plain = found.pop()
    report, _ = record(program)
    assert plain["aten::addmm"] == 1 and found[-1]["aten::addmm"] == 2 and "PythonDispatchMode" in found[-1]
    (text,) = (text for text in report["warnings"] if "torch's own profiler" in text)
    assert "(2 ×)" in text and "every op twice" in text
    assert place._enable_profiler is enable
    report, _ = record(lambda: layer(x))
    assert not any("torch's own profiler" in text for text in report["warnings"])


class Used(torch.nn.Module):
    """Its input is used three times: backward sums three gradients, in place where it may."""

    def forward(self, x):
        return x * 1 + x * 2 + x * 3


def test_C2_gradients_that_are_summed_out_of_place_are_said(record):
    layer, used, x = torch.nn.Linear(256, 256), Used(), torch.ones(256, 256)

    def program():
        used(layer(x)).sum().backward()

    with profile(activities=[ProfilerActivity.CPU]) as plain:
        program()
    assert counts(plain)["aten::add_"] >= 2 and counts(plain)["aten::add"] == 2
    report, _ = record(program)
    calls = next(row["calls"] for row in report["ops"] if row["name"] == "aten::add")
    assert calls == 4, "two sums of the forward pass, and two that torch has out of place where a mode is on"
    (text,) = (text for text in report["warnings"] if "of the add calls in backward" in text)
    assert "up to 2 (512.00 KiB) sum gradients of tensors that are used more than once" in text


def test_C4_an_estimate_says_it_too():
    with Estimator() as estimator:
        layer = torch.nn.Linear(256, 256)
        Used()(layer(torch.ones(256, 256))).sum().backward()
    assert any("of the add calls in backward" in text for text in estimator.report()["warnings"])


@pytest.mark.parametrize("scale", [1, 64])
def test_C2_sums_that_make_no_difference_to_the_peak_are_not_said(record, scale):
    layer, used, x = torch.nn.Linear(4, 4), Used(), torch.ones(4, 4)
    held = torch.nn.Linear(1, 1000 * scale)

    def program():
        held(torch.ones(1, 1))
        used(layer(x)).sum().backward()

    report, _ = record(program)
    assert not any("of the add calls in backward" in text for text in report["warnings"])
