"""Features are made in a pool of processes, a model is fitted to them here; a forked child looks at it."""

import multiprocessing
import os

import torch


def features(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, generator=generator).sort().values.tolist()


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        x = torch.tensor(pool.map(features, range(12)))
    y = x.sum(1, keepdim=True)
    w = torch.linalg.pinv(x) @ y
    print(f"{(x @ w - y).abs().max().item() < 1e-4}", flush=True)
    child = os.fork()
    if child == 0:
        print("child", f"{w.sum().item():.3f}", flush=True)
        os._exit(5)
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
