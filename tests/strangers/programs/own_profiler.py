"""A script that profiles itself, with torch.profiler and with cProfile, and labels what it does."""

import cProfile
import pstats

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
seen = []
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=1),
    on_trace_ready=lambda p: seen.extend(p.key_averages()),
) as profiler:
    for _ in range(3):
        with record_function("forward pass"):
            loss = model(torch.randn(4, 8)).mean()
        loss.backward()
        profiler.step()
print(sorted(row.key for row in seen if row.key in ("forward pass", "aten::linear", "aten::addmm", "aten::relu")))
python = cProfile.Profile()
python.enable()
model(torch.ones(1, 8))
python.disable()
print(any(name == "relu" for _, _, name in pstats.Stats(python).stats))
