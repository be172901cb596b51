"""What the command adds to an estimate, which writes nothing: the best means for it, and words about it (SPEC C4)."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from .exit_codes import ENDS_WITH_THE_COMMAND
from .units import counted

__all__ = ["left_alone", "near", "numbers_marked", "writes_nothing"]
_MOST = 8  # files that are named


def writes_nothing() -> None:
    """To be called before torch, or anything else that starts threads, is imported.

    The estimate sees to it while the program runs, wherever it is made. This lets it cover the disks, and sees to what
    the program does when the process ends.
    """
    context = click.get_current_context()
    if context.find_root().obj != ENDS_WITH_THE_COMMAND:
        return
    from mindtorch.base import mounts
    from mindtorch.program import os_exit

    mounts.own()
    mounts.kept_until_exit = True
    stack = contextlib.ExitStack()
    atexit.register(stack.close)  # before what the program registers, which runs first
    os_exit.at_the_end.append(stack.close)

    def again() -> None:
        if (found := sys.modules.get("mindtorch.profile.estimate.private_files")) is not None:
            stack.enter_context(found.private_at_exit())

    context.call_on_close(again)


@contextlib.contextmanager
def numbers_marked() -> Iterator[None]:
    """When the program has read a value that nobody knows, say so before it prints anything more: once, on stderr.

    It prints to standard output; of what it writes to stderr, as a progress bar or a logger does, numbers count.
    """
    from mindtorch.profile.estimate import assumptions

    streams = [sys.stdout] + [sys.stderr] * (sys.stderr is not sys.stdout)
    writes: dict[Any, Any] = {}

    def unmark() -> None:
        for stream, write in writes.items():
            if vars(stream).get("write") is write:  # where the program has put its own before this one, it stays
                del stream.write
        writes.clear()

    def marking(stream: Any) -> Callable[[str], int]:
        original = stream.write

        def write(text: str) -> int:
            own = stream is not sys.stdout and (text.startswith("genie: ") or not any(map(str.isdigit, text)))
            if writes and not own and assumptions.anything():
                unmark()
                for each in streams:
                    each.flush()  # what is above comes first
                click.echo("genie: numbers below are assumed, not computed", err=True)
            return int(original(text))

        return write

    for stream in streams:
        write = marking(stream)
        with contextlib.suppress(AttributeError):  # a stream of the caller's own that takes none
            stream.write = write  # type: ignore[method-assign]
            writes[stream] = write
    try:
        yield
    finally:
        unmark()


def left_alone(report: Mapping[str, Any]) -> list[str]:
    """Sentences about files and folders that were not written, and about what could not be held back."""
    from .render import clean  # the help needs no rich

    words = []
    for key, what in (("not_written", "written"), ("not_removed", "removed")):
        files = report.get(key) or []
        if not files:
            continue
        names = sorted((clean(near(file)) for file in files), key=lambda name: (os.path.isabs(name), name))
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        was = "was" if len(names) == 1 else "were"
        folders = sum(name.endswith("/") for name in names)
        parts = [counted(n, kind) for n, kind in ((len(names) - folders, "file"), (folders, "folder")) if n]
        words.append(f"{' and '.join(parts)} {was} not {what}: {', '.join(names[:_MOST])}{more}")
    if rest := report.get("not_held_back") or []:
        words.append(f"genie could not prevent changes to {'; '.join(map(clean, rest))}")
    return words


def near(path: str) -> str:
    """Relative to the current directory where that is shorter. A folder's ends in "/", as before."""
    if not os.path.isabs(path):
        return path
    try:
        relative = os.path.relpath(path) + ("/" if path.endswith("/") else "")
    except (OSError, ValueError):
        return path
    return relative if len(relative) < len(path) else path
