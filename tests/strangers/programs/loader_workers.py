"""Two DataLoader workers read a dataset of pictures made with numpy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        return torch.from_numpy(random.random((1, 8, 8), dtype=np.float32)), index % 3


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.5f}")


if __name__ == "__main__":
    main()
