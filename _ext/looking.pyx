"""Which line of the program is a thread at? Asked only while it runs no op: see sampler.pyx.

A line is one of the program's own files: what numpy or the standard library do, they do for the line that called them.

Nothing here lets another thread run, nor the garbage collector: a frame that somebody refers to outlives its function,
and all its variables with it. A program can tell: torch copies a new tensor to which something else refers.
"""
cimport cython

import os
import sys
import sysconfig

import numpy as np

from mindtorch._ext import location

cdef extern from "Python.h":
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept

cdef object current_frames = sys._current_frames


@cython.final
cdef class Look:
    """`look` notes where each thread of a profile is; the sampler calls it, which holds Python's lock.

    `skipped`: beginnings of the names of files that are never the program's own.
    """
    cdef public object collector               # a Collector, or None: nothing is noted
    cdef tuple skipped, installed
    cdef str library
    cdef dict own                              # file -> is it the program's?

    def __init__(self, skipped):
        self.skipped = (*skipped, os.path.dirname(np.__file__) + os.sep)
        self.library = sysconfig.get_path("stdlib") + os.sep
        self.installed = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
        self.own = {}

    def look(self):
        cdef int collects
        if self.collector is None:
            return
        collects = PyGC_Disable()
        try:
            self.note()
        finally:
            if collects:
                PyGC_Enable()

    cdef object note(self):
        threads = self.collector.timelines()
        frames = current_frames() if threads else {}
        for ident, timeline in threads:
            frame = frames.get(ident)
            while frame is not None and not self.is_own(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                self.collector.seen_at(timeline, location.place(frame.f_code, frame.f_lasti))

    cdef bint is_own(self, file) except -1:
        found = self.own.get(file)
        if found is None:
            found = self.own[file] = not (file.startswith(self.skipped) or (
                file.startswith(self.library) and not file.startswith(self.installed)))
        return found
