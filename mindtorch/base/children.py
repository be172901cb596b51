"""`ChildWatch`: which Python processes a program starts, since a profile of the program does not see what they do."""

from __future__ import annotations

import multiprocessing.process
import os
import re
import subprocess
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

from .patching import Patches

_PYTHON = re.compile(
    r"(^|[\s/])(python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|(ba|da|z)?sh)(\s|$)"
    r"|\.(py|sh)(\s|$)"
)
# What starts processes to compile in: nothing of the program's runs there.
_COMPILERS = tuple(os.path.join("torch", *name.split("/")) for name in ("_inductor/", "_dynamo/", "utils/cpp_ext"))

#: What kinds of them are called that are no commands.
LOADER_WORKER, MULTIPROCESSING, FORK = "DataLoader worker", "multiprocessing: ", "fork"

_active: list[ChildWatch] = []


class ChildWatch:
    """Within the block, counts the processes that may run torch, by what they are: ``found``.

    Those of ``multiprocessing`` and so of DataLoaders, of ``subprocess`` and ``os.system`` that run Python, and forks.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._held = Patches(yields=True)
        self._starting: set[int] = set()  # threads that are within one of these functions
        self._pid = os.getpid()

    def __enter__(self) -> ChildWatch:
        self._stand_in(multiprocessing.process.BaseProcess, "start", self._process)
        self._stand_in(subprocess.Popen, "__init__", self._command)
        self._stand_in(os, "system", self._shell)
        self._stand_in(os, "posix_spawn", self._spawned)
        self._stand_in(os, "posix_spawnp", self._spawned)
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _active:
            _active.remove(self)
        self._held.undo()

    def _stand_in(self, owner: Any, name: str, note: Callable[..., Callable[[], None]]) -> None:
        original = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            # A child has children; since Python 3.13 subprocess goes by os.posix_spawn wherever it can.
            if os.getpid() != self._pid or thread in self._starting or _compiles():
                return original(*args, **kwargs)
            noted = note(*args, **kwargs)
            self._starting.add(thread)
            try:
                result = original(*args, **kwargs)
            finally:
                self._starting.discard(thread)
            noted()
            return result

        stand_in.__name__, stand_in.__doc__ = name, original.__doc__
        stand_in.__wrapped__ = original  # type: ignore[attr-defined]
        self._held.put([(owner, name, stand_in)])

    def _process(self, process: Any) -> Callable[[], None]:
        target = getattr(process, "_target", None)
        if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":
            target = process._args[0]  # the program's own, wrapped
        if getattr(target, "__module__", "").startswith("torch.utils.data."):
            what = LOADER_WORKER
        else:
            what = f"{MULTIPROCESSING}{getattr(target, '__name__', type(process).__name__)}"
        return lambda: self.found.update([what])

    def _command(self, popen: Any, args: Any = (), *_: Any, **__: Any) -> Callable[[], None]:
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        return self._shell(" ".join(os.fsdecode(word) for word in words))

    def _spawned(self, path: Any, argv: Any = (), *_: Any, **__: Any) -> Callable[[], None]:
        return self._command(None, argv)

    def _shell(self, line: Any) -> Callable[[], None]:
        text = os.fsdecode(line)
        if sys.executable not in text and not _PYTHON.search(text):
            return lambda: None
        words = text.replace(sys.executable, "python").split()
        return lambda: self.found.update([" ".join(words)[:60]])

    def _forked(self) -> None:
        if threading.get_ident() not in self._starting and not _compiles():
            self.found[FORK] += 1


def _compiles() -> bool:
    """Whether it is one of torch's compilers that starts a process."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in _COMPILERS):
            return True
        frame = frame.f_back
    return False


def _in_parent() -> None:
    for watch in _active:
        watch._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_in_parent)
