"""ZeroRedundancyOptimizer."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(2000, 2000).to(rank) for _ in range(6)])
ddp_model = DDP(model, device_ids=[rank])
loss_fn = nn.MSELoss()
optimizer = ZeroRedundancyOptimizer(ddp_model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
outputs = ddp_model(torch.randn(20, 2000).to(rank))
labels = torch.randn(20, 2000).to(rank)
loss_fn(outputs, labels).backward()
optimizer.step()
print(torch.cuda.max_memory_allocated())
print(f"params sum is: {sum(model.parameters()).sum()}")
dist.destroy_process_group()
