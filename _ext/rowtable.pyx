"""Sums by signature, module, line and phase: what a profile's report is made of. Also calls by module."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from mindtorch._ext.context cimport PHASE_CANDIDATE, PHASE_INFERENCE, PHASE_PREFILL
from mindtorch._ext.growing cimport number_at
from mindtorch._ext.sizes cimport MT_ASSERT

MT_ASSERT(sizeof(Row) == 40)


@cython.final
cdef class RowTable:
    """Grows as needed; `take` empties it."""

    def __cinit__(self):
        self.mask = 1023
        self.rows = <Row *> calloc(1024, sizeof(Row))
        if self.rows == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)

    cdef Row *row(self, uint32_t sig, uint32_t module, uint32_t location, uint32_t phase) noexcept:
        cdef uint64_t h = (<uint64_t> sig * <uint64_t> 0x9E3779B97F4A7C15
                           ^ <uint64_t> module * <uint64_t> 0xC2B2AE3D27D4EB4F
                           ^ <uint64_t> location * <uint64_t> 0x165667B19E3779F9) + phase
        cdef uint32_t i
        cdef Row *r
        if (self.n + 1) * 3 > (self.mask + 1) * 2:
            self.grow()
        i = <uint32_t> ((h ^ h >> 29) * <uint64_t> 0xBF58476D1CE4E5B9 >> 32) & self.mask
        while True:
            r = &self.rows[i]
            if r.calls == 0:
                if self.n == self.mask:        # no memory for more: the last free entry ends every search
                    self.failed += 1
                    self.spare.calls = self.spare.ns = self.spare.nbytes = 0
                    return &self.spare
                r.sig = sig
                r.module = module
                r.location = location
                r.phase = phase
                self.n += 1
                return r
            if r.sig == sig and r.module == module and r.location == location and r.phase == phase:
                return r
            i = (i + 1) & self.mask

    cdef int grow(self) noexcept:
        cdef Row *old = self.rows
        cdef uint32_t size = self.mask + 1, i
        cdef Row *new = <Row *> calloc(2 * size, sizeof(Row))
        cdef Row *r
        if new == NULL:
            return 0                           # a fuller table is slower, not wrong
        self.rows = new
        self.mask = 2 * size - 1
        self.n = 0
        for i in range(size):
            if old[i].calls:
                r = self.row(old[i].sig, old[i].module, old[i].location, old[i].phase)
                r[0] = old[i]
        free(old)
        return 0

    cdef void settle(self, uint32_t was, uint32_t phase) noexcept:
        """What is in the phase `was` is in `phase`."""
        cdef Row *old = self.rows
        cdef uint32_t size = self.mask + 1, i
        cdef Row *new = <Row *> calloc(size, sizeof(Row))
        cdef Row *r
        if new == NULL:
            return                             # it reads as forward
        self.rows = new
        self.n = 0
        for i in range(size):
            if old[i].calls:
                r = self.row(old[i].sig, old[i].module, old[i].location,
                             phase if old[i].phase == was else old[i].phase)
                r.calls += old[i].calls
                r.ns += old[i].ns
                r.nbytes += old[i].nbytes
        free(old)

    cdef list take(self, list sig_ops):
        """List of (sig, module, location, phase, calls, ns, bytes); the table is empty afterwards."""
        cdef list found = []
        cdef Row *old = self.rows
        cdef Row *new = <Row *> calloc(1024, sizeof(Row))
        cdef uint32_t size = self.mask + 1, i
        cdef Row r
        if new == NULL:
            raise MemoryError
        self.rows = new                        # first: making a tuple may run a finalizer, and that an op
        self.mask = 1023
        self.n = 0
        try:
            for i in range(size):
                if old[i].calls:
                    r = old[i]
                    calls = 0 if r.sig and sig_ops[r.sig].is_run else r.calls
                    phase = PHASE_INFERENCE if r.phase == PHASE_CANDIDATE else r.phase
                    found.append((r.sig, r.module, r.location, phase, calls, r.ns, r.nbytes))
        finally:
            free(old)
        return found

    def move(self, from_, to, uint64_t ns):
        """`ns` of one row, a (sig, module, location, phase), are another's; False where the first has not that much."""
        cdef Row *r = self.row(from_[0], from_[1], from_[2], from_[3])
        if r.calls == 0 or r.ns < ns:
            self.n -= r.calls == 0             # it was not there, and is not now
            return False
        r.ns -= ns
        r = self.row(to[0], to[1], to[2], to[3])
        r.ns += ns
        r.calls += r.calls == 0                # its calls were in a stage before
        return True


cdef inline int kind_of(uint32_t phase) noexcept:
    """Calls of these phases are counted apart, because they are inference, or may turn out to be; all others: 3."""
    return 0 if phase == PHASE_INFERENCE else 1 if phase == PHASE_CANDIDATE else 2 if phase == PHASE_PREFILL else 3


@cython.final
cdef class ModuleCalls:
    """How often each module was called."""

    def __cinit__(self):
        for kind in range(4):
            self.cap[kind] = 256
            self.calls[kind] = <uint64_t *> calloc(256, 8)
            if self.calls[kind] == NULL:
                raise MemoryError

    def __dealloc__(self):
        for kind in range(4):
            free(self.calls[kind])

    cdef bint add(self, uint32_t module, uint32_t phase) noexcept:
        cdef int kind = kind_of(phase), other
        cdef uint64_t *calls = number_at(&self.calls[kind], &self.cap[kind], module)
        if calls == NULL:
            return False                       # no memory for so many modules
        calls[0] += 1
        for other in range(4):
            if module < self.cap[other] and self.calls[other][module] != (other == kind):
                return False
        return True

    cdef void settle(self, uint32_t was, uint32_t phase) noexcept:
        """Calls in the phase `was` are in `phase`."""
        cdef int old = kind_of(was), new = kind_of(phase)
        cdef uint64_t *calls
        cdef uint32_t i
        for i in range(self.cap[old] if old != new and old != 3 else 0):
            if self.calls[old][i]:
                calls = number_at(&self.calls[new], &self.cap[new], i)
                if calls != NULL:
                    calls[0] += self.calls[old][i]
                    self.calls[old][i] = 0

    cdef tuple take(self):
        """({module id: calls}, those of them without gradients that are no step of a generation); all are 0 then."""
        cdef dict found = {}, inference
        cdef uint32_t i
        cdef int kind
        self.settle(PHASE_CANDIDATE, PHASE_INFERENCE)       # as rows
        inference = {i: self.calls[0][i] for i in range(self.cap[0]) if self.calls[0][i]}
        for kind in range(4):
            for i in range(self.cap[kind]):
                if self.calls[kind][i]:
                    found[i] = found.get(i, 0) + self.calls[kind][i]
                    self.calls[kind][i] = 0
        return found, inference
