"""What ``os.scandir`` gives of a folder whose names were found otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["Entries"]


class Entries:
    """What ``os.scandir`` gives.

    folder: as it was asked for: a path or a descriptor. where: its path.
    """

    def __init__(self, folder: Any, where: str, names: list[str]) -> None:
        self._entries = iter([_Entry(folder, where, name) for name in names])

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Entry:
    """What `os.DirEntry` is."""

    def __init__(self, folder: Any, where: str, name: str) -> None:
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = self.name if isinstance(folder, int) else os.path.join(folder, self.name)
        self._where = f"{where}/{name}"

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._where, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self._where).st_ino

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        with suppress(FileNotFoundError):
            return kind(self.stat(follow_symlinks=follow).st_mode)
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False
