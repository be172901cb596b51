"""Files that an estimated program opens to write bytes into: what was there goes only when there is something to put.

``open(path, "wb")`` empties a file before anybody knows what comes. Here the bytes go to a temporary file first. When
the program closes it they take their place, unless something without data was among them (a tensor that was pickled,
what `torch.save` was to write), or nothing came at all, as from a buffer that was not filled: then the file stays as it
was. What was pickled can be read again until the estimate ends.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from ..._ext import lazy as _core
from ...devices import mode as devices_mode
from ...devices.lazy_device import place_of
from ...engine.record.meta import MetaTensor, as_meta
from . import known, saved

_open = io.open
_reduce = MetaTensor.__reduce_ex__
_pickled = 0  # tensors without data, so far


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of what opens files, and of what says that a tensor is pickled."""
    return [(builtins, "open", open_file), (io, "open", open_file), (MetaTensor, "__reduce_ex__", _pickle)]


def _pickle(self: MetaTensor, protocol: Any) -> Any:
    global _pickled
    _pickled += 1
    function, args, *rest = _reduce(self, protocol)
    handle = _core.get_handle(self)
    value = None if handle is None else _core.kept(handle)
    with torch._C.DisableTorchFunction():
        numbers = None if value is None else value.tolist()
    return _again, (str(self.device), numbers, function, args), *rest


def _again(device: str, numbers: Any, function: Any, args: tuple) -> Any:
    """What was pickled: where it was, with the value that it had; torch's own meta tensor once the estimate is over."""
    plain = function(*args)
    if not devices_mode.now.everywhere:
        return plain
    place = place_of(device)
    if numbers is not None:
        with torch._C.DisableTorchFunction():
            value = torch.tensor(numbers, dtype=plain.dtype, device="cpu").view(plain.shape)
        return known.adopt(value, place, computed=True)
    made = as_meta(plain.detach(), place)
    return torch.nn.Parameter(made, plain.requires_grad) if isinstance(plain, torch.nn.Parameter) else made


@dataclass
class _Pickled:
    """Bytes of a file that is not written, as tensors without data are among them."""

    content: bytes


def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
              newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
    """`open`; what it does without us, but for bytes that are to replace a file of some name."""
    if mode == "rb" and isinstance(before := saved.found(file), _Pickled):
        return io.BytesIO(before.content)
    named = isinstance(file, (str, bytes, os.PathLike)) and opener is encoding is errors is newline is None
    bytes_of_a_file = named and isinstance(mode, str) and sorted(mode) in (["b", "w"], ["+", "b", "w"])
    if not bytes_of_a_file or buffering == 0 or (os.path.exists(file) and not os.path.isfile(file)):
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    empty = not os.path.exists(file) or not os.path.getsize(file)
    with _open(file, "wb" if empty else "r+b"):  # torch's and Python's own errors, and a file that is there from now on
        pass
    return _Later(file, mode)


class _Later(io.BufferedRandom):
    """A file whose contents come at the end."""

    def __init__(self, file: Any, mode: str) -> None:
        handle, self._temporary = tempfile.mkstemp(prefix="genie-")
        super().__init__(io.FileIO(handle, "w+"))
        self._file, self._mode = file, mode
        self._process, self._pickled = os.getpid(), _pickled
        self.withheld = False

    @property
    def name(self) -> Any:
        return os.fspath(self._file)

    @property
    def mode(self) -> str:  # type: ignore[override]
        return "rb+" if "+" in self._mode else "wb"

    def readable(self) -> bool:
        return "+" in self._mode

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
            if os.getpid() == self._process:
                self._settle()
        finally:
            if os.getpid() == self._process and os.path.exists(self._temporary):
                os.remove(self._temporary)

    def _settle(self) -> None:
        was_there = os.path.isfile(self._file) and os.path.getsize(self._file) > 0
        nothing = not os.path.getsize(self._temporary) and (was_there or saved.in_a_buffer())
        if self.withheld or nothing:
            saved.withhold(self._file)
            return
        if self._pickled != _pickled:
            with _open(self._temporary, "rb") as source:
                content = source.read()
            saved.withhold(self._file)
            saved.remember(self._file, _Pickled(content))
            return
        with _open(self._temporary, "rb") as source, _open(self._file, "wb") as target:
            shutil.copyfileobj(source, target)
