"""SPEC N5: models run on the NPU, not between it and the host: 1 % of their calls at most are staged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="whose models these are: pip install 'mindtorch-genie[test]'")

import staged_share


@pytest.mark.sample(13)
@pytest.mark.parametrize("way", list(staged_share.WAYS))
@pytest.mark.parametrize("name", list(staged_share.MODELS))
def test_N5_models_stage_no_more_than_a_hundredth_of_their_calls(name: str, way: str, library: Any) -> None:
    expected, found = staged_share.measure(name, "cpu", way), staged_share.measure(name, way=way)
    whole = way == "float32"
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4 if whole else 0.02, atol=1e-5, check_dtype=False)
    got, wanted = (torch.cat([each.flatten().float() for each in one.gradients]) for one in (found, expected))
    assert (got - wanted).norm() <= (1e-4 if whole else 0.1) * wanted.norm()
    for what, (native, staged) in found.counts.items():
        calls = sum((native + staged).values())
        assert 20 < calls and 100 * sum(staged.values()) <= calls, f"{name}, {what}: {dict(staged)} of {calls} calls"
