"""How far each thread of a profile is accounted for, and its events, up to a limit: what a trace is made of."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from mindtorch._ext.context cimport MODULE_ENTER, MODULE_EXIT, PHASE_CHANGE
from mindtorch._ext.sizes cimport MT_ASSERT

MT_ASSERT(sizeof(Event) == 40)
MT_ASSERT(sizeof(Span) == 32)
# The same for numpy, and the kinds.
EVENT = [
    ("start", "u8"), ("ns", "u8"), ("live", "u8"), ("sig", "u4"), ("module", "u4"), ("location", "u4"),
    ("thread", "u2"), ("kind", "u1"), ("phase", "u1"),
]
SPAN = [
    ("start", "u8"), ("ns", "u8"), ("sig", "u4"), ("module", "u4"), ("location", "u4"), ("thread", "u2"),
    ("phase", "u1"), ("", "u1"),
]
OP, ENTER, EXIT, PHASE = EVENT_OP, 1 + MODULE_ENTER, 1 + MODULE_EXIT, 1 + PHASE_CHANGE
RECORD, RUN, LABEL = EVENT_RECORD, EVENT_RUN, EVENT_LABEL


@cython.final
cdef class Timeline:
    """Where the accounting of one thread is; the collector moves it."""

    cdef void look(self, uint64_t at, uint32_t place, uint8_t waits) noexcept:
        """The thread was seen at `place`, waiting or not: there it spent the time since the last hook or look."""
        cdef uint64_t since = self.looked if self.n_looks and self.looked > self.last else self.last
        cdef uint32_t i = 0
        if at <= since:
            return
        while i < self.n_looks and (self.look_place[i] != place or self.look_waits[i] != waits):
            i += 1
        if i == LOOKS:
            i = LOOKS - 1
        elif i == self.n_looks:
            self.n_looks += 1
            self.look_place[i] = place
            self.look_waits[i] = waits
            self.look_ns[i] = 0
        self.look_ns[i] += at - since
        self.looked = at
        self.look_last = i

    cdef bint was_somewhere(self) noexcept:
        """Was it at a line of the program's, as far as it was seen since the last hook?"""
        cdef uint32_t i
        for i in range(self.n_looks):
            if self.look_place[i]:
                return True
        return self.place != 0


@cython.final
cdef class EventLog:
    """At most `most` events; what finds no room is counted as dropped."""

    def __init__(self, most):
        self.most = most

    def __dealloc__(self):
        free(self.events)

    cdef Event *add(self) noexcept:
        cdef uint32_t cap
        cdef Event *bigger
        if self.n == self.cap:
            cap = 2 * self.cap if self.cap else 4096
            if cap > self.most:
                cap = self.most
            bigger = NULL if cap == self.n else <Event *> realloc(self.events, cap * sizeof(Event))
            if bigger == NULL:
                self.dropped += 1
                return NULL
            self.events = bigger
            self.cap = cap
        self.n += 1
        return &self.events[self.n - 1]

    cdef void settle(self, uint32_t since, uint8_t was, uint8_t phase) noexcept:
        """What is in the phase `was`, from that event on, is in `phase`."""
        cdef uint32_t i
        for i in range(since, self.n):
            if self.events[i].phase == was:
                self.events[i].phase = phase

    def as_bytes(self):
        """All of them: see `EVENT`."""
        return (<char *> self.events)[:self.n * sizeof(Event)] if self.n else b""

    def event(self, index):
        """(kind, start ns, ns, signature, module, location, phase, live bytes, thread)"""
        if not 0 <= index < self.n:
            raise IndexError(f"[event] expected an index below {self.n}, got {index}")
        cdef Event *e = &self.events[<uint32_t> index]
        return e.kind, e.start, e.ns, e.sig, e.module, e.location, e.phase, e.live, e.thread


@cython.final
cdef class SpanLog:
    """What went into which row when, while `most` is not 0; `take` empties it."""

    def __cinit__(self):
        self.enough = 0xFFFFFFFF

    def __dealloc__(self):
        free(self.spans)

    cdef void add(self, uint64_t start, uint64_t ns, uint32_t sig, uint32_t module, uint32_t location,
                  uint32_t phase, uint16_t thread) noexcept:
        cdef uint32_t cap
        cdef Span *bigger
        if self.n >= self.most:
            self.dropped += self.most != 0
            return
        if self.n == self.cap:
            cap = 2 * self.cap if self.cap else 4096
            bigger = <Span *> realloc(self.spans, cap * sizeof(Span))
            if bigger == NULL:
                self.dropped += 1
                return
            self.spans = bigger
            self.cap = cap
        self.spans[self.n] = Span(start, ns, sig, module, location, thread, <uint8_t> phase, 0)
        self.n += 1

    cdef void settle(self, uint8_t was, uint8_t phase) noexcept:
        cdef uint32_t i
        for i in range(self.n):
            if self.spans[i].phase == was:
                self.spans[i].phase = phase

    def keep(self, most, full):
        """Up to that many from now on; `full()` is called before an op that finds three quarters of them there."""
        self.most = most
        self.enough = most - most // 4 if most else 0xFFFFFFFF
        self.full = full

    def take(self):
        """(all of them: see `SPAN`; how many found no room)"""
        found = (<char *> self.spans)[:self.n * sizeof(Span)] if self.n else b""
        dropped, self.dropped, self.n = self.dropped, 0, 0
        return found, dropped
