"""Named stretches of a program: what it names itself with ``record_function``, as torch's DataLoader and optimizers do.

A stretch lasts from its begin to its end, whatever runs within; interception, loading modules and compiling are taken
off. Stretches of one thread lie within each other. Of one that began in an earlier stage, what follows counts.
"""
import os
import sys

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mindtorch._ext.timeline cimport Timeline

# What backward calls; each outermost module is a call. Checkpoints call again what forward has called; an adjoint, or
# another function's own backward pass, calls what it likes.
RECOMPUTING = "recomputed modules (checkpoint)"
IN_BACKWARD = "modules called in backward"
_TORCHS = os.path.join("torch", "utils", "checkpoint.py")

cdef enum:
    MOST = 4096                                # names; further ones, of a program that numbers its own, are "(others)"


@cython.final
cdef class Labels:
    def __cinit__(self):
        self.names = []
        self.numbers = {}
        self.sums = {}

    cdef int begin(self, Timeline here, str name, uint64_t now, uint64_t elsewhere) except -1:
        number = self.numbers.get(name)
        if number is None:
            if len(self.names) >= MOST:
                name = "(others)"
            number = self.numbers.setdefault(name, len(self.names))
            if number == len(self.names):
                self.names.append(name)
        if here.labels is None:
            here.labels = []
        here.labels.append((number, now, now, elsewhere))    # where it began, and since when it counts
        return 0

    cdef int64_t end(self, Timeline here, uint64_t now, uint64_t elsewhere, uint64_t *start) except -2:
        cdef uint64_t ns, before, since, ours
        cdef object number
        if not here.labels:
            return -1
        number, before, since, ours = here.labels.pop()
        start[0] = before
        ns = now - since if now > since else 0
        ours = elsewhere - ours if elsewhere > ours else 0
        ns = ns - ours if ours < ns else 0
        found = self.sums.get(number)
        if found is None:
            self.sums[number] = (1, ns, ns, ns)
        else:
            calls, total, least, most = found
            self.sums[number] = (calls + 1, total + ns, ns if ns < least else least, ns if ns > most else most)
        return number

    cdef int stage(self, Timeline here, uint64_t at, uint64_t elsewhere) except -1:
        """Another one begins: so far, what is open was the last one's, and so was what was taken off it."""
        cdef Py_ssize_t i
        for i in range(len(here.labels) if here.labels is not None else 0):
            number, began, _, _ = here.labels[i]
            here.labels[i] = number, began, at, elsewhere
        return 0

    cdef bint recompute(self, Timeline here, bint enters, uint64_t now, uint64_t elsewhere) noexcept:
        cdef uint64_t start = 0
        try:
            if enters and not here.recomputing:
                here.recompute_labels = <uint32_t> len(here.labels) if here.labels is not None else 0
                self.begin(here, RECOMPUTING if _checkpoints() else IN_BACKWARD, now, elsewhere)
                here.recomputing = here.depth + 1
            elif not enters and here.recomputing and here.recomputing == here.depth:
                here.recomputing = 0
                del here.labels[here.recompute_labels + 1:]    # what an error kept from ending
                self.end(here, now, elsewhere, &start)
        except MemoryError:
            return False
        return True

    def take(self):
        """{name: (calls, ns, least, most)} of the stretches that ended since the last time."""
        sums, self.sums = self.sums, {}
        return {self.names[number]: found for number, found in sums.items()}


cdef bint _checkpoints() except -1:
    """Is it a checkpoint, torch's or one of that name, as programs have their own, that autograd has called?"""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        code = frame.f_code
        if code.co_filename.endswith(_TORCHS) or "checkpoint" in code.co_name.lower():
            return True
        if code.co_name == "backward" and code.co_argcount and code.co_varnames:
            first = frame.f_locals.get(code.co_varnames[0])
            if "checkpoint" in type(first).__name__.lower():
                return True
        frame = frame.f_back
    return False
