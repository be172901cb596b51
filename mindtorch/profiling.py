"""``mindtorch.profile()``: what ``genie profile`` shows, of a block of a program."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from mindtorch.cli.render import Canvas, terminal_width
from mindtorch.cli.report import View, render_report
from mindtorch.profile import Profiler

__all__ = ["Profile"]


class Profile(Profiler):
    """A `Profiler` that knows how to show itself: ``print(p)``, after the block.

    ``p.report()`` is the same as a dict, as ``genie profile --json`` writes it; ``p.show(by="line")`` is one table in
    full: "module", "op", "line" or "phase".
    """

    _ended = False

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
        report: dict[str, Any] = self.report()
        return render_report(report, Canvas(terminal_width(), color=False), View(by, top, depth, sort), "", [])

    def __str__(self) -> str:
        return self.show() if self._ended else repr(self)
