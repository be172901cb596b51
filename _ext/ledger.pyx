"""Notes what a program on tensors without data does: each call, and each storage from its birth to its death.

Two logs in program order, 16 bytes a call and 32 a storage; whatever a report wants to know is summed up afterwards.
Time is counted in calls: a storage lives from the call that made it to the one after which nobody could name it.
"""
from libc.stdint cimport int8_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from mindtorch._ext.context cimport (
    MODULE_ENTER, MODULE_EXIT, PHASE_BACKWARD, PHASE_CANDIDATE, PHASE_DATA, PHASE_OPTIMIZER, PHASE_SETTLED,
    add_transition_hook, current_location, current_module, current_phase, in_step, outermost_optimizer,
    remove_transition_hook,
)

from .intern cimport OpInfo, sig_key, sig_out_meta
from .signals cimport interrupts
from .stretches cimport (
    BEFORE_BACKWARD, CUDA_GRAIN, IN_BACKWARD, IN_CALL, IN_STEP, NO_STRETCH, OUTLIVED, STRETCHES, Stretch, stretch_of,
    unless_it_dies,
)
from .structs cimport SIG_BLIND, MetaS, Record, SigS
from .sizes cimport MT_ASSERT
from .tape cimport Handle, Tape, rec_ins, set_freed_hook
from .template cimport hole_metas

from .signals import raise_soon

GRAIN = {"cuda": CUDA_GRAIN, "npu": CUDA_GRAIN}   # bytes that torch's allocator of such devices hands out at a time

cdef extern from *:
    """
    typedef struct {
        uint32_t sig;               /* 0: no call, see phase */
        uint32_t module;
        uint32_t location;
        uint32_t phase;             /* a Phase; + CALL_ENTERED, HELD */
    } LedgerCall;
    typedef struct {                /* a LedgerBlock that a script makes; see Script */
        uint64_t nbytes;
        uint32_t born, died;        /* calls since the script began; died: ALIVE for that of the result */
        uint32_t sig;
        uint32_t at;                /* scratch of a run: its index in blocks */
        int8_t place;
    } Part;
    typedef struct {
        uint64_t nbytes;
        uint32_t born, died;        /* length of the log of calls then; died: ALIVE while it lives */
        uint32_t module, location;
        uint32_t sig;               /* 0: did not come from a call */
        int8_t place;
        uint8_t phase;
        uint8_t mark;               /* what the program uses it for, as mark() said; 0: not known */
        uint8_t outlived;           /* bits of Outlived (see stretches.pxd) */
    } LedgerBlock;
    """
    ctypedef struct LedgerCall:
        uint32_t sig
        uint32_t module
        uint32_t location
        uint32_t phase
    ctypedef struct Part:
        uint64_t nbytes
        uint32_t born
        uint32_t died
        uint32_t sig
        uint32_t at
        int8_t place
    ctypedef struct LedgerBlock:
        uint64_t nbytes
        uint32_t born
        uint32_t died
        uint32_t module
        uint32_t location
        uint32_t sig
        int8_t place
        uint8_t phase
        uint8_t mark
        uint8_t outlived

MT_ASSERT(sizeof(LedgerCall) == 16)
MT_ASSERT(sizeof(LedgerBlock) == 32)
# The same for numpy.
CALL = [("sig", "u4"), ("module", "u4"), ("location", "u4"), ("phase", "u4")]
BLOCK = [
    ("nbytes", "u8"), ("born", "u4"), ("died", "u4"), ("module", "u4"), ("location", "u4"), ("sig", "u4"),
    ("place", "i1"), ("phase", "u1"), ("mark", "u1"), ("outlived", "u1"),
]

cdef enum:
    ALIVE = 0xFFFFFFFF
    CALL_ENTERED = 0x100            # LedgerCall.phase: a module was entered, no call
    NAMED = 0x70000000              # LedgerCall.sig: + index into names; above all MAX_SIGS
    HELD = 0x200                    # memory without a call: what the program had before, a move to another device

    FLOW_HEAD = 7
    MOST_FLOW = 1 << 22             # entries: 16 MiB

ENTERED = CALL_ENTERED
NO_CALL = 0xFFFFFFFF

# One malloc: this header, then parts[n_parts], sigs[n_calls].
cdef struct Script:
    uint32_t n_calls, n_parts


cdef inline Part *_parts(Script *s) noexcept:
    return <Part *>(s + 1)


