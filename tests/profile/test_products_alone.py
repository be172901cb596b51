"""FLOPs of all ops, and of products alone: those are what torch's own counter counts."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3),
            nn.ConvTranspose2d(8, 4, 2), nn.Flatten(), nn.LazyLinear(10),
        )  # fmt: skip


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(1, 2) / 4, -1)
        return self.out(torch.bmm(weights, v))


MODELS = [(Convolutions, (2, 3, 16, 16)), (Attention, (2, 12, 32))]


def run(make, shape, train):
    model, x = make(), torch.randn(shape)
    with torch.set_grad_enabled(train):
        model(x)  # lazy parameters are there now
        y = model(x)
        if train:
            y.square().mean().backward()


@pytest.mark.parametrize("kind", [Profiler, Estimator])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_C3_products_alone_are_what_torchs_counter_counts(make, shape, train, kind):
    with FlopCounterMode(display=False) as counter:
        run(make, shape, train)
    with kind() as seen:
        run(make, shape, train)
    totals = seen.report()["totals"]
    assert totals["product_flops"] == counter.get_total_flops() == 2 * totals["macs"]
    assert totals["flops"] > totals["product_flops"]
