"""How the user's code ended: exit code and error as plain Python has them, tracebacks without the tool's frames."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .blame import is_ours, is_programs, is_tool_file
from .os_exit import Left
from .termination import EXIT_CODE, Terminated

__all__ = ["Outcome", "captured", "leave_forked_child", "strip_tool_frames", "wait_for_threads"]

# torch's Python glue around a dispatch mode: in the traceback only because the tool is watching.
_GLUE_FILES = ("_ops.py", "_compile.py", "utils/_python_dispatch.py", "_dynamo/eval_frame.py")
_GLUE = tuple(os.path.join("torch", *name.split("/")) for name in _GLUE_FILES)


@dataclass
class Outcome:
    """How a run ended. ``exit_code`` is what ``python script.py`` would have exited with.

    ours: the error is of this package's making (`blame.is_ours`). own: of the program's (`blame.is_programs`).
    interrupted: by Ctrl-C or, where `terminated`, by SIGTERM. left: by `os._exit`.
    """

    exit_code: int = 0
    error: BaseException | None = None
    interrupted: bool = False
    terminated: bool = False
    left: bool = False
    result: Any = None
    ours: bool = False
    own: bool = False
    shown: bool = field(default=False, repr=False)

    def show(self, interrupts: bool = False) -> None:
        """Print to stderr what Python would print: the traceback, or the text of ``sys.exit("text")``. Once.

        interrupts: the traceback of Ctrl-C, too.
        """
        error = self.error
        if error is None or self.shown:
            return
        self.shown = True
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        elif interrupts or not self.interrupted:
            # The script may have installed its own hook (rich, IPython, a logger), as under plain Python.
            sys.excepthook(type(error), error, error.__traceback__)


def captured(work: Callable[[], Any]) -> Outcome:
    """Run ``work`` and say how it ended; raises nothing."""
    try:
        return Outcome(result=work())
    except SystemExit as error:
        code = error.code
        return Outcome(0 if code is None else int(code) if isinstance(code, int) else 1, error)
    except KeyboardInterrupt as error:
        strip_tool_frames(error)
        return Outcome(130, error, interrupted=True)
    except Terminated as error:
        strip_tool_frames(error)
        return Outcome(EXIT_CODE, error, interrupted=True, terminated=True)
    except Left as error:
        return Outcome(error.status, left=True)
    except BaseException as error:  # noqa: BLE001 - not swallowed: handed back, shown by Outcome.show
        ours, own = is_ours(error), is_programs(error)  # while the frames that say so are there
        strip_tool_frames(error)
        return Outcome(1, error, ours=ours, own=own)


def leave_forked_child(outcome: Outcome) -> None:
    """A child forked by the script that ran to the end of it must end here, not report a second time."""
    outcome.show()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(outcome.exit_code & 0xFF)


def wait_for_threads(before: set[threading.Thread], outcome: Outcome) -> Outcome:
    """Wait for the program's threads, as Python does before it exits (``threading._shutdown``), so that what they do
    is in the report and the report comes after what they print. How it all ended: ``outcome``, unless interrupted.

    Python first tells executors to let their idle threads end; a thread that nobody told so would be waited for for
    ever. `before` holds the threads that are not the program's.
    """
    waited = captured(lambda: _end_threads(before))
    if waited.error is None:
        return outcome
    return waited if waited.interrupted or outcome.error is None else outcome


def _end_threads(before: set[threading.Thread]) -> None:
    with _executors_closed():
        hooks = getattr(threading, "_threading_atexits", [])
        for hook in reversed(list(hooks)):
            hook()
            # Python calls them when it exits. Those of executors may be called again, as there may be new executors.
            if not str(getattr(hook, "__module__", "")).startswith("concurrent.futures.") and hook in hooks:
                hooks.remove(hook)
        while True:  # a thread may start others
            mine = [t for t in threading.enumerate() if t not in before and t is not threading.current_thread()]
            waiting = [t for t in mine if not t.daemon]
            if not waiting:
                return
            for thread in waiting:
                thread.join()


@contextlib.contextmanager
def _executors_closed() -> Iterator[None]:
    """Afterwards executors may be made again: the process goes on with the report, or with another program."""
    names = (("concurrent.futures.thread", "_shutdown"), ("concurrent.futures.process", "_global_shutdown"))
    kept = [(vars(sys.modules[module]), name) for module, name in names if module in sys.modules]
    kept = [(held, name) for held, name in kept if held.get(name) is False]
    try:
        yield
    finally:
        for held, name in kept:
            held[name] = False


def strip_tool_frames(error: BaseException) -> None:
    """Take the tool's own frames out of the traceback of ``error`` and of the errors it came from, in place."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        chain: types.TracebackType | None = None
        for link in reversed(_user_frames(current.__traceback__)):
            chain = types.TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
        current.__traceback__ = chain
        pending += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def _user_frames(traceback: types.TracebackType | None) -> list[types.TracebackType]:
    """The entries that are not the tool's, nor torch's glue next to one of the tool's."""
    kept: list[types.TracebackType] = []
    held: list[types.TracebackType] = []  # glue that stays unless a frame of the tool turns out to be its neighbour
    after_tool = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_tool_file(file):
            held, after_tool = [], True
        elif not file.endswith(_GLUE):
            kept += [*held, traceback]
            held, after_tool = [], False
        elif not after_tool:
            held.append(traceback)
        traceback = traceback.tb_next
    return kept + held
