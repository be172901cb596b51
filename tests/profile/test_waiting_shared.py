"""C2: time in which one thread waits for another is told once, and takes nothing from what came before it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from mindtorch._ext import looking
from mindtorch.base.sourceline import STANDARD
from mindtorch.profile import Profiler
from mindtorch.profile.estimate import host_time

REST = 0.4


def report_of(last):
    with Profiler() as seen:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2))
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({REST})"], check=True)
        thread = threading.Thread(target=last)
        thread.start()
        thread.join()
        model(torch.ones(1, 2))
    return seen.report()


def sleeps():
    time.sleep(4 * REST)  # the thread's own


def test_C2_what_a_thread_was_at_is_taken_from_the_wait_for_it_alone():
    """A child process of 3 s was told as 1.9 s: a thread that came later took its part of all that went before."""
    report = report_of(sleeps)
    assert report["waits"]["children_s"] > 0.8 * REST  # it took that and more: a third of it was left
    own = next(row for row in report["lines"] if "the thread's own" in row["source"])
    assert own["self_s"] > 4 * 0.8 * REST and report["waits"]["threads_s"] < 2 * REST
    assert sum(row["self_s"] for row in report["lines"]) <= 1.001 * report["totals"]["time_s"]


def test_C2_a_thread_that_is_at_no_line_of_the_programs_is_waited_for():
    """Its time was "(no line of the program)"."""
    with Profiler() as seen:
        nn.Linear(2, 2)(torch.ones(1, 2))
        thread = threading.Thread(target=time.sleep, args=(REST,))
        thread.start()
        thread.join()  # waits
    report = seen.report()
    assert report["waits"]["threads_s"] > 0.8 * REST
    assert sum(row["self_s"] for row in report["lines"] if row["file"] is None) < 0.5 * REST, report["lines"]


def look_again(lost=lambda: 0):
    """The gaps around two looks in the same stretch of the program's own time, and what they say of it."""
    ops = iter([1, 2, 2, 2, 3, 3])
    found = looking.HostLook(lambda: next(ops), (), threading.get_ident(), ("/nowhere/",), lost, STANDARD)
    for _ in range(2):
        found.look()
        time.sleep(0.02)
    began = time.perf_counter_ns()
    found.look()
    time.sleep(0.02)
    found.look()
    between = time.perf_counter_ns() - began
    time.sleep(0.02)
    found.look()
    return sum(found.ns.values()), between


def test_C4_the_programs_own_time_has_both_of_its_ends():
    """Steps of 20 ms of an environment were told as 15 ms: what lay around the looks was lost."""
    tries = [look_again() for _ in range(5)]
    assert any(told > between for told, between in tries), tries


def test_C4_waiting_for_a_processor_is_none_of_the_programs_time():
    """On a busy machine, lines of tensors alone were told as the program's own Python."""
    tries = [look_again(time.perf_counter_ns) for _ in range(5)]
    assert any(told < 0.2 * between for told, between in tries), tries


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
def test_C4_how_long_a_thread_waited_for_a_processor_is_read():
    queue = host_time._Queue()
    first = queue.waited()
    counted = int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])
    assert first <= counted <= queue.waited()
    for file in queue._files:
        os.close(file)  # as os.closerange does
    assert queue.waited() == 0
    queue.close()


def test_C4_who_waits_for_a_processor_now_is_not_at_something_of_the_programs(monkeypatch) -> None:
    """Linux counts a wait when it is over: until then, a line of tensors alone was "9 ms of the program's Python"."""
    ms = 10**6
    looks = [
        (0, 0, 100, True), (5, 5, 100, True),  # it runs
        (10, 5, 100, True), (15, 5, 100, True), (40, 6, 130, True),  # it waits for 34 ms, of which 30 are counted late
        (45, 6, 134, True),
        (65, 7, 134, False),  # it sleeps
        (75, 8, 143, True),
    ]  # fmt: skip
    queue = host_time._Queue()
    seen = (host_time._Look(at * ms, ran * ms, counted * ms, could) for at, ran, counted, could in looks)
    monkeypatch.setattr(queue, "_look", lambda: next(seen))
    assert [queue.waited() // ms for _ in looks] == [100, 100, 105, 110, 134, 139, 139, 148]
    queue.close()
