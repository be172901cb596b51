"""Run as ``python -m zoo.train``: a package with relative imports, parameters shared with another process's memory."""

import sys

import torch

from .models import small

torch.manual_seed(len(sys.argv))
model = small(4, 2).share_memory()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=4)
for step in range(3):
    loss = model(torch.randn(6, 4)).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(__name__, step, f"{loss.item():.4f}", next(model.parameters()).is_shared(), sys.argv[1:])
