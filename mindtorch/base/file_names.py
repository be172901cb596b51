"""Short names of files that tell them apart: two ``train.py`` of one program are ``a/train.py`` and ``b/train.py``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["short_names"]


def short_names(files: Iterable[str]) -> dict[str, str]:
    """What each path is called among these: its name, with as many folders as tell it apart from the others, and that
    of the package for an ``__init__.py``, which says nothing by itself."""
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        alike[os.path.basename(file)].add(file)
    found: dict[str, str] = {}
    for same in alike.values():
        parts = {file: file.split(os.sep) for file in same}
        length = 2 if next(iter(parts.values()))[-1] == "__init__.py" else 1
        names = {file: "/".join(each[-length:]) for file, each in parts.items()}
        while len(set(names.values())) < len(same):
            length += 1
            names = {file: "/".join(each[-length:]) for file, each in parts.items()}
        found.update(names)
    return found
