"""Findings about memory of which no single tensor is large."""

import pytest
import torch
from torch import nn

from mindtorch.profile import Profiler


@pytest.mark.parametrize(("layers", "width", "batch"), [(4, 512, 256), (96, 104, 512)])
def test_C2_finding_kept_gradients_has_a_place_however_small_each_gradient_is(layers, width, batch):
    """Where no gradient was among the largest at the peak, the finding had no line."""
    with Profiler() as seen:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
        for _ in range(3):
            loss = model(torch.ones(batch, width)).relu().sum()
            optimizer.zero_grad()
            loss.backward()  # makes gradients
            optimizer.step()
    report = seen.report()
    found = {row["id"]: row for row in report["findings"]}["kept-gradients"]
    listed = any(row["category"] == "gradients" for row in report["memory"]["largest"])
    assert listed == (layers == 4)
    assert found["place"]["source"].endswith("# makes gradients")
    assert "(test_memory_findings.py:" in found["text"]
