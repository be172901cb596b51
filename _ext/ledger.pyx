"""Notes what a program on tensors without data does: each call, and each storage from its birth to its death.

Two logs in program order, 16 bytes a call and 32 a storage; whatever a report wants to know is summed up afterwards.
Time is counted in calls: a storage lives from the call that made it to the one after which nobody could name it.
"""
from libc.stdint cimport int8_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from mindtorch._ext.context cimport (
    MODULE_ENTER, MODULE_EXIT, PHASE_BACKWARD, PHASE_OPTIMIZER,
    current_location, current_module, current_phase, set_transition_hook,
)

from .intern cimport sig_out_meta
from .structs cimport MetaS, Record, SigS
from .tape cimport Handle, Tape, set_freed_hook

cdef extern from *:
    """
    #define MT_ASSERT(c) ((void)sizeof(char[(c) ? 1 : -1]))
    typedef struct {
        uint32_t sig;               /* 0: no call, see phase */
        uint32_t module;
        uint32_t location;
        uint32_t phase;             /* a Phase; + ENTERED, HELD */
    } LedgerCall;
    typedef struct {
        uint64_t nbytes;
        uint32_t born, died;        /* length of the log of calls then; died: ALIVE while it lives */
        uint32_t module, location;
        uint32_t sig;               /* 0: did not come from a call */
        int8_t place;
        uint8_t phase;
        uint8_t mark;               /* what the program uses it for, once known: a Mark */
        uint8_t unused;
    } Block;
    """
    ctypedef struct LedgerCall:
        uint32_t sig
        uint32_t module
        uint32_t location
        uint32_t phase
    ctypedef struct Block:
        uint64_t nbytes
        uint32_t born
        uint32_t died
        uint32_t module
        uint32_t location
        uint32_t sig
        int8_t place
        uint8_t phase
        uint8_t mark
    void MT_ASSERT(bint) noexcept nogil

MT_ASSERT(sizeof(LedgerCall) == 16)
MT_ASSERT(sizeof(Block) == 32)

cdef enum:
    ALIVE = 0xFFFFFFFF
    ENTERED = 0x100                 # LedgerCall.phase: a module was entered, no call
    NAMED = 0x70000000              # LedgerCall.sig: + index into names; above all MAX_SIGS
    HELD = 0x200                    # memory without a call: what the program had before, a move to another device

cdef bint listening = False
cdef Tape tape = None                # while listening
cdef LedgerCall* calls = NULL
cdef uint32_t n_calls = 0, cap_calls = 0
cdef Block* blocks = NULL
cdef uint32_t n_blocks = 0, cap_blocks = 0
cdef uint32_t* block_of = NULL      # by slot: 1 + index into blocks; 0 = none
cdef uint32_t cap_slots = 0
cdef list names = ["aten::detach"]   # of calls that no tape knows; the first is NAME_DETACH
cdef uint64_t live[129]             # bytes now, by place: -1 is at 1; the sum at 0
cdef uint64_t most[129]             # the most that ever were, or since reset_peak()
cdef bint short_of_memory = False   # something could not be noted
cdef bint stopped = False           # storages that die are still noted, new calls are not
cdef uint32_t depth = 0
cdef object on_mark = None, mark_error = None


cdef bint _room(void** array, uint32_t* cap, uint32_t wanted, size_t size, uint32_t first) noexcept:
    """Make room for `wanted` entries; False when there is no memory for that."""
    global short_of_memory
    cdef uint32_t cap_now = cap[0]
    cdef void* bigger
    if wanted <= cap_now:
        return True
    if cap_now < first:
        cap_now = first
    while cap_now < wanted:
        cap_now = cap_now * 2 if cap_now < 0x80000000 else 0xFFFFFFFF
    bigger = realloc(array[0], cap_now * size)
    if not bigger:
        short_of_memory = True
        return False
    array[0] = bigger
    cap[0] = cap_now
    return True


