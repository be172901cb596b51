"""What a table of lines needs to be noted while a program runs: the lines that led to each op, how often each ran."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from types import TracebackType

from mindtorch._ext import location
from mindtorch._ext.hits import Hits
from mindtorch.engine.semantics import installed_folders, skipped_prefixes

__all__ = ["LineWatch"]

_TYPED = ("<ipython", "<stdin>")  # other code without a file is what a library made: a dataclass's __init__
_Line = tuple[str, int, str]  # file, number, function


class LineWatch:
    """Within the block locations know the lines that led to them, where `chains` says so.

    hits: count how often the thread that enters the block reaches each line of the program's own files.
    """

    def __init__(self, chains: bool, hits: bool) -> None:
        self.chains, self._counts = chains, hits
        self._hits: Hits | None = None
        self._stages: dict[str, Counter[_Line]] = {}
        self._begun: dict[str, set[_Line]] = {}  # lines that ran when the stage began
        self._running: set[_Line] = set()

    def __enter__(self) -> LineWatch:
        location.chains_wanted(int(self.chains))
        if self._counts:
            self._others = (*skipped_prefixes(), *installed_folders())
            hits = Hits(self._is_own)
            self._hits = hits if hits.start() else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        location.chains_wanted(-int(self.chains))
        if self._hits is not None and not self._hits.stop():
            self._hits = None

    def ends(self, stage: str) -> None:
        """What was reached since the last call belongs to that stage."""
        if self._hits is not None:
            self._stages.setdefault(stage, Counter()).update(self._hits.take())
            self._begun.setdefault(stage, self._running)
            frames = traceback.walk_stack(sys._getframe(1))
            self._running = {
                (frame.f_code.co_filename, line, frame.f_code.co_name)
                for frame, line in frames if self._is_own(frame.f_code.co_filename)
            }  # fmt: skip

    def _is_own(self, file: str) -> bool:
        return not file.startswith(self._others) and (not file.startswith("<") or file.startswith(_TYPED))

    def hits(self) -> dict[str, Counter[_Line]] | None:
        """After the block, by stage, how often each line was reached; 0: it ran already when the stage began.

        Empty where another trace function was in the way; None where nobody asked.
        """
        if self._hits is None:
            return {} if self._counts else None
        return {stage: Counter(dict.fromkeys(self._begun[stage], 0) | hits) for stage, hits in self._stages.items()}
