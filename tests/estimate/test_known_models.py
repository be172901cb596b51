"""Stock models run unmodified without data: control flow on masks, positions and ids is real (SPEC C4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers as hf

import mindtorch
from mindtorch.engine.record.meta import as_meta
from mindtorch.profile.estimate import known_values

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
BART = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
T5 = {
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "d_kv": 8,
    "vocab_size": 99,
    "decoder_start_token_id": 0,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, bos_token_id=1, eos_token_id=2)
    ),
    "bert": lambda: hf.BertModel(hf.BertConfig(**SIZES)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGES)),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4)
    ),
}
GENERATING = ("llama", "gpt2", "t5", "mixtral", "mistral", "bart")


@pytest.fixture(autouse=True)
def knowing() -> Iterator[None]:
    with known_values.knowing():
        yield


def without_data(name: str) -> Any:
    """The model with weights that are on the meta device, tied ones still tied."""
    with torch._C.DisableTorchFunction():
        model = MODELS[name]().eval()
    moved: dict[int, Any] = {}
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None:
                module._parameters[key] = moved.setdefault(id(p), torch.nn.Parameter(as_meta(p.detach(), -1)))
        for key, b in module._buffers.items():
            if b is not None:
                module._buffers[key] = as_meta(b, -1)
    return model


def inputs(name: str, device: str, generating: bool = False) -> dict[str, Any]:
    if name in ("vit", "swin"):
        return {"pixel_values": torch.rand(2, 3, 32, 32, device=device)}
    mask = torch.ones(2, 7, dtype=torch.int64, device=device)
    mask[0, :2] = 0
    found = {"input_ids": torch.randint(3, 99, (2, 7), device=device), "attention_mask": mask}
    if name == "t5" and not generating:
        found["decoder_input_ids"] = torch.ones(2, 3, dtype=torch.int64, device=device)
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grad", [False, True])
def test_C4_models_run_unmodified(name: str, grad: bool) -> None:
    model = without_data(name)
    with torch.set_grad_enabled(grad):
        with torch._C.DisableTorchFunction():
            real = MODELS[name]().eval()
            expected = real(**inputs(name, "cpu"))[0]
        out = model(**inputs(name, "meta"))[0]
    assert type(expected) is torch.Tensor
    assert isinstance(out, mindtorch.MetaTensor) and out.shape == expected.shape
    if grad:
        for result in (expected, out):
            result.float().mean().backward()
        reached = [[key for key, p in m.named_parameters() if p.grad is not None] for m in (real, model)]
        assert reached[0] == reached[1]
    assert [
        row for row in known_values.assumed() if row["op"] != "topk"
    ] == []  # of experts; masks and positions come from known inputs


@pytest.mark.parametrize("name", GENERATING)
def test_C4_generation_comes_to_its_end(name: str) -> None:
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": 98}
    prompt = inputs(name, "cpu", True)["input_ids"]
    out = without_data(name).generate(**inputs(name, "meta", True), **options)
    assert isinstance(out, mindtorch.MetaTensor)
    assert out.shape == (2, 4 if name in ("t5", "bart") else prompt.shape[1] + 3)
    (row,) = [row for row in known_values.assumed() if row["op"] != "topk"]  # of experts
    assert row["source"] == "return bool(unfinished_sequences.max() == 0)"
    assert row["op"] == "bool" and row["value"] is False and row["calls"] == 2
