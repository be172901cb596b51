"""C2: peak memory equals what a hand computes."""

import gc
import itertools
from typing import Any

import pytest
import torch

from mindtorch.engine.record import mixing
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator

MB = 1 << 20


def floats(megabytes):
    return torch.empty(megabytes * MB // 4)


def test_C2_peak_of_a_simple_program(record):
    def program():
        a = floats(4)  # 4
        b = a * 2  # 8
        c = b + 1  # 12: the peak
        del a
        b.add_(1)  # in place: nothing new
        d = c.view(2, -1)[0]  # a view: nothing new, and keeps c alive
        del c, b
        return d.sum()  # 4 (c, by its view) and 4 bytes

    report, profiler = record(program)
    assert report["totals"]["peak_bytes"] == 12 * MB
    assert profiler.collector.balance.live_bytes == 0


def test_C2_peak_per_module_and_phase(record):
    class Grow(torch.nn.Module):
        def forward(self, x):
            big = torch.cat([x, x, x])
            return big[:1].clone()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(floats(1))
            self.grow = Grow()
            self.small = torch.nn.Identity()

        def forward(self, x):
            return self.small(self.grow(x))

    def program():
        net = Net()  # 1
        with torch.no_grad():
            net(floats(2))  # 3, then 9 inside grow

    report, _ = record(program)
    peaks = {row["path"]: row["peak_bytes"] for row in report["modules"]}
    assert peaks["Net.grow"] == peaks["Net"] == report["totals"]["peak_bytes"] == 9 * MB + 4
    assert peaks["Net.small"] == 3 * MB + 4
    assert [row["peak_bytes"] for row in report["phases"] if row["name"] == "forward"] == [9 * MB + 4]


def test_C2_training_peak_holds_weights_gradients_and_optimizer_state(record):
    n = MB // 4

    def program():
        weight = torch.nn.Parameter(torch.empty(n))
        optimizer = torch.optim.AdamW([weight])
        (weight * 2).sum().backward()
        optimizer.step()

    report, _ = record(program)
    peaks = {row["name"]: row["peak_bytes"] for row in report["phases"]}
    # weight, gradient and two moments, with one temporary of AdamW; and its step counter.
    assert 4 * MB <= peaks["optimizer"] <= 6 * MB + 64


def test_C2_parameters_made_before_and_data_given_to_tensor_count(record):
    net = torch.nn.Linear(1024, 1024, bias=False)

    def program():
        x = torch.tensor([[1.0] * 1024])
        with torch.no_grad():
            net(x)

    report, _ = record(program)
    assert report["totals"]["peak_bytes"] == 4 * MB + 4096 + 4096


def test_C2_a_long_loop_stays_flat(record):
    def program():
        x = torch.zeros(8)
        for _ in range(20_000):
            x = x + 1

    report, profiler = record(program, max_events=1000)
    gc.collect()
    assert report["totals"]["peak_bytes"] == 64 and profiler.collector.balance.live_bytes == 0
    assert profiler.collector.event_count() == 1000 and profiler.collector.dropped_events == 19_001


def test_C2_gradients_of_sparse_tables_are_in_the_peak(record):
    """A sparse tensor has no storage of its own: its memory is that of its indices and values."""
    rows, width = 256, 64

    def program():
        table = torch.nn.Embedding(4096, width, sparse=True)
        table(torch.arange(rows)).sum().backward()

    memory = record(program)[0]["memory"]
    values, ids = rows * width * 4, rows * 8
    assert memory["categories"]["gradients"] == values + ids  # the gradient, which is given its own memory
    assert memory["peak_bytes"] == 4096 * width * 4 + values + 2 * ids + 2 * 4  # the table, the ids, the sum, ones
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as theirs:
        program()
    events = [e for e in theirs.profiler.kineto_results.events() if e.name() == "[memory]"]
    taken = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    assert memory["peak_bytes"] == max(itertools.accumulate(taken))


def test_C2_sparse_gradients_are_added_up(record):
    """Added in place, a sparse tensor has other indices and values afterwards; torch has no `nbytes` of it."""
    rows, width = 256, 64
    table = torch.nn.Embedding(4096, width, sparse=True)

    def program():
        for _ in range(3):
            table(torch.arange(rows)).sum().backward()

    gradients = record(program)[0]["memory"]["categories"]["gradients"]
    assert gradients == 3 * (rows * width * 4 + rows * 8), gradients
    table.weight.grad = None


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "bsr", "bsc"])
def test_C2_sparse_tensors_are_what_their_parts_take(kind):
    """In all layouts, made and written; what dies is taken off again."""
    block = ((8, 8),) if kind[0] == "b" else ()
    dense = torch.eye(512).repeat_interleave(2, 0)
    held = []

    def program():
        made = dense.to_sparse() if kind == "coo" else getattr(dense, f"to_sparse_{kind}")(*block)
        made.mul_(2.0)
        held.append(made)

    with Profiler() as profiler:
        program()
        live = profiler.collector.balance.live_bytes
        made = held.pop()
        parts = mixing.parts(made)
        expected = sum(part.untyped_storage().nbytes() for part in parts)
        written = sum(part.nbytes for part in parts)
        del made, parts
        assert live == expected
        assert profiler.collector.balance.live_bytes == 0
    (op,) = (op for op in profiler.report()["ops"] if op["name"] == "aten::mul_")
    assert op["bytes"] == written


@pytest.mark.parametrize("how", [lambda: Profiler(whole=True), Estimator], ids=["measured", "estimated"])
def test_C2_what_is_converted_in_inference_mode_is_memory(how: Any) -> None:
    """Torch does not take `to` and `reshape` apart there, whose schema says that they give views: nobody saw 3 MiB."""
    with how() as seen:
        x = torch.ones(512, 512)
        with torch.inference_mode():
            wide = x.to(torch.float64)
            same, flat, turned = wide.to(torch.float64), x.reshape(-1), x.t().reshape(-1)
            del same, flat
            assert wide.sum().dim() == turned.sum().dim() == 0
    report = seen.report()
    nbytes = {row["name"]: row["bytes"] for row in report["ops"]}
    assert (nbytes["aten::to"], nbytes["aten::reshape"]) == (2 << 20, 1 << 20)
    assert 0 <= report["totals"]["peak_bytes"] - (4 << 20) < 1024
