"""What runs while a DataLoader makes a batch is data loading: no step of a model, no forward pass."""

import re
import sys
import sysconfig
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from mindtorch._ext.looking import Look
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import collect
from mindtorch.profile.report import recording
from mindtorch.profile.report.recording import of_the_loop

SLEEP = [sys.executable, "-c", "import time; time.sleep(0.4)"]


class Normalize(nn.Module):
    def forward(self, x):
        return (x - 0.5) / 0.25


class Images(Dataset):
    def __init__(self):
        self.transform = nn.Sequential(Normalize(), nn.Identity())

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.transform(torch.full((8,), float(i)))


def report_of(kind, program):
    with kind() as seen:
        program()
    return seen.report()


both = pytest.mark.parametrize("kind", [Profiler, Estimator])


@both
@pytest.mark.parametrize("train", [False, True])
def test_C2_a_transform_that_is_a_module_makes_no_steps(kind, train):
    def program():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.set_grad_enabled(train):
            for batch in DataLoader(Images(), batch_size=32):
                loss = model(batch).sum()
                if train:
                    loss.backward()
                    optimizer.step()

    report = report_of(kind, program)
    assert report["steps"]["count"] == 2
    phases = {row["name"]: row for row in report["phases"]}
    assert phases["data"]["ops"] >= 3 * 64 and phases["forward"]["ops"] < 20
    assert sum(row["time_s"] for row in report["phases"]) == pytest.approx(report["totals"]["time_s"])
    rows = {row["path"]: row for row in report["modules"]}
    assert rows["Sequential"]["calls"] == 64 and rows["Sequential"]["forward_s"] == 0
    assert [model["name"] for model in report["models"]] == ["Linear"]


@both
def test_C2_warm_up_is_counted_in_batches(kind):
    def program():
        model = nn.Linear(8, 2)
        with torch.no_grad():
            for batch in DataLoader(Images(), batch_size=8):
                model(batch)

    with kind(warmup=3) as seen:
        program()
    report = seen.report()
    rows = {row["path"]: row["calls"] for row in report["modules"]}
    assert report["steps"]["count"] == 8 and rows["Linear"] == 5


@both
def test_C2_a_batch_between_the_model_and_its_loss_ends_no_forward_pass(kind):
    def program():
        batches = iter(DataLoader(Images(), batch_size=8))
        y = nn.Linear(8, 8)(next(batches))
        target = next(batches)
        (y - target).square().mean().backward()

    phases = {row["name"]: row["ops"] for row in report_of(kind, program)["phases"]}
    assert phases["forward"] >= 4


