"""All to all, forth and back."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.nn.functional import all_to_all_single

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)

expert = nn.Linear(512, 512).to(device)
x = torch.randn(64 * world, 512, device=device, requires_grad=True)
sent = all_to_all_single(torch.empty_like(x), x)
back = all_to_all_single(torch.empty_like(x), expert(sent))
back.sum().backward()
for p in expert.parameters():
    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
