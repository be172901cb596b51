"""Meta-learning: gradients through an inner step, of many tasks at once, with torch.func."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def loss_of(parameters, x, y):
    return (functional_call(model, parameters, x) - y).square().mean()


def task_loss(parameters, task):
    gradients = grad(loss_of)(parameters, task[0], task[1])
    adapted = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
    return loss_of(adapted, task[2], task[3])


optimizer = torch.optim.Adam(parameters.values(), lr=0.01)
for step in range(3):
    slopes = torch.randn(4, 1, 1)
    x, queries = torch.randn(4, 6, 1), torch.randn(4, 6, 1)
    tasks = torch.stack([x, slopes * x, queries, slopes * queries], 1)
    loss = vmap(task_loss, in_dims=(None, 0))(parameters, tasks).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f}")
