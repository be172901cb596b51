"""Line rows of the report: what each line did itself, and with all that it led to."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from mindtorch._ext import context, location
from mindtorch.base import sourceline
from mindtorch.profile.report.columns import LINES, Sums, sums, values
from mindtorch.profile.report.recording import Recording
from mindtorch.profile.report.rows import Row

_Place = tuple[str, int, str] | None


def line_rows(seen: Recording, rows: list[Row]) -> list[dict[str, Any]]:
    """By source line, longest first: its ops, and what Python does between them.

    total_s: with all that ran while the line did, of lines of the program's own files; None where that was not noted.
    hits: how often the line was reached, of the program's own files, by its main thread; None where it was not, or
    nobody counted.
    package: that of a library; empty for the program's own.
    """
    found = sums(seen, rows, None, lambda row: context.location(row.location))
    totals = _totals(rows) if seen.chains else {}
    hits = _hits(seen)
    for where in (*totals, *hits):
        found.setdefault(where, Sums())
    return [
        {
            **sourceline.facts(where),
            **values(LINES, of, False),
            "total_s": totals[where] / 1e9 if where in totals else None,
            # Time may be noted at a line before it is reached: that of a function's own first line.
            "hits": hits[where] or None if seen.hits and where and not package_of(where[0]) else None,
            "package": package_of(where[0]) if where else "",
        }
        for where, of in sorted(found.items(), key=lambda item: (-item[1].ns, -totals.get(item[0], 0)))
        if of.ns or of.ops or totals.get(where) or hits[where]
    ]


def _hits(seen: Recording) -> Counter[_Place]:
    """How often each line was reached: at least once where it ran when the stage began.

    What a line does before the first op or call of a model, and does again later, is the loop's, as in `of_the_loop`.
    """
    hits = seen.hits or {}
    found: Counter[_Place] = Counter(hits.get(seen.reached))
    if not seen.announced and not (seen.reached == "main" and "warmup" in seen.stages):  # else it is the warm-up's
        for stage in ("import", "init"):
            if stage != seen.reached:
                found.update({where: n for where, n in hits.get(stage, {}).items() if found[where]})
    return Counter({where: max(n, 1) for where, n in found.items()})


def _totals(rows: list[Row]) -> Counter[_Place]:
    """Nanoseconds by line of the program's own files; a line that is on the way twice counts once."""
    found: Counter[_Place] = Counter()
    lines: dict[int, set[_Place]] = {}
    for row in rows:
        if row.location not in lines:
            own = [place for place in location.chain(row.location) if location.is_own(place)]
            lines[row.location] = {context.location(place) for place in own}
        for where in lines[row.location]:
            found[where] += row.ns
    return found


def package_of(file: str) -> str:
    """The installed package that a file is of; "standard library"; empty for any other file."""
    folders = file.split(os.sep)
    for name in sourceline.INSTALLED:
        if name in folders[:-1]:
            at = len(folders) - 1 - folders[::-1].index(name)
            return folders[at + 1].removesuffix(".py")
    if file.startswith(sourceline.STANDARD):
        return "standard library"
    for folder in sourceline.installed():  # last: it asks the system where the program is
        if file.startswith(folder):
            return file[len(folder) :].split(os.sep)[0].removesuffix(".py")
    return ""
