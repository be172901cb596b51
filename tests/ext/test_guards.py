"""L7: what stands aside while the engine itself calls torch, and is back afterwards."""

from __future__ import annotations

import torch

from mindtorch._ext import guards


def test_L7_what_the_engine_makes_within_inference_mode_is_ordinary() -> None:
    with torch.inference_mode():
        with guards.Quiet():
            made = torch.ones(2)
            assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() and torch.ones(2).is_inference()
    assert not made.is_inference()
    made.requires_grad_().add(1).sum().backward()
    assert made.grad is not None and made.grad.tolist() == [1.0, 1.0]


def test_L7_gradients_are_recorded_within_only_where_they_were_before() -> None:
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            with guards.Quiet(True):
                assert torch.is_grad_enabled() is enabled
            with guards.Quiet():
                assert not torch.is_grad_enabled()
            assert torch.is_grad_enabled() is enabled
