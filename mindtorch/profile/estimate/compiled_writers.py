"""Functions of compiled libraries that open files by their names: given names that lead where Python's functions do.

What such code writes goes to a scratch folder first and is renamed from there by `Tree`'s own rules, so a folder that
the program made, what it removed, and links are as the program sees them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ...base.patching import Patch
from .private_tree import by_us

__all__ = ["MODULES"]


class _Files(Protocol):
    """What `Redirected` does with a path."""

    folder: str

    def actual(self, path: Any) -> Any: ...

    def move_in(self, made: str, path: str) -> None: ...


def _saving(original: Callable[..., Any], files: _Files) -> Callable[..., Any]:
    """`save(path, …)`: one file."""

    def save(self: Any, path: Any, *args: Any, **options: Any) -> Any:
        with _scratch(files) as folder:
            made = f"{folder}/file"
            found = original(self, made, *args, **options)
            files.move_in(made, path)
        return found

    return save


def _saving_into(original: Callable[..., Any], files: _Files) -> Callable[..., Any]:
    """`save(folder, …)`: several files, whose names it gives."""

    def save(self: Any, folder: Any, *args: Any, **options: Any) -> list[str]:
        with _scratch(files) as scratch:
            names = [os.path.basename(made) for made in original(self, scratch, *args, **options)]
            for name in names:
                files.move_in(f"{scratch}/{name}", os.path.join(folder, name))
        return [os.path.join(folder, name) for name in names]

    return save


def _reading(original: Callable[..., Any], files: _Files) -> Callable[..., Any]:
    """A function of paths and other values."""

    def read(*args: Any, **options: Any) -> Any:
        given = [_led(files, value) for value in args]
        return original(*given, **{name: _led(files, value) for name, value in options.items()})

    return read


def _led(files: _Files, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_led(files, each) for each in value]
    return files.actual(value) if isinstance(value, str) else value


class _scratch:
    """A folder beside what the program wrote."""

    def __init__(self, files: _Files) -> None:
        self._files = files

    def __enter__(self) -> str:
        with by_us():
            self._folder = tempfile.mkdtemp(dir=self._files.folder)
        return self._folder

    def __exit__(self, *_: object) -> None:
        with by_us():
            shutil.rmtree(self._folder, ignore_errors=True)


def _tokenizers(files: _Files, module: Any) -> Iterable[Patch]:
    """`tokenizers`, in Rust: what transformers' fast tokenizers are saved and read by."""
    yield module.Tokenizer, "save", _saving(module.Tokenizer.save, files)
    yield module.Tokenizer, "from_file", staticmethod(_reading(module.Tokenizer.from_file, files))
    yield module.Tokenizer, "train", _reading(module.Tokenizer.train, files)
    yield module.models.Model, "save", _saving_into(module.models.Model.save, files)
    for kind in (module.models.BPE, module.models.WordLevel, module.models.WordPiece):
        for name in ("from_file", "read_file"):
            yield kind, name, staticmethod(_reading(getattr(kind, name), files))


#: By module: what to put there once it is loaded.
MODULES: dict[str, Callable[[_Files, Any], Iterable[Patch]]] = {"tokenizers": _tokenizers}
