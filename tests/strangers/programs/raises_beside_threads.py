"""The main thread fails while another one still has something to say; the exit code is 1, the other is waited for."""

import threading
import time

import torch


def later():
    time.sleep(0.3)
    print("thread", torch.arange(4).sum().item())


threading.Thread(target=later).start()
print("main")
torch.ones(2, 3) @ torch.ones(2, 3)
