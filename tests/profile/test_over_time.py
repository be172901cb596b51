"""C2: what ran when, as the page draws it: all time of ops, once, in the stretch in which it was."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report import over_time as module
from mindtorch.profile.report.over_time import covered, over_time
from mindtorch.profile.report.recording import stage_tables
from mindtorch.profile.report.rows import NS, SIG


def test_C2_pieces_are_covered_where_they_are() -> None:
    edges = np.array([0, 10, 20, 30])
    start, end = np.array([2, 8, 25]), np.array([5, 14, 45])
    assert covered(start, end, edges).tolist() == [3 + 2, 4, 5]
    assert covered(np.array([20]), np.array([30]), edges).tolist() == [0, 0, 10]
    assert covered(np.array([-5]), np.array([2]), edges).tolist() == [2, 0, 0]


def test_C2_what_pieces_share_counts_once() -> None:
    edges = np.array([0, 10, 20])
    assert covered(np.array([0, 2, 4]), np.array([15, 5, 18]), edges).tolist() == [10, 8]


@pytest.mark.parametrize("seed", range(10))
def test_C2_pieces_are_covered_as_instants_are_counted(seed: int) -> None:
    draw = np.random.default_rng(seed)
    start = draw.integers(0, 300, 40)
    end = start + draw.integers(1, 30, 40)
    edges = np.linspace(0, 350, 8)
    instants = {t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(a, b)}
    expected = [sum(a <= t < b for t in instants) for a, b in zip(edges.tolist(), edges.tolist()[1:], strict=False)]
    assert covered(start, end, edges).tolist() == expected


def _train(steps: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(32, 64)).sum().backward()
        optimizer.step()
        time.sleep(0.01)


def test_C2_all_time_of_ops_is_in_some_stretch_and_in_their_kind() -> None:
    with Profiler() as profiler:
        _train(5)
    seen, report = profiler.recording(), profiler.report()
    found = over_time(seen)
    assert found is not None and len(found["threads"]) == 1 and found["dropped"] == 0
    (thread,) = found["threads"]
    assert all(len(values) == module.STRETCHES for values in (*thread["kinds"].values(), thread["phases"]))
    # A report's times are less what was seen of our own cost within ops.
    own = sum(row["self_s"] for row in report["ops"] if not row["name"].startswith("("))
    assert sum(map(sum, thread["kinds"].values())) >= 0.9e9 * own
    assert set(thread["kinds"]) <= {row["category"] for row in report["ops"]}
    phases = {found["phases"][phase] for phase in thread["phases"] if phase >= 0}
    assert {"forward", "backward", "optimizer"} <= phases <= {"forward", "backward", "optimizer", "other"}
    assert thread["phases"].count(-1) > module.STRETCHES / 4  # it slept
    width = found["seconds"] * 1e9 / module.STRETCHES
    for i in range(module.STRETCHES):
        assert sum(values[i] for values in thread["kinds"].values()) <= 1.5 * width + 2 * len(thread["kinds"])
    assert found["steps"] == sorted(found["steps"]) and 4 <= len(found["steps"]) <= 5
    assert found["start_s"] >= 0 and found["steps"][-1] <= found["seconds"]


def test_C2_threads_are_apart_those_with_most_first() -> None:
    def work() -> None:
        for _ in range(30):
            torch.ones(100, 100) @ torch.ones(100, 100)

    with Profiler(whole=True) as profiler:
        torch.ones(3) + 1
        running = [threading.Thread(target=work) for _ in range(5)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    found = over_time(profiler.recording())
    assert found is not None and len(found["threads"]) == module.THREADS
    spent = [sum(map(sum, thread["kinds"].values())) for thread in found["threads"]]
    assert all("matmul" in thread["kinds"] for thread in found["threads"]) and min(spent) > 0


def test_C2_an_estimate_and_a_run_of_nothing_have_no_times() -> None:
    with Estimator(target=targets.find("h100")) as estimator:
        torch.ones(3) + 1
    assert over_time(estimator.recording()) is None
    with Profiler() as profiler:
        pass
    assert over_time(profiler.recording()) is None


def test_C2_events_without_room_are_said() -> None:
    with Profiler(whole=True, max_events=20) as profiler:
        for _ in range(50):
            torch.ones(3) + 1
    found = over_time(profiler.recording())
    assert found is not None and found["dropped"] > 0


def test_C2_the_first_batch_is_there_too() -> None:
    """A script makes it before its first call of a model: the page's timeline began with that call."""

    def program() -> None:
        torch.ones(500, 500) @ torch.ones(500, 500)  # construction
        net = torch.nn.Linear(8, 8)
        for _ in range(3):
            x = torch.ones(400, 400).add(1)
            with torch.no_grad():
                net(x[:8, :8])

    with Profiler() as profiler:
        program()
    recording = profiler.recording()
    found = over_time(recording)
    assert found is not None
    (thread,) = found["threads"]
    rows = stage_tables(recording)[0][recording.reached]
    ns: dict[str, int] = {}
    for sig, spent in zip(rows[:, SIG].tolist(), rows[:, NS].tolist(), strict=True):
        if (op := recording.ops[sig]) is not None:
            ns[op.category] = ns.get(op.category, 0) + spent
    assert {kind: sum(each) for kind, each in thread["kinds"].items()} == pytest.approx(ns, rel=0.01, abs=20_000)
