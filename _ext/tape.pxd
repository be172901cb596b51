cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .intern cimport Interner, sig_key
from .structs cimport MAX_DEVICES, Record, SigS, Slot, mt_side
from .template cimport n_floats

cdef enum:
    CHUNK_BITS = 6
    CHUNK = 64

cdef struct Chunk:
    uint32_t live            # records in it that have not run and are not dropped
    uint32_t pad
    Record recs[CHUNK]

cdef struct Vec:             # growable array of 64-bit words, engine scratch
    uint64_t *data
    size_t n, cap


cdef inline uint32_t *rec_ins(Record *r) noexcept:
    if r.flags & 1:          # REC_OVERFLOW
        return mt_side(r)
    return r.ins

cdef inline uint32_t *rec_outs(Record *r, SigS *s) noexcept:
    if r.flags & 1:
        return mt_side(r) + s.n_in
    return &r.out0


cdef inline const void *rec_floats(Record *r, SigS *s) noexcept:
    """Where those of its floats are that its key has not, not aligned for them."""
    if r.flags & 1:
        return mt_side(r) + s.n_in + s.n_out
    return r.ins + 1

cdef inline uint32_t sig_floats(SigS *s) noexcept:
    return n_floats(sig_key(s))

cdef inline size_t side_bytes(SigS *s) noexcept:
    return (<size_t>s.n_in + s.n_out) * sizeof(uint32_t) + sig_floats(s) * sizeof(double)

cdef tuple floats_at(const void *p, uint32_t n)


@cython.final
cdef class Tape:
    cdef readonly Interner interner
    cdef Slot **slots            # directory of blocks of SLOT_BLOCK
    cdef uint32_t n_slots, cap_blocks, free_slot
    cdef uint32_t freed          # slots freed since the last look for blocks to give back
    cdef Chunk **chunks          # directory; entry i is chunk number chunk0 + i; NULL once freed
    cdef size_t n_chunks, cap_chunks
    cdef uint64_t chunk0
    cdef readonly uint64_t head, tail       # sequence numbers: oldest record that may be pending; next to be recorded
    cdef readonly uint64_t n_pending, n_recorded, n_executed, n_dropped
    cdef readonly size_t bytes_records      # chunks, directories, side arrays, slots
    cdef uint64_t sweep_at       # pending count that triggers the next sweep
    cdef readonly uint64_t max_pending
    cdef readonly uint64_t waiting, max_waiting     # bytes of values that only pending records keep: seen, allowed
    cdef uint32_t rng_slot[MAX_DEVICES]  # per device that draws, the slot standing for its generator's state; else 0
    cdef uint32_t n_rngs
    cdef Vec work, trash, touched
    cdef bint busy
    cdef readonly bint retain    # keep records and slots after their death (graph captures)
    cdef public object on_limit  # called with no arguments when max_pending is reached
    cdef public object on_draws  # called with no arguments when many random draws wait
    cdef size_t waiting_draws    # draws that the last sweep met

    cdef Slot *slot(self, uint32_t i) noexcept
    cdef uint32_t new_slot(self) except 0
    cdef uint32_t _take_slot(self) noexcept
    cdef void _return_slot(self, uint32_t i) noexcept
    cdef void _trim(self) noexcept
    cdef uint32_t rng_of(self, int device) except 0
    cdef Record *record(self, uint64_t seq) noexcept
    cdef Record *append(self, uint32_t sig, const uint32_t *ins, const double *floats, uint32_t module, uint32_t loc,
                        uint8_t phase) except NULL
    cdef uint32_t hold(self, object tensor, uint32_t root) except 0
    cdef void handle_died(self, uint32_t slot) noexcept
    cdef void settle(self, uint32_t slot) noexcept
    cdef void add_user(self, Slot *s) noexcept
    cdef void drop_user(self, Slot *s) noexcept
    cdef void mark_writes(self, Record *r, SigS *s) noexcept
    cdef void finish(self, Record *r) noexcept
    cdef void pass_over(self, uint64_t seq) noexcept
    cdef void _drop_side(self, Record *r, SigS *s) noexcept
    cdef int plan(self, const uint32_t *targets, size_t n, const uint32_t *written, size_t n_written,
                  Vec *out) except -1
    cdef void unmark_writes(self, const uint32_t *targets, size_t n) noexcept
    cdef int sweep(self) except -1
    cdef void rearm(self) noexcept
    cdef int evict(self) except -1
    cdef void _drain(self) noexcept
    cdef void _free_slot(self, uint32_t i, Slot *s) noexcept
    cdef void _advance_head(self) noexcept
    cdef void _retire(self, uint64_t seq) noexcept
    cdef void _unmark(self) noexcept
    cdef uint64_t _earliest(self, uint32_t i) noexcept
    cdef bint _visit(self, Record *r, SigS *s) except -1
    cdef int _mark(self, uint32_t i, uint8_t flag) except -1

cdef int vec_push(Vec *v, uint64_t x) except -1
cdef void vec_try_push(Vec *v, uint64_t x) noexcept      # does nothing when there is no memory


# Called when a slot is freed: nobody can name its value any more. NULL removes; one at a time.
ctypedef void (*freed_fn)(uint32_t slot) noexcept
cdef void set_freed_hook(freed_fn hook) noexcept


cdef union Floats:
    double one
    double *several              # owned

cdef class Handle:
    """Names one value on the tape; lives in the tensor. Its death tells the tape that a reader is gone."""
    cdef Tape tape
    cdef readonly uint64_t id    # unique per recorded value in this process
    cdef readonly uint32_t slot, meta, sig, module, loc
    cdef readonly uint8_t phase
    cdef public uint8_t steps    # of a view: see view_chains.steps
    cdef public bint no_grad     # certain not to require grad: lets calls be recorded whole
    cdef Floats numbers          # those of its call that the key has not
    cdef void set_meta(self, uint32_t meta) noexcept        # these two keep the interner's counts
    cdef void set_call(self, uint32_t sig, const void *floats) noexcept
    cdef const void *floats(self) noexcept
    cdef void follow(self, Handle other) noexcept

cdef Handle new_handle(Tape tape, uint32_t slot, uint32_t meta)
