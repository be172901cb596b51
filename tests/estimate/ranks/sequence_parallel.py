"""Tensor parallel with inputs in shards, compiled."""

import os

import torch
import torch.nn as nn
from torch.distributed._tensor import Shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(1024, 4096)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(4096, 1024)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


device_mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
model = ToyModel().to("cuda")
sp_model = parallelize_module(
    model,
    device_mesh,
    {"in_proj": ColwiseParallel(input_layouts=Shard(0)), "out_proj": RowwiseParallel(output_layouts=Shard(0))},
)
sp_model = torch.compile(sp_model)
optimizer = torch.optim.AdamW(sp_model.parameters(), lr=0.25, foreach=True)
for _ in range(3):
    inp = torch.rand(20, 1024, device="cuda")
    output = sp_model(inp)
    output.sum().backward()
    optimizer.step()
