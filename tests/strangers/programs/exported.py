"""A model is exported, and the exported program is run."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)).eval()
program = torch.export.export(model, (torch.ones(3, 2, 8),))
run = program.module()
with torch.no_grad():
    for _ in range(2):
        x = torch.randn(3, 2, 8)
        print(torch.equal(run(x), model(x)), len(program.graph.nodes))
