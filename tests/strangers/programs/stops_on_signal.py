"""Stops at a signal after the current step, with exit handlers and warnings."""

import atexit
import os
import signal
import sys
import warnings

import torch

stopping = False


def stop(number, frame):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
atexit.register(lambda: print("closed"))
weights = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.5, maximize=True)
for step in range(100):
    optimizer.zero_grad()
    (weights.sigmoid().sum() - 0.1 * weights.pow(2).sum()).backward()
    optimizer.step()
    if step == 2:
        warnings.warn("somebody wants the machine", stacklevel=1)
        os.kill(os.getpid(), signal.SIGTERM)
    if stopping:
        print("stopped at", step, f"{weights.sum().item():.4f}")
        sys.exit("not finished")
