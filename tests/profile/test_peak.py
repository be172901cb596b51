"""C2, C4: what the memory at the peak is made of adds up to it, by the same rules for measured runs and estimates."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mindtorch.profile import Profiler
from mindtorch.profile.estimate import scratch
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import peak

KIB = 1024


def of_run(kind: type[Profiler | Estimator], program: Callable[[], Any], **options: Any) -> dict[str, Any]:
    with kind(**options) as profile:
        program()
    report: dict[str, Any] = profile.report()["memory"]
    assert sum(report["categories"].values()) == report["peak_bytes"]
    return report


@pytest.fixture(params=[Profiler, Estimator], ids=["measured", "estimate"], name="held")
def by_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """{category: bytes} of a program, measured and sized; of storages alone, as kernels' scratch is not measured."""
    monkeypatch.setattr(scratch, "over", lambda sigs: 0)
    return lambda program, **options: of_run(request.param, program, **options)["categories"]


def test_C2_training_with_adam_is_what_a_hand_computes(held: Callable[..., dict[str, int]]) -> None:
    k = 256 * KIB  # of a matrix

    def program() -> None:
        net = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        x = torch.zeros(256, 256)
        for _ in range(2):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    # In the step: two moments and a counter; the denominator as a root and as a quotient.
    expected = {
        "parameters": k,
        "gradients": k,
        "optimizer state": 2 * k + 4,
        "temporaries": 2 * k,
        "inputs and other": k,
    }
    assert held(program) == expected


def test_C2_one_step_is_enough_to_tell_state(held: Callable[..., dict[str, int]]) -> None:
    def program() -> None:
        net = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net(torch.zeros(1, 256)).sum().backward()
        optimizer.step()

    k = 256 * KIB
    for steps in (None, 1):
        assert held(program, steps=steps) == {"parameters": k, "gradients": k, "optimizer state": k}


def test_C2_activations_are_what_backward_waits_for(held: Callable[..., dict[str, int]]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 256, bias=False), nn.Linear(256, 2, bias=False)
            self.register_buffer("mean", torch.zeros(256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.sigmoid(self.first(x) + self.mean))

    def program() -> None:
        net, x, y = Net(), torch.zeros(512, 16), torch.zeros(512, dtype=torch.int64)
        for _ in range(2):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            net.zero_grad()

    # In backward, where the sigmoid's input gets its gradient from the output's: of the forward pass, there is the
    # sigmoid alone, not the sums before it; and the loss and what it was divided by.
    row = 512 * 256 * 4
    assert held(program) == {
        "activations": row + 4 + 4, "temporaries": 2 * row, "gradients": 4 * 2 * 256,
        "parameters": 4 * (16 + 2) * 256, "buffers": 4 * 256, "inputs and other": 512 * (16 * 4 + 8),
    }  # fmt: skip


def test_C2_what_a_loss_keeps_is_an_activation(held: Callable[..., dict[str, int]]) -> None:
    def program() -> None:
        net, x, y = nn.Linear(4, 1024, bias=False), torch.zeros(64, 4), torch.zeros(64, dtype=torch.int64)
        for _ in range(3):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            net.zero_grad()
            del loss

    # In backward: the logits' logarithms, kept by the loss, and their gradient; and one of the logarithms'.
    logits = 64 * 1024 * 4
    found = held(program)
    assert found["activations"] == logits + 4 + 4 and found["parameters"] == 4 * 4096  # … the loss and its divisor
    assert found["temporaries"] >= 2 * logits


def test_C2_activations_of_a_call_that_runs_its_backward_pass_itself_are_activations(
    held: Callable[..., dict[str, int]],
) -> None:
    """As in MAML: the outermost module's call is the whole step."""
    row = 512 * 256 * 4

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 256, bias=False), nn.Sigmoid(), nn.Linear(256, 2, bias=False))

        def forward(self, x: torch.Tensor) -> None:
            self.net(x).sum().backward()

    def program() -> None:
        step, x = Step(), torch.zeros(512, 16)
        for _ in range(2):
            step(x)
            step.zero_grad()

    # Where the sigmoid's input gets its gradient from the output's.
    found = held(program)
    assert row <= found["activations"] <= row + 8 and found["temporaries"] == 2 * row


