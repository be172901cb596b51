"""Random programs of integers and booleans: the same one on real tensors and on tensors without data (SPEC C4)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import mindtorch
from mindtorch._ext import lazy as core
from mindtorch.profile.estimate import known_values

Pair = tuple[torch.Tensor, torch.Tensor]
DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.int16)


def made(r: random.Random, device: str) -> torch.Tensor:
    kind, dtype, n, m = r.randrange(10), r.choice(DTYPES), r.randint(1, 4), r.randint(1, 5)
    if kind == 0:
        return torch.zeros(n, m, dtype=dtype, device=device)
    if kind == 1:
        return torch.ones((n, m), dtype=dtype, device=device)
    if kind == 2:
        return torch.full((n, m), r.randint(0, 3), dtype=dtype, device=device)
    if kind == 3:
        return torch.arange(n * m, device=device).view(n, m)
    if kind == 4:
        return torch.randint(0, 5, (n, m), device=device)
    if kind == 5:
        return torch.randperm(n * m, device=device).reshape(n, m)
    if kind == 6:
        return torch.eye(n, m, dtype=dtype, device=device)
    if kind == 7:
        return torch.tensor([[r.randint(0, 3) for _ in range(m)] for _ in range(n)], device=device)
    if kind == 8:
        return torch.empty(n, m, dtype=torch.int64, device=device).random_(0, 7)
    return torch.ones(n, m, dtype=torch.int64, device=device).tril()


VIEWS: list[Callable] = [
    lambda r, x: x[r.randint(0, 1):], lambda r, x: x.t(), lambda r, x: x[:, ::2],
    lambda r, x: x.unsqueeze(0).squeeze(0),
    lambda r, x: x.flatten().view(-1, 1), lambda r, x: x.diagonal().unsqueeze(0), lambda r, x: x[-1:].expand(3, -1),
    lambda r, x: x.chunk(2, 0)[-1], lambda r, x: x.permute(1, 0), lambda r, x: x.detach(),
    lambda r, x: x.unfold(1, 1, 1)[0],
    lambda r, x: x[0].reshape(1, -1), lambda r, x: torch.split(x, 1, 1)[0],
]  # fmt: skip
PURE: list[Callable] = [
    lambda r, x, y: x + y, lambda r, x, y: x * 2 - y, lambda r, x, y: x == y, lambda r, x, y: x < y,
    lambda r, x, y: x.bool() & y.bool(),
    lambda r, x, y: torch.where(x > 1, x, y), lambda r, x, y: x.cumsum(0), lambda r, x, y: x.sum(1, keepdim=True),
    lambda r, x, y: x.long().max(1)[1].unsqueeze(0), lambda r, x, y: x.long().sort(1, descending=True)[1],
    lambda r, x, y: torch.cat([x, x], 1),
    lambda r, x, y: torch.stack([x, x]).flatten(0, 1), lambda r, x, y: x.clone(),
    lambda r, x, y: x.to(r.choice(DTYPES)),
    lambda r, x, y: x.masked_fill(x.bool(), 3), lambda r, x, y: x.flip(0), lambda r, x, y: x.roll(1, 1),
    lambda r, x, y: x.long() // 2,
    lambda r, x, y: ~x.bool(), lambda r, x, y: x.amax(0, keepdim=True), lambda r, x, y: torch.zeros_like(x),
    lambda r, x, y: x.new_ones(2, 3),
    lambda r, x, y: x.index_select(0, torch.zeros(2, dtype=torch.int64, device=x.device)),
    lambda r, x, y: x.argsort(1).contiguous(),
    lambda r, x, y: x.long().gather(1, torch.zeros(1, 1, dtype=torch.int64, device=x.device)),
    lambda r, x, y: x.bool().any(1, keepdim=True),
    lambda r, x, y: torch.nn.functional.pad(x.long(), (1, 0), value=7),
    lambda r, x, y: torch.isin(x.long(), y.long()).contiguous(),
    lambda r, x, y: torch.nn.functional.one_hot(x.long().clamp(0, 3)[0], 5),
    lambda r, x, y: x.float().sum(1).long().unsqueeze(1),
    lambda r, x, y: x.long().tril(), lambda r, x, y: x.long() >> 1, lambda r, x, y: x.repeat(1, 2),
    lambda r, x, y: x.contiguous(),
    lambda r, x, y: x.cpu().to(x.device).clone(), lambda r, x, y: (x.float() / 3).round().int(),
    lambda r, x, y: torch.full_like(x, 1, dtype=torch.int32),
]  # fmt: skip
WRITES: list[Callable] = [
    lambda r, x, y: x.add_(1), lambda r, x, y: x.mul_(y), lambda r, x, y: x.fill_(2), lambda r, x, y: x.zero_(),
    lambda r, x, y: x.copy_(y),
    lambda r, x, y: x.__setitem__(0, 4), lambda r, x, y: x.__setitem__((slice(None), 0), y[0, 0].clone()),
    lambda r, x, y: x.__setitem__(x > 1, 0),
    lambda r, x, y: x.masked_fill_(x.bool(), 1),
    lambda r, x, y: x.index_fill_(0, torch.tensor([0], device=x.device), 3),
    lambda r, x, y: x.scatter_(1, torch.zeros(1, 1, dtype=torch.int64, device=x.device), 5),
    lambda r, x, y: x.index_put_((torch.tensor([0], device=x.device),), y[0, 0]),
    lambda r, x, y: torch.add(x, 1, out=x), lambda r, x, y: x.random_(0, 2),
    lambda r, x, y: x.__ior__(y), lambda r, x, y: x.clamp_(max=2), lambda r, x, y: x.t_(),
    lambda r, x, y: torch.sub(x, x, out=torch.empty_like(x)),
    lambda r, x, y: x.__setitem__(torch.tensor([9], device=x.device), 1),
]  # fmt: skip
READS: list[Callable] = [
    lambda r, x, y: x.nonzero(), lambda r, x, y: x.unique().unsqueeze(0), lambda r, x, y: x[x > 1].unsqueeze(0),
    lambda r, x, y: x.masked_select(x == 1).unsqueeze(0),
    lambda r, x, y: x.long().clamp(0, 9).flatten().bincount().unsqueeze(0),
    lambda r, x, y: x[0].repeat_interleave(x[0].long().clamp(0, 3)).unsqueeze(0),
    lambda r, x, y: bool((x > 1).any()), lambda r, x, y: x.tolist(), lambda r, x, y: int(x.sum()),
    lambda r, x, y: torch.equal(x, y),
    lambda r, x, y: x.numpy().tolist(), lambda r, x, y: torch.allclose(x.float(), y.float()),
    lambda r, x, y: [int(i) for i in x[0]], lambda r, x, y: x[0, 0].item(),
    lambda r, x, y: [t.tolist() for t in torch.tensor_split(x, torch.tensor([1], device="cpu"))],
    lambda r, x, y: list(range(x[0, 0].long().clamp(0, 3))),
    lambda r, x, y: x[x.bool().any(1)],
]  # fmt: skip


def outcome(step: Callable, r: random.Random, *args: Any) -> Any:
    try:
        return step(r, *args)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return type(error), str(error).splitlines()[0]


def steps_of(t: torch.Tensor) -> list[int]:
    """The strides that say something: torch's meta kernels have other ones for dimensions of one element."""
    return [stride for n, stride in zip(t.shape, t.stride(), strict=True) if n > 1]


