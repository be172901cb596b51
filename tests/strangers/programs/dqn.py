"""Q-learning with a replay buffer and a target network that follows slowly."""

import collections
import copy
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
replay = collections.deque(maxlen=64)
state = torch.randn(4)
for _ in range(24):
    if random.random() < 0.3:
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = int(online(state).argmax())
    following, reward = state * 0.9 + 0.1 * torch.randn(4), float(state[action])
    replay.append((state, action, reward, following))
    state = following
    if len(replay) < 16:
        continue
    states, actions, rewards, nexts = zip(*random.sample(replay, 16))
    values = online(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    with torch.no_grad():
        wanted = torch.tensor(rewards) + 0.9 * target(torch.stack(nexts)).max(1).values
    loss = nn.functional.smooth_l1_loss(values, wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.lerp_(fast, 0.05)
print(f"{loss.item():.6f}", len(replay))
