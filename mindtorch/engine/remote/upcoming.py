"""Modules that a segment ends before: the program reads a value in the middle of a model's ``forward`` (SPEC R5).

A plan of the records alone would place the modules that have run, and the next plan would have what is left. So the
modules of the running model that have no worker yet are planned as if each ran once, in the order in which the model
holds them, and gave the next one what the last record made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from ..._ext import context as _context
from ..._ext import lazy as _core
from ...base.errors import MaterializationError
from ..semantics import modules
from .division import GENERATOR
from .storage_homes import Record

__all__ = ["Upcoming", "upcoming"]

_FORWARD = _context.PHASES.index("forward")

#: (Records that come, what stands for the values of parameters and buffers that they begin with, by slot.)
Upcoming = tuple[list[Record], dict[int, torch.Tensor]]


def upcoming(records: Sequence[Record], met: Collection[str]) -> Upcoming:
    """What comes after the records, if a model is running now; met: paths of modules that have workers."""
    comes: list[Record] = []
    begins: dict[int, torch.Tensor] = {}
    ran = {record[0] for record in records}
    given = _last(records)
    for module, path in _running():
        if path in ran or (_context.module_path(path) or "") in met:
            continue
        takes = []
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            handle = None if tensor is None else _core.get_handle(tensor)
            if handle is None:
                continue
            takes.append(slot := _core.root_slot(handle))
            try:
                value = _core.value(handle)
            except MaterializationError:
                continue  # the call that made it failed: it takes no memory
            if value is not None:
                begins.setdefault(slot, value)
        made = GENERATOR - 1 - len(comes), 0 if given is None else given[1]
        reads = takes if given is None else [*takes, given[0]]
        comes.append((path, _FORWARD, -1, 0, torch.is_grad_enabled(), reads, [], [made]))
        given = made
    return comes, begins


def _running() -> Iterator[tuple[torch.nn.Module, int]]:
    """The modules of the model that runs now, with the ids of their paths, as the model holds them."""
    now = _context.get_module()
    todo = [found for found in modules.roots() if found[1] == _context.path_root(now)] if now else []
    seen: set[int] = set()
    while todo:
        module, path = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if type(module).forward is not torch.nn.Module.forward:  # a list of modules never runs
            yield module, path
        held = [(name, child) for name, child in modules.held_now(module._modules) if child is not None]
        todo += [
            (child, _context.intern_path(path, name, _context.class_name(child))) for name, child in reversed(held)
        ]


def _last(records: Sequence[Record]) -> tuple[int, int] | None:
    """(slot, bytes) of what the last record of a module made."""
    sizes: dict[int, int] = {}
    found = None
    for record in records:
        for slot, nbytes in record[7]:
            sizes.setdefault(slot, nbytes)
            if record[0]:
                found = slot
    return None if found is None else (found, sizes[found])
