"""One process, a layer on each of two devices."""

import torch
import torch.nn as nn


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(1000, 4000).to("cuda:0")
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(4000, 500).to("cuda:1")

    def forward(self, x):
        x = self.relu(self.net1(x.to("cuda:0")))
        return self.net2(x.to("cuda:1"))


model = ToyModel()
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = model(torch.randn(20, 1000))
labels = torch.randn(20, 500).to("cuda:1")
loss_fn(outputs, labels).backward()
optimizer.step()
print(torch.cuda.device_count(), torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1))
