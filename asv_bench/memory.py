"""Predicted beside measured peak memory: ``python asv_bench/memory.py [program ...]``; exits 1 beyond 3 %.

Measured: the events of torch's CPU allocator, from the model's first byte on, with what kernels take for themselves
while they run. Predicted: storages, and scratch by the op table's rules.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from accuracy import convnet, gpt2, minilm, mobile, vit
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint_sequential

from mindtorch.profile.estimate.estimator import Estimator

LIMIT = 0.03


def _twice(make: Callable[[], Callable[[], Any]]) -> Callable[[], None]:
    def run() -> None:
        step = make()
        for _ in range(2):
            step()

    return run


def _checkpointed(segments: int) -> Callable[[], None]:
    def run() -> None:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            x = torch.randn(1024, 512, requires_grad=True)
            out = checkpoint_sequential(model, segments, x, use_reentrant=False) if segments else model(x)
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def _channels_last() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 16, 4, 2, 1)
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for _ in range(2):
        model(torch.randn(16, 3, 64, 64).to(memory_format=torch.channels_last)).sum().backward()


def _lstm(train: bool) -> Callable[[], None]:
    def run() -> None:
        model = nn.LSTM(64, 128, num_layers=2, bidirectional=True, batch_first=True)
        with torch.set_grad_enabled(train):
            out = model(torch.randn(16, 100, 64))[0].sum()
        if train:
            out.backward()

    return run


PROGRAMS: dict[str, Callable[[], None]] = {
    "minilm": _twice(minilm), "gpt2": _twice(gpt2), "convnet": _twice(convnet),
    "mlp": _checkpointed(0), "mlp checkpointed": _checkpointed(4), "channels last": _channels_last,
    "mobile": _twice(mobile), "vit": _twice(vit), "lstm": _lstm(False), "lstm training": _lstm(True),
}  # fmt: skip


def measured(run: Callable[[], None]) -> int:
    """Most bytes that the allocator had given out at once."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    gc.collect()
    now = most = 0
    for event in prof.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def predicted(run: Callable[[], None]) -> int:
    gc.collect()
    with Estimator() as estimator:
        run()
    return int(estimator.report()["memory"]["peak_bytes"])


def main() -> int:
    torch.set_num_threads(1)
    worst = 0.0
    print(f"{'program':20}{'predicted':>14}{'measured':>14}{'off':>8}")
    for name in sys.argv[1:] or PROGRAMS:
        theirs, mine = measured(PROGRAMS[name]), predicted(PROGRAMS[name])
        worst = max(worst, abs(mine / theirs - 1))
        print(f"{name:20}{mine:14,}{theirs:14,}{100 * (mine / theirs - 1):7.2f}%", flush=True)
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
