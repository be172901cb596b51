"""A character model: an LSTM learns a text read from stdin, then writes one."""

import sys

import torch
from torch import nn

text = sys.stdin.read()
letters = sorted(set(text))
ids = torch.tensor([letters.index(c) for c in text])


class CharModel(nn.Module):
    def __init__(self, size, width=24):
        super().__init__()
        self.embed = nn.Embedding(size, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, size)

    def forward(self, x, state=None):
        x, state = self.lstm(self.embed(x), state)
        return self.out(x), state


torch.manual_seed(1)
model = CharModel(len(letters))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for start in range(0, 48, 12):
    x, y = ids[start : start + 12], ids[start + 1 : start + 13]
    logits, _ = model(x[None])
    loss = nn.functional.cross_entropy(logits[0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")

model.eval()
written, state = [0], None
with torch.no_grad():
    for _ in range(10):
        logits, state = model(torch.tensor([[written[-1]]]), state)
        written.append(int(logits[0, -1].argmax()))
print("".join(letters[i] for i in written))
