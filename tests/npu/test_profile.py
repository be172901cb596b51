"""SPEC N5: a profile says what ran natively on NPUs, and what was staged through the CPU."""

from __future__ import annotations

import gc
import threading
from types import ModuleType
from typing import Any

import acl_library
import pytest
import torch

from mindtorch._ext import in_flight
from mindtorch.cli.report_header import _on_gpus, _on_npus
from mindtorch.npu import counts
from mindtorch.profile import Profiler
from mindtorch.profile.measure import device_ops


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


def _row(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in report["ops"] if row["name"] == name)


def _adds_up(report: dict[str, Any]) -> None:
    for table in ("ops", "modules"):
        assert sum(row["self_s"] for row in report[table]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)


def _begun() -> None:
    """The first op on a device is waited for."""
    torch.ones(8, device="npu:0").neg()


def test_C2_a_native_op_is_waited_for_where_that_is_asked_for(
    library: acl_library.Library, npu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its time is that of queueing it, and what first reads a result has all the time before it."""
    monkeypatch.setenv("GENIE_PROFILE_NPU", "wait")
    x = torch.ones(8, 8, device="npu:0")
    npu.synchronize(0)

    def waits() -> int:
        return library.calls("aclrtSynchronizeDevice")

    with Profiler() as profiler:
        before = waits()
        x = x + x
        assert waits() - before == 1
        torch.zeros(8, device="npu:0")  # no op of torch's dispatcher: the next one must not pay for it
        assert waits() - before == 2
    x + x
    assert waits() - before == 2 and not counts.watchers
    found = profiler.report()
    assert found["gpu"]["how"] == "waited" and found["gpu"]["why"] == "GENIE_PROFILE_NPU is wait"
    assert any("genie waited for each op on the NPU" in warning for warning in found["warnings"])


def test_C2_an_npus_work_is_its_ops_and_what_reads_it_waits_for_nothing_of_its_own(
    library: acl_library.Library, npu: ModuleType
) -> None:
    """A copy of 30 ms that an op queues, and that the host waits for where it reads another op's result."""
    host = torch.ones(64, 64).pin_memory("npu")
    x = torch.ones(64, 64, device="npu:0")
    with Profiler(whole=True) as profiler:
        _begun()
        library.delay_copies(30)
        x.copy_(host, non_blocking=True)
        library.delay_copies(0)
        y = x.mul(x)
        npu.synchronize()
        y.cpu()
    report = profiler.report()
    found, copied = report["gpu"], _row(report, "aten::copy_")
    assert (found["how"], found["why"], found["unattributed_s"]) == ("traced", "", 0)
    (device,) = found["devices"]
    assert (device["device"], device["streams"], device["kernels"], device["copies"]) == ("npu:0", 1, 1, 2)
    assert 30e-3 <= copied["device_s"] <= copied["self_s"] and copied["kernels"] == 1
    assert 30e-3 <= device["copy_s"] <= device["busy_s"] <= found["busy_s"]
    product = _row(report, "aten::mul")
    assert product["kernels"] == 1 and 0 < product["device_s"] <= product["self_s"]
    assert sum(row["device_s"] for row in report["ops"]) == pytest.approx(found["busy_s"], abs=1e-4)
    assert device["peak_allocated_bytes"] == npu.max_memory_allocated(0)
    assert device["peak_reserved_bytes"] == npu.max_memory_reserved(0)
    _adds_up(report)
    text = _on_gpus(found)
    assert text.startswith("busy ") and "npu:0: 1 kernel, 2 transfers on 1 stream" in text


def test_C2_no_op_on_an_npu_is_waited_for_and_each_launch_is_counted(
    library: acl_library.Library, npu: ModuleType
) -> None:
    """More launches than events are held for; a device that is behind is waited for in pieces, never as a whole."""
    x = torch.ones(8, 8, device="npu:0")
    with Profiler(whole=True) as profiler:
        _begun()
        before = library.calls("aclrtSynchronizeDevice"), library.calls("aclrtCreateEventExWithFlag")
        library.stall(None, 50)
        for _ in range(700):
            x = x * 1.0
        assert library.calls("aclrtSynchronizeDevice") == before[0]
        assert library.calls("aclrtCreateEventExWithFlag") - before[1] < 600
    report = profiler.report()
    assert report["gpu"]["why"] == ""
    assert _row(report, "aten::mul")["kernels"] == _row(report, "aten::mul")["calls"] == 700
    assert report["gpu"]["how"] == "traced" and not any("waited" in warning for warning in report["warnings"])
    _adds_up(report)


def test_C2_times_of_an_npu_are_those_of_its_streams_and_threads(library: acl_library.Library, npu: ModuleType) -> None:
    host = torch.ones(64, 64).pin_memory("npu")
    x = torch.ones(64, 64, device="npu:0")
    side = npu.Stream()
    y = torch.empty_like(x)

    def other() -> None:
        with npu.stream(side):
            y.copy_(host, non_blocking=True)
            side.synchronize()

    with Profiler(whole=True) as profiler:
        _begun()
        library.delay_copies(20)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        library.delay_copies(0)
        x.mul(x)
    report = profiler.report()
    assert _row(report, "aten::copy_")["device_s"] >= 20e-3 and report["gpu"]["devices"][0]["streams"] == 2
    assert report["gpu"]["unattributed_s"] == 0
    _adds_up(report)


def test_C2_each_window_of_a_long_run_has_its_own_clocks(npu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ops, "WINDOW", 50)
    x = torch.ones(8, 8, device="npu:0")
    with Profiler(whole=True) as profiler:
        _begun()
        for _ in range(400):
            x = x.mul(1.0)
    report = profiler.report()
    assert _row(report, "aten::mul")["kernels"] == 400
    assert report["gpu"]["how"] == "traced" and report["gpu"]["unattributed_s"] == 0
    _adds_up(report)


@pytest.mark.parametrize(
    "function", ["aclrtEventElapsedTime", "aclrtRecordEvent", "aclrtSynchronizeEvent", "aclrtCreateEventExWithFlag"]
)
def test_C2_events_that_fail_cost_the_profile_its_times_and_the_program_nothing(
    function: str, library: acl_library.Library, npu: ModuleType
) -> None:
    """Each function fails once while it is asked for time, at each of its next calls in turn."""
    x = torch.arange(64.0, device="npu:0")
    for nth in range(1, 6):
        with Profiler(whole=True) as profiler:
            _begun()
            library.fail(function, nth, 507000)
            y = x
            for _ in range(40):
                y = y.add(x)
            profiler.devices.look()
            library.clear()
            assert y.cpu().tolist() == [41 * i for i in range(64)]
        report = profiler.report()
        assert report["gpu"]["how"] in ("traced", "traced, then waited")
        assert _row(report, "aten::add")["calls"] == 40
        _adds_up(report)
        assert not counts.watchers
    assert in_flight.stop() == (b"", 0)


def test_C2_a_trace_with_many_launches_lost_is_not_used(library: acl_library.Library, npu: ModuleType) -> None:
    x = torch.ones(8, device="npu:0")
    with Profiler(whole=True) as profiler:
        _begun()
        library.fail("aclrtEventElapsedTime", 1, 507000)
        x.mul(2.0)
    report = profiler.report()
    assert report["gpu"]["how"] == "traced, then waited"
    assert "the tracing of NPUs by events reported no kernels" in report["gpu"]["why"]


def test_C2_an_npu_that_fails_is_the_programs_error(library: acl_library.Library, npu: ModuleType) -> None:
    x = torch.ones(8, device="npu:0")
    with Profiler(whole=True) as profiler:
        _begun()
        library.fail("aclnnMul", 1, 507899)
        with pytest.raises(RuntimeError, match="507899"):
            x.mul(x)
        assert x.add(x).cpu().tolist() == [2.0] * 8
    assert _row(profiler.report(), "aten::add")["kernels"] == 1


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
