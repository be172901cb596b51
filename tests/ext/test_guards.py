"""L7: what stands aside while the engine itself calls torch, and is back afterwards."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch._ext import guards


def test_L7_what_the_engine_makes_within_inference_mode_is_ordinary() -> None:
    with torch.inference_mode():
        with guards.Quiet():
            made = torch.ones(2)
            assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() and torch.ones(2).is_inference()
    assert not made.is_inference()
    made.requires_grad_().add(1).sum().backward()
    assert made.grad is not None and made.grad.tolist() == [1.0, 1.0]


def test_L7_gradients_are_recorded_within_only_where_they_were_before() -> None:
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            with guards.Quiet(True):
                assert torch.is_grad_enabled() is enabled
            with guards.Quiet():
                assert not torch.is_grad_enabled()
            assert torch.is_grad_enabled() is enabled


class _Sees(TorchDispatchMode):
    """And a dispatch mode of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class _Hears(TorchFunctionMode):
    seen: list[Any]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


#: What a program may have turned on, by name.
SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a dispatch mode": _Sees,
    "a function mode": _Hears,
}


def state() -> tuple:
    """Of the calling thread, as torch tells it."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_any_autocast_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._C._is_torch_function_enabled(),
        torch._C._functorch.peek_interpreter_stack() is not None,
        [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in guards_keys()],
    )


def guards_keys() -> tuple:
    keys = torch._C.DispatchKey
    return keys.Negative, keys.Conjugate, keys.ZeroTensor


@pytest.mark.parametrize("names", list(itertools.permutations(SURROUNDINGS, 2)), ids=" in ".join)
@pytest.mark.parametrize("fails", [False, True])
def test_L7_all_that_a_program_has_turned_on_stands_aside_and_is_back_afterwards(names: tuple, fails: bool) -> None:
    _Hears.seen = []
    with contextlib.ExitStack() as stack:
        entered = [stack.enter_context(SURROUNDINGS[name]()) for name in names]
        before = state()
        for grad in (False, True):
            with contextlib.suppress(ZeroDivisionError), guards.Quiet(grad):
                inside = (
                    torch.is_grad_enabled(),
                    torch.is_inference_mode_enabled(),
                    torch._C._is_any_autocast_enabled(),
                    torch._C._len_torch_dispatch_stack(),
                    torch._C._is_torch_function_enabled(),
                )
                for mode in entered:
                    if isinstance(mode, (_Sees, _Hears)):
                        mode.seen.clear()
                made = torch.mm(torch.ones(2, 2), torch.ones(2, 2))
                seen = [mode.seen for mode in entered if isinstance(mode, (_Sees, _Hears)) and mode.seen]
                if fails:
                    raise ZeroDivisionError
            assert inside == (grad and before[0] and not before[1], False, False, 0, False)
            assert (made.dtype, made.is_inference(), seen) == (torch.float32, False, [])
            assert state() == before
        with guards.Unseen():
            assert state()[:3] == before[:3] and torch._C._len_torch_dispatch_stack() == 0
            assert not torch._C._is_torch_function_enabled()
        assert state() == before


def test_L7_within_a_transform_and_within_torch_dispatch_calls_are_ordinary_ones() -> None:
    told: list[Any] = []
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor

    def mapped(x: torch.Tensor) -> torch.Tensor:
        before = state()
        with guards.Quiet():
            told.append(wrapped(torch.ones(2)))
        assert state() == before and before[6] and wrapped(torch.ones(2))
        return x.sum()

    assert torch.func.grad(mapped)(torch.ones(2)).tolist() == [1, 1] and told == [False]

    class Within(_Sees):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = state()
            with guards.Quiet():
                # Lazy conjugation and negation count.
                told.append(torch.view_as_real(torch.tensor([1 + 2j]).conj().resolve_conj()).tolist())
                told.append(torch.tensor([1 + 2j]).conj().imag.neg().tolist())
                told.append(state()[-1])
            assert state() == before
            return func(*args, **(kwargs or {}))

    del told[:]
    with Within():
        torch.ones(2)
    assert told == [[[1.0, -2.0]], [2.0], [False] * 3]


def test_L7_modes_are_those_that_are_said_and_in_this_order() -> None:
    first, second, third = _Sees(), _Sees(), _Sees()
    with first, second:
        with guards.Modes(third, first):
            stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
            assert stack == [third, first]
        assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == [first, second]
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_L7_draws_are_of_the_index_s_own_state_and_go_on_there() -> None:
    generator = torch.Generator()
    states = {k: torch.Generator().manual_seed(k).get_state() for k in range(2)}
    generator.manual_seed(9)
    expected = {k: torch.rand(4, generator=torch.Generator().manual_seed(k)).tolist() for k in (0, 1, 9)}
    found: dict[int, list[float]] = {0: [], 1: [], 9: []}
    inside: set[int] = set()
    for _ in range(2):
        found[9] += torch.rand(1, generator=generator).tolist()
        for index in (0, 1):
            with guards.Drawing(generator, states, index, inside):
                assert inside == {index}
                found[index] += torch.rand(1, generator=generator).tolist()
                with guards.Drawing(generator, states, index, inside):  # nested: nothing changes
                    found[index] += torch.rand(1, generator=generator).tolist()
                assert inside == {index}
            assert inside == set()
        found[9] += torch.rand(1, generator=generator).tolist()
    assert found == expected
