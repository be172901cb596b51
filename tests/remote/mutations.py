"""Messages of real programs, and what becomes of them by chance. As a script: has a worker do some, and says which.

``python mutations.py CORPUS FIRST LAST``: prints the number of each mutated message before it is done, and at last how
many were refused. It may die of one.
"""

from __future__ import annotations

import pickle
import random
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from mindtorch.engine.remote.wire import Reference, WireError, dumps, loads
from mindtorch.engine.remote.worker import Worker

MEMORY = 6 << 30  # bytes of address space: a size that has become large is an error, not the machine's end


def mutated(corpus: list[bytes], number: int) -> tuple[list[bytes], bytes]:
    """(the messages before, one that differs from the one that came then), the same for the same number."""
    draw = random.Random(number)
    at = draw.randrange(len(corpus))
    if number % 2:
        return corpus[:at], dumps(changed(loads(corpus[at]), draw, [draw.randrange(1, 400)]))
    return corpus[:at], scrambled(corpus[at], draw)


def scrambled(message: bytes, draw: random.Random) -> bytes:
    """The message with some bytes changed, taken out or put in."""
    data = bytearray(message)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if not data:
            break
        how, at = draw.randrange(3), draw.randrange(len(data))
        if how == 0:
            data[at] = draw.randrange(256)
        elif how == 1:
            del data[at : at + draw.randrange(1, 9)]
        else:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
    return bytes(data)


def changed(value: Any, draw: random.Random, countdown: list[int]) -> Any:
    """The value with another leaf, where the countdown ends."""
    if isinstance(value, (list, tuple)):
        return type(value)([changed(item, draw, countdown) for item in value])
    if isinstance(value, dict):
        return {key: changed(item, draw, countdown) for key, item in value.items()}
    countdown[0] -= 1
    if countdown[0]:
        return value
    if isinstance(value, bytes) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return value[:at] + draw.randbytes(1) + value[at + 1 :]
    if isinstance(value, Reference):
        return Reference(draw.choice((value.index + 1, 0, 1 << 33)), draw.random() < 0.5)
    others: list[Any] = [None, True, -1, 0, 7, 1 << 40, -(1 << 70), 0.5, "aten::relu", b"", (), [1], torch.int64]
    if isinstance(value, int) and draw.random() < 0.7:
        others = [value + 1, value - 1, -value, value * 1000, value ^ 1]
    return draw.choice(others)


def main(path: str, first: int, last: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    corpus = pickle.loads(Path(path).read_bytes())
    refused = 0
    for number in range(first, last):
        print(number, flush=True)
        before, message = mutated(corpus, number)
        worker = Worker()
        for each in before:
            worker.handle(each)
        try:
            worker.handle(message)
        except WireError:
            refused += 1
    print("refused", refused)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
