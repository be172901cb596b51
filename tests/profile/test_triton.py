"""Kernels that a program launches with Triton (SPEC C2, C4, C10), on a stand-in with Triton's names, which runs them on
CPUs. Where Triton is installed, its names are compared with those."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._triton import has_triton_package

from mindtorch.patch import triton_kernels
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

JIT = """
class KernelInterface:
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)

class JITFunction(KernelInterface):
    def __init__(self, fn):
        self.fn, self.__name__, self.launches = fn, fn.__name__, 0

    def run(self, *args, grid, warmup, **kwargs):
        from .driver import driver
        driver.active.get_current_device()
        self.launches += 1
        if not warmup:
            self.fn(*args, **kwargs)
        return f"compiled {self.__name__}"
"""
AUTOTUNER = """
from .jit import KernelInterface

class Autotuner(KernelInterface):
    def __init__(self, fn, configs):
        self.fn, self.configs = fn, configs

    def _bench(self, *args, config, **meta):
        raise RuntimeError("Triton Error [CUDA]: initialization error")

    def run(self, *args, **kwargs):
        timings = {i: self._bench(*args, config=config, **kwargs) for i, config in enumerate(self.configs)}
        return self.fn.run(*args, **kwargs, **self.configs[min(timings, key=timings.get)])
"""
DRIVER = """
class DriverConfig:
    def __init__(self):
        self._active = None

    @property
    def active(self):
        if self._active is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self._active

driver = DriverConfig()
"""


class Cpu:
    get_current_device = staticmethod(int)


@pytest.fixture
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    has_triton_package()  # torch remembers the answer, which must not be the stand-in
    importlib.import_module("torch._dynamo.utils")
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("")
    (runtime / "__init__.py").write_text("")
    for name, source in (("jit", JIT), ("autotuner", AUTOTUNER), ("driver", DRIVER)):
        (runtime / f"{name}.py").write_text(textwrap.dedent(source))
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: importlib.import_module(f"triton.runtime.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]


@pytest.fixture
def add(triton: Any) -> Any:
    def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int, BLOCK: int = 1) -> None:
        out.numpy()[:] = x.detach().numpy() + y.detach().numpy()

    return triton("jit").JITFunction(add)


def estimate(program: Any) -> dict[str, Any]:
    estimator = Estimator(target=targets.find("h100"))
    with estimator:
        program()
    return estimator.report(command=["program.py"], exit_code=0, interrupted=False, workload=None)


def row(report: dict[str, Any], name: str) -> dict[str, Any]:
    return {each["name"]: each for each in report["ops"]}[name]


@pytest.mark.parametrize("loaded", [True, False])
def test_C4_a_triton_kernel_is_an_operator_of_an_estimate(triton: Any, loaded: bool) -> None:
    if loaded:
        triton("jit"), triton("driver")
    seen: dict[str, Any] = {}

    def program() -> None:
        kernel = triton("jit").JITFunction(len)
        x = torch.ones(1 << 22, device="cuda", requires_grad=True)
        y, few = x.exp(), torch.zeros(3, device="cuda", dtype=torch.int64)
        seen["gives"] = kernel[(1,)](y, y, n=3)
        kernel[(1,)](few, few)
        kernel.run(few, grid=(1,), warmup=True)
        y.sum().backward()  # which a write known to autograd would have kept from it
        seen["few"] = few[0].item()
        active = triton("driver").driver.active
        seen["device"] = active.get_active_torch_device(), active.get_current_device()
        seen["device"] += tuple(active.utils.get_device_properties(0)[k] for k in ("max_shared_mem", "warpSize"))
        seen["target"] = vars(active.get_current_target())
        seen["launches"] = kernel.launches

    report = estimate(program)
    assert row(report, "triton::len")["calls"] == 2
    assert row(report, "triton::len")["about_s"] > 16e6 / 3.35e12  # y's bytes at the bandwidth of memory
    assert [each["op"] for each in report["assumed"]] == ["item"], "what a kernel wrote is not known"
    assert seen["gives"] is None and seen["launches"] == 0
    assert seen["device"] == (torch.device("cuda", 0), 0, 232448, 32)
    assert seen["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32}
    with pytest.raises(RuntimeError, match="0 active drivers"):
        _ = triton("driver").driver.active  # as before


def test_C4_a_tuner_of_triton_takes_its_first_kernel(triton: Any, add: Any) -> None:
    chosen: list[int] = []

    def program() -> None:
        kernel = triton("jit").JITFunction(lambda *args: None)
        kernel.__name__ = "tuned"
        monkeyed = triton("jit").JITFunction.run
        kernel.run = lambda *args, BLOCK, **kwargs: (chosen.append(BLOCK), monkeyed(kernel, *args, **kwargs))
        tuner = triton("autotuner").Autotuner(kernel, [{"BLOCK": 64}, {"BLOCK": 128}])
        tuner[(1,)](torch.ones(3, device="cuda"))

    assert row(estimate(program), "triton::tuned")["calls"] == 1
    assert chosen == [64]


def test_C2_a_triton_kernel_is_an_operator_of_a_profile(triton: Any, add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton("driver").driver, "_active", Cpu)
    x = torch.randn(8, requires_grad=True)
    y, out = x.exp(), torch.zeros(8)
    version = y._version, out._version
    with Profiler() as profiler:
        gives = add[(1,)](y, y, out, n=8)
        y.sum().backward()
        torch.ones(3).sum()
    assert gives == "compiled add" and add.launches == 1
    assert torch.equal(out, 2 * y.detach()) and torch.equal(x.grad, y.detach())
    assert (y._version, out._version) == version
    report = profiler.report()
    assert row(report, "triton::add")["calls"] == 1
    assert not any("detach" in each["name"] for each in report["ops"] if each["calls"] > 1)
    assert add[(1,)](y, y, out, n=8) == "compiled add" and add.launches == 2  # the profile is over


def test_C2_an_error_of_a_triton_kernel_is_the_programs(triton: Any, add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton("driver").driver, "_active", Cpu)
    with Profiler():
        with pytest.raises(ValueError, match="could not be broadcast"):
            add[(1,)](torch.ones(2), torch.ones(3), torch.ones(2), n=2)
        add[(1,)](torch.ones(2), torch.ones(2), out := torch.zeros(2), n=2)
    assert torch.equal(out, torch.full((2,), 2.0)) and add.launches == 2
    assert not triton_kernels._waiting.calls


def test_C2_a_mode_of_the_programs_keeps_no_triton_kernel(
    triton: Any, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may answer for operators that it does not know; a launch is none of them."""

    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            return None if func.namespace == "triton" else func(*args, **kwargs or {})

    monkeypatch.setattr(triton("driver").driver, "_active", Cpu)
    with Profiler(), Silent():
        add[(1,)](torch.ones(2), torch.ones(2), out := torch.zeros(2), n=2)
    assert out.tolist() == [2, 2] and add.launches == 1


