"""Settings of torch's that kernels look at while they run: what was recorded before a change runs before it (SPEC L7).

Torch's Python changes each of them through a function of ``torch._C``, whoever asks for it: a function, a context
manager, an attribute of ``torch.backends``. So a stand-in for each such function sees every change.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._ext import lazy as _core
from .._ext.standin import SettingHook
from ..base.patching import Patch
from ..engine import passes
from ..engine.execute import values
from ..engine.execute.ambient import TABLE, Setting
from ..engine.record import predict

__all__ = ["TABLE", "note", "of_chip", "patches"]


def patches() -> Iterator[Patch]:
    """(owner, name, stand-in) of each of these functions, wherever torch keeps it."""
    stand_ins = {
        id(original): _stand_in(setting, original)
        for setting in TABLE
        if (original := getattr(torch._C, setting.setter, None)) is not None
    }
    # torch.set_num_threads and its like, and the attributes of torch.backends.mkldnn and its like. Copies, as other
    # threads may be importing meanwhile.
    places = [(owner, name, found) for owner in (torch._C, torch) for name, found in vars(owner).copy().items()]
    for backend in [type(m) for name, m in sys.modules.copy().items() if name.startswith("torch.backends")]:
        for found in list(vars(backend).values()):
            if (setter := getattr(found, "__dict__", {}).get("setter")) is not None:
                places.append((found, "setter", setter))
    for owner, name, found in places:
        if (stand_in := stand_ins.get(id(found))) is not None:
            yield owner, name, stand_in


def _stand_in(setting: Setting, original: Callable[..., Any]) -> SettingHook:
    def before(args: tuple, kwargs: dict[str, Any]) -> None:
        seen = _seen_by_pending(setting)
        if (seen or passes.rest_on_settings()) and setting.changes(args, kwargs):
            if seen:
                values.settle(setting.setter.removeprefix("_"))
            passes.forget_settings()

    hook = SettingHook(original, values.lock, before, note if setting.shapes else _nothing)
    functools.update_wrapper(hook, original)
    return hook


def _nothing() -> None:
    """What is to be done after a change that predictions do not depend on."""


def _seen_by_pending(setting: Setting) -> bool:
    """Would what is pending run under this setting?"""
    if not values.tape.n_pending:
        return False
    if _forked and setting.setter == "set_num_threads":
        # The workers of a DataLoader start with this. Torch's threads did not come along with the fork: what runs
        # before there is only one to work would wait for them for good.
        return False
    return not setting.cuda or values.executor().device.type == "cuda"


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


# ---- what predictions depend on --------------------------------------------------------------------------------------
_MOST_WORLDS = 1024
_worlds: dict[tuple[Any, ...], int] = {}
_world = 0
_chip: tuple[int, int] | None = None


def of_chip(capability: tuple[int, int] | None) -> None:
    """What an estimate's calls are refused by, beside torch's settings: its target's; None: no estimate of a GPU."""
    global _chip
    _chip = capability
    note()


def note() -> None:
    """Predictions hold for the settings that they were made under: use those for the present ones from now on."""
    global _world
    state = (_chip, *(s.current() for s in TABLE if s.shapes and s.current is not None))
    if state not in _worlds and len(_worlds) >= _MOST_WORLDS:
        _core.forget_calls()
        _worlds.clear()
    world = _worlds.setdefault(state, len(_worlds))
    if world != _world:
        _world = world
        _core.set_world(world)
        predict.forget()
