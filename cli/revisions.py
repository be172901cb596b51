"""The runs behind ``genie diff --base REV``: a program at another revision, and as it is here (SPEC C5)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from mindtorch.base.errors import UsageError

from .child_command import made, ran
from .iteration_progress import note

__all__ = ["both"]

_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")  # of the commit being made


def both(base: str, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], tuple[str, str]]:
    """The reports of `genie profile` with these words at revision `base` and in the working tree, and their names.

    UsageError where there is no such revision, or where one of the runs failed.
    """
    _check(words)
    top = _git("rev-parse", "--show-toplevel", fails="--base needs a git repository; this folder is in none")
    commit = "" if base.startswith("-") else _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", fails="")
    if not commit:
        raise UsageError(f"--base {base}: this clone has no such revision; git fetch may bring it")
    name = f"{base} ({commit[:10]})" if not commit.startswith(base) else commit[:10]
    with _ended_cleanly(), _checked_out(top, commit) as tree:
        folder = os.path.join(tree, os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(top)))
        if not os.path.isdir(folder):
            raise UsageError(f"--base {base}: this folder is not in that revision")
        before = _profiled(words, name, folder, _moved(top, tree))
        _as_here(before, tree, top, name)
    with _ended_cleanly():
        after = _profiled(words, "the working tree", os.getcwd(), {})
    return before, after, (name, "the working tree")


def _check(words: Sequence[str]) -> None:
    """Whether that is a command that can be run twice; UsageError in the words of `genie profile` where it is none."""
    from . import profile

    if not words or words[0] != "profile":
        got = " ".join(words[:1]) or "nothing"
        raise click.UsageError(f"--base expects the command to compare, as in -- profile train.py, got {got}")
    asked = profile.command.make_context("genie profile", list(words[1:])).params
    for each in profile.FORMATS:
        if asked[each.name.replace("-", "_")] is not None:
            raise click.UsageError(
                f"--{each.name} would be written twice: give --html, --json or --markdown before the --"
            )


def _git(*words: str, fails: str | None = None) -> str:
    """What git prints. Where it fails: UsageError with these words, or with git's own; "" where they are empty."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        code, out, error = ran(["git", *words], env=environment, stderr=-1)
    except FileNotFoundError as none:
        raise UsageError("--base needs git, which is not installed") from none
    if not code:
        return out.removesuffix("\n")
    if fails == "":
        return ""
    raise UsageError(fails or f"git failed: {error.strip()}")


@contextlib.contextmanager
def _checked_out(top: str, commit: str) -> Iterator[str]:
    """A working tree of its own for a commit, which is gone afterwards."""
    import tempfile

    parent = tempfile.mkdtemp(prefix="genie-diff-")
    tree = os.path.join(parent, os.path.basename(top) or "tree")
    try:
        # Without the repository's hooks: nobody has checked this out to work on it.
        _git("-c", f"core.hooksPath={os.devnull}", "-C", top, "worktree", "add", "--detach", "--quiet", tree, commit)
        yield tree
    finally:
        try:
            _git("-C", top, "worktree", "remove", "--force", tree)
        except UsageError:  # it was not made as a whole, or the program left in it what git cannot remove
            shutil.rmtree(parent, ignore_errors=True)
            _git("-C", top, "worktree", "prune", fails="")
        shutil.rmtree(parent, ignore_errors=True)
        if os.path.exists(parent):
            click.echo(f"genie: cannot remove {parent}", err=True)


@contextlib.contextmanager
def _ended_cleanly() -> Iterator[None]:
    """SIGTERM and SIGHUP, as a job is cancelled, end this as Ctrl-C does: what was started is ended and removed."""

    def end(number: int, _frame: object) -> None:
        for each in known:
            signal.signal(each, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    known = {}
    with contextlib.suppress(ValueError):  # not the main thread: who calls knows how this ends
        known = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)


def _profiled(words: Sequence[str], name: str, folder: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The report of a run in that folder. What the program prints goes to stderr."""
    note(f"profiling {name} ...")
    return made(
        ["profile", "--json", "-", *words[1:]],
        lambda code: f"nothing to compare: genie profile ended with exit code {code} at {name}",
        folder,
        environment,
    )


def _moved(top: str, tree: str) -> dict[str, str]:
    """PYTHONPATH with the other tree's folders first, of those that Python's path has in this one: packages that are
    installed from the repository in place would be imported as they are here, not as they were."""
    top = os.path.realpath(top)
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    places = [path for path in dict.fromkeys([*given, *sys.path]) if os.path.isabs(path)]
    inside = [os.path.relpath(os.path.realpath(path), top) for path in places]
    there = [os.path.normpath(os.path.join(tree, path)) for path in inside if not path.startswith(os.pardir)]
    found = [*(path for path in dict.fromkeys(there) if os.path.isdir(path)), *given]
    return {"PYTHONPATH": os.pathsep.join(found)} if found else {}


def _as_here(report: dict[str, Any], tree: str, top: str, name: str) -> None:
    """Give the files of the other tree the names that they have in this one. UsageError where they were of this one."""
    top, tree = (os.path.realpath(folder) + os.sep for folder in (top, tree))
    held = (report.get("memory") or {}).get("held") or {"lines": []}
    for row in (*report["detail"]["lines"], *held["lines"]):
        file = os.path.realpath(row["file"]) if os.path.isabs(row["file"]) else ""
        if file.startswith(tree):
            row["file"] = top + file.removeprefix(tree)
        elif file.startswith(top) and not row["package"]:
            raise UsageError(
                f"the run at {name} used {file}, which is in the working tree: give paths relative to this folder, and "
                "install the repository's packages in place (pip install -e) or not at all"
            )
