"""A small CNN with autocast and a gradient scaler, on images in channels-last order."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, groups=2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = F.max_pool2d(F.silu(self.down(x)), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


torch.manual_seed(0)
model = Net().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(5, (4,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(images).float(), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    print(step, f"{loss.item():.4f}", scaler.get_scale())