def test_L12_loaders_are_torchs_own_afterwards_and_errors_come_through():
    from torch.utils.data import dataloader

    class Broken(Images):
        def __getitem__(self, i):
            raise KeyError(i)

    before = dataloader._BaseDataLoaderIter.__next__
    with Profiler() as seen, pytest.raises(KeyError):
        assert hasattr(dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
        next(iter(DataLoader(Broken())))
    assert dataloader._BaseDataLoaderIter.__next__ is before
    assert not [row for row in seen.report()["phases"] if row["name"] == "data" and row["ops"]]


# ---- the line that waits


class Resting(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 200

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.ones(4) * i


def bar(batches):
    yield from batches


def train(loader, model):
    for batch in loader:  # waits
        model(batch)


#: Of a package that is installed.
installed = FunctionType(bar.__code__.replace(co_filename=f"{sysconfig.get_path('purelib')}/bars.py"), globals())


@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize(("seconds", "workers"), [(0.0005, 0), (0.005, 1)])
def test_C2_the_line_that_waits_for_data_is_the_programs_own(seconds, workers, chains):
    """It was a progress bar's, and of short waits the next operation's."""
    loader = DataLoader(Resting(seconds), 4, num_workers=workers)
    with Profiler(lines=chains) as seen:
        train(installed(loader), nn.Linear(4, 4))
    report = seen.report()
    (row,) = [row for row in report["findings"] if row["id"] == "data-wait"]
    lines = {line["source"]: line["python_s"] for line in report["lines"]}
    if workers:
        assert row["place"]["source"] == "for batch in loader:  # waits"
    else:  # a busy machine rests for longer, so that it is seen; or elsewhere, now and then
        assert row["place"]["source"] in ("for batch in loader:  # waits", "time.sleep(self.seconds)")
        assert lines["return torch.ones(4) * i"] < 0.1 * sum(lines.values())
    assert f"({Path(__file__).name}:" in row["text"] and lines["for batch in loader:  # waits"] > 0


def test_C2_a_line_of_the_dataset_is_told_where_it_was_seen():
    with Profiler() as seen:
        train(installed(DataLoader(Resting(0.01), 4)), nn.Linear(4, 4))
    (row,) = [row for row in seen.report()["findings"] if row["id"] == "data-wait"]
    assert row["place"]["source"] == "time.sleep(self.seconds)"


@pytest.mark.parametrize("unseen", [(), (0, 1), (2, 3), (0,), (3,)])
def test_C2_the_loops_first_batch_is_the_loops_wherever_its_thread_was_seen(unseen, monkeypatch):
    """On a busy machine nobody may look while a batch is made: that wait is the line's that asked for it."""
    items = []

    class Slow(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            items.append(i)
            time.sleep(0.15)
            return torch.ones(8)

    class Looking:
        """As `Look`, but blind while some of the items are made."""

        def __init__(self, *known):
            self._look = Look(*known)

        collector = property(lambda self: self._look.collector, lambda self, it: setattr(self._look, "collector", it))

        def look(self):
            if not items or items[-1] not in unseen:
                self._look.look()

    def program():
        model = nn.Linear(8, 2)
        for batch in DataLoader(Slow(), batch_size=2):
            model(batch)

    monkeypatch.setattr(collect, "Look", Looking)
    phases = {row["name"]: row for row in report_of(Profiler, program)["phases"]}
    assert phases["data"]["time_s"] >= 4 * 0.15


def test_C2_another_loader_before_the_loop_is_none_of_it(monkeypatch):
    monkeypatch.setattr(recording.location, "call_of", lambda id: id % 10)
    table = {"init": np.array([1, 2, 3]), "main": np.array([5, 6])}
    assert of_the_loop(table, False, {1: 9, 2: 5, 5: 5, 3: 9})[1].tolist() == [2, 5, 6]
    assert of_the_loop(table, False, {1: 9, 2: 8, 6: 8})[1].tolist() == [2, 5, 6]
    assert of_the_loop(table, False)[1].tolist() == [5, 6]
    assert of_the_loop({"init": np.array([13, 15]), "main": np.array([5, 6])}, False)[1].tolist() == [5, 6, 15]


def test_C2_finding_data_wait_has_the_workers_that_start(monkeypatch):
    """It was called Python at one line, which the program cannot move anywhere."""
    start = "import time\ndef start(self):\n    time.sleep(0.4)\n    original(self)\n"
    names = {"original": BaseProcess.start}
    exec(compile(start, str(Path(torch.__file__).parent / "utils" / "data" / "slow.py"), "exec"), names)
    monkeypatch.setattr(BaseProcess, "start", names["start"])

    def program() -> None:
        for _ in range(2):
            for _ in DataLoader(torch.ones(6, 8), batch_size=3, num_workers=2):
                nn.Identity()(torch.ones(1))

    with Profiler(whole=True) as seen:
        program()
    found = {row["id"]: row for row in seen.report()["findings"]}
    assert found["data-wait"]["seconds"] > 3 * 0.4 and "python-line" not in found
    waits, starts = map(int, re.findall(r"(\d+) %", found["data-wait"]["text"]))
    assert found["data-wait"]["text"].startswith(f"{waits} % of the time the model waits for data, and for another ")
    assert abs(waits + starts - 100 * found["data-wait"]["share"]) <= 1
    assert Path(found["data-wait"]["place"]["file"]) == Path(__file__)


def test_C2_workers_that_end_late_are_told_once(monkeypatch):
    """Of a loop that is left before its data ends: the header had a wait for child processes, beside the finding."""
    join = f"import subprocess\ndef join(self, timeout=None):\n    subprocess.run({SLEEP!r}); original(self, timeout)\n"
    names = {"original": BaseProcess.join}
    exec(compile(join, str(Path(torch.__file__).parent / "utils" / "data" / "slow.py"), "exec"), names)
    monkeypatch.setattr(BaseProcess, "join", names["join"])
    with Profiler(whole=True) as seen:
        batches = iter(DataLoader(torch.ones(60, 8), batch_size=3, num_workers=1))
        for _ in range(2):
            nn.Identity()(next(batches))
        del batches
    report = seen.report()
    assert report["waits"]["workers_s"] >= 0.2 > 0.1 > report["waits"]["children_s"]
    assert next(row["self_s"] for row in report["ops"] if row["name"] == "(waiting for a DataLoader's workers)") >= 0.2
    (found,) = (row for row in report["findings"] if row["id"] == "data-wait")
    assert "the DataLoader starts and ends workers" in found["text"]
    assert found["seconds"] >= report["waits"]["workers_s"]


def test_C2_a_loader_without_workers_neither_starts_nor_ends_any(monkeypatch):
    """Making its iterator takes some samplers a while: "for another 1 % the DataLoader starts and ends workers"."""

    late = "import time\ndef late(self):\n    time.sleep(0.3); return original(self)\n"
    names = {"original": RandomSampler.__iter__}
    exec(compile(late, str(Path(torch.__file__).parent / "utils" / "data" / "slow.py"), "exec"), names)
    monkeypatch.setattr(RandomSampler, "__iter__", names["late"])
    with Profiler(whole=True) as seen:
        loader = DataLoader(torch.ones(8, 8), shuffle=True, batch_size=None)
        for _ in range(2):
            for batch in loader:
                nn.Identity()(batch) + 1
    report = seen.report()
    assert report["waits"]["workers_s"] == 0
    assert not any("workers" in row["text"] for row in report["findings"] if row["id"] == "data-wait")


class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(0.1)
        return torch.full((8,), float(i))


@pytest.mark.parametrize("workers", [0, 1])
def test_C2_waiting_for_a_data_loader_is_a_row_of_its_own(workers):
    def program():
        model = nn.Linear(8, 2)
        for batch in DataLoader(Slow(), batch_size=1, num_workers=workers):
            model(batch)

    report = report_of(Profiler, program)
    ops = {row["name"]: row["self_s"] for row in report["ops"]}
    phases = {row["name"]: row["time_s"] for row in report["phases"]}
    assert 0.1 <= ops["(waiting for a DataLoader)"] <= phases["data"], "of 0.4 s"
    assert sum(ops.values()) == pytest.approx(report["totals"]["time_s"])
    assert ops["(waiting for a DataLoader)"] + ops["(python)"] <= report["totals"]["time_s"]


def test_C2_a_call_before_the_first_of_the_model_is_the_loops_though_python_specializes_it():
    """Of 40 numbers that a dataset draws, 33 were counted: Python 3.11 runs a call at another instruction later."""

    class Draws(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.zeros(2) + float(torch.empty(1).uniform_(0, 1))

    def program():
        model = nn.Linear(2, 2)
        for batch in DataLoader(Draws(), batch_size=20):
            model(batch)

    calls = {row["name"]: row["calls"] for row in report_of(Profiler, program)["ops"]}
    assert (calls["aten::uniform_"], calls["aten::_local_scalar_dense"]) == (40, 40)
