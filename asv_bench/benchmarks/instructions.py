"""Instructions per run of a statement: a figure that does not vary with the machine's mood, beside the times.

Counted by the processor through ``perf_event_open`` where the system allows it, else under valgrind where that is
installed, else not at all. Other than times, these are for one compiler and one Python.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from timeit import Timer
from typing import Any

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_NUMBER = 20_000

_COUNT = """
import sys, timeit
sys.argv = ['genie']  # spares the import of torch, which takes minutes under valgrind
{setup}
timeit.Timer({statement!r}, globals=globals()).timeit(int({number}))
"""


def _counter() -> int | None:
    """A descriptor that counts this thread's instructions in user space, or None where that is not allowed."""
    call = _PERF_EVENT_OPEN.get(os.uname().machine)
    if sys.platform != "linux" or call is None:
        return None
    # type hardware, size, instructions, no sampling; flags: leave out the kernel and the hypervisor
    attributes = struct.pack("IIQQQQQ", 0, 128, 1, 0, 0, 0, 1 << 5 | 1 << 6).ljust(128, b"\0")
    found: int = ctypes.CDLL(None).syscall(call, attributes, 0, -1, -1, 0)
    return found if found >= 0 else None


def of_call(work: Callable[[], object]) -> int | None:
    """What one call takes in this process, where the processor may be asked; None elsewhere."""
    counter = _counter()
    if counter is None:
        return None
    before: int = struct.unpack("Q", os.read(counter, 8))[0]
    work()
    after: int = struct.unpack("Q", os.read(counter, 8))[0]
    os.close(counter)
    return after - before


def _perf(statement: str, names: dict[str, Any]) -> float | None:
    counter = _counter()
    if counter is None:
        return None
    timer, empty = Timer(statement, globals=names), Timer("pass", globals=names)
    least = [float("inf"), float("inf")]
    for _ in range(5):
        for i, each in enumerate((timer, empty)):
            before = struct.unpack("Q", os.read(counter, 8))[0]
            each.timeit(_NUMBER)
            least[i] = min(least[i], struct.unpack("Q", os.read(counter, 8))[0] - before)
    os.close(counter)
    return (least[0] - least[1]) / _NUMBER


def _valgrind(statement: str, setup: str, environment: dict[str, str]) -> float | None:
    if shutil.which("valgrind") is None:
        return None
    collected = []
    for number in (_NUMBER, 2 * _NUMBER):
        code = _COUNT.format(setup=setup, statement=statement, number=number)
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", code]
        done = subprocess.run(command, env={**os.environ, **environment, "PYTHONHASHSEED": "0"}, capture_output=True,
                              text=True, check=True)  # fmt: skip
        found = re.search(r"Collected : (\d+)", done.stderr)
        if found is None:
            return None
        collected.append(int(found[1]))
    return (collected[1] - collected[0]) / _NUMBER


def instructions(statement: str, setup: str, environment: dict[str, str]) -> float | None:
    """Per run of ``statement``, after ``setup``; None where nothing here can count them."""
    names: dict[str, Any] = {}
    exec(setup, names)
    counted = _perf(statement, names)
    return counted if counted is not None else _valgrind(statement, setup, environment)
