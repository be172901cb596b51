"""Everything that is made to be looked at: the only user of rich. Functions return text; the commands print it."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import ASCII, ROUNDED
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mindtorch.base.words import visible

__all__ = ["Canvas", "Column", "Text", "canvas", "clean", "grade", "printable", "terminal_width"]

_PLAIN = str.maketrans("─│├└╭╮╰╯█░·×µ…●○▸–", "-||`++++#.,xu~*o>-")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_GLUE = "\ue000"  # stands for a space at which no line ends; rich breaks at the one that Unicode has
_AMOUNT = re.compile(r"(?<=\d) (?=(?:%|×|[nµm]?s|min|h|[kKMGTP]?i?(?:B|FLOP|MAC|J|W)?)(?:/s)?(?:[\s,;.:)]|$))")


def clean(text: str) -> str:
    """Without control characters: names and source lines are the user's, escape sequences in them stay out."""
    return visible("".join(" " if c.isspace() else c for c in text.expandtabs(4)))


def _together(text: str) -> str:
    """A number stays in one line with its unit."""
    return _AMOUNT.sub(_GLUE, text)


@dataclass(frozen=True)
class Column:
    """A right-aligned column of numbers beside the name."""

    title: str
    width: int


class Canvas:
    """Collects a report ``width`` cells wide; no line is ever wider, and no name is cut."""

    def __init__(self, width: int, color: bool, plain: bool = False) -> None:
        self.width = width
        self.plain = plain  # the terminal cannot show box characters
        self._file = io.StringIO()
        self._console = Console(
            file=self._file,
            width=width,
            force_terminal=color,
            force_jupyter=False,  # in a notebook too, what is shown is the text that we return
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        text = self._file.getvalue().replace(_GLUE, " ")
        return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii") if self.plain else text

    def add(self, *parts: RenderableType) -> None:
        for part in parts:
            self._console.print(part, soft_wrap=False)

    def heading(self, title: str, note: str = "") -> None:
        self.add("", Text.assemble((title, "bold cyan"), (f"  {note}" if note else "", "dim")))

    def facts(self, title: str, subject: str, facts: Sequence[tuple[str, str]]) -> None:
        """A box of label and value; values wrap."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in facts:
            grid.add_row(label, Text(_together(clean(value))))
        room = self.width - cell_len(title) - 12
        subject = clean(subject)
        # A command that does not fit beside the title is a fact of its own, whole.
        if cell_len(subject) > room:
            grid.add_row("command", Text(subject))
            subject = ""
        head = Text.assemble((title, "bold"), ("  " + subject if subject else "", "default"))
        self.add(Panel(grid, title=head, title_align="left", box=ASCII if self.plain else ROUNDED, width=self.width))

    def sheet_head(self, name: str, columns: Sequence[Column]) -> None:
        self._row(Text(name), [Text(c.title) for c in columns], columns, "dim")

    def sheet_row(self, name: Text, cells: Sequence[str], columns: Sequence[Column], style: str = "") -> None:
        """A name and its numbers. A name that does not fit gets lines of its own above the numbers."""
        self._row(name, [Text(cell) for cell in cells], columns, style)

    def _row(self, name: Text, cells: list[Text], columns: Sequence[Column], style: str) -> None:
        room = self.width - sum(c.width + 1 for c in columns)
        line = Text(no_wrap=True, end="")
        if name.cell_len > room:
            for part in _in_lines(name, self.width):
                self.add(part)
            line.append(" " * room)
        else:
            line.append_text(name)
            line.append(" " * (room - name.cell_len))
        for cell, column in zip(cells, columns):
            line.append(" " * (1 + column.width - cell.cell_len))
            line.append_text(cell)
        line.rstrip()
        if style:
            line.stylize_before(style)
        line.end = "\n"
        self.add(line)

    def paragraph(self, text: str, style: str = "", bullet: str = "  ", hanging: int | None = None) -> None:
        """Wrapped to the width; the first line starts with ``bullet``, the others are indented to match."""
        indent = cell_len(bullet) if hanging is None else hanging
        lines = Text(_together(clean(text)), style=style).wrap(
            self._console, max(20, self.width - indent), overflow="fold"
        )
        for number, line in enumerate(lines):
            line.rstrip()
            self.add(Text.assemble(bullet if number == 0 else " " * indent, line))

    def command(self, words: Sequence[str], indent: int = 2) -> None:
        """A shell command that can be copied: a line ends between words, with a backslash. Words stay whole, however
        long; the terminal wraps what is wider than itself, and copies it as one line."""
        line = " " * indent
        lines = []
        for number, word in enumerate(words):
            end = 0 if number == len(words) - 1 else 2
            if line.strip() and cell_len(f"{line}{word}") + end > self.width:
                lines.append(f"{line}\\")
                line = " " * (indent + 2)
            line += f"{word} "
        for text in (*lines, line.rstrip(" ")):
            self._console.print(Text(text), soft_wrap=True)

    def bar(self, share: float, width: int) -> str:
        """``share`` (0 to 1) as a bar; ASCII where block characters cannot be shown."""
        filled = min(max(share, 0.0), 1.0) * width
        whole = int(filled)
        if self.plain:
            return ("#" * round(filled)).ljust(width)
        rest = _EIGHTHS[int((filled - whole) * 8)] if whole < width else ""
        return ("█" * whole + rest.strip()).ljust(width)


def _in_lines(text: Text, width: int) -> list[Text]:
    """In lines of this width: after a slash or a space where there is one, so that names and line numbers are whole."""
    plain = text.plain
    places, start = [], 0
    while cell_len(plain[start:]) > width:
        end = start + 1
        while cell_len(plain[start : end + 1]) <= width:
            end += 1
        fits = plain[start:end]
        best = max(fits.rfind("/"), fits.rfind("\\"), fits.rfind(" ")) + 1
        start += best or len(fits)
        places.append(start)
    lines = list(text.divide(places))
    for line in lines:
        line.rstrip()
    return lines


def grade(share: float) -> str:
    """The style of a row that takes ``share`` (0 to 1) of the time."""
    return "bold red" if share >= 0.4 else "yellow" if share >= 0.15 else "" if share >= 0.02 else "dim"


def _on_terminal() -> bool:
    return bool(getattr(sys.stdout, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def _shows_boxes() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def terminal_width() -> int:
    """Columns to fill: the terminal's between 60 and 120, what COLUMNS says for anything else, or 80."""
    columns = shutil.get_terminal_size((80, 24)).columns  # COLUMNS first
    if _on_terminal():
        return min(max(columns, 60), 120)
    return min(max(columns, 60), 200) if os.environ.get("COLUMNS") else 80


def printable(text: str) -> str:
    """``text`` as stdout's encoding can show it."""
    if _shows_boxes():
        return text
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def canvas() -> Canvas:
    """For stdout as it is: colours only on a terminal without NO_COLOR, ASCII where the encoding has no boxes."""
    color = not os.environ.get("NO_COLOR") and (_on_terminal() or bool(os.environ.get("FORCE_COLOR")))
    return Canvas(terminal_width(), color, plain=not _shows_boxes())