cdef inline uint32_t *_sigs(Script *s) noexcept:
    return <uint32_t *>(_parts(s) + s.n_parts)


cdef bint listening = False
cdef Tape tape = None                # while listening
cdef LedgerCall *calls = NULL
cdef uint32_t n_calls = 0, cap_calls = 0
cdef uint32_t candidates = 0                   # where the last call began that may be a prefill
cdef LedgerBlock *blocks = NULL
cdef uint32_t n_blocks = 0, cap_blocks = 0
cdef uint32_t *block_of = NULL      # by slot: 1 + index into blocks; 0 = none
cdef uint32_t cap_slots = 0
cdef Script **scripts = NULL         # by sig; NULL = none
cdef uint32_t cap_scripts = 0
cdef list names = ["aten::detach"]   # of calls that no tape knows; the first is NAME_DETACH
cdef dict numbers = {"aten::detach": 0}
cdef uint32_t making = 0            # LedgerCall.sig of the call whose results come to life now; 0: of none
cdef uint64_t live[129]             # bytes now, by place: -1 is at 1; the sum at 0
cdef uint64_t most[129]             # the most that ever were, or since reset_peak()
cdef uint64_t grain[129]            # by place: what live counts a storage's bytes in; 0: as many as there are
cdef uint64_t capacity[129]         # by place: how much may live there, what is beyond it is refused; 0: anything
cdef bint exceeded = False          # something was refused, of which the program has not heard yet
cdef uint64_t asked = 0             # … bytes
cdef int8_t asked_at = 0            # … where
cdef object on_exceeded = None
cdef bint short_of_memory = False   # something could not be noted
cdef bint stopped = False           # storages that die are still noted, new calls are not
cdef uint32_t depth = 0
cdef uint32_t ended[STRETCHES]      # length of the log of calls when each of them ended last
cdef object on_mark = None, mark_error = None
cdef uint32_t *flow = NULL          # see follow()
cdef uint32_t n_flow = 0, cap_flow = 0
cdef bint following = False


cdef bint _room(void **array, uint32_t *cap, uint32_t wanted, size_t size, uint32_t first) noexcept:
    """Make room for `wanted` entries, new ones of zeros; False when there is no memory for that."""
    global short_of_memory
    cdef size_t had = cap[0] * size
    cdef uint32_t cap_now = cap[0]
    cdef char *bigger
    if wanted <= cap_now:
        return True
    if cap_now < first:
        cap_now = first
    while cap_now < wanted:
        cap_now = cap_now * 2 if cap_now < 0x80000000 else 0xFFFFFFFF
    bigger = <char *>realloc(array[0], cap_now * size)
    if not bigger:
        short_of_memory = True
        return False
    memset(bigger + had, 0, cap_now * size - had)
    array[0] = bigger
    cap[0] = cap_now
    return True


cdef void _note(uint32_t sig, uint32_t module, uint32_t location, uint32_t phase) noexcept:
    global n_calls
    if n_calls == ALIVE - 1 or not _room(<void **>&calls, &cap_calls, n_calls + 1, sizeof(LedgerCall), 4096):
        return
    calls[n_calls].sig = sig
    calls[n_calls].module = module
    calls[n_calls].location = location
    calls[n_calls].phase = phase
    n_calls += 1


cdef void note_call(Record *r, SigS *s, const uint32_t *outs) noexcept:
    cdef uint32_t i
    if stopped:
        return
    if following:
        _follow(r, s, outs)
    if r.sig < cap_scripts and scripts[r.sig]:
        _repeat(scripts[r.sig], r, outs[0])
        return
    _note(r.sig, r.module, r.loc, r.phase)
    for i in range(s.n_out):
        if tape.slot(outs[i]).root == outs[i]:
            _note_block(outs[i], sig_out_meta(s)[i], _room_before(s), r.sig, r.module, r.loc, r.phase)


cdef uint64_t _room_before(SigS *s) noexcept:
    """Bytes of a result before the kernel makes one number of it, see `open`; 0 for all other calls."""
    cdef uint32_t metas[MOST_SHRUNK]
    cdef uint64_t most = 0
    cdef uint32_t i
    if s.n_out != 1 or not 1 < s.n_in <= MOST_SHRUNK or (<OpInfo>s.info).name not in shrinking:
        return 0
    hole_metas(sig_key(s), metas)
    for i in range(s.n_in):
        most = max(most, tape.interner.metas[metas[i]].nbytes)
    return most


