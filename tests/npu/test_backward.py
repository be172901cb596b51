"""N5: backward runs each step on the stream of its forward, as torch's engine does for CUDA."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def loss_of(out: torch.Tensor) -> torch.Tensor:
    """Of operations that run on the NPU: one that is staged would wait for the stream."""
    return (out * out).mean()


def gradients(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in net.parameters()]


def eager(net: nn.Module, x: torch.Tensor, times: int = 1) -> list[torch.Tensor]:
    net = copy.deepcopy(net)
    for _ in range(times):
        loss_of(net(x)).backward()
    return gradients(net)


@pytest.fixture(params=[False, True], ids=["native", "staged"], autouse=True)
def staged(request):
    from mindtorch.npu import staging

    native = staging._native
    staging.use_native(not request.param)
    yield request.param
    staging.use_native(native)


def same(got: list[torch.Tensor], expected: list[torch.Tensor], staged: bool) -> None:
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b) if staged else torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("delay", [0, 20])
def test_N5_backward_outside_of_the_forwards_stream(npu, library, staged, delay):
    net, x = model(), torch.randn(4, 6)
    expected = eager(net, x, 2)
    net.to("npu:0")
    there, side, outside = x.to("npu:0"), npu.Stream(0), npu.current_stream(0)
    for _ in range(2):  # the second sums up in .grad
        side.wait_stream(outside)
        with npu.stream(side):
            library.stall(side.npu_stream, delay)
            loss = loss_of(net(there))
        loss.backward()
        assert npu.current_stream(0) == outside
    same(gradients(net), expected, staged)


def test_N5_each_part_of_a_backward_is_on_its_own_stream(npu, library):
    first, second = npu.Stream(0), npu.Stream(0)
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            seen.append(npu.current_stream(0))
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(npu.current_stream(0))
            return grad * 2

    x = torch.ones(4, device="cpu").to("npu:0").requires_grad_()
    for s in (first, second):
        s.wait_stream(npu.default_stream(0))
    with npu.stream(first):
        library.stall(first.npu_stream, 10)
        y = Look.apply(x)
    second.wait_stream(first)
    with npu.stream(second):
        library.stall(second.npu_stream, 10)
        z = Look.apply(y)
    npu.current_stream(0).wait_stream(second)
    Look.apply(z).sum().backward()
    default = npu.default_stream(0)
    assert seen == [first, second, default, default, second, first]
    assert npu.current_stream(0) == default and x.grad.tolist() == [8.0] * 4


def test_N5_backward_within_another_stream_than_forward(npu, library, staged):
    net, x = model(), torch.randn(4, 6)
    expected = eager(net, x)
    net.to("npu:0")
    there, one, other = x.to("npu:0"), npu.Stream(0), npu.Stream(0)
    one.wait_stream(npu.current_stream(0))
    with npu.stream(one):
        library.stall(one.npu_stream, 20)
        loss = loss_of(net(there))
    with npu.stream(other):
        loss.backward()
        assert npu.current_stream(0) == other
        got = gradients(net)
    same(got, expected, staged)


def test_N5_backward_across_devices_and_streams(npu, devices, library, staged):
    devices(2)
    net, x = model(), torch.randn(4, 6)
    expected = eager(net, x)
    net[:3].to("npu:0"), net[3:].to("npu:1")
    there, streams = x.to("npu:0"), [npu.Stream(0), npu.Stream(1)]
    for s in streams:
        s.wait_stream(npu.default_stream(s.device_index))
    with npu.stream(streams[0]), npu.stream(streams[1]):
        for s in streams:
            library.stall(s.npu_stream, 20)
        loss = loss_of(net[3:](net[:3](there).to("npu:1")))
    loss.backward()
    same(gradients(net), expected, staged)
    assert [npu.current_stream(i) for i in (0, 1)] == [npu.default_stream(i) for i in (0, 1)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_N5_checkpoints_recompute_on_the_forwards_stream(npu, library, staged, reentrant):
    net, x = model(), torch.randn(4, 6)
    expected = eager(net, x)
    net.to("npu:0")
    there, side = x.to("npu:0").requires_grad_(), npu.Stream(0)
    side.wait_stream(npu.current_stream(0))
    with npu.stream(side):
        library.stall(side.npu_stream, 20)
        loss = loss_of(checkpoint(net, there, use_reentrant=reentrant))
    loss.backward()
    assert npu.current_stream(0) == npu.default_stream(0)
    same(gradients(net), expected, staged)


def test_N5_gradients_of_gradients(npu, library, staged):
    def twice(x):
        y = (x * x * x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(5, requires_grad=True)
    expected = twice(x)
    there, side = x.detach().to("npu:0").requires_grad_(), npu.Stream(0)
    side.wait_stream(npu.current_stream(0))
    with npu.stream(side):
        library.stall(side.npu_stream, 20)
        y = (there * there * there).sum()
    (first,) = torch.autograd.grad(y, there, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), there)
    same([second.cpu()], [expected], staged)


def test_N5_a_backward_that_fails_leaves_the_stream_that_was_current(npu):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("mine")

    side = npu.Stream(0)
    x = torch.ones(2).to("npu:0").requires_grad_()
    side.wait_stream(npu.current_stream(0))
    with npu.stream(side):
        y = (Fails.apply(x) * 3).sum()
    with pytest.raises(ValueError, match="mine"):
        y.backward()
    assert npu.current_stream(0) == npu.default_stream(0)
    with npu.stream(side):
        z = (x * 3).sum()
    z.backward()
    assert npu.current_stream(0) == npu.default_stream(0) and x.grad.tolist() == [3.0, 3.0]


def test_N5_streams_of_threads_are_their_own(npu, library, staged):
    net, x = model(), torch.randn(4, 6)
    expected = eager(net, x)
    net.to("npu:0")
    there, nets = x.to("npu:0"), [copy.deepcopy(net) for _ in range(4)]
    npu.synchronize(0)

    def work(mine):
        side = npu.Stream(0)
        with npu.stream(side):
            library.stall(side.npu_stream, 5)
            loss = loss_of(mine(there))
        loss.backward()
        npu.current_stream(0).synchronize()

    threads = [threading.Thread(target=work, args=(mine,)) for mine in nets]
    [thread.start() for thread in threads], [thread.join(60) for thread in threads]
    for mine in nets:
        same(gradients(mine), expected, staged)


def test_N5_what_is_remembered_of_streams_is_bounded(npu, monkeypatch):
    from mindtorch.npu import backward

    monkeypatch.setattr(backward, "_MOST", 64)
    side = npu.Stream(0)
    x = torch.ones(1).to("npu:0").requires_grad_()
    side.wait_stream(npu.current_stream(0))
    for _ in range(200):
        with npu.stream(side):
            y = x * 2
        z = x * 3
    choices = backward._here.choices[0]
    assert len(choices.numbers) == len(choices.streams) <= 64
    npu.current_stream(0).wait_stream(side)
    (y.sum() + z.sum()).backward()
    assert x.grad.tolist() == [5.0]
