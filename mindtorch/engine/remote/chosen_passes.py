"""Which passes a worker uses: those of the program (SPEC R1, L13)."""

from __future__ import annotations

from .. import passes
from ..execute.ambient import Mirrored

__all__ = ["PASSES"]

#: A setting like torch's own, which goes into a message when it has changed.
PASSES = (Mirrored("passes", passes.chosen, passes.choose),)