cdef void _follow(Record *r, SigS *s, const uint32_t *outs) noexcept:
    global n_flow
    cdef uint32_t size = FLOW_HEAD + s.n_in + s.n_out
    cdef uint32_t *at
    if n_flow > MOST_FLOW or not _room(<void **>&flow, &cap_flow, n_flow + size, 4, 4096):
        return
    at = flow + n_flow
    at[0], at[1], at[2], at[3], at[4], at[5], at[6] = n_calls, r.sig, r.module, r.loc, r.phase, s.n_in, s.n_out
    memcpy(at + FLOW_HEAD, rec_ins(r), s.n_in * 4)
    memcpy(at + FLOW_HEAD + s.n_in, outs, s.n_out * 4)
    n_flow += size


def follow(bint on):
    """Log from now on also what reads what, or no longer; what was logged until now, as bytes of u4.

    Of each recorded call: its position in the log of calls, its sig, module, location, phase, numbers of inputs and
    outputs, and their slots. `NO_CALL` and a slot: that slot holds another storage now, which no call made.
    """
    global following, n_flow
    cdef bytes found = (<char *>flow)[:n_flow * 4] if n_flow else b""
    following = on and listening
    n_flow = 0
    return found


cdef void note_name(uint32_t name) noexcept:
    if listening and not stopped:
        _note(NAMED + name, current_module(), current_location(), current_phase())


def note(str name):
    """Log a call that is not recorded, because it makes no tensor: ``aten::_local_scalar_dense``."""
    if listening:
        note_name(_number(name))


cdef uint32_t _number(str name) except? ALIVE:
    at = numbers.get(name)
    if at is None:
        at = numbers[name] = len(names)
        names.append(name)
    return at


cdef class Making:
    """``with Making(name):`` logs a call that is not recorded: what comes to life in the block, it made.

    Unless the block raises: then there was no such call.
    """
    cdef str name
    cdef uint32_t before, at
    cdef bint on

    def __cinit__(self, str name):
        self.name = name

    def __enter__(self):
        global making
        cdef uint32_t number
        self.on = listening and not stopped
        if self.on:
            number = _number(self.name)
            self.before, self.at = making, n_calls
            note_name(number)
            making = NAMED + number

    def __exit__(self, kind, error, trace):
        global making
        if not self.on:
            return
        making = self.before
        if kind is not None and self.at < n_calls:
            calls[self.at].sig = 0
            calls[self.at].phase |= HELD


def named(sig):
    """The name behind a number in the log of calls, None for that of an interned call."""
    return names[sig - NAMED] if sig >= NAMED else None


cdef void note_memory(uint32_t slot, uint32_t meta) noexcept:
    global n_flow
    cdef uint32_t module, location, phase
    cdef uint32_t known = block_of[slot] if slot < cap_slots else 0
    if known and blocks[known - 1].nbytes == tape.interner.metas[meta].nbytes:
        return                                 # other sizes or strides of the same memory
    if known:
        note_freed(slot)
    if following and _room(<void **>&flow, &cap_flow, n_flow + 2, 4, 4096):
        flow[n_flow], flow[n_flow + 1] = ALIVE, slot
        n_flow += 2
    if not stopped:
        module, location, phase = current_module(), current_location(), current_phase()
        if not making:
            _note(0, module, location, HELD + phase)
        _note_block(slot, meta, 0, making, module, location, phase)


cdef void _note_block(uint32_t slot, uint32_t meta, uint64_t least, uint32_t sig, uint32_t module, uint32_t location,
                      uint32_t phase) noexcept:
    """least: bytes that it has, whatever its sizes say."""
    cdef MetaS *m = &tape.interner.metas[meta]
    cdef uint32_t made
    if m.nbytes and _room_for_slot(slot):
        made = _new_block(max(m.nbytes, least), m.device, sig, module, location, phase)
        if made:
            block_of[slot] = made


cdef bint _room_for_slot(uint32_t slot) noexcept:
    return _room(<void **>&block_of, &cap_slots, slot + 1, 4, 4096)


