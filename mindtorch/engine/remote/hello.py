"""What both sides say first: whether they are made of the same things (SPEC R3)."""

from __future__ import annotations

import hashlib
import sys
from typing import NamedTuple

import torch

from ...base import VERSION
from . import functions
from .wire import PROTOCOL, WireError

__all__ = ["Side", "check", "here"]


class Side(NamedTuple):
    """What a message, and the numbers in it, mean the same by only where all of these are equal."""

    protocol: int
    torch: str
    mindtorch: str
    functions: str  # of the table of names
    byteorder: str

    def __str__(self) -> str:
        return (
            f"mindtorch {self.mindtorch} (protocol {self.protocol}, functions {self.functions}), torch {self.torch}, "
            f"{self.byteorder}-endian"
        )


def here() -> Side:
    """This process."""
    table = hashlib.sha256("\n".join(sorted(functions.names())).encode()).hexdigest()[:12]
    return Side(PROTOCOL, str(torch.__version__), VERSION, table, sys.byteorder)


def check(other: object, who: str) -> None:
    """WireError unless what the other side said of itself is as it is here. ``who``: what to call that."""
    mine = here()
    if not (isinstance(other, (tuple, list)) and len(other) == len(mine) and all(map(_is_like, other, mine))):
        raise WireError(f"expected the hello of {who}, got {other!r:.200}")
    if tuple(other) != tuple(mine):
        raise WireError(f"expected {who} with {mine}; got one with {Side(*other)}")


def _is_like(given: object, mine: object) -> bool:
    return type(given) is type(mine)
