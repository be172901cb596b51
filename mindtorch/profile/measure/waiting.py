"""Functions in which a thread waits, and what for: told from its frames, when it is seen.

Those of the standard library; of torch's, those that save and load, and those that start a DataLoader's workers.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import dataloader

from mindtorch.base import children
from mindtorch.profile.report.recording import WORKERS

#: What is waited for; its number is its place, and where one waits by means of another the last counts.
FOR = ("", "threads", "the network", "child processes", WORKERS, "files")
_THREADS, _NETWORK, _CHILDREN, _WORKERS, _FILES = 1, 2, 3, 4, 5

_WITH_WORKERS = dataloader._MultiProcessingDataLoaderIter
_FUNCTIONS = (
    (_THREADS, "threading.py", "join wait acquire _wait_for_tstate_lock _shutdown"),
    (_THREADS, "queue.py", "get put join"),
    (_THREADS, "concurrent/futures/_base.py", "result exception wait as_completed"),
    (_NETWORK, "socket.py", "readinto create_connection getaddrinfo"),
    (_NETWORK, "ssl.py", "read recv do_handshake connect"),
    (_CHILDREN, "subprocess.py", "wait _wait communicate _communicate run call check_call check_output"),
    (_CHILDREN, "multiprocessing/popen_fork.py", "poll wait"),
    (_CHILDREN, "multiprocessing/process.py", "join start"),
    (_CHILDREN, "multiprocessing/connection.py", "wait poll recv recv_bytes"),
    (_CHILDREN, "multiprocessing/pool.py", "get wait join next map"),
    (_CHILDREN, "multiprocessing/queues.py", "get join"),
    (_CHILDREN, "concurrent/futures/process.py", "shutdown map"),
)


def functions() -> dict[Any, int]:
    """{(file, name) of a function, or its code where others of the file have that name: number of what it waits for}"""
    library = os.path.dirname(os.__file__)
    found: dict[Any, int] = {
        (os.path.join(library, *file.split("/")), name): what
        for what, file, names in _FUNCTIONS
        for name in names.split()
    }
    for name in ("save", "load"):
        found[os.path.join(os.path.dirname(torch.__file__), "serialization.py"), name] = _FILES
    for name in ("__init__", "_reset", "_shutdown_workers"):  # to start and to end; batches are waited for in a phase
        if (code := getattr(getattr(_WITH_WORKERS, name, None), "__code__", None)) is not None:
            found[code] = _WORKERS
    return {**found, (children.__file__, "stand_in"): _CHILDREN}  # os.system waits in C, called from there
