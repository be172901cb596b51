"""A small diffusion model: a U-Net learns to remove noise from images of discs, then draws some with DDIM.

python examples/diffusion.py                        # as it is
genie profile examples/diffusion.py                 # training steps and sampling, by module
genie graph --html graph.html examples/diffusion.py # the U-Net as boxes to open, in a browser
genie profile --target l4 examples/diffusion.py --width 128 --size 64 --batch 64
genie run --executor pipe examples/diffusion.py     # the same images, computed by another process
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1000


def cosine_schedule() -> Tensor:
    """How much of the image is left after each step, (STEPS,)."""
    return torch.cos(torch.linspace(0, 1, STEPS + 1)[1:] * 0.99 * math.pi / 2) ** 2


def discs(count: int, size: int) -> Tensor:
    """Images of one disc each, (count, 1, size, size), from -1 to 1."""
    radius = torch.rand(count, 1, 1) * size / 8 + size / 8
    x, y = (torch.rand(count, 1, 1) * size / 2 + size / 4 for _ in range(2))
    grid = torch.arange(size) + 0.5
    inside = (grid[None, :] - x) ** 2 + (grid[:, None] - y) ** 2 < radius**2
    return (inside.float() * 2 - 1)[:, None]


class Block(nn.Module):
    """Two convolutions with a residual connection; the time embedding is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(min(8, inputs), inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = Block(width, width, 4 * width)
        self.middle = Block(width, 2 * width, 4 * width)
        self.up = Block(3 * width, width, 4 * width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(self.width // 2) / (self.width // 2))
        angles = step[:, None] * frequencies
        time = self.embed(torch.cat((angles.sin(), angles.cos()), dim=1))
        fine = self.down(self.first(x), time)
        coarse = self.middle(F.avg_pool2d(fine, 2), time)
        return self.last(self.up(torch.cat((fine, F.interpolate(coarse, scale_factor=2)), dim=1), time))


def train_step(model: UNet, optimizer: torch.optim.Optimizer, schedule: Tensor, images: Tensor) -> Tensor:
    """Adds noise of a random strength, and asks the model which noise it was."""
    step = torch.randint(STEPS, (len(images),))
    alpha_bar = schedule[step][:, None, None, None]
    noise = torch.randn_like(images)
    loss = F.mse_loss(model(alpha_bar.sqrt() * images + (1 - alpha_bar).sqrt() * noise, step), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def sample(model: UNet, schedule: Tensor, count: int, size: int, steps: int) -> Tensor:
    """DDIM: from noise to images in a few deterministic steps."""
    model.eval()
    x = torch.randn(count, 1, size, size)
    taken = [round((STEPS - 1) * i / (steps - 1)) for i in reversed(range(steps))]
    for step, following in zip(taken, [*taken[1:], None]):
        now, then = schedule[step], torch.tensor(1.0) if following is None else schedule[following]
        noise = model(x, torch.full((count,), step))
        image = ((x - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-1, 1)
        x = then.sqrt() * image + (1 - then).sqrt() * noise
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small diffusion model and sample from it.")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (default 16)")
    parser.add_argument("--size", type=int, default=16, help="pixels in each direction (default 16)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--train-steps", type=int, default=30)
    parser.add_argument("--sample-steps", type=int, default=8)
    args = parser.parse_args()

    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    torch.manual_seed(0)
    model, schedule = UNet(args.width), cosine_schedule()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = [train_step(model, optimizer, schedule, discs(args.batch, args.size)) for _ in range(args.train_steps)]
    print(
        f"loss {torch.stack(losses[:5]).mean().item():.4f} at first, {torch.stack(losses[-5:]).mean().item():.4f} now"
    )

    images = sample(model, schedule, 4, args.size, args.sample_steps)
    print(f"drew {len(images)} images of {args.size} x {args.size}, {(images > 0).float().mean().item():.1%} disc")


if __name__ == "__main__":
    main()
