"""A pipeline (GPipe), whose stages are split by hand."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(10000, 256)
        self.layers = nn.ModuleDict({str(i): nn.TransformerDecoderLayer(256, 8, dropout=0.0) for i in range(8)})
        self.norm = nn.LayerNorm(256)
        self.output = nn.Linear(256, 10000)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) if self.tok_embeddings else tokens
        for layer in self.layers.values():
            h = layer(h, h)
        h = self.norm(h) if self.norm else h
        return (self.output(h) if self.output else h).clone()


def init_distributed():
    global rank, device, pp_group, stage_index, num_stages
    rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{rank}") if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group()
    pp_group = dist.new_group()
    stage_index = rank
    num_stages = world_size


def manual_model_split(model):
    per = 8 // num_stages
    for i in list(model.layers):
        if int(i) // per != stage_index:
            del model.layers[i]
    if stage_index > 0:
        model.tok_embeddings = None
    if stage_index < num_stages - 1:
        model.norm = None
        model.output = None
    return PipelineStage(model, stage_index, num_stages, device)


if __name__ == "__main__":
    init_distributed()
    num_microbatches = 4
    model = Transformer()
    x = torch.ones(32, 500, dtype=torch.long)
    y = torch.randint(0, 10000, (32, 500), dtype=torch.long)
    stage = manual_model_split(model.to(device))
    x, y = x.to(device), y.to(device)

    def tokenwise_loss_fn(outputs, targets):
        loss_fn = nn.CrossEntropyLoss()
        return loss_fn(outputs.reshape(-1, 10000), targets.reshape(-1))

    schedule = ScheduleGPipe(stage, n_microbatches=num_microbatches, loss_fn=tokenwise_loss_fn)
    if rank == 0:
        schedule.step(x)
    elif rank == num_stages - 1:
        losses = []
        output = schedule.step(target=y, losses=losses)
        print(f"losses: {len(losses)}")
    else:
        schedule.step()
    dist.destroy_process_group()
