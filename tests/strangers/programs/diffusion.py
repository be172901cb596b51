"""A small UNet removes noise from images, step by step."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU())
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x, t):
        angles = t[:, None] * torch.exp(torch.arange(8) * (-math.log(1e4) / 8))
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = F.silu(self.norm(self.enter(x)) + time[:, :, None, None])
        low = self.up(F.silu(self.down(high)))
        low = F.interpolate(low, size=high.shape[-2:], mode="nearest")
        return self.leave(torch.cat([high, low], 1))


torch.manual_seed(0)
model = UNet().eval()
steps = 6
beta = torch.linspace(1e-4, 0.02, steps)
alpha = (1 - beta).cumprod(0)
x = torch.randn(2, 1, 12, 12)
with torch.no_grad():
    for i in reversed(range(steps)):
        noise = model(x, torch.full((2,), float(i)))
        x = (x - beta[i] / (1 - alpha[i]).sqrt() * noise) / (1 - beta[i]).sqrt()
        if i:
            x += beta[i].sqrt() * torch.randn_like(x)
print(f"{x.mean().item():.5f} {x.std().item():.5f}")
