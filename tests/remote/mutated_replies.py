"""A program whose worker's replies are changed by chance: it ends as ever, or with an error that says what is wrong.

``python mutated_replies.py FIRST LAST``: prints the number of each before it is tried, what is wrong with it if
anything is, and at last how many ended the session. It may die of one.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # before torch: as pytest does it

import torch
from torch import nn

import mindtorch
from mindtorch.base.errors import SessionLost
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.wire import dumps, loads
from mindtorch.engine.remote.worker import Worker
from tests.remote.mutations import MEMORY, changed, scrambled

LAZY = "remote_accelerator:0"
REMOTE = str(Path(mindtorch.__file__).parent / "engine" / "remote")


def program() -> list[Any]:
    """Trains, draws, reads small and large values, calls what cannot be recorded, and fails once."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(LAZY)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(2):
        loss = nn.functional.cross_entropy(net(torch.rand(3, 4, device=LAZY)), torch.tensor([0, 1, 0]).to(LAZY))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    x = torch.rand(40).to(LAZY)
    x[3:7].view(2, 2).t().mul_(2)
    found += [x.tolist(), x[x > 0.5].unique().numel(), torch.linalg.qr(x.view(8, 5))[1].tolist()]
    sparse = x.view(8, 5).relu().to_sparse()
    found += [sparse.indices().shape[0], torch.get_rng_state().numel()]
    found += [{name: p.cpu().sum().item() for name, p in net.state_dict().items()}]
    try:
        found.append(x[torch.full((3,), 99).to(LAZY)].sum().item())
    except (mindtorch.MaterializationError, IndexError) as error:
        if isinstance(error, SessionLost):
            raise
        found.append("failed")
    return found


def replies() -> list[bytes]:
    """Those that the program gets, the last time of two: what it is corrected about at first, it is so in both."""
    worker, found = Worker(), []

    def send(message: bytearray) -> bytes:
        found.append(bytes(worker.handle(message)))
        return found[-1]

    run(RemoteExecutor(send))
    return found


def run(executor: RemoteExecutor) -> list[Any]:
    gc.collect()  # what is left of a session that was lost would be uploaded
    previous = mindtorch.set_executor(executor)
    try:
        return program()
    finally:
        executor._lost = executor._lost or SessionLost("over")
        mindtorch.set_executor(previous)


def mutated(reply: bytes, draw: random.Random) -> bytes:
    """With another leaf, some bytes changed, or a correction that nobody expects."""
    how = draw.randrange(5)
    if how < 3:
        return bytes(dumps(changed(loads(reply), draw, [draw.randrange(1, 60)])))
    if how == 3:
        return scrambled(reply, draw)
    answers = loads(reply)
    for k, answer in enumerate(answers):
        if isinstance(answer, tuple) and len(answer) == 6 and isinstance(answer[1], list):
            numbers = [draw.choice((0, 0, 1, 7, 1 << 20, 1 << 31, 1 << 33, -1)) for _ in range(3)]
            correction = (numbers[0], numbers[1], (1,) * draw.randrange(4), numbers[2])
            answers[k] = (answer[0], [correction], *answer[2:])
    return bytes(dumps(answers))


def main(first: int, last: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    run(RemoteExecutor(Worker().handle))
    given = replies()
    again = iter(given)
    expected = run(RemoteExecutor(lambda message: next(again)))
    ended = 0
    for number in range(first, last):
        print(number, flush=True)
        draw = random.Random(number)
        at = draw.randrange(len(given))
        left = iter([*given[:at], mutated(given[at], draw), *given[at + 1 :]])

        def send(message: bytearray, left: Any = left) -> bytes:
            reply = next(left, None)
            if reply is None:
                raise ConnectionError("the worker was ended")
            return reply

        try:
            run(RemoteExecutor(send))
        except SessionLost as error:
            ended += 1
            traceback.clear_frames(error.__traceback__)  # their tensors would be the next session's
            if "\n" in str(error):
                print("wrong", number, repr(str(error)), flush=True)
        except mindtorch.MaterializationError:
            pass
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            if where.filename.startswith(REMOTE) and where.name != "call":
                print("wrong", number, "".join(traceback.format_exception(error)), flush=True)
    print("ended", ended, "of", last - first, "expected", len(expected), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
