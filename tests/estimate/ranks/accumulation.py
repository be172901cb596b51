"""Gradients accumulated without synchronizing, SyncBatchNorm, autocast, a compressing hook; compiled."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 16
init_process_group(backend="nccl")
ddp_rank = int(os.environ["RANK"])
ddp_local_rank = int(os.environ["LOCAL_RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
device = f"cuda:{ddp_local_rank}"
torch.cuda.set_device(device)
assert gradient_accumulation_steps % ddp_world_size == 0
gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + ddp_rank)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, 128)
        self.norm = nn.BatchNorm1d(128)
        self.head = nn.Linear(128, 512, bias=False)

    def forward(self, tokens, targets):
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        return F.cross_entropy(self.head(x).view(-1, 512), targets.view(-1))


model = nn.SyncBatchNorm.convert_sync_batchnorm(Net()).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)
model = DDP(torch.compile(model), device_ids=[ddp_local_rank])
model.register_comm_hook(None, fp16_compress_hook)
for step in range(3):
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        x = torch.randint(512, (4, 64)).pin_memory().to(device, non_blocking=True)
        y = torch.randint(512, (4, 64)).to(device)
        with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16):
            loss = model(x, y) / gradient_accumulation_steps
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if ddp_rank == 0:
        print(f"step {step}: loss {loss.item() * gradient_accumulation_steps:.4f}")
destroy_process_group()
