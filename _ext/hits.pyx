"""How often a program reaches each line of its own files: a trace function in C, for a table of lines alone."""
from cpython.object cimport PyObject

from .interpreter cimport PyTrace_CALL, PyTrace_LINE, mt_set_tracer, mt_traced_code, mt_traced_line, mt_tracer

cdef Hits counting = None


cdef class Hits:
    """Counts lines of the program's own files, from `start` to `stop`, in the thread that calls both.

    own(file name) says what the program's own files are. The program sees no trace function (``sys.gettrace()`` is
    None). One that it sets comes in the place of this one: `stop` tells.
    """
    cdef object own
    cdef dict known                            # id of a code object -> its number; -1: it is not the program's own
    cdef list codes
    cdef dict counts                           # number of the code << 32 | line -> times
    cdef object recent
    cdef long long number

    def __init__(self, own):
        self.own, self.known, self.codes, self.counts = own, {}, [], {}
        self.recent, self.number = None, -1

    def start(self):
        """Whether counting begins: it does not beside another trace function (a debugger's), or another `Hits`."""
        global counting
        if counting is not None or mt_tracer() != NULL:
            return False
        counting = self
        mt_set_tracer(<void *> _reached)
        return True

    def stop(self):
        """Whether all was counted: nobody has set another trace function since."""
        global counting
        cdef bint ours = mt_tracer() == <void *> _reached
        if ours:
            mt_set_tracer(NULL)
        counting = None
        return ours

    def take(self):
        """{(file name, line, function): times} since the last call."""
        counts, self.counts = self.counts, {}
        found = {}
        for key, times in counts.items():
            code = self.codes[key >> 32]
            where = (code.co_filename, key & 0xFFFFFFFF, code.co_name)
            found[where] = found.get(where, 0) + times
        return found

    cdef int reached(self, PyObject *frame, int what) except -1:
        code = <object> mt_traced_code(frame)
        if code is not self.recent:
            number = self.known.get(id(code))
            if number is None:
                number = len(self.codes) if self.own(code.co_filename) else -1
                self.known[id(code)] = number
                self.codes.append(code)        # kept: its id means it for good
            self.recent, self.number = code, number
        if self.number < 0:
            if what == PyTrace_CALL:
                (<object> frame).f_trace_lines = False
        elif what == PyTrace_LINE:
            key = self.number << 32 | mt_traced_line(frame)
            self.counts[key] = self.counts.get(key, 0) + 1
        return 0


cdef int _reached(PyObject *nothing, PyObject *frame, int what, PyObject *value) except -1:
    return 0 if counting is None else counting.reached(frame, what)