cdef void _note(uint32_t sig, uint32_t module, uint32_t location, uint32_t phase) noexcept:
    if n_calls == ALIVE - 1 or not _room(<void**>&calls, &cap_calls, n_calls + 1, sizeof(LedgerCall), 4096):
        return
    calls[n_calls].sig = sig
    calls[n_calls].module = module
    calls[n_calls].location = location
    calls[n_calls].phase = phase
    _count()


cdef void _count() noexcept:
    global n_calls
    n_calls += 1


cdef void note_call(Record* r, SigS* s, const uint32_t* outs) noexcept:
    cdef uint32_t i
    if stopped:
        return
    _note(r.sig, r.module, r.loc, r.phase)
    for i in range(s.n_out):
        if tape.slot(outs[i]).root == outs[i]:
            _note_block(outs[i], sig_out_meta(s)[i], r.sig, r.module, r.loc, r.phase)


cdef void note_name(uint32_t name) noexcept:
    if listening and not stopped:
        _note(NAMED + name, current_module(), current_location(), current_phase())


def note(str name):
    """Log a call that is not recorded, because it makes no tensor: ``aten::_local_scalar_dense``."""
    cdef Py_ssize_t i
    if not listening:
        return
    for i in range(len(names)):
        if <str>names[i] == name:
            note_name(<uint32_t>i)
            return
    names.append(name)
    note_name(<uint32_t>len(names) - 1)


def named(sig):
    """The name behind a number in the log of calls, None for that of an interned call."""
    return names[sig - NAMED] if sig >= NAMED else None


cdef void note_memory(uint32_t slot, uint32_t meta) noexcept:
    cdef uint32_t module, location, phase
    cdef uint32_t known = block_of[slot] if slot < cap_slots else 0
    if known and blocks[known - 1].nbytes == tape.interner.metas[meta].nbytes:
        return                                 # other sizes or strides of the same memory
    if known:
        note_freed(slot)
    if not stopped:
        module, location, phase = current_module(), current_location(), current_phase()
        _note(0, module, location, HELD + phase)
        _note_block(slot, meta, 0, module, location, phase)


cdef void _note_block(uint32_t slot, uint32_t meta, uint32_t sig, uint32_t module, uint32_t location,
                      uint32_t phase) noexcept:
    global n_blocks, cap_slots
    cdef MetaS* m = &tape.interner.metas[meta]
    cdef uint32_t had = cap_slots
    cdef Block* b
    if m.nbytes == 0:
        return
    if not _room(<void**>&block_of, &cap_slots, slot + 1, 4, 4096):
        return
    while had < cap_slots:
        block_of[had] = 0
        had += 1
    if n_blocks == ALIVE - 1 or not _room(<void**>&blocks, &cap_blocks, n_blocks + 1, sizeof(Block), 4096):
        return
    b = &blocks[n_blocks]
    b.nbytes = m.nbytes
    b.born = n_calls
    b.died = ALIVE
    b.module = module
    b.location = location
    b.sig = sig
    b.place = m.device
    b.phase = <uint8_t>phase
    b.mark = 0
    n_blocks += 1
    block_of[slot] = n_blocks
    _add(0, m.nbytes)
    _add(-m.device, m.nbytes)


cdef inline void _add(int at, uint64_t nbytes) noexcept:
    live[at] += nbytes
    if live[at] > most[at]:
        most[at] = live[at]


cdef void note_freed(uint32_t slot) noexcept:
    cdef Block* b
    if slot < cap_slots and block_of[slot]:
        b = &blocks[block_of[slot] - 1]
        b.died = n_calls
        block_of[slot] = 0
        live[0] -= b.nbytes
        live[-b.place] -= b.nbytes


