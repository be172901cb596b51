"""A worker in a process of its own, at the other end of a socket (SPEC R1). Started by `pipe`."""

from __future__ import annotations

import functools
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..._ext.frames import Stream
from ...base.torch_warnings import as_from_python
from .set_aside import ENDED, SetAside, without_values
from .wire import dumps
from .worker import Worker

__all__ = ["main", "serving"]


def main(fd: int, device: str) -> None:
    """Answer the messages that come in until nobody is at the other end any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the program
    threading.Thread(target=_end_with_the_program, args=(fd,), daemon=True).start()
    stream = Stream(fd)
    memory = SetAside.of_a_process()
    serve = serving(device, memory, folders=["/"])  # it is the program's own
    while True:
        try:
            try:
                number, message = stream.receive()
            except MemoryError:
                memory.release()
                number, message = stream.receive()
            stream.put(serve(message), number)
            stream.flush()
        except EOFError:
            return
        except MemoryError:
            os._exit(ENDED)


def _encoded(reply: list[Any], memory: SetAside) -> bytearray:
    try:
        return dumps(reply)
    except MemoryError:
        memory.release()
        return dumps(without_values(reply))


def serving(
    device: str, memory: SetAside, parcels: dict[int, bytes | bytearray | int] | None = None,
    folders: Sequence[str] = (),
) -> Callable[[bytes | bytearray], bytearray]:  # fmt: skip
    """From a message to its reply, whatever goes wrong. memory, parcels, folders: see `Worker`."""
    worker: Worker | None = None

    def serve(message: bytes | bytearray) -> bytearray:
        nonlocal worker
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")  # the program's filters decide
            try:
                if worker is None:
                    worker = Worker(device, parcels, folders, memory)
                reply = as_from_python(functools.partial(worker.answers, message))
                if said:
                    reply.append([(found.category.__name__, str(found.message)) for found in said])
                return _encoded(reply, memory)
            except Exception as error:  # noqa: BLE001 - told to the program, for which the session is lost
                return dumps(("refused", type(error).__name__, str(error)))

    return serve


def _end_with_the_program(fd: int) -> None:
    """However that ended, and whatever is being computed."""
    poll = select.poll()
    poll.register(fd, 0)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _fd, event in poll.poll()):
        pass
    os._exit(0)
