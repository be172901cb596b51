"""R1: how much crosses: messages, and plans, which a worker is told once for each kind of segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from mindtorch.engine.remote.loopback import LoopbackExecutor

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


@contextmanager
def counted(executor: LoopbackExecutor) -> Iterator[dict[str, int]]:
    """A dict that has afterwards what there was of each."""
    executor.sync()
    before = dict(executor.stats)
    found: dict[str, int] = {}
    yield found
    found.update({what: executor.stats[what] - before[what] for what in before})


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adam foreach amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True, amsgrad=True),
}


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_R1_one_message_for_a_step_and_few_plans(
    name: str, clip: bool, loopback: LoopbackExecutor, same_as_eager: Same
) -> None:
    messages: list[int] = []
    plans: list[int] = []

    def program(device: str) -> object:
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
        optimizer = OPTIMIZERS[name](list(net.parameters()))
        losses = []
        for step in range(20):
            with counted(loopback) as count:
                x = torch.linspace(-1, 1, 32).view(4, 8).to(device) * (step + 1.5)
                loss = nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 1, 0]).to(device))
                optimizer.zero_grad()
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                losses.append(loss.item())
            if device == LAZY:
                messages.append(count["messages"])
                plans.append(count["plans"])
        return losses, list(net.parameters())

    same_as_eager(program)
    assert messages == [1] * 20 and sum(plans) <= 8, (messages, plans)


def test_R1_few_plans_for_tokens_that_are_decoded(loopback: LoopbackExecutor, same_as_eager: Same) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=64, bos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    plans: list[int] = []
    messages: list[int] = []

    def program(device: str) -> object:
        model.to(device)
        ids = torch.arange(5).view(1, 5).to(device)
        with counted(loopback) as count:
            out = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=49)
        if device == LAZY:
            plans.append(count["plans"])
            messages.append(count["messages"])
        return out

    same_as_eager(program)
    assert plans[0] <= 6 and messages[0] <= 24 + 6, (plans, messages)