def test_C2_what_is_kept_to_differentiate_a_gradient_is_an_activation(held: Callable[..., dict[str, int]]) -> None:
    """Of the slope of a network by its input, as for a differential equation: it waits for the next pass."""
    hidden = 512 * 256 * 4

    def program() -> None:
        net = nn.Sequential(nn.Linear(2, 256, bias=False), nn.Tanh(), nn.Linear(256, 1, bias=False))
        x = torch.zeros(512, 2, requires_grad=True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            slope.square().mean().backward()
            x.grad = None
            net.zero_grad()

    found = held(program)
    assert found.get("gradients", 0) <= 2 * (4 * 3 * 256 + 512 * 2 * 4), "of weights and of the input, no more"
    assert found["activations"] >= 2 * hidden, "the tanh, and what its slope is made of"


def test_C2_a_deep_copy_of_weights_is_no_activation(held: Callable[..., dict[str, int]]) -> None:
    """As early stopping keeps the best weights, after an evaluation with gradients on."""
    k = 256 * KIB

    def program() -> None:
        net = nn.Linear(256, 256, bias=False)
        x = torch.zeros(256, 256)
        for _ in range(2):
            net(x).sum().backward()
            net(x)
            best = copy.deepcopy(net.state_dict())
        net(x).sum().backward()
        assert len(best) == 1

    found = held(program)
    assert found["inputs and other"] == 2 * k and found["parameters"] == k and found.get("activations", 0) <= k


def test_C2_gradients_held_elsewhere_and_made_beforehand(held: Callable[..., dict[str, int]]) -> None:
    def program() -> None:
        net, x = nn.Linear(256, 256, bias=False), torch.zeros(256, 256, requires_grad=True)
        net.weight.grad = torch.zeros(256, 256)  # a buffer that gradients are added to
        free = torch.zeros(256, 256, requires_grad=True)  # of no module
        (net(x) * free).sum().backward()
        torch.zeros(2**20)  # the peak

    assert held(program)["gradients"] == 3 * 256 * KIB


def test_C2_state_that_a_checkpoint_brought_is_the_optimizers(held: Callable[..., dict[str, int]]) -> None:
    def optimizers(n: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        for _ in range(n):
            net(torch.zeros(1, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    def program() -> None:
        saved = optimizers(1)[1].state_dict()
        net, optimizer = optimizers(0)
        optimizer.load_state_dict(saved)
        del saved
        net(torch.zeros(1, 256)).sum().backward()
        optimizer.step()

    k = 256 * KIB
    assert held(program) == {"parameters": k, "gradients": k, "optimizer state": 2 * k + 4, "temporaries": 2 * k}


def test_C2_parameters_of_no_model_are_told_by_their_optimizer(held: Callable[..., dict[str, int]]) -> None:
    def program() -> None:
        weight = torch.zeros(256, 256, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=2, history_size=2)  # its state has lists of tensors

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight - 1).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    found = held(program)
    assert found["parameters"] == 256 * KIB
    assert found["inputs and other"] <= 2 * 256 * KIB  # of the loss, which no model computes
    assert found["optimizer state"] >= 2 * 256 * KIB


def test_C2_what_a_closure_makes_is_no_state_of_the_optimizer(held: Callable[..., dict[str, int]]) -> None:
    """A batch that was moved in a closure was "optimizer state" where it outlived the step."""

    def program() -> None:
        net = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        batches = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            batches.append(torch.zeros(256, 256))
            loss = net(batches[-1]).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    k = 256 * KIB
    found = held(program)
    assert found["optimizer state"] == 2 * k + 4 and found["inputs and other"] in (3 * k, 3 * k + 4)


def test_C2_a_block_within_a_training_counts_what_was_there_before() -> None:
    net, x = nn.Linear(256, 256, bias=False), torch.zeros(256, 256)
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)

    def step() -> None:
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    k = 256 * KIB
    for _ in range(2):  # the input is nobody's that was seen
        found = of_run(Profiler, step, whole=True)["categories"]
        assert found == {"parameters": k, "gradients": k, "optimizer state": 2 * k + 4, "temporaries": 2 * k}


def test_C2_parameters_gradients_and_state_are_exact_with_accumulated_gradients() -> None:
    net: nn.Module = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    sizes = [p.numel() for p in net.parameters()]

    def program(net: nn.Module = net) -> None:
        optimizer = adamw(net)
        for step in range(6):
            net(torch.zeros(2, 12, 32)).square().mean().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()

    found = of_run(Profiler, program)["categories"]
    assert found["parameters"] == found["gradients"] == 4 * sum(sizes)
    assert found["optimizer state"] == 2 * 4 * sum(sizes) + 4 * len(sizes)


def test_C2_a_model_that_only_infers_has_no_gradients_and_no_state() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()

    def program() -> None:
        with torch.no_grad():
            for _ in range(3):
                net(torch.zeros(4, 3, 8, 8))

    # Of a convolution's output and what follows, the normalized one takes its place: two are live at once.
    assert of_run(Profiler, program)["categories"] == {
        "parameters": 4 * (3 * 8 * 9 + 8 + 2 * 8 + 8 * 36 * 4 + 4), "buffers": 4 * 2 * 8 + 8,
        "inputs and other": 4 * 4 * 3 * 64, "activations": 2 * 4 * 4 * 8 * 36,
    }  # fmt: skip


def adamw(net: nn.Module, foreach: bool = False) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=foreach)


def mlp(foreach: bool = False) -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 8))
    optimizer = adamw(net, foreach)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(torch.randn(32, 64)), torch.randint(8, (32,))).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def on_lists() -> None:
    mlp(foreach=True)


