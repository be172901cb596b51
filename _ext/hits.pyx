"""How often a program reaches each line of its own files: a trace function in C, for a table of lines alone."""
from cpython.object cimport PyObject

import dis
from itertools import chain

from .interpreter cimport PyTrace_CALL, PyTrace_LINE, mt_set_tracer, mt_traced_code, mt_tracer

cdef Hits counting = None
# Opcodes after which another instruction than the next one may come.
cdef object ENDS = frozenset((*dis.hasjrel, *dis.hasjabs, *(dis.opmap[name] for name in (
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE") if name in dis.opmap)))


cdef class Hits:
    """Counts lines of the program's own files, from `start` to `stop`, in the thread that calls both.

    own(file name) says what the program's own files are. The program sees no trace function (``sys.gettrace()`` is
    None). One that it sets comes in the place of this one: `stop` tells.
    """
    cdef object own
    cdef dict known                            # id of a code object -> its number; -1: it is not the program's own
    cdef list codes
    cdef dict counts                           # number of the code << 32 | offset of the instruction -> times
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
        """{(file name, line, function): times} since the last call.

        A statement on several lines comes back to those that it was at before, for a call whose arguments are on
        others or for a method of what they made: that is no other time. So all that is reached at a line without a
        jump between is one time; and from 3.11 on Python says what is of an expression that goes on.
        """
        counts, self.counts = self.counts, {}
        begun, back = {}, {}                   # by number of the code and line; of each instruction that came back
        tables = {}
        for key, times in counts.items():
            number = key >> 32
            table = tables.get(number)
            if table is None:
                table = tables[number] = _instructions(self.codes[number])
            line, spans, block = table[key & 0xFFFFFFFF]
            if spans:
                back.setdefault((number, line), []).append(times)
            else:
                blocks = begun.setdefault((number, line), {})
                blocks[block] = max(times, blocks.get(block, 0))
        found = {}
        for number, line in dict.fromkeys(chain(begun, back)):
            code = self.codes[number]
            where = (code.co_filename, line, code.co_name)
            blocks = begun.get((number, line))
            times = max(back[number, line]) if blocks is None else sum(blocks.values())
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
            key = self.number << 32 | (<object> frame).f_lasti
            self.counts[key] = self.counts.get(key, 0) + 1
        return 0


cdef dict _instructions(code):
    """{offset: (line, is it of an expression on several lines?, number of the stretch without jumps)}"""
    cdef dict found = {}
    cdef list blocks = _blocks(code.co_code)
    for begin, end, line in code.co_lines():
        if line is not None:
            found.update({at: (line, False, blocks[at // 2]) for at in range(begin, end, 2)})
    if not hasattr(code, "co_positions"):
        return found
    # A loop comes back to its first line for the next of its values, which is another time.
    cdef bytes units = code.co_code[::2]
    loop = -1                                  # the end of an instruction that does, whose argument may be long
    for at, (line, last, _column, _last_column) in enumerate(code.co_positions()):
        if at > loop:
            end = at
            while units[end] == dis.EXTENDED_ARG:
                end += 1
            loop = end if dis.opname[units[end]] == "FOR_ITER" else -1
        if line is not None:
            found[2 * at] = line, last is not None and last > line and at > loop, blocks[at]
    return found


cdef list _blocks(code):
    """For each of its units, the number of the stretch that it is in: it runs from its first to its last one."""
    cdef set labels = set(dis.findlabels(code))
    cdef list found = []
    cdef int number = 0
    cdef bint ended = False
    for at in range(0, len(code), 2):
        number += ended or at in labels
        found.append(number)
        ended = code[at] in ENDS
    return found


cdef int _reached(PyObject *nothing, PyObject *frame, int what, PyObject *value) except -1:
    return 0 if counting is None else counting.reached(frame, what)
