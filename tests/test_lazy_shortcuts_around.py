"""Calls that are done at once are so in modes, transforms and threads, beside collectors, and without torch (S14)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch._ext import intercept, native_views, shortcuts
from mindtorch.engine.execute import values

LAZY = "remote_accelerator:0"
LIMITS = (64 << 20, 16 << 20)
pytestmark = pytest.mark.usefixtures("no_call_remembered")


def calls(t: torch.Tensor) -> torch.Tensor:
    return t.view(-1)[1:].mul_(2).reshape(1, -1)


def test_S14_modes_see_every_call() -> None:
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, plain = torch.ones(2, 3, device=LAZY), torch.ones(2, 3)
    for _ in range(3):
        calls(x)
    for mode in (Functions, Operators):
        seen: list[str] = []
        with mode():
            calls(plain)
        expected = list(seen)
        seen.clear()
        with mode():
            calls(x)
        assert seen == expected and len(seen) == 4


def test_S14_inference_mode_gives_its_own_views() -> None:
    x, plain = torch.ones(2, 3, device=LAZY), torch.ones(2, 3)
    for _ in range(4):
        calls(x), calls(plain)
        for t in (x, plain):
            with torch.inference_mode():
                assert not t.view(6).is_inference()
                made = t * 2
                assert made.view(6).is_inference() and made.mul_(2) is made
                calls(t)
    assert torch.equal(x.cpu(), plain) and x._version == plain._version


def test_S14_a_tensor_of_inference_mode_stays_one_outside() -> None:
    x = torch.ones(2, 3, device=LAZY)
    with torch.inference_mode():
        made = torch.ones(2, 3, device=LAZY) * 2
    for _ in range(3):
        assert made.view(6).is_inference() and not x.view(6).is_inference()
    for _ in range(3):
        x.add_(1), x.double()
    with torch.inference_mode():
        made, plain = torch.ones(2, 3, device=LAZY) * 2, torch.ones(2, 3) * 2
    assert made.view(6).is_inference() == plain.view(6).is_inference()
    assert made.double().is_inference() == plain.double().is_inference()
    for t in (made, plain):
        with pytest.raises(RuntimeError, match="inference tensor"):
            t.add_(1)
    assert made.tolist() == plain.tolist()


def test_S14_tangents_go_with_views_and_writes() -> None:
    def tangent(x: torch.Tensor) -> torch.Tensor:
        def f(t: torch.Tensor) -> torch.Tensor:
            return (t * t).view(-1)[1:].mul_(2).view(1, 5)

        return torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]

    x = torch.arange(6.0).view(2, 3)
    for _ in range(4):
        calls(x.clone().to(LAZY))
        (x * x).to(LAZY).view(-1)[1:].mul_(2).view(1, 5)
        assert torch.equal(tangent(x.to(LAZY)).cpu(), tangent(x))


def test_S14_transforms_batch_views_and_writes() -> None:
    def f(t: torch.Tensor) -> torch.Tensor:
        return (t + 1).view(-1)[1:].mul_(2).view(1, 2)

    x = torch.arange(6.0).view(2, 3)
    for _ in range(4):
        f(x[0].to(LAZY))
        assert torch.equal(torch.vmap(f)(x.to(LAZY)).cpu(), torch.vmap(f)(x))


def test_S14_autocast_and_anomalies_are_as_ever() -> None:
    x = torch.ones(2, 3, device=LAZY)
    for _ in range(4):
        calls(x)
        with torch.autocast("cpu"):
            assert calls(x).dtype is torch.float32
    p = torch.ones(6, device=LAZY, requires_grad=True)
    for _ in range(4):
        with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
            made = (p * 2).view(2, 3)
        assert "traceback_" in made.grad_fn.metadata  # type: ignore[union-attr]
        assert "traceback_" not in (p * 2).view(2, 3).grad_fn.metadata  # type: ignore[union-attr]


def test_S14_what_a_class_of_the_program_overrides_is_asked() -> None:
    class Mine(torch.Tensor):
        def view(self, *sizes: int) -> Any:  # type: ignore[override]
            return "mine"

    x = torch.ones(4, device=LAZY)
    for _ in range(3):
        x.view(2, 2)
    assert x.as_subclass(Mine).view(2, 2) == "mine"


def test_S14_views_of_views_stay_a_few_steps_from_their_base() -> None:
    v = base = torch.arange(100.0, device=LAZY)
    for _ in range(60):
        v = v.view(10, 10).view(100)
    assert v._base is base and v._handle.steps <= 6 and v.tolist() == list(range(100))


def test_S14_finalizers_may_record_at_any_time() -> None:
    class Writes:
        def __init__(self) -> None:
            self.itself = self  # for the collector

        def __del__(self) -> None:
            kept.append(other.view(2, 2).add_(1))

    kept: list[torch.Tensor] = []
    other, x = torch.zeros(4, device=LAZY), torch.arange(6.0, device=LAZY)
    before = gc.get_threshold()
    gc.set_threshold(3)
    try:
        for k in range(300):
            Writes()
            v = x.view(2, 3)[1:, 1]
            v.add_(1)
            assert v.shape == (1,) and x._version == k + 1
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 304.0, 5.0]
    assert len(kept) == 300 and other.tolist() == [300.0] * 4


def test_S14_threads_make_views_and_writes_of_their_own() -> None:
    def work(k: int) -> None:
        x = torch.zeros(k + 2, 3, device=LAZY, requires_grad=k % 2 == 0)
        with torch.set_grad_enabled(k % 2 == 1):
            for _ in range(200):
                x.view(-1)[1:4].add_(k)
        found[k] = x.detach().cpu()

    found: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for k in range(4):
        expected = torch.zeros(k + 2, 3)
        expected.view(-1)[1:4] = 200.0 * k
        assert torch.equal(found[k], expected)


def test_S14_numbers_of_calls_that_went_are_not_used_again() -> None:
    interner = values.tape.interner
    x = torch.arange(24.0, device=LAZY)
    try:
        interner.set_limit(1, 1)
        for k in (2, 3, 4, 6, 8, 12) * 5:
            y = x.view(k, 24 // k).t()[1]
            assert y.tolist() == torch.arange(24.0).view(k, 24 // k).t()[1].tolist()
            torch.ones(k, device=LAZY).mul_(k).tolist()
    finally:
        interner.set_limit(*LIMITS)


def test_S14_what_is_remembered_is_bounded() -> None:
    x = torch.arange(24.0, device=LAZY)
    for k in range(5000):
        x.as_strided((2,), (1,), 1)
        x[k % 20 : k % 20 + 1 + k // 1000].mul_(float(200 + k))
    calls, held = shortcuts.remembered()
    assert 0 < calls <= 2048 and held <= 2048 * 800


def test_S14_many_calls_are_remembered_beside_each_other() -> None:
    x = torch.arange(700.0).to(LAZY)

    def look() -> int:
        before = intercept.counts()[1]
        for k in range(600):
            x[k : k + 3]
        return intercept.counts()[1] - before

    shortcuts.forget()
    assert look() == 600  # torch's way
    look()
    assert look() <= 45  # calls whose hashes are alike displace each other only where nine of them are: of few
    assert x[7:10].tolist() == [7, 8, 9]


def test_S14_without_torchs_operators_it_takes_torchs_way(in_python: Callable[..., Any]) -> None:
    ran = in_python(
        """
        import torch, mindtorch
        from mindtorch._ext import intercept, local_state, shortcuts
        mindtorch.stats()
        x = torch.arange(6.0, device="remote_accelerator:0")
        local_state.stop()
        for k in range(4):
            v = x.view(2, 3)[1]
            v.add_(1)
            assert v._base is x and x._version == k + 1 and v.shape == (3,)
        assert shortcuts.remembered() == (0, 0)
        assert x.tolist() == [0, 1, 2, 7, 8, 9]
        p = torch.ones(6, device="remote_accelerator:0", requires_grad=True)
        with torch.no_grad():
            assert not (x * p).requires_grad
        (x * p).sum().backward()
        assert p.grad.tolist() == x.tolist() and p.is_leaf and p.dim() == 1 and not torch.is_complex(p)
        assert torch._C._is_torch_function_enabled()
        print("right")
        """
    )
    assert ran.stdout.split() == ["right"]


def test_S14_torch_makes_the_views_that_are_asked_of_it() -> None:
    """Each operator, of plain tensors beside torch's own: sizes, strides, and the base."""
    x = torch.arange(60.0).view(3, 4, 5)
    cases: dict[str, list[tuple[Any, ...]]] = {
        "aten::alias": [()],
        "aten::squeeze": [()],
        "aten::squeeze.dim": [(0,), (-1,)],
        "aten::unsqueeze": [(0,), (3,), (-1,)],
        "aten::transpose.int": [(0, 2), (-1, 1)],
        "aten::diagonal": [(), (1,), (-1, 1, 2), (0, 0, 2)],
        "aten::unfold": [(2, 3, 1), (0, 2, 2)],
        "aten::permute": [((2, 0, 1),)],
        "aten::view": [((60,),), ((2, 30),), ((3, 2, -1, 5),)],
        "aten::expand": [((2, 3, 4, 5),), ((7, -1, -1, -1),)],
        "aten::select.int": [(0, 2), (1, -1), (-1, 0)],
        "aten::slice.Tensor": [(), (1,), (1, 1), (1, 1, 3), (1, None, 2), (2, 0, 5, 2), (0, -2, 2**63 - 1)],
        "aten::as_strided": [((2, 2), (1, 2)), ((2, 2), (1, 2), 3)],
    }
    assert set(cases) | {"aten::t"} == set(native_views.OPERATORS)
    for name, all_args in cases.items():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        for args in all_args:
            base = x[:, :1] if packet == "squeeze" else x
            expected, found = operator(base, *args), native_views.made(base, name, args, torch.Tensor)
            assert found.data_ptr() == expected.data_ptr(), (name, args)
            assert (found.shape, found.stride()) == (expected.shape, expected.stride()), (name, args)
            assert found._base is expected._base and torch.equal(found, expected)
    matrix = x[0]
    assert native_views.made(matrix, "aten::t", (), torch.Tensor).stride() == (1, 5)
    with_node = native_views.made(torch.ones(2, 3, requires_grad=True), "aten::t", (), torch.Tensor)
    assert type(with_node.grad_fn).__name__ == "TBackward0"
    assert native_views.made(x, "aten::view.dtype", (torch.int32,), torch.Tensor) is None
    assert native_views.made(x, "aten::view", (tuple([1] * 20 + [60]),), torch.Tensor) is None


def test_S14_what_views_rest_on_is_what_torch_says_itself() -> None:
    x = torch.ones(2)
    address, word, keys, autograd = native_views.facts(x)
    assert keys == torch._C._dispatch_keys(x).raw_repr()
    always = torch._C._dispatch_tls_local_exclude_set().raw_repr()
    with torch._C._AutoDispatchBelowAutograd():
        assert torch._C._dispatch_tls_local_exclude_set().raw_repr() == always | autograd
    assert address > 1 << 16 and 0 < word < 64
