"""Runs programs in forks of a process that has imported torch, so that they need not: that takes most of their time.

Started as ``python -c … MODULE …`` with what is to be imported, and each program with a ``__main__`` of its own: it
sees what it would see there. A request is a line of JSON; the answer is the fork's process id, and its exit code when
it has ended.
"""

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import sys
import types


def _requests() -> dict:
    """The next request, in a fork that is to serve it. The server itself does not return."""
    for line in sys.stdin:
        process = os.fork()
        if not process:
            return json.loads(line)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    sys.exit()


def _program() -> types.CodeType | str:
    """The program to run, in a process that is set up as python is by its arguments; of -m the module's name."""
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
    if "GENIE_TEST_NPU_REPORT" not in os.environ:  # what the tests' library for NPUs says at its end is looked at
        _leave_libraries()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    first, *rest = request["arguments"]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        return compile(rest[0], "<string>", "exec")
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *rest[1:]]
        return rest[0]
    sys.path[0] = os.path.dirname(os.path.abspath(first))
    sys.argv = [first, *rest]
    main.__file__ = first
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", first)
    with open(first, "rb") as file:
        return compile(file.read(), first, "exec")


def _kept_whole(modules: dict) -> None:
    """As a fork ends, Python takes modules apart, but not those that it shares with the others: that would take most of
    its time, since memory is copied before it is freed. Called after all other functions that are for the end.
    """
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _leave_libraries() -> None:
    """The process ends, once Python has, without what libraries do then: torch gives back each of its operators. C
    writes first what it has kept back.
    """
    c = ctypes.CDLL(None)
    if hasattr(c, "on_exit"):  # what is registered last is called first
        c.on_exit(ctypes.cast(c._exit, ctypes.c_void_p), None)
        c.__cxa_atexit(ctypes.cast(c.fflush, ctypes.c_void_p), None, None)


_shared: dict = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared))  # nobody frees it
atexit.register(_kept_whole, _shared)  # before any other, so it is the last to be called
_known = set(sys.modules)
for _name in sys.argv[1:]:
    importlib.import_module(_name)
_shared.update((name, module) for name, module in sys.modules.items() if name not in _known)
gc.collect()
gc.freeze()  # so that the forks' collectors need not look at what they share
_frozen = gc.get_freeze_count()
gc.get_freeze_count = lambda: _frozen  # Python would count them one by one, in each fork
_server = sys.modules["__main__"]
_code = _program()
if isinstance(_code, str):
    runpy._run_module_as_main(_code)
else:
    exec(_code, vars(sys.modules["__main__"]))
