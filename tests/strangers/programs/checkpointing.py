"""Activation checkpointing: blocks are computed again in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
blocks = nn.ModuleList(Block(16) for _ in range(3))
tail = nn.Sequential(*(Block(16) for _ in range(2)))
optimizer = torch.optim.RMSprop([*blocks.parameters(), *tail.parameters()], lr=1e-3)
for step in range(2):
    x = torch.randn(4, 6, 16)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    x = checkpoint_sequential(tail, 2, x, use_reentrant=False)
    loss = x.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}")
