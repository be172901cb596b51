"""Fits a curve with LBFGS, whose closure is called several times a step; weights are normalized."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(0)
x = torch.linspace(-2, 2, 40)[:, None]
y = torch.sin(3 * x)
model = nn.Sequential(weight_norm(nn.Linear(1, 12)), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for step in range(3):
    print(step, f"{optimizer.step(closure).item():.4f}")
