"""Gradient accumulation with a learning-rate schedule and early stopping through an exit code."""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, amsgrad=True)
scheduler = SequentialLR(optimizer, [LinearLR(optimizer, total_iters=2), CosineAnnealingLR(optimizer, 6)], [2])
best, patience = float("inf"), 0
for step in range(8):
    for _ in range(4):
        x = torch.randn(8, 10)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    scheduler.step()
    print(step, f"{loss.item():.4f} {scheduler.get_last_lr()[0]:.5f}")
    patience = 0 if loss.item() < best else patience + 1
    best = min(best, loss.item())
    if patience == 2:
        print("stopped early")
        sys.exit(3)
