"""An interleaved pipeline: two stages on each rank, one of which sends to the next rank's."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
parts = {index: nn.Sequential(nn.Linear(256, 256), nn.ReLU()).to(device) for index in (rank, rank + world)}
stages = [PipelineStage(part, index, 2 * world, device) for index, part in parts.items()]
schedule = ScheduleInterleaved1F1B(stages, 2 * world, loss_fn=nn.MSELoss())
optimizer = torch.optim.Adam([p for part in parts.values() for p in part.parameters()])
for _ in range(2):
    x, target = torch.randn(64, 256, device=device), torch.randn(64, 256, device=device)
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=target, losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
