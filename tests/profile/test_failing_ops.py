"""C2: an op that fails is none, and what comes after it is measured as ever."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("where", ["before", "in a module", "in a module's call"])
def test_C2_what_follows_an_op_that_failed_is_measured_as_ever(record, where: str) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if where == "in a module":
                with pytest.raises(RuntimeError):
                    torch.ones(2) @ torch.ones(3)
            if where == "in a module's call":
                return torch.ones(2) @ torch.ones(3)
            return x + 1

    def program() -> None:
        fails, after = Fails(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        if where == "before":
            with pytest.raises(RuntimeError):
                torch.ones(2) @ torch.ones(3)
        if where == "in a module's call":
            with pytest.raises(RuntimeError):
                fails(torch.ones(2))
        else:
            fails(torch.ones(2))
        for _ in range(3):
            after(torch.ones(1, 4)).sum().backward()

    report, _ = record(program)
    calls = {row["path"]: row["calls"] for row in report["modules"] if row["path"]}
    assert calls == {"Fails": 1, "Sequential": 3, "Sequential.0": 3, "Sequential.1": 3}
    ops = {row["name"]: row["calls"] for row in report["ops"]}
    assert ops["aten::relu"] == 3 and ops["aten::addmm"] == 3
    assert not {"aten::dot", "aten::mv"} & set(ops), "they failed"
    assert {row["name"] for row in report["phases"]} >= {"forward", "backward"}
