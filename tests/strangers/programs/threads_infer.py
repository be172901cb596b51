"""Many threads ask one model: a pool, and raw threads below the threading module."""

import _thread
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


@torch.no_grad()
def infer(seed):
    return model(torch.full((2, 8), seed / 10)).argmax(1).tolist()


with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(infer, range(6))))
done, answers = _thread.allocate_lock(), []
done.acquire()
_thread.start_new_thread(lambda: (answers.append(infer(7)), done.release()), ())
done.acquire()
print(answers)
