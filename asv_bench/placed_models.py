"""Ten models that `placements.py` divides among workers: what makes each, its input, and whether it trains."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODELS", "Placed"]


class Placed(NamedTuple):
    """make: the model, on the CPU; data: its input, there; optimizer: of its parameters; None: inference."""

    make: Callable[[], nn.Module]
    data: Callable[[], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None


class Attention(nn.Module):
    """heads: of queries; shared: of keys and values."""

    def __init__(self, width: int, heads: int, shared: int | None = None, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.shared, self.causal = heads, shared or heads, causal
        size = width // heads
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, self.shared * size), nn.Linear(width, self.shared * size)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        given = x if memory is None else memory
        q, k, v = self._split(self.q(x), self.heads), *(
            self._split(part(given), self.shared).repeat_interleave(self.heads // self.shared, 1)
            for part in (self.k, self.v)
        )  # fmt: skip
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and memory is None)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class Feed(nn.Module):
    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """Of an encoder, a decoder, or (crossing) of a decoder that looks at an encoder's result, too."""

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, causal: bool = True, crossing: bool = False
    ) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width, heads, causal=causal)
        self.last, self.feed = nn.LayerNorm(width), Feed(width, 4 * width, dropout)
        if crossing:
            self.middle, self.cross = nn.LayerNorm(width), Attention(width, heads, causal=False)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        if memory is not None:
            x = x + self.cross(self.middle(x), memory)
        return x + self.feed(self.last(x))


class GPT2(nn.Module):
    """Its head is its embedding."""

    def __init__(self, width: int, layers: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, width // 64, 0.1) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.last = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, width // 64, max(width // 128, 1))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        y = self.last(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, width * 11 // 4) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip: nn.Module = nn.Identity()
        if before != after:
            self.skip = nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(before, after, 1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm_two(self.two(F.relu(self.norm_one(self.one(x))))) + self.skip(x))


def resnet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 2 * width, 1),
        Residual(2 * width, 4 * width, 2), Residual(4 * width, 4 * width, 1), Residual(4 * width, 4 * width, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


class UNet(nn.Module):
    """Each level of the way up takes what its level of the way down made."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width * (k + 2) // 2 for k in range(levels + 1)]
        self.begin, self.end = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.join = nn.ModuleList(nn.Conv2d(2 * a, a, 3, 1, 1) for a in sizes[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.begin(x))
        kept = []
        for down in self.down:
            kept.append(x)
            x = F.relu(down(x))
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = F.relu(join(torch.cat((up(x), kept.pop()), 1)))
        return self.end(x)


class T5(nn.Module):
    """An encoder, a decoder, and one embedding for both."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Block(width, width // 64, 0.1, causal=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Block(width, width // 64, 0.1, crossing=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        memory = self.words(ids)
        for block in self.encoder:
            memory = block(memory)
        x = self.words(ids[:, : ids.shape[1] // 2])
        for block in self.decoder:
            x = block(x, memory)
        return F.linear(self.norm(x), self.words.weight)


class Experts(nn.Module):
    """The two best of several experts, by a mask: which tokens go where is not asked for in the middle of a step."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, experts)
        self.experts = nn.ModuleList(Feed(width, 2 * width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        gates = self.route(y).softmax(-1)
        gates = gates.masked_fill(gates < gates.topk(2, -1).values[..., 1:], 0.0)
        return x + sum(gates[..., k : k + 1] * expert(y) for k, expert in enumerate(self.experts))


class Mixture(nn.Module):
    def __init__(self, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            layer for _ in range(layers) for layer in (Attention(width, width // 64), Experts(width, experts))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ViT(nn.Module):
    def __init__(self, width: int, layers: int, patch: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, width // 64, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)[0]
        return self.head(x)


class DLRM(nn.Module):
    """Large tables, a small network: what each row's categories have to do with each other."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.top = nn.Sequential(
            nn.Linear(tables * tables, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = torch.stack([table(ids[:, k]).sum(1) for k, table in enumerate(self.tables)], 1)
        return self.top((found @ found.transpose(1, 2)).flatten(1))


def mlp(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())])


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def _ids(words: int, *sizes: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(words, sizes)


def _floats(*sizes: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(sizes)


MODELS: dict[str, Placed] = {
    "mlp": Placed(lambda: mlp(512, 16), _floats(192, 512), _adamw),
    "gpt2": Placed(lambda: GPT2(256, 6, 4000, 64), _ids(4000, 4, 64), _adamw),
    "llama": Placed(lambda: Llama(384, 8, 4000), _ids(4000, 2, 64), None),
    "resnet": Placed(lambda: resnet(48), _floats(8, 3, 32, 32), _sgd),
    "unet": Placed(lambda: UNet(48, 4), _floats(4, 3, 32, 32), _adamw),
    "t5": Placed(lambda: T5(256, 3, 2000), _ids(2000, 4, 64), _adamw),
    "experts": Placed(lambda: Mixture(256, 3, 6), _floats(4, 64, 256), _sgd),
    "vit": Placed(lambda: ViT(256, 6, 8), _floats(4, 3, 64, 64), _adamw),
    "lstm": Placed(lambda: Recurrent(256, 4, 2000), _ids(2000, 8, 32), _adamw),
    "dlrm": Placed(lambda: DLRM(12, 10000, 64), _ids(10000, 512, 12, 8), None),
}
