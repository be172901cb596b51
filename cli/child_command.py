"""A genie command in a process of its own: the JSON that it prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from mindtorch.base.errors import UsageError

__all__ = ["made", "ran"]

_GENIE = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; sys.argv[0] = 'genie'; "
    "from mindtorch.cli.main import entry; entry()"
)
_PATIENCE = 10  # seconds for the program to end when it is asked to


def made(
    words: Sequence[str],
    fails: Callable[[int], str],
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What `genie` with these words, which ask for JSON on stdout, prints. What the program prints goes to stderr.

    Where it fails: UsageError with what `fails` says of its exit code.
    """
    code, text, _ = ran([sys.executable, "-c", _GENIE, *words], cwd=folder, env={**os.environ, **(environment or {})})
    if code:
        raise UsageError(fails(code))
    found: dict[str, Any]
    found, end = json.JSONDecoder().raw_decode(text)
    if after := text[end:].strip():  # what the program printed as the process ended
        click.echo(after, err=True)
    return found


def ran(words: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """Exit code, stdout, and stderr where that is asked for. Who is interrupted ends it, and lets it clean up."""
    import subprocess  # not above: with what it imports itself, the command's help would be slower

    running = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8", errors="surrogateescape", **options
    )
    try:
        out, error = running.communicate()
    except BaseException:
        running.terminate()
        try:
            running.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
        raise
    return running.returncode, out, error or ""
