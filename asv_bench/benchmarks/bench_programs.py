"""S15: whole programs of small operations, recorded and run in this process, beside eager."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .timing import LAZY, Pair, torch

Step = Callable[[], object]


def mlp(device: str) -> Step:
    """A training step of a small multi-layer perceptron with AdamW; its loss is read."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 64).to(device), torch.randint(0, 10, (32,)).to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _gpt2(device: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)).to(device)


def gpt2_forward(device: str) -> Step:
    """A forward pass of GPT-2 with 4 layers of 64 over 32 tokens; its logits are read."""
    model, ids = _gpt2(device).eval(), torch.randint(0, 256, (1, 32)).to(device)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(ids, use_cache=False).logits.cpu()

    return step


def gpt2_generate(device: str) -> Step:
    """Sixteen tokens that this GPT-2 generates from eight."""
    model, ids = _gpt2(device).eval(), torch.randint(1, 256, (1, 8)).to(device)
    mask = torch.ones_like(ids)
    asked = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    return lambda: model.generate(ids, attention_mask=mask, **asked).cpu()


def gpt2_train(device: str) -> Step:
    """A training step of this GPT-2 with AdamW, without dropout; its loss is read."""
    model, ids = _gpt2(device).eval(), torch.randint(0, 256, (2, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


PROGRAMS = {"MLP AdamW": mlp, "GPT-2 forward": gpt2_forward, "GPT-2 generate": gpt2_generate, "GPT-2 train": gpt2_train}


def _settle(step: Step) -> None:
    """Until calls are made without Python, which comes with their 200th time."""
    for _ in range(220):
        step()


def compare_program(name: str, rounds: int = 15) -> Pair:
    """CPU seconds of a step of one of `PROGRAMS`, all threads' together, and eager's; minima of rounds in turn."""
    steps = [PROGRAMS[name](device) for device in (LAZY, "cpu")]
    for step in steps:
        _settle(step)
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, step in enumerate(steps):
            began = time.process_time()
            for _ in range(10):
                step()
            best[i] = min(best[i], (time.process_time() - began) / 10)
    return Pair(*best)


class Programs:
    """asv's own timings, beside SPEC S15."""

    params = (list(PROGRAMS), [LAZY, "cpu"])
    param_names = ("program", "device")

    def setup(self, program: str, device: str) -> None:
        self.step = PROGRAMS[program](device)
        _settle(self.step)

    def time_step(self, program: str, device: str) -> None:
        self.step()

    def track_S15(self, program: str, device: str) -> float:
        return compare_program(program).ratio if device == LAZY else 1.0

    track_S15.unit = "x eager"  # type: ignore[attr-defined]
