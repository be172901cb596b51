"""Stock transformers models with random weights, lazily and eagerly (SPEC L7): the same in every bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch

transformers = pytest.importorskip("transformers")
LAZY = "remote_accelerator:0"
SMALL: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)


def llama() -> tuple[Any, dict[str, torch.Tensor]]:
    config = transformers.LlamaConfig(
        vocab_size=99, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **SMALL
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(1, 99, (2, 7))}


def mixtral() -> tuple[Any, dict[str, torch.Tensor]]:
    """On accelerators it counts the tokens of each expert as whole numbers, on the CPU as floats."""
    config = transformers.MixtralConfig(
        vocab_size=99, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64, pad_token_id=0, **SMALL
    )
    return transformers.MixtralForCausalLM(config), {"input_ids": torch.randint(1, 99, (2, 7))}


def gpt2() -> tuple[Any, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(
        vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    ids = torch.randint(1, 99, (2, 7))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert() -> tuple[Any, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(vocab_size=99, max_position_embeddings=64, **SMALL)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    return transformers.BertForMaskedLM(config), {"input_ids": torch.randint(1, 99, (2, 7)), "attention_mask": mask}


def t5() -> tuple[Any, dict[str, torch.Tensor]]:
    config = transformers.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": torch.randint(2, 99, (2, 7)),
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
    }


def vit() -> tuple[Any, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **SMALL)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


MODELS = {f.__name__: f for f in (llama, mixtral, gpt2, bert, t5, vit)}


def pair(name: str) -> tuple[Any, Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    eager, inputs = MODELS[name]()
    return eager, copy.deepcopy(eager).to(LAZY), inputs, {k: v.to(LAZY) for k, v in inputs.items()}


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "grad"])
@pytest.mark.parametrize("name", MODELS)
def test_L7_forward(name: str, mode: str, same_bits: Callable[..., None]) -> None:
    eager, lazy, inputs, lazy_inputs = pair(name)
    eager.eval()
    lazy.eval()
    if name == "t5":
        inputs["decoder_input_ids"] = torch.tensor([[0, 3, 4], [0, 5, 6]])
        lazy_inputs["decoder_input_ids"] = inputs["decoder_input_ids"].to(LAZY)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}[mode]
    with context():
        expected, got = eager(**inputs).logits, lazy(**lazy_inputs).logits
    assert isinstance(got, mindtorch.LazyTensor)
    same_bits(got, expected)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2", "t5"])
def test_L7_generate(name: str, sample: bool, same_bits: Callable[..., None]) -> None:
    eager, lazy, inputs, lazy_inputs = pair(name)
    outputs = []
    for model, data in ((eager, inputs), (lazy, lazy_inputs)):
        torch.manual_seed(1)
        outputs.append(model.eval().generate(**data, max_new_tokens=6, do_sample=sample))
    same_bits(outputs[1], outputs[0], "tokens")


def test_L7_beam_search(same_bits: Callable[..., None]) -> None:
    eager, lazy, inputs, lazy_inputs = pair("llama")
    same_bits(
        lazy.eval().generate(**lazy_inputs, max_new_tokens=4, num_beams=3),
        eager.eval().generate(**inputs, max_new_tokens=4, num_beams=3),
        "tokens",
    )


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("name", MODELS)
def test_L7_training_with_dropout(name: str, checkpointing: bool, same_bits: Callable[..., None]) -> None:
    eager, lazy, inputs, lazy_inputs = pair(name)
    results = []
    for model, data in ((eager, inputs), (lazy, lazy_inputs)):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        labels = torch.tensor([1, 2], device=data["pixel_values"].device) if name == "vit" else data["input_ids"]
        torch.manual_seed(2)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(**data, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        results.append(losses)
    for got, expected in zip(results[1], results[0]):
        same_bits(got, expected, "loss")
    for (key, p), q in zip(eager.named_parameters(), lazy.parameters()):
        same_bits(q, p, key)
        assert (p.grad is None) == (q.grad is None), key
        if p.grad is not None:
            same_bits(q.grad, p.grad, f"gradient of {key}")


def test_S5_a_gpt2_forward_stays_within_its_bytes_per_op(after_a_step: Callable[..., Any]) -> None:
    code = """
import torch, mindtorch, transformers
config = transformers.GPT2Config(vocab_size=1000, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(config).eval().to("remote_accelerator:0")
tokens = torch.randint(1000, (1, 64)).to("remote_accelerator:0")
mindtorch.reset_stats()
with torch.no_grad():
    out = model(tokens)
figures = mindtorch.stats()
assert figures["ops_executed"] == 0 and not out.logits.materialized
print(figures["ops_recorded"], figures["bytes_held"])
"""
    # A process of its own: tables that other tests filled would count too.
    ops, held = (int(figure) for figure in after_a_step(code).stdout.split())
    assert ops > 400 and held <= 100 * ops
