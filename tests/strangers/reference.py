"""Runs a program plainly, once under torch.profiler and once, in a forked process, under FlopCounterMode, and writes
down what those saw.

``python reference.py OUT PROGRAM [ARGUMENTS...]``, or ``-m MODULE`` in place of the program. Output and exit code are
the program's own. OUT is written by the last exit handler, after the program's threads have ended.

What is compared is what passes torch's dispatcher below autograd, as that is what genie reports. torch.profiler sees
more: functions that are made of others (``linear`` of ``t`` and ``addmm``) and what kernels call within themselves. So
an op counts here where none that counts is around it, and one that torch only knows as made of others does not count.
In inference mode there is no autograd above the dispatcher, and such functions come down to it whole.
"""

from __future__ import annotations

import atexit
import io
import itertools
import json
import os
import re
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

EventType = torch._C._profiler._EventType
KEYS = ("CompositeImplicitAutograd", "CPU")
INFERENCE = "reference: inference mode"


def main(out: str, *words: str) -> None:
    sys.path[0] = os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.abspath(words[0]))
    given = io.StringIO("" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read())
    sys.stdin = given  # for both
    sys.stdout.flush()
    other = os.fork()
    if other:
        finish = profiled()
    else:
        os.chdir(tempfile.mkdtemp(dir=os.path.dirname(out)))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        finish = flops()
    mine = os.getpid()

    def write() -> None:
        if os.getpid() != mine:  # children that were forked have this handler, too
            return
        found = finish()
        if other:
            found["other"] = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        with open(out if other else f"{out}.flops", "w", encoding="utf-8") as file:
            json.dump(found, file)

    atexit.register(write)
    run(list(words))


def run(words: list[str]) -> None:
    """As Python does."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    module = type(sys)("__main__")
    module.__file__ = words[0]
    kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    with open(words[0], "rb") as source:
        exec(compile(source.read(), words[0], "exec"), vars(module))


kept: list[Any] = []


# ---------------------------------------------------------------- torch.profiler


def profiled() -> Callable[[], dict[str, Any]]:
    """Begin; what it returns ends it. Torch notes allocations only where it looks at one thread only."""
    threads = bool(os.environ.get("REFERENCE_THREADS"))
    details = torch._C._profiler._ExperimentalConfig(profile_all_threads=threads, capture_overload_names=True)
    profiler = torch.profiler.profile(profile_memory=True, experimental_config=details)
    note_inference()
    profiler.start()

    def finish() -> dict[str, Any]:
        profiler.stop()
        result = profiler.profiler.kineto_results
        overloads = {event.correlation_id(): event.overload_name() for event in result.events()}
        calls: Counter[str] = Counter()
        changes: list[tuple[int, int, int, int]] = []  # (when, bytes, address, end of the op that it is in)
        stack = [(event, False, 0) for event in result.experimental_event_tree()]
        while stack:
            event, inference, until = stack.pop()
            if event.name == INFERENCE:
                inference = True
            elif event.tag == EventType.Allocation:
                changes.append((event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr, until))
            elif event.tag == EventType.TorchOp and not until:
                overload = overloads.get(event.correlation_id, "")
                name = f"{event.name}.{overload}" if overload else event.name
                if is_op(name) and (inference or not made_of_others(name)):
                    calls[event.name] += 1
                    until = event.end_time_ns
            stack += [(child, inference, until) for child in event.children]
        changes.sort()
        return {"calls": dict(calls), "peak_bytes": peak(changes), "tensors_peak_bytes": peak(lasting(changes))}

    return finish


def peak(changes: list[tuple[int, int, int, int]]) -> int:
    return max(itertools.accumulate(change[1] for change in changes), default=0)


def lasting(changes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Without what an op allocates and gives back before it ends."""
    held: dict[int, int] = {}  # address → index of what was allocated there
    gone = set()
    for i, (when, nbytes, address, _) in enumerate(changes):
        if nbytes > 0:
            held[address] = i
        elif (made := held.pop(address, None)) is not None and when <= changes[made][3]:
            gone |= {made, i}
    return [change for i, change in enumerate(changes) if i not in gone]


def is_op(name: str) -> bool:
    """Whether the dispatcher knows it: it does not know ``autograd::engine::evaluate_function`` and its like."""
    is_name = re.fullmatch(r"(?!profiler::)\w+::\w+(\.\w+)?", name)
    return is_name is not None and bool(torch._C._dispatch_has_kernel(name))


def made_of_others(name: str) -> bool:
    composite, own = (torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in KEYS)
    return bool(composite) and not own


def note_inference() -> None:
    """Inference mode shows in the profile."""
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__

    def entering(self: Any) -> None:
        enter(self)
        if self.mode:
            self.noted = torch.profiler.record_function(INFERENCE)
            self.noted.__enter__()

    def leaving(self: Any, *error: Any) -> None:
        if self.mode:
            self.noted.__exit__(*error)
        leave(self, *error)

    torch.inference_mode.__enter__, torch.inference_mode.__exit__ = entering, leaving  # type: ignore[method-assign]


# ---------------------------------------------------------------- FlopCounterMode


def flops() -> Callable[[], dict[str, Any]]:
    """Likewise. It sees the thread that begins it only."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    counter.__enter__()

    def finish() -> dict[str, Any]:
        counter.__exit__(None, None, None)
        found = counter.get_flop_counts().get("Global", {})
        return {"flops": {str(op).replace(".", "::"): count for op, count in found.items()}}

    return finish


if __name__ == "__main__":
    main(*sys.argv[1:])
