"""SPEC L1: what stands for a function of torch's takes what that one takes, whatever the release has added."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from mindtorch.patch import flags, meshes, nested, stand_ins, tracing, transforms, uninitialized
from mindtorch.profile.estimate import (
    checkpoints,
    data_parallel,
    exchanged,
    fused_attention,
    process_groups,
    scripted,
    sharded,
    sobol,
    sparse_tensors,
    sync_batch_norm,
)

LISTS = [
    *(module.patches for module in (flags, meshes, nested, stand_ins, tracing, transforms, uninitialized)),
    *(module.patches for module in (
        checkpoints, data_parallel, exchanged, fused_attention, scripted, sharded, sobol, sparse_tensors,
        sync_batch_norm,
    )),
    process_groups.patches,
]  # fmt: skip


def refused(original: Any, value: Any) -> list[str]:
    """Names of the parameters of torch's that the other one takes neither by name nor in their place."""
    theirs = inspect.signature(inspect.unwrap(original)).parameters.values()
    ours = inspect.signature(value, follow_wrapped=False).parameters
    kinds = [parameter.kind for parameter in ours.values()]
    places = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    found = []
    for place, p in enumerate(theirs):
        placed = p.kind is not p.KEYWORD_ONLY and (place < places or p.VAR_POSITIONAL in kinds)
        named = p.name in ours or p.VAR_KEYWORD in kinds
        if not placed and not named and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            found.append(p.name)
    return found


def stand_ins_for_functions() -> Iterator[tuple[str, Any, Any]]:
    for listed in LISTS:
        for owner, name, value in listed():
            original = vars(owner).get(name)
            if inspect.isfunction(inspect.unwrap(original)) and inspect.isfunction(value):
                yield f"{listed.__module__}: {getattr(owner, '__name__', owner)}.{name}", original, value


def test_L1_stand_ins_take_what_torchs_functions_take() -> None:
    found = list(stand_ins_for_functions())
    assert len(found) > 40
    assert {which: names for which, original, value in found if (names := refused(original, value))} == {}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (lambda a, b=1: 0, ["c"]),
        (lambda a, **_: 0, []),
        (lambda *x: 0, ["c"]),
        (lambda x: 0, ["b", "c"]),
        (lambda a, b, c: 0, []),
    ],
)
def test_L1_what_a_stand_in_does_not_take_is_seen(value: Any, names: list[str]) -> None:
    def original(a: int, b: int = 0, *, c: int = 0) -> None: ...

    assert refused(original, value) == names
