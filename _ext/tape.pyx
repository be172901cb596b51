"""The tape: an append-only arena of op records in program order, and the values they make.

A record is 28 bytes, a value (slot) 16. Records live in chunks of 64 that are freed when the last of them has run
or was dropped; slots are reused. A record is dropped as soon as nobody can see its effect: at once for pure ops (a
cascade over an explicit work list), by a sweep for writes, views and whatever only dead records read.

What a read needs is found by one backward scan over the pending records (`plan`). It keeps program order for
everything that touches the same storage: writes before the read, earlier reads before a write, random draws in order.

Nothing here runs Python code while the tape is inconsistent: references are collected in `trash` and released last.
The GIL is the lock.
"""
cimport cython
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove

from .intern cimport Interner, ref, sig_alias, sig_written, unref
from .native_calls cimport release
from .sizes cimport MT_ASSERT
from .structs cimport (
    REC_DONE, REC_NEEDED, REC_OVERFLOW, REC_PENDING, REC_RUNNING, SIG_RANDOM, SIG_VIEW, SIG_WRITES, SLOT_CONTENT,
    MAX_DEVICES, MAX_SLOTS, MAX_USERS, PERMANENT, SLOT_NEEDED, SLOT_OVERWRITTEN, SLOT_PENDING,
    SLOT_USED, SLOT_WRITTEN, MAX_IDS, MetaS, Record, SigS, Slot, mt_set_side, mt_side,
)

cdef enum:
    SLOT_BITS = 5
    SLOT_BLOCK = 32
    SWEEP_MIN = 4096
    SCRATCH_KEPT = 4096        # words of a scratch array that survive a look for memory to give back


cdef void _assert_sizes() noexcept:
    # Compile-time: the build fails when a struct outgrows its budget (SPEC S5: record <= 40 aimed at).
    MT_ASSERT(sizeof(Record) == 28)
    MT_ASSERT(sizeof(Slot) == 16)
    MT_ASSERT(sizeof(MetaS) == 48)
    MT_ASSERT(sizeof(SigS) == 40)


cdef int vec_push(Vec *v, uint64_t x) except -1:
    cdef size_t cap
    cdef uint64_t *p
    if v.n == v.cap:
        cap = v.cap * 2 if v.cap else 32
        p = <uint64_t *>realloc(v.data, cap * sizeof(uint64_t))
        if not p:
            raise MemoryError()
        v.data = p
        v.cap = cap
    v.data[v.n] = x
    v.n += 1
    return 0


cdef freed_fn freed_hook = NULL


cdef void set_freed_hook(freed_fn hook) noexcept:
    global freed_hook
    freed_hook = hook


