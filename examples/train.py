"""A training loop: a small convolutional network learns to tell horizontal stripes from vertical ones.

python examples/train.py                       # as it is
genie profile examples/train.py                # time and memory by phase, module and operation
genie profile --by line examples/train.py      # by line of this file
genie profile --html report.html examples/train.py    # one HTML file for a browser
genie run --executor pipe examples/train.py    # the same losses, computed by another process
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def stripes(count: int, size: int = 16) -> TensorDataset:
    """Noisy images, (count, 1, size, size); label 1 where the stripes are vertical."""
    labels = torch.randint(2, (count,))
    wave = torch.sin(torch.arange(size) * 1.5 + torch.rand(count, 1) * 6)
    across, down = wave[:, None, :].expand(count, size, size), wave[:, :, None].expand(count, size, size)
    images = torch.where(labels[:, None, None] == 1, across, down) + torch.randn(count, size, size)
    return TensorDataset(images[:, None], labels)


class ConvNet(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = [(model(images).argmax(1) == labels).float().mean() for images, labels in loader]
    return torch.stack(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small convolutional network on striped images.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train = DataLoader(stripes(1024), batch_size=args.batch, shuffle=True)
    test = DataLoader(stripes(256), batch_size=256)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train))

    for epoch in range(args.epochs):
        model.train()
        for images, labels in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy(model, test):.1%}")


if __name__ == "__main__":
    main()
