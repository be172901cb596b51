"""``torch.compile`` in an estimate: the function runs as it is, and it is noted which calls a compiler would have had.

Those are the calls between beginning and end of a compiled function, those of a compiled module and of what is under
it, and of the backward pass what most of whose forward was compiled, module by module. Each call has flags:

- `FUSED`: ops that stream memory and follow each other are one kernel, which takes as long as the longest of them,
  without the conversions between them;
- `GRAPHED`: launched with all others by a CUDA graph (``mode="reduce-overhead"``, ``"max-autotune"``);
- `TUNED`: products of one row are sums over the weights as they stream by, which is what Inductor makes of them with
  ``coordinate_descent_tuning`` (``mode="max-autotune"``).

Backends other than Inductor are taken to change nothing. What a replayed CUDA graph does is launched at once, too.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mindtorch._ext import context, ledger
from mindtorch.engine.semantics import modules
from mindtorch.profile.cost.work import Work
from mindtorch.profile.estimate import kernel_limits

FUSED, GRAPHED, TUNED = 1, 2, 4
_GRAPHED = ("reduce-overhead", "max-autotune")
_TUNED = ("max-autotune", "max-autotune-no-cudagraphs")
_BACKWARD = context.PHASES.index("backward")

_CONVERSIONS = ("aten::_to_copy", "aten::to")
_NEAR = 0.02  # norms and losses write a few numbers beside their result

_calls = 0
_regions: list[tuple[int, int, int]] = []  # positions in the ledger, from and until, and flags
_modules: list[tuple[weakref.ref[torch.nn.Module], int]] = []
_paths: dict[int, int] = {}  # of compiled modules, as far as they are known: they may be gone at the end
_inside = False


def begin() -> None:
    """An estimate begins."""
    global _calls, _inside
    _calls, _inside = 0, False
    _regions.clear()
    _modules.clear()
    _paths.clear()


def number() -> int:
    """How often the program had something compiled."""
    return _calls


def compiled(model: Any, options: dict[str, Any]) -> Any:
    """What torch.compile gives for a function or a module, which stays itself."""
    global _calls
    _calls += 1
    how = _flags(**options)
    if isinstance(model, torch.nn.Module):
        if how and not kernel_limits.has_triton():
            model.register_forward_pre_hook(_before, with_kwargs=True)
        if how:
            _modules.append((weakref.ref(model), how))
            for root, path in modules.roots():
                saw_root(root, path)
        return model
    return _function(model, how) if how else model


def _before(model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    kernel_limits.check_triton((args, kwargs))


def _flags(
    *, mode: str | None = None, options: dict[str, Any] | None = None, backend: Any = "inductor",
    disable: bool = False, **_: Any,
) -> int:  # fmt: skip
    if disable or backend != "inductor":
        return 0
    given = options or {}
    config = sys.modules.get("torch._inductor.config")  # where the program did not import it, it set nothing
    graphs = given.get("triton.cudagraphs", mode in _GRAPHED or (config and config.triton.cudagraphs))
    tuned = given.get("coordinate_descent_tuning", mode in _TUNED or (config and config.coordinate_descent_tuning))
    return FUSED | (GRAPHED if graphs else 0) | (TUNED if tuned else 0)


def _function(function: Callable[..., Any], how: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        kernel_limits.check_triton((args, kwargs))
        with within(how):
            return function(*args, **kwargs)

    return run


@contextmanager
def within(how: int) -> Iterator[None]:
    """What runs in the block has these flags; of blocks in each other, the outermost one's."""
    global _inside
    if _inside:
        yield
        return
    _inside, at = True, ledger.position()
    try:
        yield
    finally:
        _inside = False
        _regions.append((at, ledger.position(), how))


def flags(calls: Any) -> Any:
    """Of each entry of a log of calls."""
    found = np.zeros(len(calls), np.uint8)
    for first, last, how in _regions:
        found[first:last] |= how
    back = (calls["phase"] & (ledger.ENTERED - 1)) == _BACKWARD
    if owned := dict(_of_modules(calls["module"])):
        table = np.zeros(int(calls["module"].max()) + 1, np.uint8)
        table[list(owned)] = list(owned.values())
        found[~back] |= table[calls["module"][~back]]
    if found.any() and back.any():
        _follow(calls["module"], found, back)
    return found


def saw_root(root: torch.nn.Module, path: int) -> None:
    """An outermost module, its path: those within that are compiled have paths of their own."""
    kept = {id(module): how for ref, how in _modules if (module := ref()) is not None}
    if kept:
        _paths.update({at: kept[id(module)] for module, at in modules.walk(root, path) if id(module) in kept})


def _of_modules(paths: Any) -> Iterator[tuple[int, int]]:
    """(path, flags) of those that compiled modules have, or modules under them."""
    for root, path in modules.roots():
        saw_root(root, path)
    for path in np.unique(paths).tolist() if _paths else ():
        above = path
        while above and above not in _paths:
            above = context.path_parent(above)
        if above:
            yield path, _paths[above]


def _follow(paths: Any, found: Any, back: Any) -> None:
    """The backward pass of a module is compiled if most of its forward was."""
    ahead = ~back
    size = int(paths.max()) + 1
    all_of = np.bincount(paths[ahead], minlength=size)
    for how in np.unique(found[ahead]).tolist():
        if how:
            most = 2 * np.bincount(paths[ahead & (found == how)], minlength=size) > all_of
            found[back & (found == 0) & most[paths]] = how


def within_kernels(numbers: Any, chain: Any, works: Sequence[Work | None]) -> Any:
    """Of each kernel, the share of its bytes that remains where it and its neighbours of the same chain are one.

    Conversions between them happen in registers: what an op reads has the width that it had before, what it writes the
    one that it has afterwards, and they themselves move nothing. numbers: of the kernels, in `works`; chain: which are
    one.
    """
    read, written = (
        np.array([0 if w is None else getattr(w, field) for w in works], float)[numbers]
        for field in ("bytes_read", "bytes_written")
    )
    turns = np.array([w is not None and w.name in _CONVERSIONS for w in works])[numbers]
    same = chain[1:] == chain[:-1]
    # A conversion of what the kernel before has made; one whose result the kernel behind reads.
    of_before = np.concatenate([[False], same & turns[1:] & (np.abs(written[:-1] - read[1:]) <= _NEAR * read[1:])])
    for_behind = np.concatenate([same & turns[:-1] & (read[1:] >= written[:-1]), [False]])
    left_read, left_written = read.copy(), written.copy()
    at = np.flatnonzero(for_behind & ~of_before)
    left_read[at + 1] -= written[at] - read[at]
    at = np.flatnonzero(of_before)
    left_written[at - 1] -= read[at] - written[at]
    left = np.where(of_before | for_behind, 0.0, left_read + left_written)
    return np.clip(left / np.maximum(read + written, 1.0), 0.0, 1.0)
