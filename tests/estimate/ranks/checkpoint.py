"""torch.distributed.checkpoint of model and optimizer."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer=None):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        m, o = get_state_dict(self.model, self.optimizer)
        return {"model": m, "optim": o}

    def load_state_dict(self, state_dict):
        model, optim = state_dict["model"], state_dict["optim"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optim)


rank = int(os.environ["RANK"])
dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)).to("cuda")
model = fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
optimizer.zero_grad()
model(torch.rand(8, 16, device="cuda")).sum().backward()
optimizer.step()
dcp.save({"app": AppState(model, optimizer)}, checkpoint_id="checkpoint")
dcp.load({"app": AppState(model, optimizer)}, checkpoint_id="checkpoint")
model(torch.rand(8, 16, device="cuda")).sum().backward()
optimizer.step()
dist.destroy_process_group()
