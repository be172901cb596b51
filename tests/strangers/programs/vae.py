"""A variational autoencoder with transposed convolutions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ELU(), nn.Flatten(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(
            nn.Linear(6, 64), nn.Unflatten(1, (4, 4, 4)), nn.ELU(), nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1)
        )

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        posterior = Normal(mean, F.softplus(spread) + 1e-3)
        return self.decoder(posterior.rsample()), posterior


torch.manual_seed(0)
model = VAE()
prior = Normal(torch.zeros(6), torch.ones(6))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    images = torch.rand(8, 1, 8, 8).round()
    logits, posterior = model(images)
    rebuilt = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum((1, 2, 3))
    loss = (rebuilt + kl_divergence(posterior, prior).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.4f}")
