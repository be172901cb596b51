"""SPEC C1: ``--input`` for arguments that are dicts of tensors."""

from __future__ import annotations

import pytest
import torch

from mindtorch.base.errors import UsageError
from mindtorch.program.program import Program

DICTS = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, batch, scale=1):
        assert list(batch) == ["ids", "vision", "input-mask"] and list(batch["vision"]) == ["pixels", "sizes"]
        self.seen = batch["vision"]["sizes"]["all"].dtype, batch["ids"].max().item() < 7, scale
        return batch["vision"]["pixels"].sum() + batch["input-mask"].sum()
"""
ENTRIES = ["batch.ids=1x8:int64<7", "batch.vision.pixels=1x3x4x4", "batch.vision.sizes.all=2:int32",
           "batch.input-mask=1x8:bool"]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    (tmp_path / "nets.py").write_text(DICTS)
    return tmp_path / "nets.py"


def test_C1_inputs_that_are_dicts(path):
    program = Program.parse(f"{path}:Net", inputs=[*ENTRIES, "scale=1"])
    outcome = program.run()
    assert outcome.exit_code == 0, outcome.error
    assert program.model.seen[:2] == (torch.int32, True) and program.model.seen[2].shape == (1,)
    assert "batch.vision.pixels=1x3x4x4 (float32)" in program.describe_inputs()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [([*ENTRIES, "batch=1"], ["batch=... is a tensor", "batch.ids=... makes a dict of it"]),
     ([*ENTRIES, "batch.vision=1"], ["batch.vision=... is a tensor", "batch.vision."]),
     (["batch.ids=1", "batch.ids=2"], ["batch.ids=...", "twice"]), (["batch.=1"], ["empty key"]),
     (["batch..x=1"], ["empty key"]), ([".x=1"], ["'' is not the name of a parameter"]),
     (["2.x=1"], ["'2' is not the name"]), (["other.ids=1"], ["forward(batch, scale=1)", "NAME.KEY=SHAPE"])],
)  # fmt: skip
def test_C1_inputs_that_are_dicts_and_make_no_sense(path, inputs, words):
    with pytest.raises(UsageError) as caught:
        Program.parse(f"{path}:Net", inputs=inputs).run()
    assert all(word in str(caught.value) for word in words), caught.value