RECORDED = """
import torch
import mindtorch
mindtorch.enable()
from triton.runtime.jit import JITFunction

class Descriptor:
    base = torch.ones(2, device="remote_accelerator:0")

kernel = JITFunction(lambda *args: None)
kernel.__name__ = "add"
for given in (Descriptor.base, [Descriptor()]):
    try:
        kernel[(1,)](given, n=2)
    except mindtorch.UnsupportedOperationError as error:
        print(error)
print(kernel.launches)
"""


def test_L9_a_triton_kernel_takes_no_recorded_tensors(
    triton: Any, tmp_path: Path, after_torch: Callable[..., Any]
) -> None:
    done = after_torch(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + RECORDED)
    expected = (
        "[Triton's kernel add] expected tensors in the memory of a GPU of this process, got recorded ones, which are "
        "computed on cpu"
    )
    assert done.stdout.splitlines() == [expected, expected, "0"]


def test_C2_a_triton_that_is_loaded_after_a_profile_or_an_estimate_is_as_it_is(
    triton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Profiler():
        torch.ones(2).exp()
    estimate(lambda: torch.ones(2, device="cuda").exp())
    assert triton("driver").driver._active is None
    monkeypatch.setattr(triton("driver").driver, "_active", Cpu)
    monkeypatch.setattr(triton_kernels, "_tell", pytest.fail)
    kernel = triton("jit").JITFunction(lambda *args: None)
    kernel[(1,)](torch.ones(3))
    assert kernel.launches == 1


def test_C4_kernels_whose_names_torch_would_not_take_are_operators_too(triton: Any) -> None:
    def program() -> None:
        for name in ("a.b", "a_b", "\u03b1"):
            kernel = triton("jit").JITFunction(len)
            kernel.__name__ = name
            kernel[(1,)](torch.ones(3, device="cuda"))

    report = estimate(program)
    assert (row(report, "triton::a_b")["calls"], row(report, "triton::_")["calls"]) == (2, 1)


def test_C4_a_triton_without_these_names_is_loaded_all_the_same(triton: Any, tmp_path: Path) -> None:
    for name in ("jit", "autotuner", "driver"):
        (tmp_path / "triton" / "runtime" / f"{name}.py").write_text("other = 1\n")

    def program() -> None:
        assert {triton(name).other for name in ("jit", "autotuner", "driver")} == {1}
        torch.ones(2, device="cuda").exp()

    assert row(estimate(program), "aten::exp")["calls"] == 1
    with Profiler():
        triton("jit")
    assert not list(triton_kernels.refused(triton("jit")))


def test_C4_names_of_triton_are_those_of_the_stand_in() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    autotuner = importlib.import_module("triton.runtime.autotuner")
    driver = importlib.import_module("triton.runtime.driver").driver
    assert {"grid", "warmup"} <= set(inspect.signature(jit.JITFunction.run).parameters)
    assert "config" in inspect.signature(autotuner.Autotuner._bench).parameters
    assert {"active", "_active"} & set(vars(driver))
