"""Dynamic quantization of a model, and its size on disk."""

import os
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
for name, net in (("plain", model), ("small", small)):
    torch.save(net.state_dict(), f"{name}.pt")
    with torch.no_grad():
        print(name, f"{net(torch.ones(4, 32)).sum().item():.3f}")
print(os.path.getsize("small.pt") < os.path.getsize("plain.pt"))
