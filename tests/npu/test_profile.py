"""SPEC N5: a profile says what ran natively on NPUs, and what was staged through the CPU."""

from __future__ import annotations

import gc
from types import ModuleType

import acl_library
import torch

from mindtorch.cli.report_header import _on_npus
from mindtorch.npu import staging
from mindtorch.profile import Profiler


def test_N5_profile_shows_native_against_staged(npu: ModuleType) -> None:
    x = torch.ones(8, 8, device="npu:0")
    with Profiler() as profiler:
        for _ in range(3):
            x = x + x
        torch.cumsum(x, 0)
    report = profiler.report()
    assert report["device"].startswith("npu:0")
    assert report["npu"]["native"] == {"aten::add": 3} and report["npu"]["staged"] == {"aten::cumsum": 1}
    assert report["npu"]["peak_bytes"]["npu:0"] >= 512
    assert {row["name"]: row["calls"] for row in report["ops"]}["aten::add"] == 3
    text = _on_npus(report["npu"])
    assert "3 calls native, 1 staged through the CPU: cumsum ×1" in text and "on npu:0" in text


def test_N5_profile_without_an_npu_says_nothing(npu: ModuleType) -> None:
    with Profiler() as profiler:
        torch.ones(2) + 1
    assert profiler.report()["npu"] is None and profiler.report()["device"] == "cpu"


def test_C2_a_native_op_is_waited_for_while_the_profile_measures(library: acl_library.Library, npu: ModuleType) -> None:
    """Else its time is that of queueing it, and what first reads a result has all the time before it."""
    x = torch.ones(8, 8, device="npu:0")
    npu.synchronize(0)

    def waits() -> int:
        return library.calls("aclrtSynchronizeDevice")

    with Profiler():
        before = waits()
        x = x + x
        assert waits() - before == 1
        torch.zeros(8, device="npu:0")  # no op of torch's dispatcher: the next one must not pay for it
        assert waits() - before == 2
    x + x
    assert waits() - before == 2 and not staging.watchers


def test_C2_peak_memory_of_a_program_on_an_npu_is_that_of_its_npu_tensors(npu: ModuleType) -> None:
    """As torch.npu.max_memory_allocated: with the allocator's padding, without what the host holds."""
    net = torch.nn.Linear(64, 32).to("npu:0")
    gc.collect()
    others = npu.memory_allocated(0) - (64 * 32 * 4 + 512) - 512
    npu.reset_peak_memory_stats(0)
    with Profiler() as profiler:
        host = torch.empty(1_000_000)
        y = net(torch.ones(8, 64).to("npu:0"))
        more = y.cumsum(0).t() + 1
    report = profiler.report()
    assert report["totals"]["peak_bytes"] == npu.max_memory_allocated(0) - others > 64 * 32 * 4
    assert report["memory"]["device"] == "npu" and report["memory"]["categories"]["parameters"] == 8192 + 512 + 512
    assert sum(report["memory"]["categories"].values()) == report["memory"]["peak_bytes"]
    assert max(row["peak_bytes"] for row in report["modules"]) == report["totals"]["peak_bytes"]
    live = profiler.collector.balance.live_bytes
    assert live == npu.memory_allocated(0) - others
    del host, y, more
    assert profiler.collector.balance.live_bytes == 8192 + 512 + 512
