"""What a program saved while estimating: sizes and small values, by file or buffer. None of it is written.

A file that was not there stands as an empty one as long as the estimate lasts, for a program that looks for it; what
moves, copies and removes files knows of those. Afterwards they are gone, and so is what describes a checkpoint in a
folder made meanwhile: without its weights it would be none. Weights that were there before are neither replaced nor
removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
#: What libraries write beside the weights of a checkpoint.
_BESIDE = frozenset({
    "config.json", "generation_config.json", "adapter_config.json", "trainer_state.json", "README.md",
    "model.safetensors.index.json", "pytorch_model.bin.index.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "vocab.txt", "merges.txt",
})  # fmt: skip

NOTHING: Any = object()
#: Files that the program meant to write, or to remove, and that were left as they are.
unwritten: list[str] = []
_records: dict[str, Any] = {}  # by absolute path
_in_buffers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_touched: set[str] = set()  # absolute paths of what was ever saved
_standing: set[str] = set()  # … of the empty files
_folders: list[str] = []  # … of those that the program made
_began = 0
_rename, _remove, _mkdir, _rmtree, _copyfile = os.rename, os.remove, os.mkdir, shutil.rmtree, shutil.copyfile


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    global _began
    for known in (unwritten, _records, _in_buffers, _touched, _standing, _folders):
        known.clear()  # type: ignore[attr-defined]
    _began = time.time_ns()
    try:
        yield
    finally:
        _tidy()


def replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of what moves, copies and removes files."""
    return [
        (os, "rename", _move), (os, "replace", _move), (os, "remove", _unlink), (os, "unlink", _unlink),
        (os, "mkdir", _make_folder), (shutil, "copyfile", _copy), (shutil, "rmtree", _remove_tree),
    ]  # fmt: skip


def keep_away(f: Any) -> None:
    """`f` is not written, or removed: say so."""
    named = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "(a buffer)")
    name = os.fsdecode(named) if isinstance(named, (str, bytes, os.PathLike)) else "(a buffer)"
    if name not in unwritten:
        unwritten.append(name)
    if hasattr(f, "withheld"):  # a file as `written` opens them
        f.withheld = True


def withhold(file: Any) -> None:
    """`file` was opened to be written, and there is nothing to put into it: it stays as it was."""
    keep_away(file)
    path = _path_of(file)
    if path is not None and os.path.isfile(path) and not os.path.getsize(path):
        _touched.add(path)
        _standing.add(path)


def in_a_buffer() -> bool:
    """Whether something was saved where it has no name: its bytes may have been meant for any file."""
    return "(a buffer)" in unwritten


def remember(f: Any, what: Any) -> None:
    """`what` was saved to the file or buffer `f`."""
    keep_away(f)
    path = _path_of(f)
    if path is None:
        _in_buffers[f] = what
        return
    _records[path] = what
    _stand(path)


def found(f: Any) -> Any:
    """What was saved to `f`; `NOTHING` if nothing was."""
    path = _path_of(f)
    if path is not None:
        return _records.get(path, NOTHING)
    with contextlib.suppress(TypeError):  # no weak reference to it: nothing can have been saved there
        return _in_buffers.get(f, NOTHING)
    return NOTHING


def _path_of(f: Any) -> str | None:
    name = f if isinstance(f, (str, bytes, os.PathLike)) else getattr(f, "name", None)
    return os.path.abspath(os.fsdecode(name)) if isinstance(name, (str, bytes, os.PathLike)) else None


def _stand(path: str) -> None:
    _touched.add(path)
    if not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        with contextlib.suppress(OSError):  # who may not write there still gets an estimate
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            _standing.add(path)


def _stands(path: str) -> bool:
    """Is it one of the empty files, and still empty?"""
    return path in _standing and os.path.isfile(path) and not os.path.getsize(path)


def _was_there(path: str) -> bool:
    """Weights from before the estimate."""
    with contextlib.suppress(OSError):
        return path.endswith(_WEIGHTS) and os.path.getsize(path) > 0 and os.stat(path).st_mtime_ns < _began
    return False


def _rekey(source: str, target: str) -> None:
    """What is known of a file, or of those in a folder, is known of another one from here on."""
    for known in (_records, _standing, _touched):
        for path in [p for p in known if p == source or p.startswith(source + os.sep)]:
            moved = target + path[len(source) :]
            if isinstance(known, dict):
                known[moved] = known.pop(path)
            else:
                known.discard(path)
                known.add(moved)
    _folders[:] = [target + p[len(source) :] if p == source or p.startswith(source + os.sep) else p for p in _folders]


def _forget(path: str) -> None:
    for known in [p for p in _records if p == path or p.startswith(path + os.sep)]:
        del _records[known]


# ---- what stands in for os and shutil --------------------------------------------------------------------------------
def _move(src: Any, dst: Any, **options: Any) -> None:
    source, target = _path_of(src), _path_of(dst)
    if options or source is None or target is None or source == target:
        _rename(src, dst, **options)
        return
    if source not in _records:
        _rename(src, dst)
        _forget(target)
        _rekey(source, target)
        return
    if _stands(source):
        _remove(source)
    _records[target] = _records.pop(source)
    keep_away(dst)
    _stand(target)


def _copy(src: Any, dst: Any, **options: Any) -> Any:
    source, target = _path_of(src), _path_of(dst)
    if source not in _records or target is None:
        return _copyfile(src, dst, **options)
    _records[target] = _records[source]
    keep_away(dst)
    _stand(target)
    return dst


def _unlink(path: Any, **options: Any) -> None:
    known = None if options else _path_of(path)
    if known is not None and known in _records and not _stands(known):
        _forget(known)  # what was there before stays
        keep_away(path)
    elif known is not None and _was_there(known):
        keep_away(path)
    else:
        _remove(path, **options)
        if known is not None:
            _forget(known)


def _make_folder(path: Any, *args: Any, **options: Any) -> None:
    _mkdir(path, *args, **options)
    known = _path_of(path)
    if known is not None and not options.get("dir_fd"):
        _folders.append(known)


@functools.wraps(_rmtree)
def _remove_tree(path: Any, *args: Any, **options: Any) -> None:
    known = None if options.get("dir_fd") is not None else _path_of(path)
    if known is not None:
        within = (os.path.join(folder, name) for folder, _, names in os.walk(known) for name in names)
        if any(_was_there(file) for file in within):
            keep_away(path)
            return
    _rmtree(path, *args, **options)
    if known is not None:
        _forget(known)


_remove_tree.avoids_symlink_attacks = _rmtree.avoids_symlink_attacks  # type: ignore[attr-defined]


# ---- afterwards ------------------------------------------------------------------------------------------------------
def _tidy() -> None:
    """Leave no file that looks like a checkpoint and is none."""
    saved_in = {os.path.dirname(path) for path in _touched}
    emptied = set(saved_in)
    for path in _touched:
        with contextlib.suppress(OSError):  # it may be gone, or not be the program's to write to any more
            # Empty: one that stood in, or that the program opened to save into it.
            if not os.path.getsize(path) and os.stat(path).st_mtime_ns >= _began - 10**8:  # a clock of coarse ticks
                _remove(path)
    for folder in sorted(_folders, key=len, reverse=True):  # the innermost first
        with contextlib.suppress(OSError):
            if folder in saved_in:
                for name in _BESIDE.intersection(os.listdir(folder)):
                    _remove(os.path.join(folder, name))
            if folder in emptied and not os.listdir(folder):
                os.rmdir(folder)
                emptied.add(os.path.dirname(folder))
