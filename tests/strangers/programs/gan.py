"""A GAN: two networks and two optimizers that take turns."""

import torch
from torch import nn
from torch.nn.utils import spectral_norm


def network(n_in, n_out, last):
    return nn.Sequential(nn.Linear(n_in, 16), nn.LeakyReLU(0.2), nn.Linear(16, n_out), last)


torch.manual_seed(0)
generator = network(4, 2, nn.Tanh())
discriminator = nn.Sequential(spectral_norm(nn.Linear(2, 16)), nn.LeakyReLU(0.2), nn.Linear(16, 1))
g_opt = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
d_opt = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.9))
loss_of = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for step in range(4):
    angle = torch.rand(16) * 6.2831853
    real = torch.stack([angle.cos(), angle.sin()], 1)
    fake = generator(torch.randn(16, 4))
    d_loss = loss_of(discriminator(real), ones) + loss_of(discriminator(fake.detach()), zeros)
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = loss_of(discriminator(fake), ones)
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    print(step, f"{d_loss.item():.4f} {g_loss.item():.4f}")
