"""Tensor parallel: column-wise, then row-wise."""

import os

import torch
import torch.nn as nn
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


_world_size = int(os.environ["WORLD_SIZE"])
device_type = torch.accelerator.current_accelerator().type
device_mesh = init_device_mesh(device_type=device_type, mesh_shape=(_world_size,))
_rank = device_mesh.get_rank()
print(f"Starting PyTorch TP example on rank {_rank}.")
assert _world_size % 2 == 0
tp_model = ToyModel().to(device_type)
tp_model = parallelize_module(
    module=tp_model,
    device_mesh=device_mesh,
    parallelize_plan={"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()},
)
optimizer = torch.optim.AdamW(tp_model.parameters(), lr=0.25, foreach=True)
for i in range(3):
    torch.manual_seed(i)
    inp = torch.rand(20, 1024, device=device_type)
    output = tp_model(inp)
    output.sum().backward()
    optimizer.step()
print("TP iter", i, "completed")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
