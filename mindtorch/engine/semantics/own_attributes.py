"""What an object holds, past all that the program would run to give it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

__all__ = ["values"]


def values(value: Any) -> Iterator[Any]:
    """What is in its dict and its slots."""
    kind: Any = type(value)
    dicts, slots = _places_of(kind)
    for own in dicts:
        yield from own.__get__(value).values()
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
