"""What a program that is estimated on an accelerator leaves on the CPU: models that it calls there, or everything."""

from __future__ import annotations

import weakref
from collections import Counter

import torch
from torch.nn.parameter import is_lazy

from mindtorch._ext import context
from mindtorch.engine.semantics.owners import held

_FEW = 8  # calls that are all looked at; of later ones ever fewer
_LEAST = 0.05 * 2**20  # bytes: less would be shown as 0.0 MiB
_NOTHING_THERE = "the program puts nothing on the accelerator: times are the accelerator's, memory is the host's"


class OnHost:
    """Bytes of the parameters on the CPU, of each model as it is called: one that was moved before or after is not.

    A model that was once called elsewhere is where it should be.
    """

    def __init__(self, asked: bool) -> None:
        """asked: whether there is an accelerator; else nothing is looked at."""
        self._asked = asked
        self._models: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}  # by path; bytes
        self._calls: Counter[int] = Counter()

    def saw(self, model: torch.nn.Module, path: int) -> None:
        if not self._asked:
            return
        self._models[path] = (weakref.ref(model), _bytes(model))

    def called(self, path: int) -> None:
        """A module of that path is called while none runs."""
        ref, left = self._models.get(root := context.path_root(path), (None, 0))
        self._calls[root] += 1
        often = self._calls[root]
        if left and (often <= _FEW or often & (often - 1) == 0) and ref is not None and (model := ref()) is not None:
            self._models[root] = (ref, _bytes(model))

    def note(self, on_accelerator: bool) -> str:
        """What the report says, if anything; on_accelerator: whether the program holds something there."""
        left = sum(size for _, size in self._models.values())
        found = [f"{left / 2**20:,.1f} MiB of the model's parameters are on the CPU"] if left >= _LEAST else []
        return ", as ".join([*found, *([] if on_accelerator else [_NOTHING_THERE])])


def _bytes(model: torch.nn.Module) -> int:
    """Those of lazy modules, which come with their first call, count as one byte each until then."""
    return sum(1 if is_lazy(p) else p.nbytes * (p.device.type == "cpu") for p in held(model)[0])
