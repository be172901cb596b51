"""Checkpoints while estimating: of those read, names, shapes and dtypes, weights stay on the disk; none is written.

What `torch.save` was given is remembered instead: `torch.load` of the same file, or buffer, gives it back.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import sys
import weakref
import zipfile
from typing import Any, NamedTuple

import numpy
import torch

from ..files import FRAMEWORKS, OpenedFile
from ..lazy_device import dataless_everywhere, place_of
from ..meta import as_meta


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of what reads files."""
    unwritten.clear()
    _saved.clear()
    _saved_in_buffers.clear()
    found: list[tuple[Any, str, Any]] = [(torch, "load", _load), (torch, "save", _save)]
    found += [(numpy, name, _save_array) for name in ("save", "savez", "savez_compressed", "savetxt")]
    if importlib.util.find_spec("safetensors") is not None:
        original = importlib.import_module("safetensors").safe_open
        opener = _opener(original)
        found += [(module, "safe_open", opener) for module in list(sys.modules.values())  # who has it by name already
                  if getattr(module, "__dict__", {}).get("safe_open") is original]
        # Whatever name a program has for `save_file`, it ends here; what reads the elements of a tensor, too.
        writer = importlib.import_module("safetensors.torch")
        standing = {"serialize_file": _save_file, "serialize": _save_nothing, "_tobytes": _no_bytes}
        found += [(writer, name, instead) for name, instead in standing.items() if hasattr(writer, name)]
    return found


#: Files that the program meant to write, and that were left as they are: there is nothing to put into them.
unwritten: list[str] = []


def _keep_away(f: Any) -> None:
    name = str(getattr(f, "name", f)) if isinstance(f, (str, os.PathLike)) or hasattr(f, "name") else "(a buffer)"
    if name not in unwritten:
        unwritten.append(name)


class _Sizes(NamedTuple):
    """A tensor that was saved: it takes no memory of the estimated program's."""

    like: torch.Tensor
    place: int
    requires_grad: bool
    parameter: bool


_saved: dict[str, Any] = {}
_saved_in_buffers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _record_of(f: Any) -> tuple[Any, Any]:
    """(dictionary, key) that what is saved to `f` is remembered under."""
    if isinstance(f, (str, os.PathLike)):
        return _saved, os.path.abspath(f)
    name = getattr(f, "name", None)
    return (_saved, os.path.abspath(name)) if isinstance(name, str) else (_saved_in_buffers, f)


def _save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    _keep_away(f)
    records, key = _record_of(f)
    records[key] = _exchange(obj, _sizes_of, {})


def _sizes_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    parameter = isinstance(value, torch.nn.Parameter)
    return _Sizes(like, place_of(value.device), value.requires_grad, parameter)


def _exchange(value: Any, exchange: Any, done: dict[int, Any]) -> Any:
    """A copy of dictionaries, lists and tuples, in which ``exchange(item)`` stands for each item, once for the same."""
    if id(value) not in done:
        if type(value) is _Sizes or not isinstance(value, (dict, list, tuple)):
            made = exchange(value)
        elif isinstance(value, dict):
            made = copy.copy(value)
            for key in value:
                made[key] = _exchange(value[key], exchange, done)
        elif hasattr(value, "_fields"):
            made = type(value)(*(_exchange(item, exchange, done) for item in value))
        else:
            made = type(value)(_exchange(item, exchange, done) for item in value)
        done[id(value)] = (value, made)  # kept, or another value could have its number
    return done[id(value)][1]


def _save_array(file: Any, *args: Any, **kwargs: Any) -> None:
    _keep_away(file)


def _save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
    _keep_away(filename)


def _save_nothing(tensors: Any, *args: Any, **kwargs: Any) -> bytes:
    _keep_away("(a buffer)")
    return b""


def _no_bytes(*args: Any) -> bytes:
    return b""


_torch_load = torch.load


@functools.wraps(_torch_load)
def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    records, key = _record_of(f)
    if key in records:
        return _exchange(records[key], functools.partial(_made_from, place=_place_for(map_location)), {})
    # Mapped into memory, a file's weights are never read.
    mapped = isinstance(f, (str, os.PathLike)) and kwargs.get("mmap") is None and zipfile.is_zipfile(f)
    with torch._C.DisableTorchFunction():
        loaded = _torch_load(f, "cpu", *args, **{**kwargs, "mmap": True} if mapped else kwargs)
    device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
    return _without_data(loaded, place_of(device))


def _place_for(map_location: Any) -> int | None:
    return place_of(map_location, anywhere=True) if isinstance(map_location, (str, torch.device)) else None


def _made_from(saved: Any, place: int | None) -> Any:
    if type(saved) is not _Sizes:
        return copy.deepcopy(saved)
    made = as_meta(saved.like, saved.place if place is None else place)
    if saved.parameter:
        return torch.nn.Parameter(made, saved.requires_grad)
    return made.requires_grad_(saved.requires_grad)


def _without_data(value: Any, place: int) -> Any:
    """The tensors in dictionaries, lists and tuples as tensors without data; whatever else there is, as it is."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        made = as_meta(value.detach(), place)
        if type(value) is torch.nn.Parameter:
            return torch.nn.Parameter(made, value.requires_grad)
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        for key in value:
            value[key] = _without_data(value[key], place)
        return value
    if type(value) in (list, tuple):
        return type(value)(_without_data(item, place) for item in value)
    return value


def _opener(original: Any) -> Any:
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        # Whoever imports this one while it stands in keeps it: afterwards it is the original.
        if not dataless_everywhere() or framework not in FRAMEWORKS:
            return original(filename, framework, device=device, **options)
        return OpenedFile(original(filename, framework, device="cpu", **options), device)

    return safe_open