cdef uint32_t _new_block(uint64_t nbytes, int8_t place, uint32_t sig, uint32_t module, uint32_t location,
                         uint32_t phase) noexcept:
    """A storage born now: 1 + its index, 0 when there is no memory for it."""
    global n_blocks
    global exceeded, asked, asked_at
    cdef LedgerBlock *b
    cdef uint64_t of = grain[-place]
    if capacity[-place] and live[-place] + ((nbytes + of - 1) // of * of if of else nbytes) > capacity[-place]:
        exceeded, asked, asked_at = True, nbytes, place
        return 0
    if n_blocks == ALIVE - 1 or not _room(<void **>&blocks, &cap_blocks, n_blocks + 1, sizeof(LedgerBlock), 4096):
        return 0
    b = &blocks[n_blocks]
    b.nbytes = nbytes
    b.born = n_calls
    b.died = ALIVE
    b.module = module
    b.location = location
    b.sig = sig
    b.place = place
    b.phase = <uint8_t>phase
    b.mark = 0
    b.outlived = unless_it_dies(b.phase)
    n_blocks += 1
    nbytes = _taken(b)
    _add(0, nbytes)
    _add(-place, nbytes)
    return n_blocks


cdef inline uint64_t _taken(const LedgerBlock *b) noexcept:
    """What the device's allocator hands out for it."""
    cdef uint64_t of = grain[-b.place]
    return (b.nbytes + of - 1) // of * of if of else b.nbytes


cdef inline void _add(int at, uint64_t nbytes) noexcept:
    live[at] += nbytes
    if live[at] > most[at]:
        most[at] = live[at]


cdef void note_freed(uint32_t slot) noexcept:
    if slot < cap_slots and block_of[slot]:
        _end_block(block_of[slot] - 1)
        block_of[slot] = 0


cdef inline void _end_block(uint32_t at) noexcept:
    cdef LedgerBlock *b = &blocks[at]
    cdef Stretch made_in = stretch_of(b.phase, b.module)
    b.died = n_calls
    if made_in != NO_STRETCH and not stopped:
        if ended[<int> made_in] < b.born:
            b.outlived &= ~OUTLIVED
    live[0] -= _taken(b)
    live[-b.place] -= _taken(b)


# ---- scripts ---------------------------------------------------------------------------------------------------------
cdef void here(Place *at) noexcept:
    at.call, at.block = n_calls, n_blocks
    at.module, at.location, at.phase = current_module(), current_location(), current_phase()


cdef Script *learn(const Place *since, uint32_t root, uint32_t meta) noexcept:
    """The script of a call that was taken apart since then, and gave one tensor; NULL if it cannot be repeated.

    It can if all that was logged are calls of this very place in the program, and storages of which one is left, that
    of the result: slot `root`, whose metadata is `meta`.
    """
    cdef uint32_t k, kept = block_of[root] if root < cap_slots else 0
    cdef uint32_t count = n_calls - since.call, parts = n_blocks - since.block
    cdef LedgerCall *call
    cdef LedgerBlock *b
    cdef Part *part
    cdef Script *made
    if stopped or kept <= since.block or blocks[kept - 1].nbytes != tape.interner.metas[meta].nbytes:
        return NULL
    for k in range(count):
        call = &calls[since.call + k]
        if call.sig == 0 or (call.sig >= NAMED and call.sig != NAMED + NAME_DETACH):
            return NULL
        if call.module != since.module or call.location != since.location or call.phase != since.phase:
            return NULL                        # of another thread, of a finalizer
        if call.sig < NAMED and _each_time(tape.interner.sigs[call.sig]):
            return NULL
    for k in range(since.block, n_blocks):
        b = &blocks[k]
        if b.module != since.module or b.location != since.location or b.born <= since.call or b.mark:
            return NULL
        if b.died == ALIVE and k + 1 != kept:
            return NULL
    made = <Script *>malloc(sizeof(Script) + parts * sizeof(Part) + count * sizeof(uint32_t))
    if not made:
        return NULL
    made.n_calls, made.n_parts = count, parts
    for k in range(count):
        _sigs(made)[k] = calls[since.call + k].sig
    for k in range(parts):
        b = &blocks[since.block + k]
        part = &_parts(made)[k]
        part.nbytes, part.sig, part.place = b.nbytes, b.sig, b.place
        part.born, part.died = b.born - since.call, b.died if b.died == ALIVE else b.died - since.call
    return made


cdef frozenset deciding = frozenset()      # names of ops, see decide_with
cdef frozenset shrinking = frozenset()     # names of ops, see open
cdef enum:
    MOST_SHRUNK = 3                        # inputs of such a loss: predictions, targets, weights


def decide_with(names):
    """Ops of these names say what they give of values that nobody knows (estimates): each call of them is met."""
    global deciding
    deciding = frozenset(names)


cdef inline bint _each_time(SigS *s) noexcept:
    # Even with inputs of unknown value: the generator has to advance each time, and a comparison says something.
    return s.flags & SIG_BLIND and ((<OpInfo>s.info).random or (<OpInfo>s.info).name in deciding)


cdef bint keep_script(uint32_t sig, Script *script) noexcept:
    """From now on the calls `sig` are logged by this script, which belongs to the ledger."""
    if not _room(<void **>&scripts, &cap_scripts, sig + 1, sizeof(Script *), 4096):
        free(script)
        return False
    free(scripts[sig])
    scripts[sig] = script
    return True


cdef bint has_script(uint32_t sig) noexcept:
    return sig < cap_scripts and scripts[sig] != NULL


cdef void _repeat(Script *script, Record *r, uint32_t slot) noexcept:
    cdef Part *parts = _parts(script)
    cdef uint32_t k, i, born = 0, made
    if not _room_for_slot(slot):
        return
    for k in range(script.n_calls):
        _note(_sigs(script)[k], r.module, r.loc, r.phase)
        while born < script.n_parts and parts[born].born == k + 1:      # they lie in the order of their births
            made = _new_block(parts[born].nbytes, parts[born].place, parts[born].sig, r.module, r.loc, r.phase)
            parts[born].at = made
            if made and parts[born].died == ALIVE:
                block_of[slot] = made
            born += 1
        for i in range(born):
            if parts[i].died == k + 1 and parts[i].at:
                _end_block(parts[i].at - 1)


cdef void _forget_scripts() noexcept:
    global scripts, cap_scripts
    cdef uint32_t k
    for k in range(cap_scripts):
        free(scripts[k])
    free(scripts)
    scripts = NULL
    cap_scripts = 0


cdef void _on_transition(void *data, int kind, uint32_t module, uint8_t phase) noexcept:
    global depth, candidates
    cdef uint32_t k
    if kind == PHASE_SETTLED:
        for k in range(candidates if module == PHASE_CANDIDATE else 0, n_calls):
            if calls[k].phase & 0xFF == module:
                calls[k].phase = calls[k].phase & ~<uint32_t> 0xFF | phase
    if kind == PHASE_SETTLED or stopped:
        return
    if phase == PHASE_CANDIDATE and depth == 0:
        candidates = n_calls
    if kind == MODULE_ENTER:
        if depth == 0 and phase != PHASE_DATA:
            _mark("enter", module)
        depth += 1
        _note(0, module, 0, CALL_ENTERED + phase)
    elif kind == MODULE_EXIT:
        depth -= depth > 0                     # 0: entered before the ledger was opened
        if depth == 0:
            ended[<int>IN_CALL] = n_calls
            _mark("exit", module)
    elif phase == PHASE_BACKWARD:
        ended[<int>IN_CALL] = ended[<int>BEFORE_BACKWARD] = n_calls  # within a call, too
        _mark("backward", 0)
    elif not in_step() and phase == PHASE_OPTIMIZER:
        _mark("step begins", outermost_optimizer())
    elif not in_step() and current_phase() == PHASE_OPTIMIZER:
        ended[<int>IN_STEP] = n_calls
        _mark("step", outermost_optimizer())
    elif current_phase() == PHASE_BACKWARD:
        ended[<int>IN_BACKWARD] = n_calls
        _mark("backward end", 0)


cdef void _mark(str kind, uint64_t which) noexcept:
    global on_mark, mark_error
    try:
        on_mark(kind, n_calls, which)
    except BaseException as error:             # a C caller can't raise; the report says that it happened
        if interrupts(error):
            raise_soon(error)
            return
        on_mark = _ignore
        mark_error = error


def _ignore(kind, at, which):
    """Stands in for a mark handler that failed."""


def open(Tape main_tape, handler, names_shrinking=frozenset()):
    """Begin new logs of that tape. `handler(kind, calls so far, which)` is told of outermost modules and phases: see
    `Collector`. names_shrinking: of ops whose kernels make a result as large as the inputs, and then one number of it,
    which keeps that memory."""
    global shrinking
    global listening, stopped, tape, on_mark, mark_error, n_calls, n_blocks, short_of_memory, depth, making, exceeded
    if listening:
        raise RuntimeError("[ledger] one is open already")
    n_calls = n_blocks = depth = making = 0
    shrinking = frozenset(names_shrinking)
    memset(live, 0, sizeof(live))
    memset(most, 0, sizeof(most))
    memset(ended, 0, sizeof(ended))
    on_mark, mark_error = handler, None
    stopped = short_of_memory = exceeded = False
    tape = main_tape
    listening = True
    add_transition_hook(_on_transition, NULL)
    set_freed_hook(note_freed)


def stop():
    """Note no more calls; storages that die still do."""
    global stopped
    stopped = True


def logs():
    """The logs so far as bytes, (calls, storages): see `CALL` and `BLOCK`. Both are empty when none is open."""
    if not listening:
        return b"", b""
    return (<char *>calls)[:n_calls * sizeof(LedgerCall)], (<char *>blocks)[:n_blocks * sizeof(LedgerBlock)]


def close():
    """End the logs and hand them over: see `logs`."""
    global listening, on_mark, on_exceeded, exceeded, stopped, calls, blocks, block_of, cap_calls, cap_blocks, cap_slots
    global flow, n_flow, cap_flow, following
    if not listening:
        return b"", b""
    remove_transition_hook(_on_transition, NULL)
    set_freed_hook(NULL)
    try:
        return logs()
    finally:
        listening, stopped, exceeded = False, True, False
        on_mark = on_exceeded = None
        memset(capacity, 0, sizeof(capacity))
        free(calls)
        free(blocks)
        free(block_of)
        free(flow)
        calls, blocks, block_of, flow = NULL, NULL, NULL, NULL
        cap_calls = cap_blocks = cap_slots = cap_flow = n_flow = 0
        following = False
        _forget_scripts()


def resize(Handle h, uint64_t nbytes):
    """The program gives the storage of handle `h` this length: 0 gives its memory back, more takes new memory."""
    cdef uint32_t slot, made, module, location, phase
    if not listening or stopped:
        return
    slot = tape.slot(h.slot).root
    note_freed(slot)
    if nbytes and _room_for_slot(slot):
        module, location, phase = current_module(), current_location(), current_phase()
        if not making:
            _note(0, module, location, HELD + phase)
        made = _new_block(nbytes, tape.interner.metas[h.meta].device, making, module, location, phase)
        if made:
            block_of[slot] = made


def held_bytes(Handle h):
    """Bytes that the storage of handle `h` has in the log now; 0 where none is open."""
    cdef uint32_t slot
    if not listening:
        return 0
    slot = tape.slot(h.slot).root
    return blocks[block_of[slot] - 1].nbytes if slot < cap_slots and block_of[slot] else 0


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


def round_to(int place, uint64_t nbytes):
    """Count what lives at a place in multiples of this many bytes, as the allocator there does."""
    _check(place)
    grain[-place] = nbytes


def limit(int place, uint64_t nbytes, handler):
    """No more than `nbytes` live at a place until the logs are closed: what would be beyond them is not there, and
    `handler(place, bytes asked for)` is called at the end of the call that asked, to raise."""
    global on_exceeded
    _check(place)
    capacity[-place], on_exceeded = nbytes, handler


cdef int settle() except -1:
    global exceeded
    if exceeded:
        exceeded = False
        on_exceeded(asked_at, asked)
    return 0


def repeat(uint32_t first, uint32_t last):
    """Log these calls once more, in the module and at the line where the program is: it replays what it recorded."""
    cdef uint32_t k, module = current_module(), location = current_location(), phase = current_phase()
    if listening and not stopped:
        for k in range(first, min(last, n_calls)):
            if calls[k].sig:
                _note(calls[k].sig, module, location, phase)


def live_bytes(int place=0):
    """(bytes that live now, the most that ever did) at a place; 0: at all of them."""
    _check(place)
    return live[-place], most[-place]


def reset_peak(int place=0):
    """Forget what ever lived at a place, but for what does now."""
    _check(place)
    most[-place] = live[-place]


cdef int _check(int place) except -1:
    if not -128 <= place <= 0:
        raise ValueError(f"[ledger] expected a place without data, got {place}")
    return 0


def position():
    """Length of the log of calls."""
    return n_calls


def failure():
    """The error of a mark handler, or a MemoryError when a log has holes; None when all is well."""
    return MemoryError("no memory for the log of calls") if short_of_memory else mark_error
