"""Trains a classifier from a configuration file, with options that override it, logs to stderr, writes a checkpoint."""

import argparse
import json
import logging
import pathlib

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--config", default=str(pathlib.Path(__file__).with_name("mlp_config.json")))
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
given = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
config = {**json.loads(pathlib.Path(given.pop("config")).read_text()), **given}
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")

torch.manual_seed(config["seed"])
data = torch.randn(96, 12)
labels = (data.sum(1) > 0).long()
model = nn.Sequential(
    nn.Linear(12, config["width"]),
    nn.BatchNorm1d(config["width"]),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(config["width"], 2),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.01)
for epoch in range(config["epochs"]):
    model.train()
    for batch, target in zip(data.split(32), labels.split(32)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(data).argmax(1) == labels).float().mean().item()
    logging.info("epoch %d accuracy %.3f", epoch, accuracy)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
again = torch.load("checkpoint.pt", weights_only=True)
model.load_state_dict(again["model"])
optimizer.load_state_dict(again["optimizer"])
print(config, f"{loss.item():.5f}", len(again["optimizer"]["state"]))
