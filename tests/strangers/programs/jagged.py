"""Sequences of different length as one jagged tensor."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.Linear(4, 3)
batch = torch.nested.nested_tensor([torch.randn(n, 4) for n in (2, 5, 3)], layout=torch.jagged)
out = torch.relu(layer(batch))
out.values().sum().backward()
print(out.size(0), tuple(out.values().shape), f"{layer.weight.grad.sum().item():.4f}")
print([round(part.sum().item(), 4) for part in out.unbind()])
