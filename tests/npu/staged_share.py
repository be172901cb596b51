"""How many of a model's calls on an NPU are staged through the CPU: ``python tests/npu/staged_share.py [--ops]``.

Five small models as transformers makes them, a forward and a training step each, over the test library.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


def llama() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(config), _tokens()


def gpt2() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32)), _tokens()


def bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    inputs = _tokens()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 4:] = 0
    return BertForSequenceClassification(config), {**inputs, "labels": torch.tensor([0, 1])}


def vit() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    return ViTForImageClassification(config), _images()


def resnet() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return ResNetForImageClassification(config), _images()


def _tokens() -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 64, (2, 8))
    return {"input_ids": tokens, "labels": tokens}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]] = {
    "Llama": llama, "GPT-2": gpt2, "BERT": bert, "ViT": vit, "ResNet": resnet
}  # fmt: skip


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "ResNet":
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 1e-3)


def count(run: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """How often each op ran natively, and staged, in ``run()``."""
    from mindtorch.npu.counts import native_counts, staged_counts

    before = Counter(native_counts), Counter(staged_counts)
    run()
    return Counter(native_counts) - before[0], Counter(staged_counts) - before[1]


@dataclass
class Measured:
    """Counts of a forward without gradients and of a training step, and what its first step gave."""

    counts: dict[str, tuple[Counter[str], Counter[str]]]
    loss: torch.Tensor
    gradients: list[torch.Tensor]


#: How a step computes: the parameters' dtype, and autocast's.
WAYS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "autocast bfloat16": (torch.float32, torch.bfloat16),
    "autocast float16": (torch.float32, torch.float16),
}


def measure(name: str, device: str = "npu:0", way: str = "float32") -> Measured:
    """The model on a device, with clipped gradients, and scaled ones in an autocast to float16.

    The step that is counted is the second one.
    """
    dtype, cast = WAYS[way]
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.to(device, dtype).train()
    there = {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in inputs.items()}
    optimizer = optimizer_of(name, model)
    kind = device.partition(":")[0]
    autocast = torch.autocast(kind, cast or torch.bfloat16, enabled=cast is not None)
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, enabled=cast is torch.float16)
    torch.manual_seed(1)  # of dropout

    def forward() -> None:
        with torch.no_grad(), autocast:
            model.eval()(**there)
            model.train()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with autocast:
            loss = model(**there).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    loss = step().detach().cpu()
    gradients = [p.grad.detach().cpu().clone() for p in model.parameters() if p.grad is not None]
    return Measured({"forward": count(forward), "training step": count(step)}, loss, gradients)


def main() -> None:
    import acl_library

    with tempfile.TemporaryDirectory() as folder:
        os.environ["GENIE_ACL_LIBRARY"] = str(acl_library.build(Path(folder)))
        import mindtorch  # noqa: F401  the device

        print(f"| model | {' | '.join(WAYS)} |\n|{'---|' * (len(WAYS) + 1)}")
        for name in MODELS:
            found = {way: measure(name, way=way).counts["training step"] for way in WAYS}
            shares = [
                f"{sum(staged.values())} of {sum((native + staged).values())}" for native, staged in found.values()
            ]
            print(f"| {name} | {' | '.join(shares)} |")
            if "--ops" in sys.argv:
                for way, (_, staged) in found.items():
                    print(f"    {way}:", *(f"{op} {n}" for op, n in staged.most_common()))


if __name__ == "__main__":
    main()