def run_program(seed: int, steps: int) -> None:
    """The same program on real and on known tensors, all of them compared after every step."""
    plan = random.Random(seed)
    alive: list[Pair] = []
    states = {"cpu": torch.default_generator.get_state(), "meta": torch.default_generator.get_state()}

    def both(step: Callable, pair: list[Pair]) -> tuple[Any, Any]:
        chosen, got = plan.random(), []
        for i, device in enumerate(("cpu", "meta")):
            torch.default_generator.set_state(states[device])
            given_to_it = [p[i] for p in pair] if pair else [device]
            with torch._C.DisableTorchFunction() if device == "cpu" else nullcontext():  # real in an estimate, too
                got.append(outcome(step, random.Random(chosen), *given_to_it))
            states[device] = torch.default_generator.get_state()
        return got[0], got[1]

    for _ in range(steps):
        kind = plan.choice("cvvpppwwwr") if alive else "c"
        step = plan.choice({"c": [made], "v": VIEWS, "p": PURE, "w": WRITES, "r": READS}[kind])
        real, ours = both(step, [plan.choice(alive) for _ in range({"c": 0, "v": 1}.get(kind, 2))])
        if isinstance(real, torch.Tensor):
            if real.dim() == 2 and 0 < real.numel() < 200 and not real.dtype.is_floating_point:
                alive.append((real, ours))
            assert isinstance(ours, mindtorch.MetaTensor) and core.is_kept(ours._handle)
            assert (ours.shape, ours.dtype, steps_of(ours)) == (real.shape, real.dtype, steps_of(real))
            assert known_values.read(ours, "test").tolist() == real.tolist()
        else:
            assert ours == real
        for real, ours in alive:
            assert ours.shape == real.shape
            assert known_values.read(ours, "test").tolist() == real.tolist()
        del alive[:-8]
    assert known_values.assumed() == []
