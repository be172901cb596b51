"""C2: what DistributedDataParallel sends is what a measured peak says that it is for."""

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mindtorch.profile import Profiler

WIDTH, LAYERS = 256, 6
EACH = (WIDTH * WIDTH + WIDTH) * 4
BYTES = LAYERS * EACH


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own there, which names the rank
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("views", [False, True])
def test_C2_buckets_of_data_parallel_are_communication_buffers(group: None, views: bool) -> None:
    """They were "inputs and other"; those that are made anew before the second forward pass, activations."""
    init = dist.Reducer.__init__
    with Profiler() as seen:
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.5, gradient_as_bucket_view=views)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            net(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert dist.Reducer.__init__ is init
    found = seen.report()["memory"]["categories"]
    sent = found.get("communication buffers", 0)
    if views:
        assert sent + found["gradients"] == pytest.approx(BYTES, rel=0.01), "each gradient lies in a bucket"
    else:
        assert sent == pytest.approx(BYTES, rel=0.01)
    assert found["parameters"] == BYTES and found["activations"] + found["inputs and other"] < EACH
