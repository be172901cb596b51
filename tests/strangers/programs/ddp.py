"""Two ranks train with DistributedDataParallel over gloo."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"{loss.item():.6f}")
dist.barrier()
# Torch hangs, one time in seventy, if the model is the last that has the group: it then ends gloo's threads while it
# has Python's lock, which one of them may wait for.
del model, optimizer, loss
gc.collect()
dist.destroy_process_group()
