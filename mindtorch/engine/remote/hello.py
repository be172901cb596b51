"""What both sides say first: whether they are made of the same things (SPEC R3)."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from typing import NamedTuple

import torch

from ...base import PACKAGE, VERSION
from . import functions
from .wire import PROTOCOL, WireError

__all__ = ["Side", "check", "this_side"]


class Side(NamedTuple):
    """What a message, and the numbers in it, mean the same by only where all of these are equal."""

    protocol: int
    torch: str
    torch_commit: str
    mindtorch: str
    code: str  # of mindtorch: a digest of its files of Python, since what is installed knows of no commit
    functions: str  # of the table of names
    byteorder: str

    def __str__(self) -> str:
        return (
            f"mindtorch {self.mindtorch} (code {self.code}, protocol {self.protocol}, functions {self.functions}), "
            f"torch {self.torch} (commit {self.torch_commit}), {self.byteorder}-endian"
        )


@functools.cache
def this_side() -> Side:
    """This process."""
    table = hashlib.sha256("\n".join(sorted(functions.names())).encode()).hexdigest()[:12]
    commit = str(torch.version.git_version)[:12]
    return Side(PROTOCOL, str(torch.__version__), commit, VERSION, _code(), table, sys.byteorder)


def _code() -> str:
    found = hashlib.sha256()
    for folder, inside, names in os.walk(PACKAGE):
        inside.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                found.update(os.path.relpath(path, PACKAGE).encode() + b"\0")
                with open(path, "rb") as file:
                    found.update(hashlib.sha256(file.read()).digest())
    return found.hexdigest()[:12]


def check(other: object, who: str) -> None:
    """WireError unless what the other side said of itself is as it is here. ``who``: what to call that."""
    mine = this_side()
    if not (isinstance(other, (tuple, list)) and len(other) == len(mine) and all(map(_is_like, other, mine))):
        raise WireError(f"expected the hello of {who}, got {other!r:.200}")
    if tuple(other) != tuple(mine):
        raise WireError(f"expected {who} with {mine}; got one with {Side(*other)}")


def _is_like(given: object, mine: object) -> bool:
    return type(given) is type(mine)
