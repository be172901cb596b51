"""Which model does a module belong to, that the program calls by itself: ``agent.critic(x)``?

A module does not know who holds it. Of all modules that are alive, those that hold it are found by looking at each,
which takes milliseconds; it is done when a module is met that runs by itself, and rarely once nothing comes of it.

Also what a module holds, in the order of torch's methods, but whatever its class makes of them: one may call something
else ``parameters``, ``modules`` or ``children``, a list, an attribute. Another thread may be making the module: its
dictionaries are copied before anything is done with what they hold.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from mindtorch._ext import paths

#: Called with the time (ns, on the clock of profiles) when a search began, once it is over.
watching: list[Callable[[int], None]] = []

#: So many searches for modules of one class without parameters that nobody held, and so many in all; then ever fewer.
MOST_IN_VAIN, MOST = 8, 64

_in_vain: Counter[str] = Counter()  # by class: a loss function may be made anew in each step
_searches = 0


def forget() -> None:
    """Search as at first."""
    global _searches
    _searches = 0
    _in_vain.clear()


def of(module: torch.nn.Module, known: Sequence[torch.nn.Module]) -> tuple[torch.nn.Module, list[str]]:
    """(the model that holds it, the names that lead from there to it); itself, where nobody does.

    Of several: one of `known`; else that of most modules.
    """
    global _searches
    began = time.perf_counter_ns()
    for model in known:
        for path, candidate in named_modules(model):
            if candidate is module:
                return model, path.split(".") if path else []
    name = type(module).__qualname__
    if first_parameter(module) is None:
        _in_vain[name] += 1
        if not _is_due(_in_vain[name], MOST_IN_VAIN):
            return module, []
    _searches += 1
    if not _is_due(_searches, MOST):
        return module, []
    found = _search(module)
    if found[0] is not module:
        _in_vain[name] = 0
    for watch in watching:
        watch(began)
    return found


def _is_due(times: int, most: int) -> bool:
    return times <= most or times & (times - 1) == 0


def _search(module: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    holders: dict[int, list[tuple[torch.nn.Module, str]]] = defaultdict(list)
    for holder in paths.living(torch.nn.Module):
        children = vars(holder).get("_modules")
        for name, child in children.copy().items() if isinstance(children, dict) else ():  # a scripted one has another
            if child is not None:
                holders[id(child)].append((holder, name))
    # From the module outwards, the nearest first.
    below: dict[int, tuple[torch.nn.Module, str] | None] = {id(module): None}
    todo, outermost = [module], []
    for at in todo:
        further = [(holder, name) for holder, name in holders.get(id(at), ()) if id(holder) not in below]
        for holder, name in further:
            below[id(holder)] = (at, name)
            todo.append(holder)
        if not further:
            outermost.append(at)
    model = max(outermost, key=lambda at: len(modules(at)), default=module)
    return model, _names(model, below)


def _names(model: torch.nn.Module, below: Mapping[int, tuple[torch.nn.Module, str] | None]) -> list[str]:
    names = []
    step = below[id(model)]
    while step is not None:
        child, name = step
        names.append(name)
        step = below[id(child)]
    return names


# ---- what a module holds ---------------------------------------------------------------------------------------------
#: The module itself, its name empty, and all under it, each once, parents first.
named_modules = paths.named_modules
#: The same without names, which take many times as long.
modules = paths.modules_under
first_parameter = paths.first_parameter
#: Parameters, then buffers, each once.
named_tensors = paths.named_tensors


def held(module: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.Tensor]]:
    """(parameters, buffers) of `module` and of all that is under it, each once.

    In the order of ``parameters()`` and ``buffers()``, which name each one.
    """
    return paths.held_by(modules(module))


# ---- what is put into modules ----------------------------------------------------------------------------------------
_Told = Callable[[Any, str, Any], object]  # the module, the name, what is put there


class _Registrations:
    """One hook of torch's for all who are told: torch goes through its table of hooks, which raises in a thread that is
    making a module if another thread, whose profile ends, takes a hook out of it that would be next."""

    def __init__(self, register: Callable[[Callable[..., None]], Any]) -> None:
        self._register, self._lock, self._listeners = register, threading.Lock(), list[_Told]()
        self._hook: Any = None

    @contextmanager
    def told_to(self, listener: _Told) -> Iterator[None]:
        """Within the block, it is called with each."""
        with self._lock:
            if not self._listeners:
                self._hook = self._register(self._tell)
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)
                if not self._listeners:
                    self._hook.remove()

    def _tell(self, module: Any, name: str, what: Any) -> None:
        for listener in list(self._listeners):
            listener(module, name, what)


#: Of parameters, and of modules, that are put into modules.
parameters_put = _Registrations(register_module_parameter_registration_hook)
modules_put = _Registrations(register_module_module_registration_hook)