@cython.final
cdef class Tape:
    def __cinit__(self, Interner interner, max_pending=1 << 21, bint retain=False, max_waiting=1 << 30):
        self.interner = interner
        self.max_pending = max_pending
        self.max_waiting = max_waiting
        self.retain = retain
        self.sweep_at = min(<uint64_t>SWEEP_MIN, self.max_pending)
        self.n_slots = 1           # slot 0 means "none"
        self.rng_of(0)

    def __dealloc__(self):
        cdef size_t i, j
        cdef Slot *s
        cdef Record *r
        for i in range(1, self.n_slots):
            s = self.slot(<uint32_t>i)
            if s.flags & SLOT_USED and not s.flags & SLOT_PENDING and s.concrete:
                release(s.concrete)
        for i in range(self.n_chunks):
            if self.chunks[i]:
                for j in range(CHUNK):
                    r = &self.chunks[i].recs[j]
                    if (r.state == REC_PENDING or r.state == REC_RUNNING or self.retain) and r.flags & REC_OVERFLOW:
                        free(mt_side(r))
                free(self.chunks[i])
        for i in range(self.cap_blocks):
            free(self.slots[i])
        free(self.slots)
        free(self.chunks)
        free(self.work.data)
        free(self.trash.data)
        free(self.touched.data)

    # ---- values ------------------------------------------------------------------------------------------------
    cdef Slot *slot(self, uint32_t i) noexcept:
        return self.slots[i >> SLOT_BITS] + (i & (SLOT_BLOCK - 1))

    cdef uint32_t new_slot(self) except 0:
        cdef uint32_t i = self._take_slot()
        if not i:
            _no_slot(self)
        return i

    cdef uint32_t _take_slot(self) noexcept:
        # 0 when there is no memory, or no number, for one more.
        cdef uint32_t i = self.free_slot
        cdef Slot *s
        cdef Slot *block
        cdef Slot **directory
        if i:
            s = self.slot(i)
            self.free_slot = <uint32_t>s.producer
        else:
            i = self.n_slots
            if i == MAX_SLOTS:
                return 0
            if (i >> SLOT_BITS) >= self.cap_blocks:
                directory = <Slot **>realloc(self.slots, (self.cap_blocks + 1) * sizeof(Slot *))
                if not directory:
                    return 0
                self.slots = directory
                block = <Slot *>calloc(SLOT_BLOCK, sizeof(Slot))
                if not block:
                    return 0
                directory[self.cap_blocks] = block
                self.cap_blocks += 1
                self.bytes_records += SLOT_BLOCK * sizeof(Slot) + sizeof(Slot *)
            self.n_slots += 1
            s = self.slot(i)
        s.concrete = NULL
        s.users = 0
        s.root = i
        s.handles = 0
        s.flags = SLOT_USED
        return i

    cdef void _return_slot(self, uint32_t i) noexcept:
        cdef Slot *s = self.slot(i)
        s.flags = 0
        s.producer = self.free_slot
        self.free_slot = i

    cdef void _trim(self) noexcept:
        """Give back the blocks behind the last slot in use, and scratch memory. Called when many slots were freed."""
        cdef uint32_t i, last = 0
        self.freed = 0
        for i in range(1, self.n_slots):
            if self.slot(i).flags & SLOT_USED:
                last = i
        while self.cap_blocks > (last >> SLOT_BITS) + 1:
            self.cap_blocks -= 1
            free(self.slots[self.cap_blocks])
            self.bytes_records -= SLOT_BLOCK * sizeof(Slot) + sizeof(Slot *)
        self.n_slots = min(self.n_slots, self.cap_blocks << SLOT_BITS)
        self.free_slot = 0
        i = self.n_slots
        while i > 1:                   # low numbers are used first, so that high blocks become empty
            i -= 1
            if not self.slot(i).flags & SLOT_USED:
                self._return_slot(i)
        _shrink(&self.work)
        _shrink(&self.trash)
        if self.touched.n == 0:
            _shrink(&self.touched)

    cdef uint32_t rng_of(self, int device) except 0:
        """The slot standing for the state of the device's generator; made when it draws for the first time."""
        cdef uint32_t i
        if not 0 <= device < MAX_DEVICES:
            raise ValueError(f"[rng] expected a device index below {MAX_DEVICES}, got {device}")
        if not self.rng_slot[device]:
            i = self.new_slot()
            self.slot(i).handles = PERMANENT
            self.rng_slot[device] = i
            self.n_rngs += 1
        return self.rng_slot[device]

    def generators(self):
        """Indices of the devices that have drawn random numbers, or were asked to."""
        cdef list out = []
        cdef int k
        for k in range(MAX_DEVICES):
            if self.rng_slot[k]:
                out.append(k)
        return out

    cdef uint32_t hold(self, object tensor, uint32_t root) except 0:
        """A new value that is already computed; `root` is the slot whose storage it shares, 0 = its own."""
        cdef uint32_t i = self.new_slot()
        cdef Slot *s = self.slot(i)
        Py_INCREF(tensor)
        s.concrete = <PyObject *>tensor
        if root:
            s.root = root
            self.add_user(self.slot(root))
        return i

    cdef void add_user(self, Slot *s) noexcept:
        if s.users != MAX_USERS:
            s.users += 1

    cdef void drop_user(self, Slot *s) noexcept:
        if s.users != MAX_USERS:
            s.users -= 1

    cdef void _free_slot(self, uint32_t i, Slot *s) noexcept:
        cdef uint32_t root = s.root
        if self.retain:
            return
        if s.concrete:
            vec_try_push(&self.trash, <uint64_t>s.concrete)
        if freed_hook != NULL:
            freed_hook(i)
        self._return_slot(i)
        self.freed += 1
        if root != i:
            self.drop_user(self.slot(root))
            vec_try_push(&self.work, root)

    # ---- records -----------------------------------------------------------------------------------------------
    cdef Record *record(self, uint64_t seq) noexcept:
        cdef uint64_t c = (seq >> CHUNK_BITS) - self.chunk0
        if c >= self.n_chunks or not self.chunks[c]:
            return NULL
        return &self.chunks[c].recs[seq & (CHUNK - 1)]

    cdef Record *append(self, uint32_t sig, const uint32_t *ins, const double *floats, uint32_t module, uint32_t loc,
                        uint8_t phase) except NULL:
        """Record a call. Allocates its output slots; the caller makes handles for them before anything can die."""
        cdef SigS *s = self.interner.sigs[sig]
        cdef uint32_t n_in = s.n_in
        cdef uint32_t n_out = s.n_out
        cdef uint32_t n = sig_floats(s)
        cdef uint64_t seq = self.tail
        cdef Chunk *chunk
        cdef Chunk **directory
        cdef size_t cap
        cdef Record *r
        cdef Slot *o
        cdef uint32_t *side
        cdef uint32_t *outs
        cdef uint32_t i, root
        cdef uint16_t a
        if self.n_chunks == 0 or (seq >> CHUNK_BITS) - self.chunk0 == self.n_chunks:
            if self.n_chunks == self.cap_chunks:
                cap = self.cap_chunks * 2 if self.cap_chunks else 4
                directory = <Chunk **>realloc(self.chunks, cap * sizeof(Chunk *))
                if not directory:
                    raise MemoryError()
                self.bytes_records += (cap - self.cap_chunks) * sizeof(Chunk *)
                self.chunks = directory
                self.cap_chunks = cap
            chunk = <Chunk *>calloc(1, sizeof(Chunk))
            if not chunk:
                raise MemoryError()
            if self.n_chunks == 0:
                self.chunk0 = seq >> CHUNK_BITS
            self.chunks[self.n_chunks] = chunk
            self.n_chunks += 1
            self.bytes_records += sizeof(Chunk)
        chunk = self.chunks[self.n_chunks - 1]
        r = &chunk.recs[seq & (CHUNK - 1)]
        r.sig = sig
        r.module = module if module < MAX_IDS else 0
        r.loc = loc if loc < MAX_IDS else 0
        r.phase = phase
        r.flags = 0
        if n_in > 3 or n_out > 1 or n and n_in + n > 2:
            side = <uint32_t *>malloc(side_bytes(s) or 1)
            if not side:
                raise MemoryError()
            mt_set_side(r, side)
            r.flags |= REC_OVERFLOW
            self.bytes_records += side_bytes(s)
            memcpy(side, ins, n_in * sizeof(uint32_t))
            outs = side + n_in
        else:
            for i in range(n_in):
                r.ins[i] = ins[i]
            outs = &r.out0
            r.out0 = 0
        if n:
            memcpy(<void *>rec_floats(r, s), floats, n * sizeof(double))
        for i in range(n_out):
            outs[i] = self._take_slot()
            if not outs[i]:
                for root in range(i):
                    self._return_slot(outs[root])
                self._drop_side(r, s)
                _no_slot(self)
        for i in range(n_out):
            o = self.slot(outs[i])
            o.producer = seq
            o.flags = SLOT_USED | SLOT_PENDING
            a = sig_alias(s)[i]
            if a != 0xFFFF:
                root = self.slot(ins[a]).root
                o.root = root
                self.add_user(self.slot(root))
        for i in range(n_in):
            self.add_user(self.slot(ins[i]))
        self.mark_writes(r, s)
        r.state = REC_PENDING
        chunk.live += 1
        self.tail = seq + 1
        self.n_pending += 1
        self.n_recorded += 1
        return r

    cdef void finish(self, Record *r) noexcept:
        """The record has run, failed or been dropped: release what it holds. `_drain` must follow."""
        cdef SigS *s = self.interner.sigs[r.sig]
        cdef uint32_t *ins = rec_ins(r)
        cdef uint32_t *outs = rec_outs(r, s)
        cdef uint32_t i
        cdef Slot *o
        r.state = REC_DONE
        self.n_pending -= 1
        for i in range(s.n_out):
            o = self.slot(outs[i])
            if o.flags & SLOT_PENDING:      # dropped: it never got a value
                o.flags &= ~SLOT_PENDING
                o.concrete = NULL
            if not o.handles and not o.users:
                vec_try_push(&self.work, outs[i])
        for i in range(s.n_in):
            o = self.slot(ins[i])
            self.drop_user(o)
            if not o.users and not o.handles:
                vec_try_push(&self.work, ins[i])
        if not self.retain:
            self._drop_side(r, s)

    cdef void pass_over(self, uint64_t seq) noexcept:
        """The record, just made, will never run: its outputs, which must have handles, hold no data."""
        self.finish(self.record(seq))
        self._retire(seq)
        self._drain()
        if not seq & (CHUNK - 1):
            self._advance_head()

    cdef void _drop_side(self, Record *r, SigS *s) noexcept:
        if r.flags & REC_OVERFLOW:
            free(mt_side(r))
            self.bytes_records -= side_bytes(s)
            r.flags &= ~REC_OVERFLOW

    cdef void _retire(self, uint64_t seq) noexcept:
        # Chunk bookkeeping, apart from finish() so that a record's memory outlives its use.
        cdef uint64_t c = (seq >> CHUNK_BITS) - self.chunk0
        cdef Chunk *chunk = self.chunks[c]
        chunk.live -= 1
        if chunk.live == 0 and (seq >> CHUNK_BITS) != (self.tail >> CHUNK_BITS) and not self.retain:
            free(chunk)
            self.chunks[c] = NULL
            self.bytes_records -= sizeof(Chunk)

    cdef void _advance_head(self) noexcept:
        # Drop freed chunks from the front of the directory and move `head` past records that are done.
        cdef size_t k = 0
        cdef Record *r
        if self.retain:
            return
        while k < self.n_chunks and not self.chunks[k]:
            k += 1
        if k and 2 * k >= self.n_chunks:     # so that moving them stays O(1) per chunk
            memmove(self.chunks, self.chunks + k, (self.n_chunks - k) * sizeof(Chunk *))
            self.n_chunks -= k
            self.chunk0 += k
        if self.n_pending == 0:
            self.head = self.tail
            self.waiting = 0
            return
        while self.head < self.tail:
            r = self.record(self.head)
            if not r:
                self.head = ((self.head >> CHUNK_BITS) + 1) << CHUNK_BITS
            elif r.state == REC_DONE:
                self.head += 1
            else:
                break

    # ---- death -------------------------------------------------------------------------------------------------
    cdef void handle_died(self, uint32_t i) noexcept:
        cdef Slot *s = self.slot(i)
        if s.handles != PERMANENT:
            s.handles -= 1
            if not s.handles:
                self.settle(i)

    cdef void settle(self, uint32_t i) noexcept:
        """Free slot `i` if nobody can read it, and whatever that makes unreadable."""
        vec_try_push(&self.work, i)
        self._drain()

    cdef void _drain(self) noexcept:
        cdef uint32_t i, j
        cdef uint64_t seq
        cdef Slot *s
        cdef Record *r
        cdef SigS *sig
        cdef uint32_t *outs
        cdef bint dead, dropped = False
        cdef PyObject *obj
        if self.busy:
            return                 # the outer call works the list off
        self.busy = True
        while self.work.n or self.trash.n:
            while self.work.n:
                self.work.n -= 1
                i = <uint32_t>self.work.data[self.work.n]
                s = self.slot(i)
                if s.handles or s.users or not s.flags & SLOT_USED:
                    continue
                if not s.flags & SLOT_PENDING:
                    self._free_slot(i, s)
                    continue
                seq = s.producer
                r = self.record(seq)
                sig = self.interner.sigs[r.sig]
                if r.state != REC_PENDING or sig.flags & (SIG_WRITES | SIG_RANDOM) or self.retain:
                    continue
                outs = rec_outs(r, sig)
                dead = True
                for j in range(sig.n_out):
                    s = self.slot(outs[j])
                    if s.handles or s.users:
                        dead = False
                        break
                if dead:
                    self.n_dropped += 1
                    self.finish(r)
                    self._retire(seq)
                    dropped = True
            # Releasing a tensor may run code that records or reads: by now the tape is consistent.
            if self.trash.n:
                self.trash.n -= 1
                obj = <PyObject *>self.trash.data[self.trash.n]
                release(obj)
        self.busy = False
        if dropped:
            self._advance_head()
        if self.freed > self.n_slots // 4 + 1024:
            self._trim()

    # ---- planning ----------------------------------------------------------------------------------------------
    cdef int _mark(self, uint32_t i, uint8_t flag) except -1:
        cdef Slot *s = self.slot(i)
        if not s.flags & (SLOT_NEEDED | SLOT_CONTENT | SLOT_OVERWRITTEN):
            vec_push(&self.touched, i)
        s.flags |= flag
        return 0

    cdef void _unmark(self) noexcept:
        cdef size_t k
        for k in range(self.touched.n):
            self.slot(<uint32_t>self.touched.data[k]).flags &= ~(SLOT_NEEDED | SLOT_CONTENT | SLOT_OVERWRITTEN)
        self.touched.n = 0

    cdef bint _visit(self, Record *r, SigS *s) except -1:
        """Backward-scan step: is this record needed by what was marked so far? If so, mark what it needs."""
        cdef uint32_t *ins = rec_ins(r)
        cdef uint32_t *outs = rec_outs(r, s)
        cdef uint32_t i, root
        cdef Slot *v
        cdef bint need = False, live = False
        for i in range(s.n_out):
            v = self.slot(outs[i])
            if v.flags & SLOT_NEEDED:
                need = True
                break
            if v.handles or v.users:
                live = True
        if not need and s.flags & SIG_WRITES:
            live = True
            for i in range(s.n_in):
                if sig_written(s)[i] and self.slot(self.slot(ins[i]).root).flags & SLOT_CONTENT:
                    need = True
                    break
        if not need and s.flags & SIG_RANDOM and self.slot(self.rng_slot[s.device]).flags & SLOT_CONTENT:
            need = True
        if not need and live and not s.flags & SIG_VIEW:
            # It reads (or writes) a storage that a needed, later record overwrites: it must run before that.
            for i in range(s.n_in):
                if self.slot(self.slot(ins[i]).root).flags & SLOT_OVERWRITTEN:
                    need = True
                    break
        if not need:
            return False
        for i in range(s.n_in):
            v = self.slot(ins[i])
            root = v.root
            if v.flags & SLOT_PENDING:
                self._mark(ins[i], SLOT_NEEDED)
            if not s.flags & SIG_VIEW:
                self._mark(root, SLOT_CONTENT)
            if sig_written(s)[i]:
                self._mark(root, SLOT_OVERWRITTEN)
        if s.flags & SIG_RANDOM:
            self._mark(self.rng_slot[s.device], SLOT_CONTENT)
        return True

    cdef int plan(self, const uint32_t *targets, size_t n, const uint32_t *written, size_t n_written,
                  Vec *out) except -1:
        """Sequence numbers, in program order, of the pending records that `targets` need.

        `written`: slots whose storage the caller is about to write outside the tape; their pending readers come too.
        With `targets` NULL: everything that a live handle can see.
        1 when every pending write to a target's storage is among them, else 0.
        """
        cdef size_t k
        cdef uint64_t low = self.tail      # the scan may stop here: nothing needed lies before it
        cdef uint64_t seq, tmp
        cdef Record *r
        cdef Slot *s
        cdef SigS *sig
        cdef uint32_t i
        out.n = 0
        if self.n_pending == 0:
            return 0
        try:
            if targets == NULL:
                low = self.head
                for i in range(1, self.n_slots):
                    s = self.slot(i)
                    if s.flags & SLOT_USED and s.handles:
                        self._mark(i, SLOT_NEEDED)
                        self._mark(s.root, SLOT_CONTENT)
            for k in range(n):
                s = self.slot(targets[k])
                self._mark(targets[k], SLOT_NEEDED)
                self._mark(s.root, SLOT_CONTENT)
                low = min(low, self._earliest(targets[k]))
            for k in range(n_written):
                self._mark(self.slot(written[k]).root, SLOT_OVERWRITTEN)
                low = self.head
            seq = self.tail
            while seq > low:
                seq -= 1
                r = self.record(seq)
                if not r:
                    seq = (seq >> CHUNK_BITS) << CHUNK_BITS
                    continue
                if r.state != REC_PENDING:
                    continue
                sig = self.interner.sigs[r.sig]
                if self._visit(r, sig):
                    vec_push(out, seq)
                    if sig.flags & (SIG_WRITES | SIG_RANDOM):
                        low = self.head
                    for i in range(sig.n_in):
                        low = min(low, self._earliest(rec_ins(r)[i]))
        finally:
            self._unmark()
        for k in range(out.n // 2):
            tmp = out.data[k]
            out.data[k] = out.data[out.n - 1 - k]
            out.data[out.n - 1 - k] = tmp
        return low == self.head

    cdef void unmark_writes(self, const uint32_t *targets, size_t n) noexcept:
        """All that is pending and writes to their storages is about to run. What does not get to it marks it again."""
        cdef size_t k
        for k in range(n):
            self.slot(self.slot(targets[k]).root).flags &= ~SLOT_WRITTEN

    cdef void mark_writes(self, Record *r, SigS *s) noexcept:
        """Note on the storages that `r` writes, and on the generator, that a write is pending."""
        cdef uint32_t i
        if s.flags & SIG_WRITES:
            for i in range(s.n_in):
                if sig_written(s)[i]:
                    self.slot(self.slot(rec_ins(r)[i]).root).flags |= SLOT_WRITTEN
        if s.flags & SIG_RANDOM:
            self.slot(self.rng_slot[s.device]).flags |= SLOT_WRITTEN

    cdef uint64_t _earliest(self, uint32_t i) noexcept:
        # Where the scan for a needed value may stop: at its producer, unless its storage has pending writes.
        cdef Slot *s = self.slot(i)
        if self.slot(s.root).flags & SLOT_WRITTEN:
            return self.head
        return s.producer if s.flags & SLOT_PENDING else self.tail

    cdef int sweep(self) except -1:
        """Drop every pending record that no live handle, write or random draw can make visible."""
        cdef Vec keep
        cdef size_t k
        cdef uint64_t seq
        cdef Record *r
        keep.data = NULL
        keep.n = keep.cap = 0
        try:
            self.plan(NULL, 0, NULL, 0, &keep)
            self.waiting_draws = 0
            for k in range(keep.n):
                r = self.record(keep.data[k])
                r.flags |= REC_NEEDED
                if self.interner.sigs[r.sig].flags & SIG_RANDOM:
                    self.waiting_draws += 1
            seq = self.head
            self.busy = True       # collect deaths; release them when the scan is over
            while seq < self.tail:
                r = self.record(seq)
                if not r:
                    seq = ((seq >> CHUNK_BITS) + 1) << CHUNK_BITS
                    continue
                if r.state == REC_PENDING and not r.flags & REC_NEEDED:
                    self.n_dropped += 1
                    self.finish(r)
                    self._retire(seq)
                elif r.state == REC_PENDING:
                    r.flags &= ~REC_NEEDED
                seq += 1
            self.busy = False
            self._drain()
            self._advance_head()
        finally:
            free(keep.data)
        self.rearm()
        return 0

    cdef void rearm(self) noexcept:
        """When to sweep next: after as many records again, so that sweeping stays O(1) per record."""
        self.sweep_at = max(<uint64_t>SWEEP_MIN, 2 * self.n_pending)
        if self.n_pending < self.max_pending < self.sweep_at:
            self.sweep_at = self.max_pending   # the limit is looked at after a sweep

    cdef int evict(self) except -1:
        """Free calls and metadata that no handle and no pending record names. No caller may hold such an id."""
        cdef Interner table = self.interner
        cdef uint8_t *pinned
        cdef uint64_t seq
        cdef Record *r
        cdef set seen
        if table.frozen or self.retain:
            return 0
        seen = set()                   # before the look at the records: it may run a finalizer
        pinned = <uint8_t *>calloc(table.n_sigs, 1)
        if not pinned:
            raise MemoryError()
        seq = self.head
        while seq < self.tail:
            r = self.record(seq)
            if not r:
                seq = ((seq >> CHUNK_BITS) + 1) << CHUNK_BITS
                continue
            if r.state == REC_PENDING or r.state == REC_RUNNING:
                pinned[r.sig] = 1
            seq += 1
        try:
            return table.evict(pinned, seen)
        finally:
            free(pinned)

    # ---- introspection -----------------------------------------------------------------------------------------
    def counters(self):
        """Plain counts: recorded, pending, executed, dropped records; live values; bytes of every table."""
        cdef size_t live = 0
        cdef uint32_t i
        for i in range(1, self.n_slots):
            if self.slot(i).flags & SLOT_USED:
                live += 1
        return {
            "recorded": self.n_recorded, "pending": self.n_pending, "executed": self.n_executed,
            "dropped": self.n_dropped, "values": live - self.n_rngs,
            "bytes_held": self.bytes_records + self.interner.bytes, "record_bytes": sizeof(Record),
        }

    def pending_seqs(self):
        """Sequence numbers of all pending records, in program order."""
        cdef list out = []
        cdef uint64_t seq = self.head
        cdef Record *r
        while seq < self.tail:
            r = self.record(seq)
            if r and r.state == REC_PENDING:
                out.append(seq)
            seq += 1
        return out

    def describe(self, uint64_t seq):
        """(sig, module, loc, phase, input slots, output slots) of record `seq`; KeyError if it is gone."""
        # Lists first: making one may run a finalizer that reads or drops the record.
        cdef list ins = [], outs = []
        cdef Record *r = self.record(seq)
        if not r or (r.state == REC_DONE and not self.retain):
            raise KeyError(f"record {seq} has run or was dropped")
        cdef SigS *s = self.interner.sigs[r.sig]
        cdef uint32_t sig = r.sig, module = r.module, loc = r.loc, i
        cdef uint8_t phase = r.phase
        for i in range(s.n_in):
            ins.append(rec_ins(r)[i])
        for i in range(s.n_out):
            outs.append(rec_outs(r, s)[i])
        return (sig, module, loc, phase, tuple(ins), tuple(outs))

    def floats(self, uint64_t seq):
        """The floats of record `seq` that its call leaves open, in order; KeyError if it is gone."""
        cdef Record *r = self.record(seq)
        if not r or (r.state == REC_DONE and not self.retain):
            raise KeyError(f"record {seq} has run or was dropped")
        cdef SigS *s = self.interner.sigs[r.sig]
        return floats_at(rec_floats(r, s), sig_floats(s))


cdef tuple floats_at(const void *p, uint32_t n):
    # Copied first: making objects may run a finalizer that drops the record.
    cdef double few[4]
    cdef double *copied = few
    cdef tuple made
    cdef object number
    cdef uint32_t k
    if n > 4:
        copied = <double *>malloc(n * sizeof(double))
        if not copied:
            raise MemoryError()
    memcpy(copied, p, n * sizeof(double))
    try:
        made = PyTuple_New(n)
        for k in range(n):
            number = copied[k]
            Py_INCREF(number)
            PyTuple_SET_ITEM(made, k, number)
        return made
    finally:
        if copied != few:
            free(copied)


cdef int _no_slot(Tape tape) except -1:
    if tape.n_slots == MAX_SLOTS:
        raise MemoryError(f"{MAX_SLOTS} live values on one tape")
    raise MemoryError()


cdef void _shrink(Vec *v) noexcept:
    if v.n == 0 and v.cap > SCRATCH_KEPT:
        free(v.data)
        v.data = NULL
        v.cap = 0


cdef void vec_try_push(Vec *v, uint64_t x) noexcept:
    # Out of memory here means a few bytes are never freed: better than an exception inside a destructor.
    try:
        vec_push(v, x)
    except MemoryError:
        return


@cython.final
@cython.freelist(512)
@cython.no_gc
cdef class Handle:
    def __init__(self):
        raise TypeError("Handle is made by the engine")

    def __dealloc__(self):
        cdef MetaS *m
        cdef Slot *s
        if self.tape is not None:
            m = &self.tape.interner.metas[self.meta]
            s = self.tape.slot(self.slot)
            if s.users and s.handles == 1 and not s.flags & SLOT_PENDING:
                # The program has let go of a computed value that pending records still want.
                self.tape.waiting += m.nbytes
                if self.tape.waiting > self.tape.max_waiting:
                    self.tape.sweep_at = 0     # the next recording looks at it
            unref(&m.refs)
            self.set_call(0, NULL)
            self.tape.handle_died(self.slot)

    cdef void set_meta(self, uint32_t meta) noexcept:
        ref(&self.tape.interner.metas[meta].refs)
        unref(&self.tape.interner.metas[self.meta].refs)
        self.meta = meta

    cdef void set_call(self, uint32_t sig, const void *floats) noexcept:
        """Name the call that made the value, 0: none. Without memory for its floats, none is known."""
        cdef SigS *s
        cdef uint32_t n = sig_floats(self.tape.interner.sigs[sig]) if sig else 0
        cdef Floats numbers
        numbers.several = NULL
        if n == 1:
            memcpy(&numbers.one, floats, sizeof(double))
        elif n:
            numbers.several = <double *>malloc(n * sizeof(double))
            if numbers.several:
                memcpy(numbers.several, floats, n * sizeof(double))
            else:
                sig = 0
        if sig:
            ref(&self.tape.interner.sigs[sig].refs)
        if self.sig:
            s = self.tape.interner.sigs[self.sig]
            if sig_floats(s) > 1:
                free(self.numbers.several)
            unref(&s.refs)
        self.sig = sig
        self.numbers = numbers

    cdef const void *floats(self) noexcept:
        """As rec_floats(); only good while the handle names the call."""
        if self.sig and sig_floats(self.tape.interner.sigs[self.sig]) > 1:
            return self.numbers.several
        return &self.numbers.one

    cdef void follow(self, Handle other) noexcept:
        """Say of the value's origin what `other` says."""
        self.set_call(other.sig, other.floats())
        self.module, self.loc, self.phase = other.module, other.loc, other.phase

    @property
    def pending(self):
        """True until the value has been computed."""
        return bool(self.tape.slot(self.slot).flags & SLOT_PENDING)


cdef uint64_t _next_id = 0


cdef Handle new_handle(Tape tape, uint32_t slot, uint32_t meta):
    global _next_id
    cdef Handle h
    cdef Slot *s
    try:
        h = Handle.__new__(Handle)
    except MemoryError:
        tape.settle(slot)      # a value that nobody else names will never be named
        raise
    s = tape.slot(slot)
    if s.handles != PERMANENT:
        s.handles += 1
    _next_id += 1
    h.tape = tape
    h.id = _next_id
    h.slot = slot
    h.meta = meta
    ref(&tape.interner.metas[meta].refs)
    return h


def newest_id():
    """The id of the handle that was made last."""
    return _next_id
