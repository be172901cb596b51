"""C2: peak memory equals what a hand computes."""

import gc

import torch

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
