"""The program's default device is a recording one, though nothing in the program says so (SPEC C9): ``genie run``.

As `torch.set_default_device`, but in all threads, without a mode that sees every call, and for programs that were
written for the CPU alone: plain tensors join those on the device (`mindtorch.engine.record.plain_operands`), and
torch's default generator is the device's, so that the program draws the numbers that it draws without us.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device as _torch_device
from torch.utils._device import DeviceContext

from .._ext import hooks as _hooks
from ..base.patching import Patch, replaced
from ..devices import mode, names
from ..devices.lazy_device import DEVICE_TYPE
from ..engine.execute import tensors
from ..engine.record.plain_operands import bring_together
from . import creation, generators, hooks, loaders, namespace, parallel, pretrained, slot
from .device_module import of_generator

__all__ = ["default_device", "one_generator"]

#: Share memory with what they are given, unless they are given numbers.
_SHARES = ("as_tensor", "asarray")
#: Of torch's own list, what a recording device does not hold.
_NOT_HELD = frozenset({"empty_quantized"})
#: Torch's own code that counts steps and seeds: it reads each number right away.
_BOOKKEEPING = ("torch.optim.", "torch.utils.data.")
_torch_get_default = torch.get_default_device


@contextmanager
def default_device(index: int) -> Iterator[None]:
    """Within the block, ``remote_accelerator:index`` is the default device of all threads.

    A process that the program forks has torch's own default: what it makes goes back as bytes, as batches do.
    """
    hooks.enable()
    pretrained.watch()
    nested = (torch.nested, "nested_tensor", _nested(torch.nested.nested_tensor))
    told = [(torch, "get_default_device", _get_default), nested, loaders.workers()]
    if slot.module.is_available():
        told += [*parallel.data_parallel(), *parallel.as_without_devices()]
    before = names.set_default_everywhere(names.device(DEVICE_TYPE, index))
    try:
        with (
            one_generator(index),
            mode.enter(default=index, meets=bring_together, refuses=namespace.unused),
            replaced(told),
        ):
            yield
    finally:
        names.set_default_everywhere(before)


@contextmanager
def one_generator(index: int) -> Iterator[None]:
    """Within the block, torch's default generator is that of ``remote_accelerator:index``."""
    hooks.enable()
    tensors.in_use()
    tensors.on_device()
    generators.watch_all()
    _hooks.take_default(_make)
    with mode.enter(draws=index), replaced(_methods()):
        yield


def _methods() -> Iterator[Patch]:
    for name in _ASKED:
        yield torch._C.Generator, name, _hooks.DrawHook(_ask, True)


def _ask(method: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A method of torch's default generator, which is the device's; of any other generator, torch's own."""
    index = generators.sequence_of() if args[0] is torch.default_generator else None
    return method(*args, **kwargs) if index is None else _ASKED[method.__name__](method, index, *args)


def _seed(method: Any, index: int, generator: torch.Generator, *seed: Any) -> Any:
    result = method(generator, *seed)  # for what draws from it without being asked
    creation.manual_seed(seed[0] if seed else result, index)
    return result


def _read(method: Any, index: int, generator: torch.Generator) -> Any:
    return of_generator(index, method.__name__, f"generator.{method.__name__}")


def _set(method: Any, index: int, generator: torch.Generator, state: torch.Tensor) -> torch.Generator:
    state = state.cpu() if isinstance(state, torch.Tensor) else state
    method(generator, state)  # refuses what is none
    slot.module.set_rng_state(state, index)
    return generator


#: What a generator does that tells or changes where it stands.
_ASKED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("manual_seed", "seed"), _seed),
    **dict.fromkeys(("initial_seed", "get_state", "clone_state", "__reduce__"), _read),
    "set_state": _set,
}


def _get_default() -> Any:
    chosen = any(isinstance(each, DeviceContext) for each in _get_current_function_mode_stack())
    if chosen or mode.now.default is None:  # `with torch.device(...)`, or the program's own set_default_device
        return _torch_get_default()
    return tensors.torch_device(mode.now.default)


def _nested(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def nested_tensor(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None and mode.now.default is not None:
            kwargs["device"] = _get_default()
        return make(*args, **kwargs)

    return nested_tensor


def _make(func: Callable[..., Any], args: tuple, given: dict[str, Any]) -> Any:
    """``func(*args, **given)``, which names no device of ours, and may draw; NotImplemented: as torch has it."""
    kwargs = generators.without_default(given)
    name, generator = func.__name__, kwargs.get("generator")
    default = mode.now.default
    here = tensors.torch_device(default) if default is not None and _takes_default(name, args, kwargs) else None
    if isinstance(generator, generators.Generator):
        return hooks.create(func, args, kwargs if here is None else {**kwargs, "device": generator.device})
    if kwargs.get("pin_memory"):
        return hooks.create(func, args, kwargs)
    if here is not None and not _is_bookkeeping(sys._getframe(1)):
        if torch._C._len_torch_function_stack():
            return func(*args, **kwargs)  # which modes of the program see first; they call it again
        if generator is None:
            return hooks.create(func, args, {**kwargs, "device": here})
        wanted = kwargs.pop("requires_grad", False)
        made = func(*args, **{**kwargs, "device": "cpu"}).to(here)
        return made.requires_grad_() if wanted else made
    if name in creation.RANDOM and generator is None:
        with generators.one_sequence():
            return func(*args, **kwargs)
    return NotImplemented if kwargs is given else func(*args, **kwargs)


def _takes_default(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Is this a call of what makes a tensor on the default device, as torch counts them?"""
    if kwargs.get("device") is not None or kwargs.get("out") is not None:
        return False
    first = args[0] if args else next(iter(kwargs.values()), None)
    if name in _SHARES and isinstance(first, (torch.Tensor, numpy.ndarray)):
        return False
    if name == "normal":  # of which torch's list knows nothing: of numbers it is one of them
        return not any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
    return name in _constructors()


_found: set[str] = set()


def _constructors() -> set[str]:
    if not _found:
        _found.update({function.__name__ for function in _torch_device._device_constructors()} - _NOT_HELD)
    return _found


def _is_bookkeeping(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_BOOKKEEPING)


def _in_child() -> None:
    if mode.now.draws is not None:
        mode.change(default=None, draws=None)


os.register_at_fork(after_in_child=_in_child)
