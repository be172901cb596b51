"""Calls operators with wrong contents and sizes, in child processes that may die.

``python hostile_calls.py [--without-looking] [--each N] [NAME …]``: for operators whose kernels do not check their
arguments (or those with NAME in their names), changes valid calls in one place each, in up to N ways. Prints the calls
that ended their process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # before torch: as pytest does it

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from mindtorch.ops.bounds import _CHECKS, looking
from tests.remote.good_calls import CALLS, keywords

Case = tuple[str, Callable[..., Any], list[Any], Any]
_SECONDS = 5  # of one call: a size may be large


class Noted(TorchDispatchMode):
    """Notes calls of the operators that are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[Case] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func._schema.name in _CHECKS:
            flat, spec = tree_flatten((args, kwargs or {}))
            flat = [a.detach().contiguous().clone() if isinstance(a, torch.Tensor) else a for a in flat]
            self.cases.append((str(func), func, flat, spec))
        return func(*args, **(kwargs or {}))


def r(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, requires_grad=True)


def programs() -> Iterator[Callable[[], Any]]:
    """Calls whose gradients reach what is looked at."""
    i = torch.tensor
    yield lambda: F.embedding(i([[0, 2], [1, 3]]), r(4, 5))
    for mode in ("sum", "mean", "max"):
        yield lambda mode=mode: F.embedding_bag(i([0, 2, 1, 3]), r(4, 5), i([0, 2]), mode=mode)
    yield lambda: F.embedding_bag(i([0, 2, 1]), r(4, 5), i([0, 2]), mode="sum", per_sample_weights=r(3))
    yield lambda: F.ctc_loss(r(6, 2, 4).log_softmax(-1), i([[1, 2], [3, 1]]), i([6, 5]), i([2, 2]))
    yield lambda: F.nll_loss(r(3, 4), i([0, 3, 1]))
    yield lambda: F.nll_loss(r(2, 4, 3, 3), torch.ones(2, 3, 3, dtype=torch.int64), torch.rand(4))
    for pool in (F.max_pool2d, F.avg_pool2d, F.adaptive_max_pool2d, F.adaptive_avg_pool2d):
        yield lambda pool=pool: pool(r(2, 3, 6, 7), 2)
    for pool in (F.max_pool3d, F.avg_pool3d, F.adaptive_max_pool3d, F.adaptive_avg_pool3d):
        yield lambda pool=pool: pool(r(2, 3, 6, 7, 5), 2)
    for mode in ("reflect", "replicate"):
        for n in (1, 2, 3):
            yield lambda mode=mode, n=n: F.pad(r(2, 3, *(4, 5, 6)[:n]), (1, 2) * n, mode)
    yield lambda: F.grid_sample(r(2, 3, 4, 5), r(2, 3, 6, 2), align_corners=False)
    yield lambda: F.grid_sample(r(2, 3, 4, 5, 3), r(2, 3, 6, 2, 3), align_corners=False)
    yield lambda: r(2, 3, 9).unfold(2, 3, 2)
    yield lambda: r(3, 4).softmax(1).log_softmax(0)
    for mode in ("bilinear", "bicubic"):
        yield lambda mode=mode: F.interpolate(r(2, 3, 8, 9), (4, 5), mode=mode, antialias=True)
        yield lambda mode=mode: F.interpolate(r(2, 3, 8, 9), scale_factor=0.5, mode=mode, antialias=True)
    yield lambda: torch.fft.irfft(torch.fft.rfft(r(3, 8)))
    yield lambda: torch.fft.ifft(torch.fft.fft(r(3, 8)))
    yield lambda: F.layer_norm(r(3, 4, 5), (5,), r(5), r(5))
    yield lambda: F.rms_norm(r(3, 4, 5), (5,), r(5))
    yield lambda: F.group_norm(r(3, 4, 5), 2, r(4), r(4))
    for training in (True, False):
        yield lambda training=training: F.batch_norm(r(3, 4, 5), torch.ones(4), torch.ones(4), r(4), r(4), training)
    yield lambda: torch._weight_norm(r(3, 4, 5), r(3, 1, 1), 0)
    yield lambda: torch.nn.LSTM(5, 7, 1)(r(3, 2, 5))[0]
    yield lambda: F.scaled_dot_product_attention(r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8))
    yield lambda: F.scaled_dot_product_attention(r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8), torch.rand(2, 1, 4, 6))


