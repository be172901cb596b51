"""REINFORCE on a walk made with numpy."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Walk:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.position, self.n = 0.0, 0
        return np.array([0.0, 0.0], dtype=np.float32)

    def step(self, action):
        self.position += (1.0 if action else -1.0) + self.random.normal(0, 0.1)
        self.n += 1
        return np.array([self.position, self.n / 10], dtype=np.float32), self.position, self.n == 8


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
environment = Walk(0)
for episode in range(3):
    state, done, log_probs, rewards = environment.reset(), False, [], []
    while not done:
        choice = Categorical(logits=policy(torch.from_numpy(state)))
        action = choice.sample()
        state, reward, done = environment.step(action.item())
        log_probs.append(choice.log_prob(action))
        rewards.append(reward)
    returns = torch.tensor(np.cumsum(rewards[::-1])[::-1].copy(), dtype=torch.float32)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, f"{sum(rewards):.3f} {loss.item():.4f}")
