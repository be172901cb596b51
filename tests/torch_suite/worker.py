"""Runs tests of one of PyTorch's test files on one device, in this process, and writes a line of JSON for each.

``worker.py FILE --device D --kind K --out O`` lists the file's tests; with ``--tests T`` (a file of names) it runs
those. A line that says which test starts comes before each: the one without an end is where the process died.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Packages of other accelerators that adapted copies of the files import: none of their devices is here.
_STRANGERS = ("torch_npu",)
_LARGEST = 2 * 2**30  # bytes that a test may say it needs


class _NoDevices(types.ModuleType):
    """Stands in for an accelerator's package, with no devices: every name in it is another such module."""

    __path__: Any = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NoDevices(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]  # as a decorator
        name = self.__name__.rpartition(".")[2]
        if name.startswith("skip"):
            return unittest.skip(f"{self.__name__}: no such devices")
        return False if name.startswith("is_") else "" if name.endswith("_name") else 0


class _Strangers:
    """Finds the packages of other accelerators, and everything below them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in _STRANGERS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _NoDevices(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def add_device(device: str) -> None:
    """Make ``device`` what PyTorch's device-generic tests run on, with the CPU's expectations, names and tolerances."""
    from torch.testing._internal import common_device_type

    class Base(common_device_type.CPUTestBase):
        @classmethod
        def get_primary_device(cls) -> str:
            return device

    def bases(except_for: Any = None, only_for: Any = None, *args: Any, **kwargs: Any) -> list[Any]:
        # Adapted copies say `only_for="privateuse1"` where the original says nothing.
        refused = except_for is not None and "cpu" in except_for
        wanted = only_for is None or "cpu" in only_for or "privateuse1" in only_for
        return [Base] if wanted and not refused else []

    common_device_type.get_desired_device_type_test_bases = bases
    common_device_type._has_sufficient_memory = lambda where, size: size <= _LARGEST


def load(path: Path) -> Any:
    """The test file as a module, with its folder's own helpers beside it."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def tests_of(module: Any, kind: str) -> list[tuple[type[unittest.TestCase], str]]:
    """Class and name of every test: ``device``: those made for a device; ``plain``: the others."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase
    from torch.testing._internal.common_utils import TestCase

    found = []
    for value in list(vars(module).values()):
        if not (isinstance(value, type) and issubclass(value, unittest.TestCase)):
            continue
        if value in (TestCase, unittest.TestCase) or value.__module__.startswith("torch."):
            continue
        if issubclass(value, DeviceTypeTestBase) != (kind == "device"):
            continue
        found += [(value, name) for name in unittest.TestLoader().getTestCaseNames(value)]
    return list(dict.fromkeys(found))


class _Result(unittest.TestResult):
    """How one test went, in a word, and the end of its error."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.error = "passed", ""

    def addSkip(self, test: Any, reason: str) -> None:
        self.status, self.error = "skipped", str(reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._bad(err)

    def addError(self, test: Any, err: Any) -> None:
        self._bad(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._bad(err)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.status = "passed"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.status, self.error = "failed", "unexpected success"

    def _bad(self, err: Any) -> None:
        self.status = "failed"
        self.error = "".join(traceback.format_exception(*err))[-4000:]


@contextlib.contextmanager
def _default_device(device: str | None) -> Iterator[None]:
    import torch

    if device is not None:
        torch.set_default_device(device)
    try:
        yield
    finally:
        if device is not None:
            torch.set_default_device(None)


def run_one(case: type[unittest.TestCase], name: str, default_device: str | None) -> dict[str, Any]:
    """Run one test, its class's set-up included."""
    result = _Result()
    start = time.monotonic()
    with _default_device(default_device):
        unittest.TestSuite([case(name)]).run(result)
    _settle()
    return {"status": result.status, "error": result.error, "seconds": round(time.monotonic() - start, 2)}


def _settle() -> None:
    """Run what the test recorded and did not read: an error in it must not come up in the next one."""
    if "mindtorch" in sys.modules:
        import torch

        import mindtorch

        with contextlib.suppress(mindtorch.MaterializationError):
            torch.remote_accelerator.synchronize()  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--kind", choices=("device", "plain"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tests", type=Path)
    options = parser.parse_args()
    sys.argv = [str(options.file)]
    faulthandler.enable()
    sys.meta_path.append(_Strangers())
    import torch

    torch.set_num_threads(1)
    if options.device != "cpu":
        import mindtorch  # noqa: F401
    torch.npu = _NoDevices("torch.npu")  # type: ignore[attr-defined]
    add_device(options.device)
    tests = {f"{case.__name__}.{name}": (case, name) for case, name in tests_of(load(options.file), options.kind)}
    with options.out.open("a") as out:

        def say(**line: Any) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        if options.tests is None:
            say(tests=list(tests))
            return
        for test in options.tests.read_text().split():
            say(start=test)
            say(test=test, **run_one(*tests[test], options.device if options.kind == "plain" else None))
        say(done=True)
    # What a test left behind (threads, half-torn state) must not decide how this process ends: every line is written.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
