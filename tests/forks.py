"""Runs programs in forks of a process that has imported torch, so that they need not: that takes most of their time.

Started as ``python -c``, and each program with a ``__main__`` of its own: it sees what it would see there. A request is
a line of JSON; the answer is the fork's process id, and its exit code when it has ended.
"""

import json
import os
import sys
import types

import torch  # noqa: F401


def _requests() -> dict:
    """The next request, in a fork that is to serve it. The server itself does not return."""
    for line in sys.stdin:
        process = os.fork()
        if not process:
            return json.loads(line)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    sys.exit()


def _program() -> types.CodeType:
    """The program to run, in a process that is set up for it."""
    request = _requests()
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (request["stdout"], os.O_WRONLY), (request["stderr"], os.O_WRONLY))
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return compile(request["code"], "<string>", "exec")


_code, _server = _program(), sys.modules["__main__"]
sys.modules["__main__"] = types.ModuleType("__main__")
exec(_code, vars(sys.modules["__main__"]))
