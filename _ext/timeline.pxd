"""What happened when (see timeline.pyx)."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mindtorch._ext.stretches cimport STRETCHES

cdef struct Event:                             # one op, or one change of module or phase, for the trace
    uint64_t start                             # ns
    uint64_t ns                                # duration of an op; 0 for a change
    uint64_t live                              # live bytes after it
    uint32_t sig                               # signature of an op
    uint32_t module
    uint32_t location
    uint16_t thread                            # number of the thread, 0 the first
    uint8_t kind                               # EVENT_OP or 1 + Transition
    uint8_t phase

cdef struct Span:                              # what went into one row of the sums, at once
    uint64_t start                             # ns
    uint64_t ns
    uint32_t sig
    uint32_t module
    uint32_t location
    uint16_t thread
    uint8_t phase
    uint8_t unused

cdef enum:                                     # kinds; between EVENT_OP and EVENT_RECORD: 1 + Transition
    EVENT_OP = 0
    EVENT_RECORD = 4                           # an op that was only recorded
    EVENT_RUN = 5                              # a recorded op that ran
    EVENT_LABEL = 6                            # a named stretch, noted at its end; sig: number of its name
    LOOKS = 16                                 # lines told apart between two ops
    FOR_THREADS = 1                            # what is waited for: as in waiting.py of the measured profile


cdef class Timeline:                           # of one thread
    cdef uint64_t last                         # end of the interval accounted for last
    cdef uint64_t seen                         # what all threads together had been accounted for by then
    cdef uint64_t inner                        # ns within the current op that are accounted for already
    cdef bint compiling, importing             # importing: a module of a library
    cdef uint64_t n_ops_before                 # the import that it is in
    cdef bint in_op                            # an op written in Python may call modules: part of the op
    cdef readonly uint32_t depth               # of running modules
    cdef readonly uint16_t number              # 0: the thread that started the collector
    cdef readonly uint64_t n_ops, op_ns
    cdef list labels                           # (number, start ns, interception until then) of what has begun
    cdef uint32_t recomputing                  # depth of modules that backward calls again, from 1; 0 = none
    cdef uint32_t recompute_labels             # how many labels were open then
    cdef uint64_t ended[STRETCHES]             # storages made until each of them ended last
    cdef uint32_t place                        # where it was at the last hook
    cdef uint32_t loading                      # the program's line that waits for a DataLoader, or did so last
    cdef uint64_t looked                       # when it was looked at last
    cdef uint32_t look_last                    # which of them was the last
    cdef uint32_t n_looks                      # since `last`
    cdef uint32_t look_place[LOOKS]
    cdef uint64_t look_ns[LOOKS]
    cdef uint8_t look_waits[LOOKS]             # what for; 0: for nothing, it worked

    cdef void look(self, uint64_t at, uint32_t place, uint8_t waits) noexcept
    cdef bint was_somewhere(self) noexcept


cdef class EventLog:
    cdef Event *events                         # owned
    cdef uint32_t cap
    cdef readonly uint32_t n, most
    cdef readonly uint64_t dropped

    cdef void settle(self, uint32_t since, uint8_t was, uint8_t phase) noexcept
    cdef Event *add(self) noexcept             # a new entry to be filled in at once; NULL when there is no room


cdef class SpanLog:
    cdef Span *spans                           # owned
    cdef readonly uint32_t n
    cdef uint32_t cap, enough
    cdef uint32_t most                         # 0: nothing is kept
    cdef object full
    cdef uint64_t dropped

    cdef void add(self, uint64_t start, uint64_t ns, uint32_t sig, uint32_t module, uint32_t location,
                  uint32_t phase, uint16_t thread) noexcept
    cdef void settle(self, uint8_t was, uint8_t phase) noexcept
