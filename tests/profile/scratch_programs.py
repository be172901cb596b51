"""Run by test_scratch.py in a process of its own: predicted and measured memory of programs and of single calls."""

from __future__ import annotations

import gc
import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from mindtorch import ops
from mindtorch.profile.estimate.estimator import Estimator

aten = torch.ops.aten
rules = importlib.import_module("mindtorch.ops.scratch_rules")


MARK = 54_321  # bytes that nothing else takes


def measured(runs: list[Callable[[], Any]]) -> list[int]:
    """Most bytes that torch's allocator had given out at a time, in each of these."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        for run in runs:
            torch.empty(MARK, dtype=torch.uint8)
            run()
            gc.collect()
    found: list[int] = []
    for event in prof.profiler.kineto_results.events():
        if event.name() != "[memory]":
            continue
        if event.nbytes() == MARK:
            found.append(0)
            now = MARK  # and is given back at once
            continue
        now += event.nbytes()
        found[-1] = max(found[-1], now)
    return found


# ---- programs --------------------------------------------------------------------------------------------------------
def images(*layers: Any, size: tuple[int, ...], train: bool = True, last: bool = False) -> Callable[[], None]:
    def run() -> None:
        model = nn.Sequential(*(make() for make in layers))
        x = torch.randn(size)
        if last:
            model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))  # type: ignore[attr-defined]
        with torch.set_grad_enabled(train):
            y = model(x)
        if train:
            y.sum().backward()

    return run


def lstm(train: bool, **options: Any) -> Callable[[], None]:
    def run() -> None:
        with torch.set_grad_enabled(train):
            y = nn.LSTM(64, 128, batch_first=True, **options)(torch.randn(16, 60, 64))[0]
        if train:
            y.sum().backward()

    return run


def conv(*args: Any, kind: Any = nn.Conv2d, **options: Any) -> Callable[[], nn.Module]:
    return lambda: kind(*args, **options)


PLAIN = (conv(3, 32, 3, padding=1), nn.ReLU, conv(32, 64, 3, stride=2, padding=1), nn.ReLU, conv(64, 64, 1, bias=False))
PROGRAMS = {
    "images": images(*PLAIN, size=(8, 3, 64, 64)),
    "images, inference": images(*PLAIN, size=(8, 3, 64, 64), train=False),
    "channels last": images(*PLAIN, size=(8, 3, 64, 64), last=True),
    "grouped": images(conv(64, 128, 3, groups=8), nn.ReLU, conv(128, 64, 3, groups=32), size=(8, 64, 32, 32)),
    "depthwise": images(conv(64, 64, 5, groups=64, padding=2), nn.ReLU6, conv(64, 96, 1), size=(8, 64, 32, 32)),
    "dilated": images(conv(16, 64, 3, dilation=2), nn.ReLU, conv(64, 32, 3), size=(8, 16, 32, 32)),
    "transposed": images(
        conv(64, 32, 4, stride=2, padding=1, kind=nn.ConvTranspose2d), nn.ReLU,
        conv(32, 16, 3, padding=1, kind=nn.ConvTranspose2d), size=(8, 64, 32, 32)),
    "volumes": images(conv(3, 16, 3, padding=1, kind=nn.Conv3d), nn.ReLU, conv(16, 32, 3, kind=nn.Conv3d),
                      size=(2, 3, 16, 32, 32)),
    "sequences": images(conv(16, 64, 5, padding=2, kind=nn.Conv1d), nn.ReLU, conv(64, 32, 3, kind=nn.Conv1d),
                        size=(8, 16, 2048)),
    "one image": images(conv(16, 32, 3), nn.ReLU, conv(32, 32, 3), size=(1, 16, 24, 24)),
    "linear": images(lambda: nn.Linear(256, 512), nn.GELU, lambda: nn.Linear(512, 256), size=(512, 256)),
    "lstm": lstm(False),
    "lstm, training": lstm(True),
    "lstm, both ways": lstm(True, num_layers=2, bidirectional=True),
}  # fmt: skip


def programs() -> list[list[Any]]:
    found = []
    for (name, run), theirs in zip(PROGRAMS.items(), measured([*PROGRAMS.values()]), strict=True):
        gc.collect()
        with Estimator() as estimator:
            run()
        facts = estimator.report()["memory"]
        assert sum(facts["categories"].values()) == facts["peak_bytes"]
        found.append([name, facts["peak_bytes"], theirs])
    return found


# ---- calls -----------------------------------------------------------------------------------------------------------
def nbytes(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def without_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return type(value)(map(without_data, value)) if isinstance(value, (tuple, list)) else value


Call = tuple[str, Any, tuple[Any, ...]]


def compared(calls: list[Call]) -> list[list[Any]]:
    """Of each call its name, predicted and measured bytes: both with arguments and results."""
    found = []
    for (name, func, args), most in zip(calls, measured([lambda c=c: c[1](*c[2]) for c in calls]), strict=True):
        out = func(*args)
        row = ops.row(ops.op_name(func))
        assert row is not None and row.scratch is not None
        scratch = row.scratch(without_data(args), {}, without_data(out))
        outs = out if isinstance(out, (tuple, list)) else (out,)
        found.append([name, nbytes(*args, *outs) + scratch, nbytes(*args) + most])
    return found


#: batch, channels, size, out channels, kernel, stride, padding, dilation, transposed, groups
CONVOLUTIONS = [
    (4, 16, (32, 32), 32, 3, 1, 1, 1, False, 1), (4, 16, (32, 32), 32, 3, 2, 1, 1, False, 1),
    (16, 16, (32, 32), 32, 1, 1, 0, 1, False, 1), (16, 3, (112, 112), 64, 7, 2, 3, 1, False, 1),
    (4, 15, (32, 32), 33, 3, 1, 1, 1, False, 1), (4, 16, (32, 32), 32, 3, 1, 1, 1, False, 4),
    (4, 64, (32, 32), 64, 3, 2, 1, 1, False, 64), (4, 64, (32, 32), 64, 7, 1, 3, 1, False, 64),
    (4, 16, (32, 32), 32, 3, 1, 2, 2, False, 1), (4, 64, (16, 16), 32, 4, 2, 1, 1, True, 1),
    (4, 16, (16, 16), 32, 3, 1, 1, 1, True, 1), (2, 8, (8, 32, 32), 16, 3, 1, 1, 1, False, 1),
    (2, 16, (8, 32, 32), 16, 3, 1, 0, 1, False, 1), (4, 16, (512,), 32, 3, 1, 1, 1, False, 1),
]  # fmt: skip


def convolutions() -> list[Call]:
    found: list[Call] = []
    for batch, before, size, after, kernel, stride, padding, dilation, transposed, groups in CONVOLUTIONS:
        n = len(size)
        options = ([stride] * n, [padding] * n, [dilation] * n, transposed, [0] * n, groups)
        shape = (before, after // groups) if transposed else (after, before // groups)
        for dtype in (torch.float32, torch.float64):
            if dtype is torch.float64 and (transposed or groups > 1 or n == 3):
                continue
            x, w = torch.randn(batch, before, *size, dtype=dtype), torch.randn(*shape, *[kernel] * n, dtype=dtype)
            b = torch.randn(after, dtype=dtype)
            name = f"{tuple(x.shape)} {tuple(w.shape)} {options} {dtype}"
            found.append((name, aten.convolution.default, (x, w, b, *options)))
            grad = torch.randn_like(aten.convolution(x, w, b, *options))
            for mask in ([True, True, True], [False, True, False], [True, False, False]):
                backward = aten.convolution_backward.default
                found.append((f"{name} {mask}", backward, (grad, x, w, [after], *options, mask)))
    return found


def products() -> list[Call]:
    a, b = torch.randn(256, 128), torch.randn(128, 64)
    odd = [a, torch.ones(()).expand(256, 128), torch.randn(128).expand(256, 128), torch.randn(256, 256)[:, ::2],
           torch.randn(128, 256).t(), torch.randn(256, 200)[:, :128]]  # fmt: skip
    found: list[Call] = [(f"mm {t.stride()}", aten.mm.default, (t, b)) for t in odd]
    return found + [(f"addmm {t.stride()}", aten.addmm.default, (torch.zeros(64), t, b)) for t in odd]


def workspaces() -> list[list[Any]]:
    found = []
    for steps, batch, features, hidden in ((20, 8, 32, 64), (3, 1, 512, 16), (50, 4, 64, 256), (7, 130, 33, 100)):
        x, state = torch.randn(steps, batch, features), torch.zeros(batch, hidden)
        weights = torch.randn(4 * hidden, features), torch.randn(4 * hidden, hidden), *[torch.randn(4 * hidden)] * 2
        args = (x, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True)
        found.append([str(tuple(x.shape)), rules.rnn_workspace(args), aten.mkldnn_rnn_layer(*args)[3].numel()])
    return found


if __name__ == "__main__":
    gc.freeze()  # what was imported stays: each collection is of what a program made
    print(json.dumps({
        "programs": programs(),
        "calls": compared(convolutions() + products()),
        "workspaces": workspaces(),
    }))  # fmt: skip
