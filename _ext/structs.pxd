"""All fixed-width structs of the engine. Widest fields first; sizes are asserted at compile time in tape.pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


# Interned tensor metadata: one entry per distinct (dtype, sizes, strides, offset, device index).
cdef struct MetaS:
    PyObject *dtype        # borrowed: torch dtypes are immortal
    PyObject *size         # owned torch.Size
    PyObject *stride       # owned tuple; NULL when the tensor is contiguous
    int64_t offset         # storage offset in elements
    uint64_t nbytes        # of its elements
    uint32_t hash
    int8_t device          # place: index of a remote_accelerator; negative: one without data (lazy_device.DATALESS)
    uint8_t bits           # MetaBit
    uint16_t refs          # handles that name it; STICKY = for ever


cdef enum MetaBit:
    META_CONJ = 1          # torch's lazy conjugation: the memory holds the conjugate of the values
    META_NEG = 2           # the same for the sign


cdef enum SigFlag:
    SIG_VERIFIED = 1       # the first run's result agreed with the prediction
    SIG_WRITES = 2         # some input is mutated
    SIG_RANDOM = 4         # draws from the device's generator
    SIG_VIEW = 8           # outputs alias an input; the op reads no element
    SIG_HIT = 16           # found since the last eviction
    SIG_FORGOTTEN = 32     # found no more: lives until nothing names it
    SIG_SMALL = 64         # of tensors without data: what it gives is little enough to be worth knowing (see kept())
    SIG_BLIND = 128        # with SIG_SMALL: may be known even if not all inputs are (zeros_like, fill_, x & False)
    SIG_FOLDS = 128        # of tensors with data: torch multiplies in another way when an operand requires grad


# Interned call: function, argument template with holes for tensors, constants, metadata of inputs and outputs.
# One malloc: this header, then out_meta[n_out] (u32), alias[n_out] (u16), written[n_in] (u8), key[keylen].
cdef struct SigS:
    PyObject *info         # borrowed OpInfo; the registry keeps it
    PyObject *ret          # owned template of the return value; NULL = the single fresh tensor
    PyObject *native       # owned NativeCall; small numbers: see replay.pyx
    uint32_t hash
    uint32_t keylen
    uint16_t n_in          # keys.pyx refuses calls with more than MAX_INPUTS
    uint16_t n_out
    uint16_t refs          # handles that name it; STICKY = for ever. Pending records are counted by looking
    uint8_t flags
    uint8_t device         # SIG_RANDOM: whose generator it draws from


cdef enum SlotFlag:
    SLOT_USED = 1
    SLOT_FAILED = 2        # `concrete` is the exception that a read raises
    SLOT_NEEDED = 4        # planner scratch
    SLOT_CONTENT = 8       # planner scratch: a needed record reads this storage
    SLOT_OVERWRITTEN = 16  # planner scratch: a needed, later record writes this storage
    SLOT_PENDING = 32      # the producing record has not run
    SLOT_WRITTEN = 64      # on a root: pending records may write this storage
    SLOT_GRAD = 128        # on a root: a tensor on this storage may require grad, whatever its handle says


cdef extern from *:
    """
    /* One value (a tensor that was recorded), 16 bytes. Freed when nobody can read it any more. */
    typedef struct {
        union {
            PyObject *concrete;     /* owned: torch tensor (see native_calls.object_of); exception when SLOT_FAILED. Of
                                   a place without data: None, or on a root, what an estimate knows (lazy._Noted) */
            uint64_t producer;      /* SLOT_PENDING: sequence number of the record; free: next free slot */
        };
        uint32_t users : 24;        /* pending records that take it as input + slots whose storage root it is */
        uint32_t flags : 8;
        uint32_t root : 24;         /* slot whose storage this one aliases; itself when not a view */
        uint32_t handles : 8;       /* tensors that name it; see MAX_HANDLES */
    } Slot;
    """
    ctypedef struct Slot:
        PyObject *concrete
        uint64_t producer
        uint32_t users
        uint32_t flags
        uint32_t root
        uint32_t handles


cdef enum:
    MAX_HANDLES = 250          # more names than this get slots of their own
    PERMANENT = 255            # handles of a slot that never dies
    MAX_SLOTS = 1 << 24
    MAX_USERS = (1 << 24) - 1  # sticky: the value then lives until its tape does


cdef enum RecState:
    REC_PENDING = 1
    REC_RUNNING = 2
    REC_DONE = 3           # ran, failed, or was dropped because nobody could see its effect


cdef enum RecFlag:
    REC_OVERFLOW = 1       # inputs and outputs live in a side array, its pointer over in0/in1
    REC_NEEDED = 2         # planner scratch
    REC_GRAD = 4           # torch's grad mode was on


cdef extern from *:
    """
    /* One recorded operation, 28 bytes. */
    typedef struct {
        uint32_t sig : 28;
        uint32_t state : 4;
        uint32_t module : 24;
        uint32_t phase : 8;
        uint32_t loc : 24;
        uint32_t flags : 8;
        uint32_t out0;
        uint32_t in[3];             /* in[0..1] hold the side array's pointer when REC_OVERFLOW */
    } Record;
    static inline uint32_t *mt_side(const Record *r) {
        uint32_t *p; memcpy(&p, r->in, sizeof p); return p;     /* not aligned for a pointer */
    }
    static inline void mt_set_side(Record *r, uint32_t *p) { memcpy(r->in, &p, sizeof p); }
    """
    ctypedef struct Record:
        uint32_t sig
        uint32_t state
        uint32_t module
        uint32_t phase
        uint32_t loc
        uint32_t flags
        uint32_t out0
        uint32_t* ins "in"
    uint32_t *mt_side(const Record *r) noexcept
    void mt_set_side(Record *r, uint32_t *p) noexcept


cdef enum:
    MAX_SIGS = 1 << 28
    MAX_INPUTS = 0xFFFE        # tensors in one call
    MAX_DEVICES = 128          # torch's limit: a device index is a signed byte
    NO_PLACE = 1000            # of a call without tensors
    STICKY = 0xFFFF            # a count that went this far is not kept any more
    MAX_IDS = 1 << 24          # module paths and source locations; beyond, a record says "unknown"
