"""Models and a recorder for the profile tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile import Profiler


class Attention(torch.nn.Module):
    """Causal-free self-attention written with the operators whose FLOPs are known in closed form."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(d, 3 * d)
        self.out = torch.nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(torch.nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.up = torch.nn.Linear(d, 4 * d)
        self.act = torch.nn.GELU()
        self.down = torch.nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, d: int = 16, heads: int = 2, layers: int = 2, vocabulary: int = 10) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, d)
        self.blocks = torch.nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.head = torch.nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(name="Net")
def net_class() -> type[Net]:
    return Net


@pytest.fixture
def record() -> Callable[..., tuple[dict[str, Any], Profiler]]:
    def run(program: Callable[[], Any], **options: Any) -> tuple[dict[str, Any], Profiler]:
        with Profiler(**options) as profiler:
            program()
        return profiler.report(), profiler

    return run
