"""A scripted and a traced module; the script is saved, loaded and run again."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, times: int):
        for _ in range(times):
            if bool(x.sum() > 0):
                x = torch.relu(self.layer(x))
            else:
                x = self.layer(-x)
        return x


torch.manual_seed(0)
scripted = torch.jit.script(Gate())
traced = torch.jit.trace(nn.Sequential(nn.Linear(6, 3), nn.Sigmoid()), torch.ones(1, 6))
torch.jit.save(scripted, "gate.pt")
again = torch.jit.load("gate.pt")
with torch.no_grad():
    for step in range(3):
        x = torch.randn(4, 6)
        print(step, f"{traced(again(x, 2)).sum().item():.5f} {torch.equal(again(x, 2), scripted(x, 2))}")
