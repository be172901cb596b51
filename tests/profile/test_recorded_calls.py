"""R5: how long recorded calls take on the machines of workers."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator

import pytest
import torch

import mindtorch
from mindtorch._ext import divided
from mindtorch._ext import lazy as _core
from mindtorch.engine.execute import values
from mindtorch.engine.execute.machine import Call, Machine
from mindtorch.profile.cost import cpu, cpu_measure, op_time, recorded_calls, targets
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work

from ..executors import using

DEVICE = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def machine(name: str = "cpu", node: str | None = None, kind: str = "cpu", threads: int = 1) -> Machine:
    return Machine(name, node or platform.node(), kind, 1, 1, 6, threads)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The numbers of threads for which the CPU is asked about; it computes one FLOP a second, on any of them."""
    found: list[int | None] = []

    def target(threads: int | None = None) -> Target:
        found.append(threads)
        return Target("cpu", "a CPU", "", 1e9, 1e9, 0.5, {"float32": 1.0}, {"float32": 1.0}, model=seconds)

    def seconds(work: Work, footprint: int) -> tuple[float, str]:
        return (work.flops or 0) + footprint / 2, "compute"

    monkeypatch.setattr(cpu, "target", target)
    return found


def calls() -> list[Call | None]:
    """Of a product of 2 x 3 by 3 x 4, what is added to it, and a view of that."""
    a, b = torch.ones(2, 3).to(DEVICE), torch.ones(3, 4).to(DEVICE)
    out = (a @ b).add(2.5).view(8)
    segment = _core.segment([out._handle], [])  # type: ignore[attr-defined]
    return divided.calls(segment)


def test_R5_each_recorded_call_takes_as_long_as_its_work_does_there(asked: list[int | None]) -> None:
    found = recorded_calls.computing([*calls(), None], [machine(), machine()], 0)
    assert found is not None
    assert found.seconds == [[2 * 2 * 3 * 4, 2 * 4, 0, 0]] * 2
    program = recorded_calls.RECORDED, recorded_calls.DIVIDED, recorded_calls.PART  # in times of a small call
    assert (found.recorded, found.divided, found.part) == tuple(times * 0.5 for times in program)
    larger = recorded_calls.computing(calls(), [machine()], 6)
    assert larger is not None and larger.seconds == [[48 + 3, 8 + 3, 3]]


def test_R5_a_cpu_is_known_on_this_machine_with_the_threads_that_it_has(asked: list[int | None]) -> None:
    found = recorded_calls.computing(calls(), [machine(threads=1), machine(threads=4)], 0)
    assert asked[:2] == [1, 4] and found is not None
    assert found.shares == [(platform.node(), 6.0), (platform.node(), 1.5)]
    one = recorded_calls.computing(calls(), [machine(threads=8)], 0)
    assert one is not None and one.shares == [(platform.node(), 1.0)]  # they are more than there are cores


@pytest.mark.parametrize("unknown", [machine(node="elsewhere"), machine("A chip of nobody's", "elsewhere", "cuda")])
def test_R5_nothing_is_said_where_one_machine_is_not_known(unknown: Machine, asked: list[int | None]) -> None:
    assert recorded_calls.computing(calls(), [machine(), unknown], 0) is None


def test_R5_a_gpu_is_known_by_its_name_wherever_it_is(asked: list[int | None]) -> None:
    gpu = machine("NVIDIA H100 80GB HBM3", "elsewhere", "cuda")
    found = recorded_calls.computing(calls(), [gpu, gpu], 0)
    assert found is not None and [share[1] for share in found.shares] == [math.inf] * 2
    assert found.shares[0] != found.shares[1]  # each of its own
    target = targets.find("h100")
    product = op_time.estimate(recorded_calls._work(*calls()[0]), target)  # type: ignore[misc]
    assert found.seconds[0][0] == max(product.seconds, target.launch_s) > 0
    assert found.seconds[0][2] == 0  # a view


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_R5_measuring_the_cpu_leaves_the_program_s_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed for the measured values was one for devices, too. One thread is tried; a change runs what is pending."""
    monkeypatch.setattr(cpu_measure, "PASSES", 1)

    def drawn(between: bool) -> list[list[float]]:
        torch.manual_seed(7)
        first = torch.rand(3, device=DEVICE)  # which is pending meanwhile
        if between:
            pending = values.tape.n_pending
            cpu_measure.measure()
            assert values.tape.n_pending == pending > 0 and torch.get_num_threads() == 2
        return [first.tolist(), torch.rand(3, device=DEVICE).tolist(), torch.rand(3).tolist()]

    with using(mindtorch.LoopbackExecutor()):
        assert drawn(True) == drawn(False)


def test_R5_the_cpu_is_measured_at_the_threads_that_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def measure() -> cpu_measure.Measured:
        seen.append(torch.get_num_threads())
        raise KeyError("measured")

    monkeypatch.setattr(cpu, "measure", measure)
    monkeypatch.setattr(cpu, "_found", {})
    before = torch.get_num_threads()
    for threads in (before + 1, None):
        with pytest.raises(KeyError, match="measured"):
            cpu.target(threads)
    assert seen == [before + 1, before] and torch.get_num_threads() == before
