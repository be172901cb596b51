"""``mindtorch.profile()``: what ``genie profile`` shows, of a block of a program."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from mindtorch.cli.render import Canvas, terminal_width
from mindtorch.cli.report import SORT_KEYS, TABLES, View, render_report
from mindtorch.profile import Profiler

__all__ = ["Profile"]


class Profile(Profiler):
    """A `Profiler` that knows how to show itself: ``print(p)``, after the block.

    ``p.report()`` is the same as a dict, as ``genie profile --json`` writes it; ``p.show(by="line")`` is one table in
    full: "module", "op", "line" or "phase". All that runs in the block is reported.
    """

    _ended = False

    def __init__(self, **options: Any) -> None:
        super().__init__(whole=True, **options)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._ended = True

    def show(self, by: str | None = None, top: int | None = None, depth: int | None = None,
             sort: str | None = None) -> str:  # fmt: skip
        """The report as text. Raises RuntimeError before the end of the block."""
        if not self._ended:
            raise RuntimeError("[profile] expected the block to have ended, got a profile that is still being made")
        for name, asked, choices in (("by", by, TABLES), ("sort", sort, SORT_KEYS)):
            if asked is not None and asked not in choices:
                raise ValueError(f"[profile] expected {name}= to be one of {', '.join(choices)}, got {asked!r}")
        report: dict[str, Any] = self.report()
        return render_report(report, Canvas(terminal_width(), color=False), View(by, top, depth, sort), "", [])

    def __str__(self) -> str:
        return self.show() if self._ended else repr(self)