def cnn() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(4):
        F.cross_entropy(net(torch.randn(4, 3, 8, 8)), torch.randint(4, (4,))).backward()
        if step % 2:  # accumulated
            optimizer.step()
            optimizer.zero_grad()


def transformer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    body = nn.TransformerEncoder(layer, 2)
    net = nn.ModuleDict({"embed": nn.Embedding(50, 32), "body": body, "head": nn.Linear(32, 50)})
    optimizer = adamw(net)
    tokens = torch.zeros(2, 12, dtype=torch.int64)
    for _ in range(2):
        x = checkpoint(net["body"], net["embed"](tokens), use_reentrant=False)
        F.cross_entropy(net["head"](x).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluated() -> None:
    net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).eval()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(128, 64))


def penalized() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = adamw(net)
    for _ in range(2):
        x = torch.randn(32, 16, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def stepped_in_backward() -> None:
    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizers = {p: torch.optim.Adam([p]) for p in net.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        net(torch.randn(256, 32)).square().sum().backward()


PROGRAMS = {f.__name__: f for f in (mlp, on_lists, cnn, transformer, evaluated, penalized, stepped_in_backward)}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_C2_C4_measured_and_estimated_tables_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "over", lambda sigs: 0)
    measured, estimated = (of_run(kind, PROGRAMS[name]) for kind in (Profiler, Estimator))
    assert measured["categories"] == estimated["categories"]
    assert measured["kept_in_vain_bytes"] == estimated["kept_in_vain_bytes"]
    for key in ("op", "module", "line", "phase"):
        assert measured["at"][key] == estimated["at"][key]
    keys = ("bytes", "count", "category", "module", "line")
    largest = [sorted(tuple(row[key] for key in keys) for row in table["largest"]) for table in (measured, estimated)]
    assert largest[0] == largest[1]
    assert max(measured["timeline"]["bytes"]) == measured["peak_bytes"]


def test_C2_the_table_is_of_the_peak_whatever_dies_later() -> None:
    draw = random.Random(0)
    live: dict[int, torch.Tensor] = {}
    most: list[int] = []

    def program() -> None:
        for number in range(3000):
            if live and draw.random() < (0.3 if number % 400 < 200 else 0.7):
                del live[draw.choice(list(live))]
            else:
                live[number] = torch.empty(draw.randrange(1, 100) * 4 + number % 4)
                sizes = sorted(t.numel() * 4 for t in live.values())
                if sum(sizes) > sum(most):
                    most[:] = sizes
        live.clear()

    with Profiler() as profiler:
        program()
    blocks, _ = profiler.collector.balance.at_peak()  # of the last stage, which this program has one of
    assert sorted(block.nbytes for block in profiler._held["init"]._blocks or ()) == most
    assert blocks == []  # from there on nothing was held
    assert profiler.report()["memory"]["categories"] == {"inputs and other": sum(most)}


def test_C2_what_is_kept_of_the_peak_does_not_grow_with_the_run() -> None:
    with Profiler(max_events=100) as profiler:
        first = [torch.empty(1000) for _ in range(50)]
        del first
        for _ in range(2000):
            torch.empty(10)
        held = profiler.collector.balance.at_peak()
    assert held is not None and [block.nbytes for block in held[0]] == [4000] * 50
    report = profiler.report()["memory"]
    assert report["categories"] == {"inputs and other": 200_000} and report["timeline"] == {
        "positions": [],
        "bytes": [],
    }


def test_C2_each_thread_has_its_own_steps_and_passes() -> None:
    pause, go = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, z = x * 2, x * 3  # gone before the pass ends, though another thread's pass ends meanwhile
            go.set()
            pause.wait(20)
            return (y + z).sum()

    def other() -> None:
        go.wait(20)
        nn.Identity()(torch.ones(1))
        pause.set()

    def program() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        Waits()(torch.zeros(1000))
        thread.join()
        torch.zeros(1, requires_grad=True).sum().backward()

    assert of_run(Profiler, program)["categories"]["temporaries"] == 12_000


def test_C2_caches_are_told_in_measured_runs_too() -> None:
    def program() -> None:
        peak.say([torch.zeros(1000)], peak.KV_CACHE)

    assert of_run(Profiler, program)["categories"] == {"key-value cache": 4000}
    assert peak.listening == []


def test_C2_the_largest_storages_of_one_line_are_one_row_whatever_led_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scratch, "over", lambda sigs: 0)

    def program() -> None:
        made = [torch.empty(100), torch.empty(100), torch.ones(100), torch.ones(100), torch.ones(100)]
        torch.stack(made)

    for kind in Profiler, Estimator:
        rows = of_run(kind, program)["largest"]
        assert [(row["op"], row["bytes"], row["count"]) for row in rows if row["op"] != "aten::stack"] == [
            ("aten::ones", 1200, 3), ("aten::empty", 800, 2),
        ]  # fmt: skip
