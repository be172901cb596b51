"""Which tensors the values of a call hold, and whether they were written since, by weak references and versions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch._C import _functorch

from mindtorch._ext import lazy as _core

__all__ = ["Snapshot", "alive", "changed", "find", "is_alive", "is_same", "of", "place", "version", "weak"]

_DEEPEST = 6  # of a cache: encoder-decoder's → one of both → layers → layer → tensor
_MOST_LOOKED = 20_000  # values, in looking at what a call got
_WIDEST = 4096  # entries of a list or a dict that are looked at
_PASSED = (
    str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, type, ModuleType, torch.nn.Module,
)  # fmt: skip
Snapshot = dict[int, tuple["weakref.ref[torch.Tensor]", int]]  # id of a tensor -> (it, its version)


def find(value: Any, tensors: list[torch.Tensor], held: list[tuple[Any, Snapshot]] | None = None) -> None:
    """The tensors in nested lists, tuples and dicts; with `held`, other objects and the tensors in them, too."""
    left = iter(range(_MOST_LOOKED))
    found, objects = _walk(value, left, into_objects=False)
    tensors += found
    if held is not None:
        held += [(each, of(each, left)) for each in objects]


@functools.lru_cache(256)
def _kind(kind: type) -> int:
    """What is done with values of a class; it is asked by issubclass(), as isinstance() would ask a __class__."""
    if issubclass(kind, torch.Tensor):
        return _TENSOR
    if issubclass(kind, _PASSED):
        return _NOTHING
    return next((number for number, each in _INTO if issubclass(kind, each)), _OBJECT)


_TENSOR, _NOTHING, _LIST, _TUPLE, _DICT, _OBJECT = range(6)
_INTO = ((_LIST, list), (_TUPLE, tuple), (_DICT, dict))


def _walk(value: Any, left: Iterator[int], *, into_objects: bool) -> tuple[list[torch.Tensor], list[Any]]:
    """(tensors, other objects unless they are gone into), near ones first. Each list, dict and object is looked at
    once, and no more values than are `left`: there may be circles, and millions of them."""
    tensors: list[torch.Tensor] = []
    objects: list[Any] = []
    level, depth = [value], 0
    seen: set[int] = set()
    while level and depth <= _DEEPEST + 1:
        below: list[Any] = []
        for value, _ in zip(level, left):
            cls: Any = type(value)  # isinstance() would ask a program's __class__
            kind = _kind(cls)
            if kind == _TENSOR:
                tensors.append(value)
            elif kind == _NOTHING or depth > _DEEPEST or id(value) in seen:
                continue
            else:
                seen.add(id(value))
                inner: Iterable[Any]
                if kind == _LIST:
                    inner = list.__iter__(value)
                elif kind == _TUPLE:
                    inner = tuple.__iter__(value)
                elif kind == _DICT:
                    inner = dict.values(value)
                elif not into_objects:
                    objects.append(value)
                    continue
                else:
                    inner = () if callable(value) else _own(value)
                below += islice(inner, _WIDEST)
        level, depth = below, depth + 1
    return tensors, objects


def of(holder: Any, left: Iterator[int] | None = None) -> Snapshot:
    """The tensors that an object holds, with their versions."""
    left = iter(range(_MOST_LOOKED)) if left is None else left
    tensors, _ = _walk(holder, left, into_objects=True)
    return {id(t): (weakref.ref(t), version(t)) for t in tensors}


def changed(before: Snapshot, after: Snapshot) -> Snapshot:
    """What is new, and what was written or may have been: an inference tensor has no version."""
    found: Snapshot = {}
    for key, (ref, version) in after.items():
        known, old = before.get(key, (None, -1))
        if known is None or known() is None or not version == old >= 0:
            found[key] = ref, version
    return found


def is_same(before: Snapshot, after: Snapshot) -> bool:
    """Were the same tensors there, and was none written?"""
    return before.keys() == after.keys() and not changed(before, after)


def alive(snapshot: Snapshot) -> Iterator[torch.Tensor]:
    return (t for ref, _ in snapshot.values() if (t := ref()) is not None)


def place(t: torch.Tensor) -> Any:
    """What tensors with the same memory have in common."""
    handle = _core.get_handle(t)
    if handle is not None:
        return "slot", _core.root_slot(handle)
    wraps = _functorch.is_functorch_wrapped_tensor(t)  # vmap's and grad's have no storage
    return t.untyped_storage()._cdata if t.layout == torch.strided and not wraps else id(t)


def version(t: torch.Tensor) -> int:
    return -1 if t.is_inference() else t._version


def is_alive(ref: Any) -> bool:
    return isinstance(ref, weakref.ref) and ref() is not None


def weak(holder: Any) -> Any:
    try:
        return weakref.ref(holder)
    except TypeError:
        return lambda: holder  # a class with __slots__: it stays until the next call


def _own(value: Any) -> Iterator[Any]:
    """What is in an object's dict and its slots, past all that the program would run to give it."""
    kind: Any = type(value)
    dicts, slots = _places_of(kind)
    for own in dicts:
        yield from list(own.__get__(value).values())  # other threads may put more into it
    for slot in slots:
        with suppress(AttributeError):  # nothing is in it
            yield slot.__get__(value)


@functools.lru_cache(256)
def _places_of(kind: type) -> tuple[list[Any], list[Any]]:
    """What gives the dict of an object of this class, and what gives its slots."""
    dicts, slots = [], []
    for cls in kind.__mro__:
        if isinstance(own := vars(cls).get("__dict__"), GetSetDescriptorType):
            dicts.append(own)
        if "__slots__" in vars(cls):
            slots += [slot for slot in vars(cls).values() if isinstance(slot, MemberDescriptorType)]
    return dicts, slots
