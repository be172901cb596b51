"""Which line of the program is a thread at? Asked only while it runs no op: see `_ext.sampler`.

A line is one of the program's own files: what numpy or the standard library do, they do for the line that called them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

import numpy as np

from mindtorch._ext import location
from mindtorch._ext.collect import Collector
from mindtorch.semantics import skipped_prefixes


class Look:
    """Notes where each thread of a profile is; called by the sampler, which holds Python's lock."""

    def __init__(self) -> None:
        self.collector: Collector | None = None
        # Everything that is imported to do so is there before anything is measured.
        self._skipped = (*skipped_prefixes(), os.path.dirname(np.__file__) + os.sep)
        self._library = sysconfig.get_path("stdlib") + os.sep
        self._installed = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
        self._own: dict[str, bool] = {}

    def __call__(self) -> None:
        if self.collector is None:
            return
        threads = self.collector.timelines()
        frames = sys._current_frames() if threads else {}
        for ident, timeline in threads:
            frame = frames.get(ident)
            while frame is not None and not self._is_own(frame):
                frame = frame.f_back
            if frame is not None:
                self.collector.seen_at(timeline, location.place(frame.f_code, frame.f_lasti))

    def _is_own(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        own = self._own.get(file)
        if own is None:
            library = file.startswith(self._library) and not file.startswith(self._installed)
            own = self._own[file] = not library and not file.startswith(self._skipped)
        return own
