"""Sequences of different length, padded by a collate function, in an order drawn from a generator."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, random_split


def collate(items):
    items.sort(key=lambda item: -len(item))
    lengths = torch.tensor([len(item) for item in items])
    return pad_sequence(items, batch_first=True), lengths


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x, lengths):
        _, last = self.gru(pack_padded_sequence(x, lengths, batch_first=True))
        return self.out(torch.cat([last[0], last[1]], -1)).squeeze(-1)


generator = torch.Generator().manual_seed(5)
sequences = [torch.randn(int(n), 3, generator=generator) for n in torch.randint(2, 9, (20,), generator=generator)]
train, held = random_split(sequences, [16, 4], generator=generator)
torch.manual_seed(0)
model = Sums()
optimizer = torch.optim.Adam(model.parameters())
for batch, lengths in DataLoader(train, 4, shuffle=True, collate_fn=collate, generator=generator):
    loss = (model(batch, lengths) - batch.sum((1, 2))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(tuple(batch.shape), f"{loss.item():.4f}")
model.eval()
with torch.no_grad():
    for batch, lengths in DataLoader(held, 4, collate_fn=collate):
        print(f"{model(batch, lengths).mean().item():.5f}")
