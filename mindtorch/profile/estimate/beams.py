"""Beam search of transformers in an estimate: whether a beam can still become better depends on scores that nobody
knows. It goes on until its length is reached, as a search does whose end-of-sequence token is not drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ...base.patching import Patch, Patches
from ...devices import mode

__all__ = ["install"]
_steps = _most = 0  # taken, and to take


def install() -> None:
    """For good: what is replaced asks whether an estimate is under way."""
    Patches().put_when_loaded("transformers.generation.utils", _patches)


def _patches(module: Any) -> Iterator[Patch]:
    base = module.GenerationMixin
    names = ("_beam_search", "_beam_search_has_unfinished_sequences")
    if not all(hasattr(base, name) for name in names) or hasattr(base._beam_search, "_goes_on"):
        return
    search, unfinished = (getattr(base, name) for name in names)

    @functools.wraps(unfinished)
    def has_unfinished(*args: Any, **kwargs: Any) -> Any:
        global _steps
        _steps += 1
        found = unfinished(*args, **kwargs)
        return _steps < _most if mode.now.estimate is not None and _most else found

    @functools.wraps(search)
    def beam_search(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        global _steps, _most
        given = [*args, *kwargs.values()]
        longest = next((n for a in given if (n := getattr(a, "max_length", None)) is not None), None)
        _steps, _most = 0, max((longest or 0) - input_ids.shape[-1], 0)
        found = search(self, input_ids, *args, **kwargs)
        if mode.now.estimate is None:
            return found
        # Its end crops to the longest of the finished beams, which nobody knows.
        rows = len(found if isinstance(found, torch.Tensor) else found.sequences)
        whole = input_ids.new_zeros((rows, input_ids.shape[-1] + _steps))
        if isinstance(found, torch.Tensor):
            return whole
        found.sequences = whole
        return found

    beam_search._goes_on = True  # type: ignore[attr-defined]
    static = isinstance(vars(base)[names[1]], staticmethod)
    yield base, names[0], beam_search
    yield base, names[1], staticmethod(has_unfinished) if static else has_unfinished
