"""Estimated beside published memory of a card: ``python asv_bench/card_memory.py [--markdown]``; needs torchvision.

Published: training runs of the xMem paper (Shi, Pezaros and Elkhatib, Middleware 2025; data of its repository,
plot/data/001-Anova, first run of each): torch 2.6, CUDA 12.4, GeForce RTX 3060, CIFAR-10 at 86 × 86, four iterations of
`conv_train_loop` with `zero_grad` first. The figure is the most that NVML said was used, less what was used when the
run began. By then the context was there: what compares with it is the reserved memory.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mindtorch.profile.cost.targets import find
from mindtorch.profile.estimate.estimator import Estimator

CARD = replace(
    find("rtx4090"),
    key="rtx3060",
    name="GeForce RTX 3060",
    capability=(8, 6),
    processors=28,
    memory_bytes=12622168064.0,
)
#: model, optimizer, batch, bytes published
PUBLISHED = (
    ("ConvNeXtTiny", "SGD", 200, 3319791616),
    ("ConvNeXtTiny", "SGD", 300, 4833935360),
    ("ConvNeXtTiny", "AdamW", 500, 8004829184),
    ("ConvNeXtTiny", "SGD", 700, 11031019520),
    ("ConvNeXtBase", "Adam", 300, 10521411584),
    ("MnasNet", "AdamW", 200, 2246049792),
    ("MnasNet", "SGD", 300, 3238002688),
    ("MnasNet", "SGD", 500, 4263510016),
    ("MnasNet", "Adam", 700, 5955911680),
    ("MobileNetV3Large", "Adagrad", 200, 1786773504),
    ("MobileNetV3Large", "AdamW", 600, 5484052480),
)


def _models() -> dict[str, Callable[[], nn.Module]]:
    from torchvision import models
    from torchvision.models import mobilenetv3

    large = mobilenetv3._mobilenet_v3_conf("mobilenet_v3_large")[0]
    return {
        "ConvNeXtTiny": models.convnext_tiny,
        "ConvNeXtBase": models.convnext_base,
        "MnasNet": lambda: models.MNASNet(alpha=1.0, num_classes=10),
        "MobileNetV3Large": lambda: models.MobileNetV3(large, last_channel=1280, num_classes=10),
    }


def train(make: Callable[[], nn.Module], optimizer: str, batch: int) -> None:
    model = make().to("cuda").train()
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.001)
    for _ in range(4):
        steps.zero_grad()
        images, labels = torch.randn(batch, 3, 86, 86).to("cuda"), torch.zeros(batch, dtype=torch.long).to("cuda")
        outputs = model(images)
        nn.functional.cross_entropy(outputs, labels).backward()
        steps.step()
        _, _found = torch.max(outputs, 1)


def memory(make: Callable[[], nn.Module], optimizer: str, batch: int) -> dict[str, Any]:
    with Estimator(target=CARD) as estimator:
        train(make, optimizer, batch)
    found: dict[str, Any] = estimator.report()["memory"]
    return found


def main(markdown: bool) -> None:
    models = _models()
    off = []
    rows = [("model", "optimizer", "batch", "published", "reserved", "off", "allocated", "device")]
    for name, optimizer, batch, published in PUBLISHED:
        facts = memory(models[name], optimizer, batch)
        off.append(facts["peak_reserved_bytes"] / published - 1)
        sizes = (published, *(facts[f"peak_{what}_bytes"] for what in ("reserved", "allocated", "device")))
        first, second, *others = (f"{size / (1 << 20):,.0f}" for size in sizes)
        rows.append((name, optimizer, str(batch), first, second, f"{100 * off[-1]:+.1f} %", *others))
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |" if markdown else "  ".join(f"{cell:>16}" for cell in row))
        if markdown and not number:
            print("|" + "---|" * len(row))
    low = sum(error < -0.02 for error in off)
    print(f"\nmedian error {100 * statistics.median(map(abs, off)):.1f} %; more than 2 % too low: {low} of {len(off)}")


if __name__ == "__main__":
    main("--markdown" in sys.argv[1:])
