"""SPEC C4: what a program drops while it is estimated is gone at once, as its memory would be.

A reference cycle of ours would keep tensors until Python's garbage collector looks, and the peak would be too high.
"""

from __future__ import annotations

import gc
import types
import warnings
from typing import Any

import opcases
import torch
from test_estimate import _input
from torch.utils._pytree import tree_map

import mindtorch
from mindtorch.engine.record.meta import MetaTensor
from mindtorch.profile.estimate.estimating import estimating


def _ours(found: object) -> bool:
    """A tensor without data, or one of our functions or frames, which may hold some."""
    if isinstance(found, types.FrameType):
        return found.f_code.co_filename.startswith(mindtorch.__path__[0])
    if isinstance(found, types.FunctionType):
        return (found.__module__ or "").startswith("mindtorch")
    return isinstance(found, MetaTensor)


def _call(call: Any, sample: Any) -> bool:
    """True if it was refused."""
    first, args, kwargs = tree_map(_input, (sample.input, sample.args, dict(sample.kwargs)))
    try:
        out = call(first, *args, **kwargs)
        if isinstance(out, torch.Tensor) and out.requires_grad:
            out.sum().backward()
    except Exception:
        return True
    return False


def test_C4_no_call_leaves_anything_to_the_garbage_collector() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [
            (op.op, sample)
            for op in opcases.ENTRIES.values()
            for dtype in opcases.dtypes_of(op)[:1]
            for sample in opcases.samples(op, dtype, 2)
        ]
        gc.disable()
        try:
            with estimating():
                refused = [_call(call, sample) for call, sample in samples]  # what the first call of all makes for good
                gc.collect()
                gc.set_debug(gc.DEBUG_SAVEALL)
                for call, sample in samples:
                    _call(call, sample)
                gc.collect()
                gc.set_debug(0)
        finally:
            gc.set_debug(0)
            gc.enable()
    left = {f"{getattr(g, '__qualname__', g)!s:.150}" for g in gc.garbage if _ours(g)}
    gc.garbage.clear()
    assert not left
    assert len(refused) > 1000 and sum(refused) < len(refused) // 10