def optimizers() -> None:
    for kind, given in (
        (torch.optim.Adam, {"amsgrad": True}), (torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
    ):  # fmt: skip
        parameters = [r(700), r(3, 4)]
        optimizer = kind(parameters, lr=0.1, fused=True, **given)  # type: ignore[operator]
        for _ in range(2):
            for p in parameters:
                p.grad = torch.rand_like(p)
            optimizer.step()


def cases() -> list[Case]:
    torch.manual_seed(0)
    with Noted() as noted:
        for program in programs():
            out = program()
            (out.abs() if out.is_complex() else out).sum().backward()
        optimizers()
    aten = torch.ops.aten
    by_hand = [
        (aten._reshape_alias.default, (torch.rand(3, 4), [4, 3], [1, 4])),
        (aten.native_batch_norm.default, (torch.rand(3, 4, 5), *[torch.ones(4)] * 4, True, 0.1, 1e-5)),
        (aten._embedding_bag.default, (torch.rand(4, 5), torch.tensor([0, 2, 1]), torch.tensor([0, 2]))),
    ]
    by_hand += [(func, args) for func, args, *_ in CALLS]
    for func, args in by_hand:
        flat, spec = tree_flatten((args, keywords(func._schema.name)))
        noted.cases.append((str(func), func, flat, spec))
    return noted.cases


def changes(flat: list[Any]) -> Iterator[tuple[int, Any]]:
    """(which argument, what it becomes)"""
    for k, a in enumerate(flat):
        if isinstance(a, torch.Tensor):
            if a.dtype in (torch.int64, torch.int32) and a.numel():
                for wrong in (-1, -2, a.numel(), 7, 1000, 1 << 20, -(1 << 20), 1 << 30, -(1 << 30)):
                    yield k, torch.full_like(a, wrong)
                    one = a.clone()
                    one.view(-1)[-1] = wrong
                    yield k, one
            shapes = {(0,) * a.dim(), (1,) * a.dim(), (), (1, *a.shape), tuple(a.shape[1:]), (a.numel(),)}
            for d, n in enumerate(a.shape):
                shapes |= {(*a.shape[:d], m, *a.shape[d + 1 :]) for m in (0, 1, n - 1, n // 2, n + 1, 2 * n)}
            for shape in sorted(shapes - {tuple(a.shape)}):
                if min(shape, default=0) >= 0:
                    yield k, torch.ones(shape, dtype=a.dtype)
            yield k, None
        elif type(a) is bool:
            yield k, not a
        elif type(a) is int:
            yield from ((k, n) for n in (-1, 0, 1, a + 1, a - 1, 100, 1 << 20, 1 << 40, -(1 << 40)) if n != a)
        elif type(a) is float:
            yield from ((k, x) for x in (0.0, -1.0, 1e30, float("nan")))


def call(case: Case, change: tuple[int, Any] | None, looks: bool) -> None:
    _name, func, flat, spec = case
    flat = [a.clone() if isinstance(a, torch.Tensor) else a for a in flat]
    if change is not None:
        flat[change[0]] = change[1]
    args, kwargs = tree_unflatten(flat, spec)
    (looking(func) if looks else func)(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-looking", action="store_true")
    parser.add_argument("--each", type=int, default=80)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    looks = not given.without_looking
    draw = random.Random(0)
    todo: list[tuple[Case, tuple[int, Any] | None]] = []
    for case in cases():
        if not given.names or any(name in case[0] for name in given.names):
            call(case, None, looks)  # a good one is done
            found = list(changes(case[2]))
            todo += [(case, change) for change in draw.sample(found, min(given.each, len(found)))]
    at = 0
    while at < len(todo):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for k in range(at, len(todo)):
                os.write(writing, k.to_bytes(4, "little"))
                signal.alarm(_SECONDS)
                try:
                    call(*todo[k], looks)
                except Exception as error:
                    del error
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as numbers:
            begun = numbers.read()
        _child, status = os.waitpid(child, 0)
        at = int.from_bytes(begun[-4:], "little") + 1
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGALRM:
            (name, _func, flat, _spec), change = todo[at - 1]
            shown = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in flat]
            what = change and (change[0], change[1] if not isinstance(change[1], torch.Tensor) else change[1].shape)
            print("died", name, signal.Signals(os.WTERMSIG(status)).name, shown, what, flush=True)
    print("called", len(todo))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
