"""A profile whose GPU is pretended (SPEC C2): torch's answers are replaced, and the tracer gives a stream of events."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

from mindtorch.cli import report_header
from mindtorch.profile import Profiler
from mindtorch.profile.measure import cuda_ops, cuda_tracer, device_ops
from mindtorch.profile.measure.cuda_tracer import Tracer
from mindtorch.profile.measure.device_time import ANY, KERNEL, LAUNCH, Traced
from mindtorch.profile.report.device_work import DeviceWork


class Pretended(Tracer):
    """Each call of `work` is a launch now, and `ns` of a kernel that begins when the device is free."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = self.stops = 0
        self.clear()

    def clear(self) -> None:
        self.launches: list[tuple[int, int, int]] = []
        self.kernels: list[tuple[int, int, int, int, int, bool]] = []
        self.free = 0

    def why_not(self) -> str:
        return ""

    def start(self) -> str:
        self.clear()
        self.starts += 1
        self.running = True
        return ""

    def stop(self, threads: Any) -> Traced:
        self.running = False
        self.stops += 1
        return Traced(np.array(self.launches, LAUNCH), np.array(self.kernels, KERNEL))

    def work(self, ns: int) -> None:
        if self.running:
            now, number = time.perf_counter_ns(), len(self.launches)
            begins = max(now, self.free)
            self.launches.append((number, now, ANY))
            self.kernels.append((number, begins, ns, 7, 0, False))
            self.free = begins + ns

    def wait(self, *_: Any) -> None:
        while time.perf_counter_ns() < self.free:
            pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = Pretended()
    monkeypatch.setattr(cuda_ops, "Tracer", lambda: found)
    monkeypatch.setattr(device_ops, "cuda_present", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 512)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1024)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", found.wait)
    original = torch.Tensor.mm

    def mm(*args: Any) -> Any:
        found.work(2_000_000)
        return original(*args)

    monkeypatch.setattr(torch, "mm", mm)
    return found


def program(steps: int = 3) -> None:
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        for _ in range(steps):
            y = model(torch.ones(4, 4))
            y = y.add(1)  # what the pretended launch comes after
            torch.mm(y, y)


def row(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in report["ops"] if row["name"] == name)


def test_C2_kernels_of_a_pretended_gpu_are_their_ops_and_rows_sum_to_the_total(gpu: Pretended) -> None:
    with Profiler() as profiler:
        program()
    report = profiler.report()
    found = report["gpu"]
    assert (found["how"], found["why"], found["unattributed_s"]) == ("traced", "", 0)
    (device,) = found["devices"]
    assert (device["device"], device["kernels"], device["copies"], device["streams"]) == ("cuda:0", 3, 0, 1)
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (512, 1024)
    assert sum(row["device_s"] for row in report["ops"]) == pytest.approx(6e-3)
    assert sum(row["kernels"] for row in report["ops"]) == 3
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)
    assert sum(row["self_s"] for row in report["modules"]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)
    assert not any("waited" in warning for warning in report["warnings"])
    assert gpu.starts == gpu.stops > 0
    # Also what ran after the last launch, or while the host was only watched, is in the program's time.
    assert found["busy_s"] == pytest.approx(6e-3, rel=0.01)


def test_C2_the_ops_of_a_traced_run_are_not_waited_for(gpu: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []

    def wait(device: Any) -> None:
        waits.append(device)
        gpu.wait()

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    with Profiler(whole=True) as profiler:
        program(50)
    assert profiler.report()["totals"]["ops"] > 100
    assert len(waits) < 10


def test_C2_many_stretches_are_looked_at_in_windows(gpu: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ops, "WINDOW", 50)
    with Profiler(whole=True) as profiler:
        program(60)
    report = profiler.report()
    assert gpu.starts > 2
    (device,) = report["gpu"]["devices"]
    assert device["kernels"] == 60
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)


def test_C2_a_trace_that_cannot_be_is_not_used_and_ops_are_waited_for(
    gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = gpu.stop
    monkeypatch.setattr(gpu, "stop", lambda threads: stop(threads)._replace(kernels=np.zeros(0, KERNEL)))
    with Profiler(warmup=1) as profiler:
        program()
    report = profiler.report()
    assert report["gpu"]["how"] == "traced, then waited"
    assert any("torch's tracer reported no kernels" in warning for warning in report["warnings"])
    assert gpu.starts == gpu.stops and not gpu.running
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)


def test_C2_a_program_that_uses_torchs_profiler_has_it(gpu: Pretended) -> None:
    with Profiler(whole=True) as profiler:
        program(1)
        assert gpu.running
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as own:
            assert not gpu.running
            program(1)
    assert any("aten::add" in event.key for event in own.key_averages())
    report = profiler.report()
    assert "the program used torch's own profiler" in report["gpu"]["why"]
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(report["totals"]["time_s"], abs=1e-12)


