"""FullyShardedDataParallel with a policy, a sampler and a loader."""

import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = self.fc2(F.relu(self.fc1(torch.flatten(self.dropout1(x), 1))))
        return F.log_softmax(x, dim=1)


rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl", rank=rank, world_size=world_size)
data = torch.utils.data.TensorDataset(torch.randn(256, 1, 28, 28), torch.randint(10, (256,)))
sampler = DistributedSampler(data, rank=rank, num_replicas=world_size, shuffle=True)
loader = torch.utils.data.DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, pin_memory=True)
policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
torch.cuda.set_device(rank % torch.cuda.device_count())
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
model = FSDP(Net().to(rank % 8), auto_wrap_policy=policy)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
start.record()
for epoch in range(1):
    model.train()
    ddp_loss = torch.zeros(2).to(rank % 8)
    sampler.set_epoch(epoch)
    for x, y in loader:
        x, y = x.to(rank % 8), y.to(rank % 8)
        optimizer.zero_grad()
        output = model(x)
        loss = F.nll_loss(output, y, reduction="sum")
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(x)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"Train Epoch: {epoch} \tLoss: {ddp_loss[0] / ddp_loss[1]:.6f}")
end.record()
dist.barrier()
states = model.state_dict()
if rank == 0:
    torch.save(states, "mnist_cnn.pt")
dist.destroy_process_group()
