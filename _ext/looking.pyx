"""Which line of the program is a thread at? Asked only while it runs no op: see sampler.pyx.

A line is one of the program's own files: what numpy or the standard library do, they do for the line that called them.

Nothing here lets another thread run, nor the garbage collector: a frame that somebody refers to outlives its function,
and all its variables with it. A program can tell: torch copies a new tensor to which something else refers.
"""
cimport cython

import os
import sys

import numpy as np

from libc.stdint cimport uint32_t, uint64_t

from mindtorch._ext import location
from mindtorch._ext.clock cimport mt_now

cdef extern from "Python.h":
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept

cdef object current_frames = sys._current_frames


cdef class _Looking:
    """`look` takes notes with the collection of garbage off: it would run the program's finalizers here."""

    def look(self):
        cdef int collects = PyGC_Disable()
        try:
            self.note()
        finally:
            if collects:
                PyGC_Enable()

    cdef object note(self):
        raise NotImplementedError


@cython.final
cdef class Look(_Looking):
    """`look` notes where each thread of a profile is; the sampler calls it, which holds Python's lock.

    `skipped`: beginnings of the names of files that are never the program's own. `waits`: {(file, name) of a function
    that waits, or its code: a number for what it waits for}; of several that call each other the greatest counts.
    `loads`: (file, name) of the function that gives the next batch: what called it is told by the program's own line,
    not by that of a progress bar around the loader. `library`: folders of the standard library, within which folders
    with a name of `packages` hold what is installed.
    """
    cdef public object collector               # a Collector, or None: nothing is noted
    cdef dict waits
    cdef tuple skipped, installed, loads, library
    cdef dict own                              # file -> is it the program's?

    def __init__(self, skipped, waits, loads, library, packages):
        self.waits = waits
        self.loads = loads
        self.skipped = (*skipped, os.path.dirname(np.__file__) + os.sep)
        self.library = library
        self.installed = ()
        for folder in library:
            for name in packages:
                self.installed += (folder + name + os.sep,)
        self.own = {}

    cdef object note(self):
        if self.collector is None:
            return
        threads = self.collector.timelines()
        frames = current_frames() if threads else {}
        for ident, timeline in threads:
            frame = frames.get(ident)
            waits, loads = 0, False
            while frame is not None and not self.is_own(frame.f_code.co_filename):
                called = frame.f_code.co_filename, frame.f_code.co_name
                waits = max(waits, self.waits.get(called, 0), self.waits.get(frame.f_code, 0))
                loads = loads or called == self.loads
                frame = frame.f_back
            outer = frame
            while loads and outer is not None and not location.is_own(location.place(outer.f_code, outer.f_lasti)):
                outer = outer.f_back
            frame = frame if outer is None else outer
            if frame is not None:
                self.collector.seen_at(timeline, location.location_at(frame), waits)
            elif waits:                        # none of the program's own is left: it ends, and waits for its threads
                self.collector.seen_at(timeline, 0, waits)

    cdef bint is_own(self, file) except -1:
        found = self.own.get(file)
        if found is None:
            found = self.own[file] = not (file.startswith(self.skipped) or (
                file.startswith(self.library) and not file.startswith(self.installed)))
        return found


@cython.final
cdef class HostLook(_Looking):
    """Of a program that is estimated: how long is it at something of its own, which nobody counts?

    `look` is called again and again. Where from one look to the next `position()` stayed what it was, so that no op was
    noted, and the thread was both times at something that is neither torch's nor ours nor an import, the time between
    them was the program's own: numpy, an environment, sleeping; and so was half of that before the first such look and
    after the last, somewhere in which it began and ended. What lasts less than that is not seen. What a library
    does, it does for the program's line that called it; what the standard library does, for whoever called it.
    `lost()`: ns so far in which the thread could have run and did not, which are none of the program's.
    """
    cdef object position, lost
    cdef tuple skipped, installed, library, foreign
    cdef unsigned long thread
    cdef uint64_t looked, before, missed
    cdef uint64_t came, gap                    # ns from the look before to the first such look; between the last two
    cdef uint32_t place
    cdef bint own
    cdef readonly dict ns                      # by location, of the program's line

    def __init__(self, position, skipped, thread, installed, lost, library):
        self.position, self.skipped, self.thread, self.lost = position, skipped, thread, lost
        self.library = ("<", *library)
        self.installed = ()
        for folder in installed:
            if folder not in library:
                self.installed += (folder,)
        self.foreign = self.library + self.installed + skipped
        self.ns = {}

    cdef object note(self):
        cdef uint64_t now = mt_now(), position = self.position(), missed = self.lost(), gap, begun
        cdef bint own, told = False, found = False
        frame = current_frames().get(self.thread)
        own = frame is not None
        place = location.place(frame.f_code, frame.f_lasti) if own else 0
        while frame is not None and own:
            file = frame.f_code.co_filename
            if not told and (file.startswith(self.installed) or not file.startswith(self.library)):
                told, own = True, not file.startswith(self.skipped)
            if not found and not file.startswith(self.foreign):
                place = location.place(frame.f_code, frame.f_lasti)
                found = place != 0             # else it hands calls of torch on
            own = own and frame.f_code.co_name != "_find_and_load"
            frame = frame.f_back
        gap = now - self.looked if self.looked else 0
        gap -= min(gap, missed - self.missed)
        if own and self.own and position == self.before:
            begun = min(self.came, gap) // 2 if self.gap == 0 else 0
            self.ns[place] = self.ns.get(place, 0) + gap + begun
            self.gap, self.place = gap, place
        else:
            if self.gap:
                self.ns[self.place] = self.ns.get(self.place, 0) + min(gap, self.gap) // 2
            self.came, self.gap = gap, 0
        self.looked, self.before, self.missed, self.own = now, position, missed, own