cdef void _on_transition(void* data, int kind, uint32_t module, uint8_t phase) noexcept:
    global depth
    if stopped:
        return
    if kind == MODULE_ENTER:
        if depth == 0:
            _mark("enter")
        depth += 1
        _note(0, module, 0, ENTERED + phase)
    elif kind == MODULE_EXIT:
        depth -= depth > 0                     # 0: entered before the ledger was opened
        if depth == 0:
            _mark("exit")
    elif current_phase() == PHASE_OPTIMIZER:
        _mark("step")
    elif phase == PHASE_BACKWARD:
        _mark("backward")
    elif current_phase() == PHASE_BACKWARD:
        _mark("backward end")


cdef void _mark(str kind) noexcept:
    global on_mark, mark_error
    try:
        on_mark(kind, n_calls)
    except Exception as error:                 # a C caller can't raise; the report says that it happened
        on_mark = _ignore
        mark_error = error


def _ignore(kind, at):
    """Stands in for a mark handler that failed."""


def open(Tape main_tape, handler):
    """Begin new logs of that tape. `handler(kind, calls so far)` is told of outermost modules and of phases."""
    global listening, stopped, tape, on_mark, mark_error, n_calls, n_blocks, short_of_memory, depth
    if listening:
        raise RuntimeError("[ledger] one is open already")
    n_calls = n_blocks = depth = 0
    memset(live, 0, sizeof(live))
    memset(most, 0, sizeof(most))
    on_mark, mark_error = handler, None
    stopped = short_of_memory = False
    tape = main_tape
    listening = True
    set_transition_hook(_on_transition, NULL)
    set_freed_hook(note_freed)


def stop():
    """Note no more calls; storages that die still do."""
    global stopped
    stopped = True


def close():
    """End the logs and hand them over as bytes, (calls, storages); both are empty when none is open.

    Calls, 16 bytes each: native uint32 sig (0: no call), module, location, phase; phase + 256: a module was entered;
    + 512: memory that no call made. Storages, 32 bytes each: uint64 nbytes, uint32 born, died, module, location, sig,
    int8 place, uint8 phase, uint8 mark, one unused.
    """
    global listening, on_mark, stopped, calls, blocks, block_of, cap_calls, cap_blocks, cap_slots
    if not listening:
        return b"", b""
    set_transition_hook(NULL, NULL)
    set_freed_hook(NULL)
    listening, stopped = False, True
    on_mark = None
    try:
        return (<char*>calls)[:n_calls * sizeof(LedgerCall)], (<char*>blocks)[:n_blocks * sizeof(Block)]
    finally:
        free(calls)
        free(blocks)
        free(block_of)
        calls, blocks, block_of = NULL, NULL, NULL
        cap_calls = cap_blocks = cap_slots = 0


def mark(Handle h, uint8_t what):
    """Say what the storage of handle `h` is used for."""
    cdef uint32_t slot
    if not listening:
        return
    slot = tape.slot(h.slot).root
    if slot < cap_slots and block_of[slot]:
        blocks[block_of[slot] - 1].mark = what


def hold(Handle h):
    """Count the storage of handle `h` from now on, if it was made before the logs were opened."""
    cdef uint32_t slot
    if listening and tape.interner.metas[h.meta].device < 0:
        slot = tape.slot(h.slot).root
        if slot == h.slot and (slot >= cap_slots or not block_of[slot]):
            note_memory(slot, h.meta)


def live_bytes(int place=0):
    """(bytes that live now, the most that ever did) at a place; 0: at all of them."""
    if not -128 <= place <= 0:
        raise ValueError(f"[ledger] expected a place without data, got {place}")
    return live[-place], most[-place]


def reset_peak(int place=0):
    """Forget what ever lived at a place, but for what does now."""
    if -128 <= place <= 0:
        most[-place] = live[-place]


def position():
    """Length of the log of calls."""
    return n_calls


def failure():
    """The error of a mark handler, or a MemoryError when a log has holes; None when all is well."""
    return MemoryError("no memory for the log of calls") if short_of_memory else mark_error
