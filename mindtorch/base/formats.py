"""What output formats have in common: the shape of one row of their tables, and how a file is made."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, cast


class Format(NamedTuple):
    """What a command can write.

    name: of its option, without the dashes; help: of that. begins: how its files begin, a pattern: they are replaced
    as ours. write: takes what there is, then a path; what it gives is said to the user. needs: a ``measured`` run;
    ``times``, measured or a target's; or a ``card``, a target's, whose memory only estimates have. binary: no text.
    """

    name: str
    help: str
    begins: bytes
    write: Callable[..., str | None]
    needs: str = ""
    binary: bool = False


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file that appears under its name only when the block ends well. OSError if it can't be written."""
    target = os.fspath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        if os.path.isdir(target):
            raise IsADirectoryError(21, "Is a directory", target)
        # a pipe or a terminal: nothing to rename
        with open(target, "w", encoding="utf-8", errors="surrogateescape") as file:
            yield file
        return
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as raw:
            packed = _compressed(raw) if target.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", errors="surrogateescape", newline="") as file:
                yield file
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _compressed(raw: IO[bytes]) -> IO[bytes]:
    import gzip  # which `genie --help` does without

    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw, mode="wb", mtime=0))
