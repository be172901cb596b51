"""A user interface keeps the main thread; training runs in another one."""

import threading

import torch
from torch import nn

results = []


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        loss = model(torch.ones(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())


worker = threading.Thread(target=train)
worker.start()
worker.join()
print([f"{value:.5f}" for value in results])
