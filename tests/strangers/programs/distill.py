"""A student learns from a frozen teacher, whose features are caught by hooks; weights are averaged."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


torch.manual_seed(0)
teacher, student = Classifier(32).eval().requires_grad_(False), Classifier(8)
features = {}
teacher.body.register_forward_hook(lambda module, args, out: features.update(body=out))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for step in range(3):
    x = torch.randn(16, 8)
    with torch.no_grad():
        wanted = teacher(x)
    got = student(x)
    loss = F.kl_div(F.log_softmax(got / 2, -1), F.softmax(wanted / 2, -1), reduction="batchmean") * 4
    loss = loss + 0.01 * F.mse_loss(got.norm(dim=1), features["body"].norm(dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(student)
    print(step, f"{loss.item():.5f}")
print(int(average.n_averaged), f"{average(x).sum().item():.5f}")
