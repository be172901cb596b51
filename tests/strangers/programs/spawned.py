"""Work is given to a spawned process, as torch.multiprocessing.spawn does it."""

import torch
import torch.multiprocessing as mp


def work(rank):
    print(f"rank {rank}", (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item(), flush=True)


if __name__ == "__main__":
    print("main", torch.ones(4).sum().item(), flush=True)
    mp.spawn(work, nprocs=1)
