"""A transformer encoder with a padding mask: trained, then evaluated on torch's fast path."""

import torch
from torch import nn

torch.manual_seed(0)
embed = nn.Embedding(50, 16, padding_idx=0)
layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.1, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2)
head = nn.Linear(16, 3)
parameters = [p for module in (embed, encoder, head) for p in module.parameters()]
optimizer = torch.optim.NAdam(parameters, lr=1e-3)
tokens = torch.randint(1, 50, (4, 10))
lengths = torch.tensor([10, 7, 5, 2])
padding = torch.arange(10) >= lengths[:, None]
tokens[padding] = 0
labels = torch.tensor([0, 1, 2, 1])
for step in range(2):
    hidden = encoder(embed(tokens), src_key_padding_mask=padding)
    pooled = hidden.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None]
    loss = nn.functional.cross_entropy(head(pooled), labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f}")
encoder.eval()
with torch.no_grad():
    hidden = encoder(embed(tokens), src_key_padding_mask=padding)
print(tuple(hidden.shape), f"{hidden[0].sum().item():.3f}")
