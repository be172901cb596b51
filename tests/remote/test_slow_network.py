"""R2: what comes late, in pieces, and unevenly is what was sent."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from mindtorch._ext.frames import Stream
from mindtorch.engine.remote.pipe import Child, StreamExecutor

from ..executors import using

Same = Callable[..., None]


class Delayed(Child):
    """A worker at the other end of a bad line: pieces of chance sizes, each as late as chance says."""

    def _start(self) -> None:
        super()._start()
        self._socket = bad_line(self._socket, 0)
        self._stream = Stream(self._socket.fileno())


def bad_line(end: socket.socket, seed: int) -> socket.socket:
    """A socket whose bytes are those of ``end``, which is closed, late and in pieces."""
    ours, theirs = socket.socketpair()
    far = end.dup()  # for the two threads alone: its number is another's once somebody closes it
    end.close()
    far.setblocking(True)
    for more, (source, sink) in enumerate(((theirs, far), (far, theirs))):
        threading.Thread(target=carry, args=(source, sink, random.Random(seed + more)), daemon=True).start()
    return ours


def carry(source: socket.socket, sink: socket.socket, draw: random.Random) -> None:
    try:
        while data := source.recv(draw.choice((1, 7, 19, 200, 1 << 16))):
            if draw.random() < 0.1:
                time.sleep(draw.choice((0.001, 0.01, 0.05)))
            sink.sendall(data)
    except OSError:
        pass  # one of the two has ended
    for end in (source, sink):  # the other thread may wait for one of them
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def delayed() -> Iterator[StreamExecutor]:
    with using(StreamExecutor(Delayed("cpu"))) as executor:
        yield executor


def test_R2_a_slow_and_uneven_network_changes_nothing(delayed: StreamExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        losses = []
        for step in range(12):
            x = torch.ones(4, 8, device=device) * step
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 != 1:
                losses.append(loss.item())
        return losses, list(net.parameters()), torch.arange(30_000.0).to(device) + 1

    same_as_eager(program)
