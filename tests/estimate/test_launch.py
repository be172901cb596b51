"""The host's time in an estimate belongs to the modules, lines and phases whose ops wait for it: launch."""

import math

import pytest
import torch
from torch import nn

from mindtorch.base.clusters import Cluster
from mindtorch.profile import Profiler
from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.estimate.estimator import Estimator

A100 = targets.find("a100")


class Small(nn.Module):
    """Nothing but launches: tiny ops."""

    def forward(self, x):
        for _ in range(50):
            x = x + 1  # the small one's line
        return x


class Large(nn.Module):
    """Two ops that the device is busy with long after they are launched."""

    def forward(self, x):
        return x @ x @ x  # the large one's line


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = Small(), Large()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x, y):
        return self.small(x * self.weight), self.large(y)


def report_of(program, **options):
    with Estimator(target=A100, **options) as seen:
        program()
    return seen.report()


def program(size=64):
    model = Both().cuda()
    for _ in range(3):
        small, _ = model(torch.ones(4, device="cuda"), torch.ones(size, size, device="cuda"))
        small.sum().backward()


@pytest.mark.parametrize("size", [64, 256])
def test_C4_the_hosts_time_is_that_of_the_module_and_line_that_wait(size):
    report = report_of(lambda: program(size))
    time_s = report["totals"]["time_s"]
    launch = next(row for row in report["ops"] if row["name"] == "(launch)")
    assert launch["category"] == "launch" and not [row for row in report["ops"] if row["name"] == "(python)"]
    for table, key in (("ops", "self_s"), ("modules", "self_s"), ("phases", "time_s"), ("lines", "self_s")):
        assert sum(row[key] for row in report[table]) == pytest.approx(time_s, rel=1e-9), table
    modules = {row["path"]: row for row in report["modules"]}
    devices = sum(row["self_s"] for row in report["ops"]) - launch["self_s"]
    assert modules["Both.small"]["self_s"] > 0.4 * time_s and launch["self_s"] > devices
    assert modules[""]["self_s"] < 0.3 * time_s
    lines = {row["source"].partition("#")[2].strip(): row["self_s"] for row in report["lines"]}
    assert lines["the small one's line"] > 0.4 * time_s
    assert "" not in [row["file"] for row in report["lines"] if row["self_s"] > 0.01 * time_s]


def test_C4_what_keeps_the_device_busy_waits_for_no_launch():
    report = report_of(lambda: program(4096))
    modules = {row["path"]: row for row in report["modules"]}
    computed = sum(row["self_s"] for row in report["ops"] if row["name"] == "aten::mm")
    assert modules["Both.large"]["self_s"] == pytest.approx(computed, rel=0.01)


def test_C4_a_phase_takes_the_longer_of_device_and_host_as_before():
    """However it is shared out: the total is that of before, to the nanosecond."""
    report = report_of(lambda: [torch.ones(16, device="cuda") + 1 for _ in range(1000)])
    launch = next(row["self_s"] for row in report["ops"] if row["name"] == "(launch)")
    device = sum(row["self_s"] for row in report["ops"] if row["name"] != "(launch)")
    assert report["totals"]["time_s"] == pytest.approx(launch + device, abs=2e-9)
    assert sum(row["python_s"] for row in report["lines"]) == pytest.approx(launch, abs=2e-9)


def ends(facts):
    """The interval, as shares of the time."""
    return facts["about_low_s"] / facts["about_s"], facts["about_high_s"] / facts["about_s"]


def test_C4_where_the_host_is_the_limit_the_interval_is_that_of_hosts():
    """It used to be that of the device's kernels: ± 8 % for a program whose time was all assumed."""
    report = report_of(lambda: [torch.ones(16, device="cuda") + 1 for _ in range(1000)])
    low, high = ends(report["totals"])
    assert low == pytest.approx(math.exp(-op_time.HOST_DOUBT)) and high == pytest.approx(math.exp(op_time.HOST_DOUBT))
    for phase in report["phases"]:
        assert ends(phase) == pytest.approx((low, high))


def test_C4_where_a_slower_host_would_be_the_limit_the_interval_reaches_up_to_it():
    def program(rows):
        x = torch.empty(rows, 1024, device="cuda")
        for _ in range(200):
            x.add_(1)

    report = report_of(lambda: program(20_000))
    one = report["totals"]["about_s"] / 20_000 / 200  # long enough to be no launch's
    rows = int(1.2 * op_time.HOST_KERNEL * A100.launch_s / one)  # the kernel takes a little longer than its launch
    report = report_of(lambda: program(rows))
    assert not [row for row in report["ops"] if row["name"] == "(launch)"]
    low, high = ends(report["totals"])
    assert 0.8 < low < 1 and high == pytest.approx(math.exp(op_time.HOST_DOUBT) / 1.2, rel=0.1)
    low, high = ends(report_of(lambda: program(10 * rows))["totals"])
    assert 0.8 < low < 1 < high < 1.2


def test_C4_phases_sum_to_the_total_in_a_measured_profile_with_a_target_too():
    model = nn.Linear(8, 8)
    with Profiler(target=A100) as seen:
        for _ in range(5):
            model(torch.ones(2, 8)).sum().backward()
    report = seen.report()
    for key in ("about_s", "bound_s"):
        assert sum(row[key] for row in report["phases"]) == pytest.approx(report["totals"][key]), key


def test_C4_reading_a_value_of_the_device_takes_a_launch():
    """Sixteen reads an iteration took no time of the host, whose finding then said 114 % of it."""

    def reads(count, device):
        x = torch.ones(4, device=device)
        torch.ones(4, device="cuda")
        return sum(float(x[0]) for _ in range(count))

    one, more = (report_of(lambda n=n: reads(n, "cuda"))["totals"]["time_s"] for n in (1, 101))
    view = op_time.HOST_VIEW * A100.launch_s
    assert (more - one) / 100 == pytest.approx(op_time.read_seconds(A100) + view, rel=1e-3)
    one, more = (report_of(lambda n=n: reads(n, "cpu"))["totals"]["time_s"] for n in (1, 101))
    assert (more - one) / 100 < 2 * view


def test_C4_processes_are_started_by_whatever_name() -> None:
    """``torch.multiprocessing.spawn`` is a function, and the module that it is from."""
    ran: list[int] = []
    with Estimator(target=targets.find("h100"), devices=2, cluster=Cluster(2, 1)):
        from torch.multiprocessing.spawn import spawn, start_processes

        for start in (torch.multiprocessing.spawn, spawn, torch.multiprocessing.start_processes, start_processes):
            start(ran.append, nprocs=2)
    assert ran == [1, 1, 1, 1]
