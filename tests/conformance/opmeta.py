"""Torch's own meta device beside ours: what is known of every result without data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import opcases
import torch
from opcompare import Place
from oplayouts import facts
from torch.utils._pytree import tree_flatten

import mindtorch
from mindtorch.engine.record.meta import as_meta


class MetaPlace(Place):
    """Sends a sample's tensors to torch's meta device or, `lazy`, to ours."""

    def _send(self, t: torch.Tensor) -> torch.Tensor:
        return as_meta(t, -1) if self.lazy else t.to("meta")

    def _send_other(self, t: torch.Tensor) -> torch.Tensor:
        return t

    def _leaf(self, a: Any) -> Any:
        if isinstance(a, (torch.device, str)):
            return torch.device("meta") if str(a) == "cpu" else a
        return super()._leaf(a)


def compare(name: str, dtype: torch.dtype, most: int | None) -> tuple[int, list[str]]:
    """(calls that torch's meta device takes, differences) of one entry."""
    op = opcases.ENTRIES[name]
    calls = 0
    found: list[str] = []
    grads = (False, True) if op.supports_autograd and (dtype.is_floating_point or dtype.is_complex) else (False,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(opcases.samples(op, dtype, most)):
            for grad in grads:
                expected, got = (_call(op, sample, ours, grad) for ours in (False, True))
                calls += not isinstance(expected, Exception)
                found += [f"#{number}{' with gradient' if grad else ''}: {why}" for why in _differences(expected, got)]
    return calls, found


def _call(op: Any, sample: Any, ours: bool, grad: bool) -> Any:
    first, args, kwargs = MetaPlace(ours, grad)((sample.input, sample.args, dict(sample.kwargs)))
    try:
        with torch.set_grad_enabled(grad):
            return op.op(first, *args, **kwargs)
    except Exception as error:
        return error


def _differences(expected: Any, got: Any) -> Iterator[str]:
    if isinstance(expected, NotImplementedError) or isinstance(got, mindtorch.NoDataError):
        if not isinstance(expected, RuntimeError):
            yield f"{_words(got)}, torch {_words(expected)}"
        return  # torch's own refuses in many words; where ours has a rule, it may know
    if isinstance(expected, Exception) or isinstance(got, Exception):
        if not isinstance(got, type(expected)):
            yield f"{_words(got)}, torch {_words(expected)}"
        return
    e, e_spec = tree_flatten(expected)
    g, g_spec = tree_flatten(got)
    if e_spec != g_spec:
        yield f"structure {g_spec}, torch {e_spec}"
    for x, y in zip(e, g, strict=False):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            if isinstance(y, mindtorch.LazyTensor) or not y.is_meta:
                yield f"a {type(y).__name__} on {y.device}"
            elif facts(x) != facts(y):
                yield f"{facts(y)}, torch {facts(x)}"
        elif not isinstance(x, torch.Tensor) and x != y:
            yield f"{y!r}, torch {x!r}"


def _words(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__}: {str(result).splitlines()[0][:150] if str(result) else ''}"
    return "gives a result"
