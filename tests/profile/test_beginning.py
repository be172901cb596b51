"""C2: a profile that fails to begin, or is interrupted meanwhile, leaves nothing behind; how profiles find modules."""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import subprocess
import sys
import threading
from collections.abc import Callable
from gc import get_freeze_count  # while the tests run, conftest.py has another in its place
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import mindtorch
from mindtorch._ext import ledger
from mindtorch.base.import_hooks import when_loaded
from mindtorch.devices import mode
from mindtorch.engine import semantics
from mindtorch.patch import hooks
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import collect, peak


def _watching() -> list[Any]:
    """What a profile puts in the place of other things, and where it says that it wants to be told."""
    return [
        torch.nn.Module.__call__, torch.autograd.graph._engine_run_backward, threading.Thread._bootstrap_inner,
        subprocess.Popen.__init__, [*sys.meta_path], len(_get_current_dispatch_mode_stack()), [*collect._active],
        [*peak.listening], semantics._installs, sys.getprofile(), mode.now.estimate, ledger.logs(),
        gc.get_freeze_count() > 0, hooks.is_enabled(),
    ]  # fmt: skip


def _interrupts(code: CodeType, line: int) -> Callable[[FrameType, str, Any], Any]:
    """A function for `sys.settrace` that interrupts the code at this line."""

    def within(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return within

    return lambda frame, _event, _arg: within if frame.f_code is code else None


def _estimator() -> Estimator:
    return Estimator(target=targets.find("h100"))


@pytest.mark.parametrize(
    ("make", "function", "begins"),
    [
        (Profiler, Profiler._begin, True),
        (Profiler, Profiler._stop, False),
        (Profiler, Profiler._last_look, False),
        (_estimator, Estimator._begin, True),
    ],
)
def test_C2_a_run_that_is_interrupted_at_any_line_leaves_nothing(
    make: Any, function: Any, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if make is _estimator:  # as in a program's own process: it freezes what is there
        monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
        gc.unfreeze()
    code, model = function.__code__, torch.nn.Linear(2, 2)
    with make():
        model(torch.ones(1, 2))  # recorded devices are in use from the first estimate on
    before, traced, interrupted = _watching(), sys.gettrace(), 0
    lines = sorted({line for _start, _end, line in code.co_lines() if line} - {code.co_firstlineno})
    for line in lines:
        try:
            with contextlib.nullcontext() if begins else make():
                sys.settrace(_interrupts(code, line))
                with make() if begins else contextlib.nullcontext():
                    model(torch.ones(1, 2))
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(traced)
        assert _watching() == before, line
    assert interrupted >= len(lines) - 4  # some are of other cases
    for kind in (Profiler, _estimator):
        with kind() as run:
            model(torch.ones(1, 2))
        assert "aten::addmm" in {row["name"] for row in run.report()["ops"]}
    gc.freeze()


def test_L12_tracking_of_which_a_part_fails_to_begin_leaves_torch_as_it_was(
    after_torch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
        import torch, mindtorch
        from mindtorch.engine import semantics
        def fails():
            raise MemoryError
        before, parts = torch.nn.Module.__call__, semantics._PARTS
        for k, (_begin, end) in enumerate(parts):
            semantics._PARTS = (*parts[:k], (fails, end), *parts[k + 1 :])
            try:
                semantics.install()
            except MemoryError:
                print(torch.nn.Module.__call__ is before, semantics.is_installed())
        semantics._PARTS = parts
        with mindtorch.profile() as profile:
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
        print(sorted(row["name"] for row in profile.report()["ops"] if row["name"] in ("aten::addmm", "aten::ones")))
    """
    assert after_torch(code).stdout.splitlines() == [*["True False"] * 3, "['aten::addmm', 'aten::ones']"]


def test_C1_profiles_within_each_other_ask_each_finder_once_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(mindtorch.profile())
        with pytest.raises(ModuleNotFoundError):
            __import__("no_such_module_anywhere")
    # Each of ours is asked by Python, too, and asks those behind it again: none tries the others' orders.
    assert 1 <= len(asked) <= 13


@pytest.mark.parametrize("fails", [False, True])
def test_C1_what_another_thread_is_loading_is_waited_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    begun, goes_on, seen = threading.Event(), threading.Event(), []
    (tmp_path / "slowly_loaded.py").write_text(
        "import sys\nhere = sys.modules['__events__']\nhere.begun.set()\nassert here.goes_on.wait(60)\n"
        + ("raise ImportError('no')" if fails else "value = 1\n")
    )
    events = type(sys)("__events__")
    events.begun, events.goes_on = begun, goes_on
    monkeypatch.setitem(sys.modules, "__events__", events)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])

    def loads() -> None:
        with contextlib.suppress(ImportError):
            __import__("slowly_loaded")

    other = threading.Thread(target=loads)
    other.start()
    assert begun.wait(60)
    waits = threading.Thread(target=lambda: when_loaded("slowly_loaded", lambda m: seen.append(getattr(m, "value", 0))))
    waits.start()
    assert seen == []
    goes_on.set()
    for thread in (other, waits):
        thread.join(60)
    try:
        assert seen == ([] if fails else [1])
    finally:
        sys.modules.pop("slowly_loaded", None)


def test_C2_a_profile_follows_the_compiler_that_another_thread_is_loading(
    after_torch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
        import torch, mindtorch, importlib.machinery, sys, threading, types
        begun, goes_on, handler = threading.Event(), threading.Event(), types.SimpleNamespace()
        handler.start_callbacks, handler.end_callbacks = [], []
        handler.register_start_callback = handler.start_callbacks.append
        handler.register_end_callback = handler.end_callbacks.append
        class Loader:
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                begun.set()
                assert goes_on.wait(60)
                module.callback_handler = handler
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "torch._dynamo.callback":
                    return importlib.machinery.ModuleSpec(name, Loader())
        sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
        sys.modules["torch._dynamo"].__path__ = []
        sys.meta_path.insert(0, Finder())
        thread = threading.Thread(target=__import__, args=("torch._dynamo.callback",))
        thread.start()
        assert begun.wait(60)
        threading.Timer(0.2, goes_on.set).start()
        with mindtorch.profile():
            thread.join()
            print(len(handler.start_callbacks), len(handler.end_callbacks))
        print(len(handler.start_callbacks), len(handler.end_callbacks))
    """
    assert [line for line in after_torch(code).stdout.splitlines() if len(line) == 3] == ["1 1", "0 0"]
