"""The host's time in an estimate belongs to the modules, lines and phases whose ops wait for it: launch."""

import pytest
import torch
from torch import nn

from mindtorch.base.clusters import Cluster
from mindtorch.profile.cost import targets
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


def test_C4_processes_are_started_by_whatever_name() -> None:
    """``torch.multiprocessing.spawn`` is a function, and the module that it is from."""
    ran: list[int] = []
    with Estimator(target=targets.find("h100"), devices=2, cluster=Cluster(2, 1)):
        from torch.multiprocessing.spawn import spawn, start_processes

        for start in (torch.multiprocessing.spawn, spawn, torch.multiprocessing.start_processes, start_processes):
            start(ran.append, nprocs=2)
    assert ran == [1, 1, 1, 1]
