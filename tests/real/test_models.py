"""Models that were not written for this, moved with ``.to("remote_accelerator:0")``: eager's numbers, bit for bit.

SPEC L2, L3, L6, L7 on whole programs: forward, gradients, updated parameters and buffers.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import mindtorch

LAZY = "remote_accelerator:0"
SameBits = Callable[..., None]


class ConvNet(nn.Module):
    """Convolutions, batch norm with running statistics, pooling, a residual add."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(2)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.block(x)
        return self.head(self.down(self.pool(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(32 * 7, 10)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (transformer, (4, 7, 32)),
    "lstm": (Recurrent, (4, 7, 12)),
    "convnet": (ConvNet, (4, 3, 16, 16)),
}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def pair(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """The same model and input twice: eager, and moved to the lazy device."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    eager = build()
    x = torch.randn(shape)
    return eager, copy.deepcopy(eager).to(LAZY), x, x.to(LAZY)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("name", MODELS)
def test_L7_forward_is_eagers_bit_for_bit(name: str, grad: bool, mode: str, same_bits: SameBits) -> None:
    eager, lazy, x, lazy_x = pair(name)
    eager.train(mode == "train")
    lazy.train(mode == "train")
    before = mindtorch.stats()["ops_recorded"]
    with torch.set_grad_enabled(grad):
        expected, got = eager(x), lazy(lazy_x)
    assert isinstance(got, mindtorch.LazyTensor)
    assert got.device == torch.device(LAZY)
    assert got.requires_grad == expected.requires_grad
    assert mindtorch.stats()["ops_recorded"] > before, "nothing was recorded"
    same_bits(got, expected)
    for (buffer, value), moved in zip(eager.named_buffers(), lazy.buffers()):
        same_bits(moved, value, buffer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_L7_training_step_is_eagers_bit_for_bit(name: str, optimizer: str, same_bits: SameBits) -> None:
    eager, lazy, x, lazy_x = pair(name)
    target = torch.arange(4)
    for model, data, labels in ((eager, x, target), (lazy, lazy_x, target.to(LAZY))):
        step = OPTIMIZERS[optimizer](list(model.parameters()))
        step.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        step.step()
    parameters = dict(lazy.named_parameters())
    for key, parameter in eager.named_parameters():
        assert parameter.grad is not None
        same_bits(parameters[key].grad, parameter.grad, f"gradient of {key}")
        same_bits(parameters[key], parameter, key)
    for (buffer, value), moved in zip(eager.named_buffers(), lazy.buffers()):
        same_bits(moved, value, buffer)


def test_L7_dropout_draws_what_the_cpu_draws(same_bits: SameBits) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1))
    lazy = copy.deepcopy(eager).to(LAZY)
    x = torch.randn(8, 16)
    torch.manual_seed(7)
    expected = eager(x)
    torch.manual_seed(7)
    same_bits(lazy(x.to(LAZY)), expected)


@pytest.fixture(scope="module")
def gpt2() -> ModuleType:
    """The README's example, as a module."""
    path = Path(__file__).resolve().parents[2] / "examples" / "gpt2.py"
    spec = importlib.util.spec_from_file_location("gpt2_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_L7_gpt2_example_generates_and_trains_as_eager(gpt2: ModuleType, same_bits: SameBits) -> None:
    """Prefill, decoding with a key-value cache, then a training step with tied weights."""
    torch.manual_seed(0)
    eager = gpt2.GPT2(layers=2, heads=2, width=32, vocab=101, context=64)
    lazy = copy.deepcopy(eager).to(LAZY)
    assert lazy.lm_head.weight is lazy.wte.weight, "moving the model must not untie the weights"
    prompt = torch.randint(101, (2, 9))
    same_bits(gpt2.generate(lazy, prompt.to(LAZY), 5), gpt2.generate(eager, prompt, 5), "tokens")
    losses = []
    for model, tokens in ((eager, prompt), (lazy, prompt.to(LAZY))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses.append([gpt2.train_step(model, optimizer, tokens) for _ in range(2)])
    for expected, got in zip(*losses):
        same_bits(got, expected, "loss")
    for (key, parameter), moved in zip(eager.named_parameters(), lazy.parameters()):
        same_bits(moved, parameter, key)