def test_C2_waiting_can_be_asked_for(gpu: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENIE_PROFILE_CUDA", "wait")
    with Profiler(whole=True) as profiler:
        program()
    report = profiler.report()
    assert (gpu.starts, report["gpu"]["how"]) == (0, "waited")
    assert any("GENIE_PROFILE_CUDA is wait" in warning for warning in report["warnings"])


# ---- the reader


class Event:
    """As torch's, of which a CPU build makes those of the host alone."""

    def __init__(self, name: str, device: Any, start: int, ns: int, number: int, resource: int) -> None:
        self._facts = (name, device, start, ns, number, resource)

    def name(self) -> Any:
        return self._facts[0]

    def device_type(self) -> Any:
        return self._facts[1]

    def start_ns(self) -> Any:
        return self._facts[2]

    def duration_ns(self) -> Any:
        return self._facts[3]

    def correlation_id(self) -> Any:
        return self._facts[4]

    def device_resource_id(self) -> Any:
        return self._facts[5]

    def device_index(self) -> int:
        return 0


def test_C2_torchs_events_are_read_as_an_h100_gave_them() -> None:
    """Events of a small model's on an H100, torch 2.11: two threads, a fill, a note with a launch's number."""
    cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
    events = [
        Event("cudaMemsetAsync", cpu, 261540, 3347839, 17, 382902592),
        Event("Activity Buffer Request", cpu, 287283, 3299581, 17, 0),
        Event("Memset (Device)", cuda, 3602390, 736, 17, 7),
        Event("cudaStreamSynchronize", cpu, 8600000, 15657, 100, 382902592),
        Event("cudaLaunchKernel", cpu, 8631701, 43412, 128, -720730432),
        Event("void at::native::elementwise_kernel", cuda, 8671120, 1344, 128, 7),
        Event("cuLaunchKernel", cpu, 8787767, 12869, 142, -720730432),
        Event("void cutlass::Kernel2", cuda, 8800976, 3617, 142, 7),
    ]
    main = 0x7FFF_0000_0000 + 382902592
    found = cuda_tracer.read(events, {main: 3}, apart=1000)
    assert found.launches.tolist() == [(17, 260540, 3), (128, 8630701, ANY), (142, 8786767, ANY)]
    assert found.kernels.tolist() == [
        (17, 3601390, 736, 7, 0, True), (128, 8670120, 1344, 7, 0, False), (142, 8799976, 3617, 7, 0, False),
    ]  # fmt: skip


def test_C2_torchs_own_events_have_what_is_read_and_our_clock() -> None:
    cuda_tracer._start({ProfilerActivity.CPU})
    before = time.perf_counter_ns()
    torch.ones(3).add(1)
    after = time.perf_counter_ns()
    events = cuda_tracer._stop()
    add = next(event for event in events if event.name() == "aten::add")
    assert before <= add.start_ns() - cuda_tracer._apart() <= after
    for name in ("correlation_id", "duration_ns", "device_index", "device_resource_id", "device_type"):
        assert callable(getattr(add, name))
    assert len(cuda_tracer.read(events, {}).kernels) == 0


# ---- what is said of it


def test_C2_the_report_says_how_long_a_gpu_had_nothing_to_do(gpu: Pretended) -> None:
    with Profiler(whole=True) as profiler:
        torch.mm(torch.ones(2, 2).add(1), torch.ones(2, 2))
        until = time.perf_counter_ns() + 300_000_000
        while time.perf_counter_ns() < until:
            pass
    report = profiler.report()
    (finding,) = (entry for entry in report["findings"] if entry["id"] == "gpu-idle")
    assert finding["share"] == pytest.approx(report["gpu"]["idle_s"] / report["totals"]["time_s"])
    assert finding["share"] > 0.9
    assert "the host launches its 1 kernel too late" in finding["text"]
    stage = sum(row[5] for row in profiler.stages["main"].rows) / 1e9
    # What comes before the tracer starts and after it stops is the stage's, too.
    assert 0.3 <= report["gpu"]["busy_s"] + report["gpu"]["idle_s"] <= stage + 1e-6
    (device,) = report["gpu"]["devices"]
    said = report_header._on_gpus(report["gpu"])
    torchs = "at most 512 B allocated by torch, 1.00 KiB reserved"
    counts = f" of the time above; cuda:0: 1 kernel, 0 transfers on 1 stream, {torchs}"
    assert said.startswith("busy ") and said.endswith(counts)
    assert device["starved_s"] <= device["idle_s"]


@pytest.mark.parametrize(("busy", "left"), [(30, 70), (100, 0), (130, 0)])
def test_C2_a_gpu_has_nothing_to_do_for_no_longer_than_the_program_ran(busy: int, left: int) -> None:
    """Recording is taken off the program's time, in which the host's spans have it: it said 101 %."""
    work = DeviceWork(busy=busy, idle=90)
    work.within(100)
    assert (work.busy, work.idle) == (busy, left)


def test_C2_a_report_keeps_idle_time_within_the_programs(gpu: Pretended) -> None:
    with Profiler(whole=True) as profiler:
        torch.mm(torch.ones(2, 2).add(1), torch.ones(2, 2))
    profiler.devices.stages["main"].idle = 10**12
    report = profiler.report()
    assert report["gpu"]["busy_s"] + report["gpu"]["idle_s"] == pytest.approx(report["totals"]["time_s"])


def test_C2_there_is_no_such_finding_where_the_gpu_is_busy(gpu: Pretended) -> None:
    with Profiler(whole=True) as profiler:
        x = torch.ones(2, 2).add(1)
        for _ in range(150):
            torch.mm(x, x)
    report = profiler.report()
    assert not [entry for entry in report["findings"] if entry["id"] == "gpu-idle"]
    assert report["gpu"]["busy_s"] > report["gpu"]["idle_s"]
