"""Checkpoints on a worker's side: written and read there, so that values need not cross (SPEC R2)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch

from ..engine.remote.mirrors import view
from ..engine.remote.results import whole_bytes
from ..engine.remote.wire import Reference, dumps, loads

__all__ = ["put_aside", "put_together", "read", "taken_apart", "write"]

Parcels = MutableMapping[int, bytes | bytearray | int]


def taken_apart(value: Any, found: list[torch.Tensor]) -> Any:
    """Dicts, lists and tuples as they are, with a reference for each tensor, which is put into ``found``."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return Reference(len(found) - 1)
    if isinstance(value, dict):
        return {key: taken_apart(item, found) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(taken_apart(item, found) for item in value)
    return value


def put_together(value: Any, get: Callable[[int], Any]) -> Any:
    """What was taken apart, with a tensor for each reference."""
    if isinstance(value, Reference):
        return get(value.index)
    if isinstance(value, dict):
        return {key: put_together(item, get) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(put_together(item, get) for item in value)
    return value


def _check(path: str, folders: Sequence[str]) -> str:
    """The full path; OSError, which does not say what is there, if it is in none of the folders."""
    full = os.path.realpath(path)
    if not os.path.isabs(path) or not any(os.path.commonpath([full, os.path.realpath(f)]) == os.path.realpath(f)
                                          for f in folders):  # fmt: skip
        where = ", ".join(folders) or "none: genie worker start --files adds one"
        raise OSError(f"expected a full path in one of the worker's folders ({where}), got {path!r}")
    return full


def write(path: str, described: bytes, parcels: Parcels, folders: Sequence[str]) -> None:
    """`torch.save` of a structure whose storages were put aside. All of it is there in the end, or what was before."""
    tree, values, tickets = loads(described)
    given = [parcels.pop(ticket) for ticket in tickets]
    full = _check(path, folders)
    if any(isinstance(each, int) for each in given):
        raise ValueError("expected computed values, got some whose computation failed: reading them raises the error")
    storages = [_storage(each) for each in given]  # type: ignore[arg-type]
    tensors = [view(storages[at], *described) for at, *described in values]
    part = f"{full}.{secrets.token_hex(4)}"
    try:
        torch.save(put_together(tree, tensors.__getitem__), part)
        os.replace(part, full)
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _storage(data: bytes | bytearray) -> torch.UntypedStorage:
    if not data:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


def read(path: str, first: int, parcels: Parcels, folders: Sequence[str]) -> bytes:
    """Put aside the tensors of what `torch.save` wrote; see `put_aside`."""
    return put_aside(torch.load(_check(path, folders), map_location="cpu", weights_only=True), first, parcels)[0]


def put_aside(value: Any, first: int, parcels: Parcels) -> tuple[bytes, list[int]]:
    """The tensors of a structure, as parcels numbered from ``first`` on. (The structure, with dtype and sizes of each;
    bytes of each.)
    """
    found: list[torch.Tensor] = []
    tree = taken_apart(value, found)
    plain = [t.detach().cpu().resolve_conj().resolve_neg().contiguous() for t in found]
    for number, t in enumerate(plain, first):
        whole = t.clone() if t.untyped_storage().nbytes() != t.nbytes else t
        parcels[number] = whole_bytes(view(whole.untyped_storage(), torch.uint8, (t.nbytes,), (1,), 0))
    return bytes(dumps((tree, [(t.dtype, tuple(t.shape)) for t in plain]))), [t.nbytes for t in plain]
