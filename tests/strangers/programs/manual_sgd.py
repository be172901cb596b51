"""Logistic regression by hand: no module, no optimizer, in place, half of it in bfloat16."""

import torch

torch.manual_seed(0)
x = torch.randn(64, 5)
y = (x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]) > 0).float()
w = torch.zeros(5, requires_grad=True)
velocity = torch.zeros(5)
for step in range(5):
    p = torch.sigmoid(x.mv(w))
    loss = -(y * p.clamp_min(1e-6).log() + (1 - y) * (1 - p).clamp_min(1e-6).log()).mean()
    loss.backward()
    with torch.no_grad():
        velocity.mul_(0.9).add_(w.grad)
        w.sub_(velocity, alpha=0.5)
        w.grad.zero_()
    print(step, f"{loss.item():.4f}")
half = x.bfloat16() @ w.detach().bfloat16()
print(half.dtype, f"{((half > 0).float() == y).float().mean().item():.3f}")
