"""Output files: refused before the run when they cannot be written, complete or absent afterwards.

Nothing that somebody else wrote is ever replaced: an option whose value was forgotten takes the next word for it, and
that may be the user's program.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from mindtorch.base.errors import UsageError
from mindtorch.base.formats import Format

__all__ = ["OutputFile", "output_options", "say_written", "write_anew"]


@functools.cache
def _ours() -> re.Pattern[bytes]:
    """How every file begins that genie writes."""
    from . import diff, graph, profile  # not above: their options are of this module's type

    return re.compile(b"|".join(each.begins for each in (*profile.FORMATS, *graph.FORMATS, *diff.FORMATS)))


class OutputFile:
    """``name`` as given; ``-`` is stdout. ``path`` is absolute, since the program may change the directory.

    option: what the user gave the name to, as ``--json``; for messages.
    """

    def __init__(self, name: str, option: str = "") -> None:
        self.name = name
        self.option = option
        self.is_stdout = name == "-"
        self.path = os.path.realpath(name)

    def of_rank(self, rank: int) -> OutputFile:
        """The file of one of several processes that were given the same name: ``out.rank1.json``."""
        if self.is_stdout or self._is_special():
            return self
        folder, base = os.path.split(self.name)
        stem, dot, ending = base.partition(".") if not base.startswith(".") else (base, "", "")
        return OutputFile(os.path.join(folder, f"{stem}.rank{rank}{dot}{ending}"), self.option)

    def discard(self) -> None:
        """Remove what an earlier run left under this name."""
        here = not self.is_stdout and not self._is_special() and os.path.exists(self.path)
        if here and not self._is_somebody_elses():
            os.unlink(self.path)

    def same_as(self, other: OutputFile) -> bool:
        return self.path == other.path and not self._is_special()

    def check(self, program_path: str) -> None:
        """Raise ``click.UsageError`` in one line when the file could not be written after the run."""
        if self.is_stdout:
            return
        if os.path.isdir(self.path):
            raise click.UsageError(f"cannot write {self.name}: it is a directory")
        if self.path == os.path.realpath(program_path):
            raise click.UsageError(f"cannot write {self.name}: it is the program to run")
        parent = os.path.dirname(self.path)
        if not os.path.isdir(parent):
            raise click.UsageError(f"cannot write {self.name}: there is no directory {parent}")
        try:
            if os.path.exists(self.path):
                with open(self.path, "ab"):
                    pass
                if self._is_somebody_elses():
                    option = f"; {self.option} takes the name of a new file, before the program" if self.option else ""
                    raise click.UsageError(
                        f"will not replace {self.name}: it exists, and genie did not write it{option}"
                    )
            if not self._is_special():
                os.unlink(self._temporary())  # permission bits alone do not tell (root, read-only mounts, quotas)
        except OSError as error:
            raise click.UsageError(f"cannot write {self.name}: {error.strerror or error}") from error

    def write(self, produce: Callable[[str], object]) -> None:
        """Let ``produce(path)`` write a temporary file, then put it in place in one step (or copy it to stdout)."""
        direct = self.is_stdout or self._is_special()
        temporary = self._temporary(direct)
        try:
            produce(temporary)
            if direct:
                self._copy(temporary)
            else:
                self._make_way()
                os.chmod(temporary, self._mode())
                os.replace(temporary, self.path)
        except OSError as error:
            name = "to standard output" if self.is_stdout else self.name
            raise click.ClickException(f"cannot write {name}: {error.strerror or error}") from error
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)

    def write_text(self, text: str) -> None:
        def produce(path: str) -> None:
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)

        self.write(produce)

    def _is_special(self) -> bool:
        """A device or pipe (``/dev/null``, ``/dev/fd/3``): written to, never replaced."""
        return os.path.exists(self.path) and not stat.S_ISREG(os.stat(self.path).st_mode)

    def _is_somebody_elses(self) -> bool:
        """Whether the file there is anything but an earlier output of genie's, or empty."""
        if self._is_special():
            return False
        if not os.path.getsize(self.path):
            return self.path.endswith(".py")  # an empty module; other empty files were made to be written to
        try:
            with open(self.path, "rb") as file:
                head = file.read(1024)
            if head.startswith(b"\x1f\x8b"):
                head = zlib.decompressobj(wbits=31).decompress(head, 1024)
        except (OSError, zlib.error):  # cannot be read, is no gzip file after all
            return True
        return _ours().match(head) is None

    def _make_way(self) -> None:
        """Another name where the program has meanwhile written a file of this one."""
        if not os.path.exists(self.path) or not self._is_somebody_elses():
            return
        stem, ending = os.path.splitext(self.path)
        taken = self.name
        self.path = next(path for i in itertools.count(1) if not os.path.exists(path := f"{stem}.{i}{ending}"))
        self.name = os.path.join(os.path.dirname(self.name), os.path.basename(self.path))
        click.echo(f"genie: the program wrote {taken} itself, so genie writes to {self.name}", err=True)

    def _temporary(self, elsewhere: bool = False) -> str:
        import tempfile  # not above: with all that it imports, the command's help would be slower

        # The name ends as the target's does: ".gz" means something to who writes it.
        ending = "" if self.is_stdout else os.path.basename(self.path)[-100:]
        folder = None if elsewhere else os.path.dirname(self.path)
        handle, path = tempfile.mkstemp(prefix=".genie-", suffix=ending, dir=folder)
        os.close(handle)
        return path

    def _mode(self) -> int:
        if os.path.exists(self.path):
            return stat.S_IMODE(os.stat(self.path).st_mode)
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

    def _copy(self, temporary: str) -> None:
        if self.is_stdout:
            with open(temporary, encoding="utf-8", errors="surrogateescape") as source:
                text = source.read()
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()
        else:
            with open(temporary, "rb") as packed, open(self.path, "wb") as target:
                shutil.copyfileobj(packed, target)


def say_written(files: Iterable[tuple[Format, OutputFile]]) -> None:
    for _, file in files:
        if not file.is_stdout:
            click.echo(f"genie: wrote {file.name}", err=True)


def write_anew(name: str, produce: Callable[[str], object]) -> None:
    """A file as a command writes it, for who is none: what cannot be written is a `UsageError`."""
    file = OutputFile(name)
    try:
        file.check("")
        file.write(produce)
    except click.ClickException as error:
        raise UsageError(f"[profile] {error.message}") from error


class _OutputType(click.ParamType):
    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputFile:
        if isinstance(value, OutputFile):
            return value
        if not value:
            self.fail("the file name is empty", param, ctx)
        return OutputFile(value, param.opts[0] if param is not None else "")


OUTPUT = _OutputType()


def output_options(formats: Sequence[Format]) -> Callable[[Any], Any]:
    """An option of its name for each of them."""

    def decorate(command: Any) -> Any:
        for each in reversed(formats):
            command = click.option(f"--{each.name}", type=OUTPUT, metavar="FILE", help=each.help)(command)
        return command

    return decorate
