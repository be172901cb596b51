"""Output files: refused before the run when they cannot be written, complete or absent afterwards."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import click

__all__ = ["OUTPUT", "OutputFile"]


class OutputFile:
    """``name`` as given; ``-`` is stdout. ``path`` is absolute, since the program may change the directory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stdout = name == "-"
        self.path = os.path.realpath(name)

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
            if not self._is_special():
                os.unlink(self._temporary())  # permission bits alone do not tell (root, read-only mounts, quotas)
        except OSError as error:
            raise click.UsageError(f"cannot write {self.name}: {error.strerror or error}") from error

    def write(self, produce: Callable[[str], object]) -> None:
        """Let ``produce(path)`` write a temporary file, then put it in place in one step (or copy it to stdout)."""
        direct = self.is_stdout or self._is_special()
        temporary = self._temporary(None if not direct else tempfile.gettempdir())
        try:
            produce(temporary)
            if direct:
                self._copy(temporary)
            else:
                os.chmod(temporary, self._mode())
                os.replace(temporary, self.path)
        except OSError as error:
            raise click.ClickException(f"cannot write {self.name}: {error.strerror or error}") from error
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

    def _temporary(self, folder: str | None = None) -> str:
        # The name ends as the target's does: ".gz" means something to who writes it.
        ending = "" if self.is_stdout else os.path.basename(self.path)[-100:]
        handle, path = tempfile.mkstemp(prefix=".genie-", suffix=ending, dir=folder or os.path.dirname(self.path))
        os.close(handle)
        return path

    def _mode(self) -> int:
        if os.path.exists(self.path):
            return stat.S_IMODE(os.stat(self.path).st_mode)
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

    def _copy(self, temporary: str) -> None:
        with open(temporary, encoding="utf-8", errors="surrogateescape") as source:
            text = source.read()
        if self.is_stdout:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()
        else:
            with open(self.path, "w", encoding="utf-8", errors="surrogateescape") as target:
                target.write(text)


class _OutputType(click.ParamType):
    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputFile:
        if isinstance(value, OutputFile):
            return value
        if not value:
            self.fail("the file name is empty", param, ctx)
        return OutputFile(value)


OUTPUT = _OutputType()
