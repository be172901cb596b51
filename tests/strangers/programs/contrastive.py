"""Contrastive learning of two views, with in-place normalization of a memory bank."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"in": nn.Linear(12, 24), "out": nn.Linear(24, 8)})
        self.register_buffer("bank", F.normalize(torch.randn(32, 8), dim=1))

    def forward(self, x):
        return F.normalize(self.layers["out"](F.hardswish(self.layers["in"](x))), dim=-1)

    @torch.no_grad()
    def remember(self, keys, at):
        self.bank[at : at + len(keys)].copy_(keys)
        self.bank.div_(self.bank.norm(dim=1, keepdim=True).clamp_min_(1e-6))


class InfoNCE(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(1 / temperature).log())

    def forward(self, a, b, bank):
        logits = torch.cat([(a * b).sum(1, keepdim=True), torch.einsum("nd,kd->nk", a, bank)], 1)
        return F.cross_entropy(logits * self.logit_scale.exp(), torch.zeros(len(a), dtype=torch.long))


torch.manual_seed(0)
encoder, criterion = Encoder(), InfoNCE(0.1)
optimizer = torch.optim.Adagrad([*encoder.parameters(), *criterion.parameters()], lr=0.01)
for step in range(4):
    x = torch.randn(8, 12)
    a, b = (encoder(x + 0.1 * torch.randn_like(x)) for _ in range(2))
    loss = criterion(a, b.detach(), encoder.bank.clone())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    encoder.remember(b.detach(), 8 * step)
    print(step, f"{loss.item():.4f}")
