"""SPEC C2: a rule's own error is a defect. To a profile it means that there is no formula, so here it is told."""

from __future__ import annotations

import warnings
from typing import Any

import opcases
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch.ops import count_flops, flops


class _Counting(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        count_flops(func, args, kwargs, out)
        return out


def test_C2_no_flop_rule_stumbles_over_what_operators_are_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator of torch's database, and its gradient."""
    stumbled: list[str] = []
    monkeypatch.setattr(flops._log, "debug", lambda words, name, error: stumbled.append(f"{name}: {error!r}"))
    counting = _Counting()
    for op in opcases.ENTRIES.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
            except (RuntimeError, TypeError):  # not of this dtype
                continue
            for sample in samples[::3][:3]:
                try:
                    with counting:
                        out = op(sample.input, *sample.args, **sample.kwargs)
                        if isinstance(out, torch.Tensor) and out.requires_grad:
                            out.sum().abs().backward()
                except (RuntimeError, TypeError, ValueError, AssertionError):  # torch's own
                    continue
    assert stumbled == [] and counting.calls > 5_000
