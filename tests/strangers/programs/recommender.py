"""A recommender with bags of embeddings: sparse gradients, two optimizers."""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(200, 8, mode="sum", sparse=True)
        self.item = nn.Embedding(200, 8, sparse=True)
        self.mix = nn.Bilinear(8, 8, 1)

    def forward(self, bags, offsets, items):
        return self.mix(self.history(bags, offsets), self.item(items)).squeeze(1)


torch.manual_seed(0)
model = Recommender()
sparse = torch.optim.SparseAdam([*model.history.parameters(), *model.item.parameters()], lr=0.01)
dense = torch.optim.Adamax(model.mix.parameters())
for step in range(3):
    bags, offsets = torch.randint(200, (30,)), torch.arange(0, 30, 5)
    scores = model(bags, offsets, torch.randint(200, (6,)))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, torch.rand(6).round())
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
    print(step, f"{loss.item():.5f}", model.item.weight.grad.is_sparse)
