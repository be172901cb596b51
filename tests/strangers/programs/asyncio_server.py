"""A small inference server: requests are awaited, the model runs in asyncio's threads."""

import asyncio

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()


@torch.inference_mode()
def infer(x):
    return model(x).argmax(-1).tolist()


async def main():
    requests = [torch.full((3, 16), float(i)) for i in range(6)]
    answers = await asyncio.gather(*(asyncio.to_thread(infer, x) for x in requests))
    print(answers)


asyncio.run(main())
