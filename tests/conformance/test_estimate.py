"""SPEC C4: an estimate takes a call apart once, and logs the same when the call comes again.

Every operator of torch's database, in each of the three grad modes: calls, storages, their births and deaths, and what
is known of the result equal those of a call that is taken apart each time.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import opcases
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from mindtorch._ext import intercept, lazy, ledger
from mindtorch.devices.lazy_device import place_of
from mindtorch.engine.execute import values
from mindtorch.profile.estimate import memory_timeline
from mindtorch.profile.estimate.estimating import estimating

MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


@contextmanager
def estimate() -> Iterator[Callable[[], tuple]]:
    """An estimate, and a function that tells what was logged since the last time, with positions from there on."""
    with estimating():
        ledger.open(values.tape, lambda kind, at: None)
        begun = [0, 0]

        def since() -> tuple:
            logs = zip(ledger.logs(), (memory_timeline._CALL, memory_timeline._BLOCK), strict=True)
            calls, blocks = (np.frombuffer(log, kind) for log, kind in logs)
            at, born = begun
            begun[:] = len(calls), len(blocks)
            new = blocks[born:]
            names = [(ledger.named(sig) or f"call {sig}").partition(" (")[0] for sig in calls["sig"][at:].tolist()]
            dead = [died - at if died <= len(calls) else None for died in new["died"].tolist()]
            return (
                names,
                calls["phase"][at:].tolist(),
                (new["born"] - at).tolist(),
                dead,
                new[["nbytes", "sig", "place", "phase"]].tolist(),
            )

        try:
            yield since
        finally:
            ledger.close()


def _input(a: Any) -> Any:
    """On the CPU, of unknown value."""
    if not isinstance(a, torch.Tensor) or a.layout is not torch.strided:
        return a
    with torch._C.DisableTorchFunction():
        like = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
    return lazy.hold(like, place_of("cpu", anywhere=True), None, False).requires_grad_(a.requires_grad)


#: Of the slice every fourth entry: what differs between operators is tests/conformance/test_operators.py's.
EVERY = 4


def _facts(out: Any) -> list[Any]:
    return [
        (t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.is_inference(), t.device)
        if isinstance(t, torch.Tensor) else repr(t) for t in tree_flatten(out)[0]
    ]  # fmt: skip


def _call(call: Any, sample: Any, mode: Any, logged: Callable[[], tuple]) -> tuple:
    first, args, kwargs = tree_map(_input, (sample.input, sample.args, dict(sample.kwargs)))
    logged()
    try:
        with mode():
            out = call(first, *args, **kwargs)
        facts = _facts(out)
    except Exception as error:
        facts, out = [type(error)], None
    return facts, *logged()  # while the result lives


@pytest.mark.sample(90)
def test_C4_a_call_made_again_is_logged_as_one_taken_apart(entry: str, dtype: torch.dtype, limits: dict) -> None:
    op = opcases.ENTRIES[entry]
    ways = [call for call in (op.op, op.method_variant, op.operator_variant) if call is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = opcases.samples(op, dtype, limits["most_ways"])  # with data, still
        gc.disable()  # what goes with a cycle goes whenever it likes
        try:
            with estimate() as logged:
                for sample, mode, call in itertools.product(samples, MODES, ways):
                    intercept.set_logging(True)  # calls that are logged by name are taken apart each time
                    try:
                        expected = _call(call, sample, mode, logged)
                    finally:
                        intercept.set_logging(False)
                    for _ in range(2):
                        assert _call(call, sample, mode, logged) == expected
        finally:
            gc.enable()
