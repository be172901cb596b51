"""``genie diff``: what two reports, or two revisions of a program, differ in (SPEC C5)."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from mindtorch.base.errors import UsageError
from mindtorch.base.formats import Format, atomic
from mindtorch.profile.report.conditions import METRICS, Condition

from .iteration_progress import HowFar
from .output import OutputFile, output_options, say_written

__all__ = ["FORMATS", "command"]

_EPILOG = """\b
Examples:
  genie diff before.json after.json    two files of genie profile --json
  genie diff --fail-if 'flops>+1%' --fail-if 'peak>+0' before.json after.json
  genie diff --html page.html before.json after.json
  genie diff --base main -- profile --target h100 train.py
                                       main against the working tree
  genie diff --base main --markdown - -- profile train.py >> summary.md
"""


def _write_json(difference: dict[str, Any], path: str) -> None:
    with atomic(path) as file:
        json.dump(difference, file, indent=1, ensure_ascii=False)
        file.write("\n")


def _write_markdown(difference: dict[str, Any], path: str) -> None:
    from .report_difference import markdown

    with atomic(path) as file:
        file.write(markdown(difference))


def _write_html(difference: dict[str, Any], path: str) -> None:
    from mindtorch.profile.report.difference_page import write_html

    write_html(difference, path)


#: What ``genie diff`` can write; each is given the difference and a path.
FORMATS = (
    Format("json", "Write everything as JSON; - for stdout.", rb'\{\s*"schema_version":\s*\d+,\s*"diff":', _write_json),
    Format("markdown", "Write tables as Markdown; - for stdout.", rb"\*\*genie diff\*\*", _write_markdown),
    Format(
        "html",
        "Write the comparison as one HTML file for a browser.",
        rb"<!doctype html>\s<!-- genie diff: ",
        _write_html,
    ),
)


@click.command(name="diff", epilog=_EPILOG, short_help="Compare two reports, or two revisions of a program.")
@click.option(
    "--base", metavar="REV", help="A git revision: run the command after -- at this revision and in the working tree."
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with code 1 if this holds, e.g. 'flops>+1%' or 'peak>+1000000'. May be repeated. Metrics: "
    f"{', '.join(METRICS)}.",
)
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Rows to show in each table.")
@output_options(FORMATS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="BEFORE AFTER | --base REV -- profile PROGRAM ...")
def command(
    words: tuple[str, ...], base: str | None, conditions: tuple[str, ...], top: int, **files: OutputFile | None
) -> int:
    """Show how two reports differ: by module, op, phase and line, and by kind of memory.

    BEFORE and AFTER are files of genie profile --json, both measured or both estimates. With --base, the program is run
    twice: at that revision, in a working tree that is removed afterwards, and as it is here. Its output goes to
    stderr. Counts are exact; measured times count as different only if they differ by more than the noise between
    repeated iterations.
    """
    asked = [Condition.parse(text) for text in conditions]
    wanted = [(each, file) for each in FORMATS if (file := files[each.name]) is not None]
    for index, (_, file) in enumerate(wanted):
        file.check("")
        if any(file.same_as(other) for _, other in wanted[:index]):
            raise click.UsageError(f"{file.name} is given for two outputs")
        if base is None and any(file.path == os.path.realpath(word) for word in words):
            raise click.UsageError(f"cannot write {file.name}: it is one of the reports to compare")
    if base is not None:
        from .revisions import both

        before, after, names = both(base, words)
    else:
        if len(words) != 2:
            raise click.UsageError(f"expected two reports, BEFORE and AFTER, got {len(words)}")
        from mindtorch.profile.report.from_file import read  # `genie --help` does without

        before, after = map(read, words)
        names = words[0], words[1]
    from mindtorch.profile.report.difference import compare  # `genie --help` does without

    with HowFar(lambda: "still comparing"):
        try:
            difference = compare(before, after, names)
        except UsageError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError) as error:  # it has a report's form, not its content
            told = f"{type(error).__name__}: {error}"
            raise click.UsageError(
                f"cannot compare {names[0]} and {names[1]}: one of them is damaged ({told})"
            ) from None
    for condition in asked:
        condition.check(difference)

    from .report_difference import grown, render

    broken = [grown(condition, difference) for condition in asked if condition.holds(difference)]
    difference["failed"] = broken
    for each, file in wanted:
        file.write(lambda path, each=each: each.write(difference, path))  # type: ignore[misc]
    if not any(file.is_stdout for _, file in wanted):
        from .render import canvas

        click.echo(render(difference, canvas(), top), nl=False, color=True)
    say_written(wanted)
    for line in broken:
        click.echo(f"genie: {line}", err=True)
    return 1 if broken else 0
