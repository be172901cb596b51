"""C3: programs with nested tensors, which have no shape to tell, or one of symbols."""

import json

import pytest
import torch

from mindtorch.profile.cost import targets


@pytest.mark.parametrize("options", [{}, {"shapes": True}, {"target": targets.find("h100")}], ids=str)
def test_C3_nested_tensors_run_and_are_listed_as_not_counted(record, options):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, False], [False, True, True]])

    def program():
        with torch.no_grad():
            return encoder(torch.ones(2, 3, 8), src_key_padding_mask=padding)

    expected = program()
    found = []
    report, _ = record(lambda: found.append(program()), **options)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=0)
    assert [row["name"] for row in report["uncounted"]] == ["aten::_transformer_encoder_layer_fwd"]
    if "shapes" in options:
        rows = [row for row in report["shapes"] if row["name"] == "aten::_transformer_encoder_layer_fwd"]
        assert {"dtype": "float32", "shape": [2, -1, 8]} in rows[0]["inputs"]


def test_C3_jagged_tensors_run(record):
    layer = torch.nn.Linear(4, 3)
    parts = [torch.ones(n, 4) for n in (2, 5)]

    def program():
        batch = torch.nested.nested_tensor(parts, layout=torch.jagged)
        out = torch.relu(layer(batch)).values()
        out.sum().backward()
        return out

    expected = program()
    for options in ({}, {"shapes": True}, {"target": targets.find("h100")}):
        found = []
        report, _ = record(lambda found=found: found.append(program()), **options)
        torch.testing.assert_close(found[0], expected, rtol=0, atol=0)
        json.dumps(report)
