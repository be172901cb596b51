from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from .structs cimport STICKY, MetaS, SigS


cdef inline uint32_t *sig_out_meta(SigS *s) noexcept:
    return <uint32_t *>(s + 1)

cdef inline uint16_t *sig_alias(SigS *s) noexcept:
    return <uint16_t *>(sig_out_meta(s) + s.n_out)

cdef inline uint8_t *sig_written(SigS *s) noexcept:
    return <uint8_t *>(sig_alias(s) + s.n_out)

cdef inline uint8_t *sig_key(SigS *s) noexcept:
    return sig_written(s) + s.n_in


# Below these values, `native` says how often a call has run that has none yet; NO_NATIVE: it will never have one.
cdef enum:
    NO_NATIVE = 4095           # no object is there

cdef inline bint has_native(SigS *s) noexcept:
    return <size_t>s.native > NO_NATIVE


cdef inline size_t sig_size(SigS *s) noexcept:
    """Of its one block of memory."""
    return sizeof(SigS) + 6 * <size_t>s.n_out + s.n_in + s.keylen


cdef class Interner:
    cdef MetaS *metas
    cdef SigS **sigs
    cdef uint32_t n_metas, cap_metas, n_sigs, cap_sigs
    cdef uint32_t meta_hole, sig_hole      # no free id lies before this one
    cdef uint32_t used_metas, used_sigs
    cdef uint32_t *meta_index      # open addressing, 0 = empty; ids start at 1
    cdef uint32_t *sig_index
    cdef uint32_t meta_mask, sig_mask
    cdef readonly size_t bytes     # everything allocated here, owned Python objects included
    cdef readonly size_t limit     # bytes that entries may take which nothing names any more
    cdef size_t at_once            # bytes at which to look for those that are not found again, either
    cdef size_t evict_at           # as `at_once`, and more when much is in use
    cdef uint64_t evictions        # times that ids may have gone
    cdef readonly uint32_t frozen  # no entry may go: somebody holds an id that is not counted yet
    cdef object size_type          # torch.Size

    cdef uint32_t meta_id(self, object dtype, object size, object stride, int64_t offset, int16_t device,
                          uint16_t bits) except 0
    cdef uint32_t find_sig(self, const uint8_t *key, uint32_t keylen, uint32_t hash) noexcept
    cdef uint32_t add_sig(self, const uint8_t *key, uint32_t keylen, uint32_t hash, object info, object ret,
                          list out_metas, list alias, bytes written, uint8_t flags, uint8_t device) except 0
    cdef uint32_t replacement(self, uint32_t old) except 0
    cdef uint32_t sig_bytes(self, SigS *s) noexcept
    cdef int evict(self, uint8_t *pinned, set seen) except -1
    cdef uint32_t _free_id(self, bint sig) except 0
    cdef void _free_sig(self, uint32_t sid) noexcept
    cdef void _free_meta(self, uint32_t mid) noexcept
    cdef object _share(self, object tup, bint stride)
    cdef int _grow_metas(self) except -1
    cdef int _grow_sigs(self) except -1
    cdef void _index_metas(self) noexcept
    cdef void _index_sigs(self) noexcept
    cdef void _shrink(self) noexcept
    cdef int _measure(self, set seen) except -1

cdef inline void ref(uint16_t *count) noexcept:
    if count[0] != STICKY:
        count[0] += 1

cdef inline void unref(uint16_t *count) noexcept:
    if count[0] != STICKY:
        count[0] -= 1

# The key's hash among those of the settings in force.
cdef uint32_t hash_key(const uint8_t *key, uint32_t n) noexcept

# What is known of calls holds in one world each: as long as torch's settings (mindtorch.patch.flags) are as they are.
cdef void set_world(uint32_t number) noexcept


cdef class OpInfo:
    """What the engine knows about one intercepted function. One per function, kept for the life of the process."""
    cdef readonly object func      # as intercepted: a builtin, a method, an OpOverload, a creation function
    cdef public object call        # what a replay calls
    cdef public object replay      # the same for this process, by a shorter way
    cdef public object in_place    # what gives the same in the memory of the first argument; None: nothing does
    cdef public bint fresh         # what it gives is on memory of its own, always
    cdef readonly str name         # "aten::add"
    cdef public int kind           # see OpKind
    cdef public object handler     # KIND_HANDLER: called with (args, kwargs). KIND_RECORD: may it be whole now?
    cdef public object at_dispatch  # dispatch level: called with (args, kwargs) first
    cdef public object at_function  # function level: called with (args, kwargs) first
    cdef public bint random        # draws from the device's generator
    cdef public tuple writes       # argument positions and names that are mutated
    cdef public bint view          # outputs alias inputs
    cdef public bint whole         # function level: must not be taken apart where no gradient is needed
    cdef public bint copies        # function level: gives fresh memory, for some arguments at least
    cdef public bint pointwise     # may write a tensor that it also reads
    cdef public bint short         # function level: may come to the same each time, see shortcuts.pyx
    cdef public str of_dtype       # function level: it says of a tensor what this attribute of the dtype does
    cdef public bint bumps         # torch's kernel, not its autograd layer, advances the version of what is written
    cdef bint named                # an interned call names it
    cdef public object twin        # what does as torch's `func`, where that has an entry of ours; None: nobody asked


cdef enum OpKind:
    KIND_PASS = 0                  # function level: let torch go on to the dispatch level
    KIND_RECORD = 1                # record as it is
    KIND_HANDLER = 2               # Python code of ours decides
    KIND_EAGER = 3                 # dispatch level: run now on computed inputs

cdef enum Returns:                 # first of a call's `ret`, unless that is a named tuple's type
    RETURNS_TENSOR = 0
    RETURNS_TUPLE = 1
    RETURNS_LIST = 2
    RETURNS_NOTHING = 3
