"""A compiled step, with a backend that needs no compiler; shapes change once."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
step = torch.compile(model, backend="eager")
for n in (4, 4, 6):
    out = step(torch.ones(n, 8))
    out.square().mean().backward()
    print(tuple(out.shape), f"{model[0].weight.grad.norm().item():.5f}")
