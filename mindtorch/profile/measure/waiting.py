"""Functions of the standard library in which a thread waits, and what for: told from its frames, when it is seen."""

from __future__ import annotations

import os

from mindtorch.base import children

#: What is waited for; its number is its place, and where one waits by means of another the last counts.
FOR = ("", "threads", "the network", "child processes")
_THREADS, _NETWORK, _CHILDREN = 1, 2, 3

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


def functions() -> dict[tuple[str, str], int]:
    """{(file, name) of a function: number of what it waits for}"""
    library = os.path.dirname(os.__file__)
    found = {
        (os.path.join(library, *file.split("/")), name): what
        for what, file, names in _FUNCTIONS
        for name in names.split()
    }
    return {**found, (children.__file__, "stand_in"): _CHILDREN}  # os.system waits in C, called from there
