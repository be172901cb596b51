"""Source lines as small numbers: (code object, instruction) interned, line numbers decoded only when asked for."""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

from .interpreter cimport (
    MT_PRECALL, mt_code_line, mt_frame, mt_frame_back, mt_frame_code, mt_frame_free, mt_frame_lasti, mt_frame_now,
    mt_look_inside,
)

cdef extern from *:
    void incref "Py_INCREF" (PyObject *p) noexcept

cdef enum:
    CODE_CAP = 1 << 16                         # code objects kept alive at most; beyond, new lines read as unknown
    SKIP = 1 << 31                             # in code_slots: the library's own code
    HANDS_ON = 1 << 30                         # and of that, where a class of tensors hands each call of torch on
    INDEX = HANDS_ON - 1
    SKIPPED = 0xFFFFFFFF
    CHAIN_CAP = 1 << 20                        # chains; beyond, a place is all that is known
    DEEPEST = 256                              # lines of a chain

# Two arrays in order of arrival, each with an open-addressing table of indices (0 = empty; both count from 1).
cdef PyObject **codes = <PyObject **> calloc(32, sizeof(PyObject *))    # owned: the address means this code for good
cdef uint32_t *code_slots = <uint32_t *> calloc(64, sizeof(uint32_t))
cdef uint32_t n_codes = 1
cdef uint32_t cap_codes = 32
cdef uint32_t code_mask = 63
cdef uint64_t *places = <uint64_t *> calloc(32, sizeof(uint64_t))       # code << 32 | instruction
cdef uint32_t *place_slots = <uint32_t *> calloc(64, sizeof(uint32_t))
cdef uint32_t n_places = 1                     # 0 = unknown
cdef uint32_t cap_places = 32
cdef uint32_t place_mask = 63
cdef tuple skip_prefixes = ()
cdef uint32_t CHAIN = 1 << 23                  # of a location id, which has 24 bits: the rest is the number of a chain
cdef uint32_t chained = 0                      # how many want locations to be chains
cdef tuple installed = ()                      # folders of the standard library and of what is installed
cdef uint64_t handed = 0                       # how often a frame was passed over that hands calls of torch on
cdef uint8_t foreign[CODE_CAP]                 # by index of a code object: it is in none of the program's own files
if codes == NULL or code_slots == NULL or places == NULL or place_slots == NULL:
    raise MemoryError
mt_look_inside(True)


cdef uint32_t skipped(PyObject *code) except SKIPPED:
    """Marks of what is no place: the library's own, and what hands calls of torch on, where what called it is one."""
    cdef object name = (<object> code).co_filename
    if name.startswith(skip_prefixes):
        return SKIP
    return SKIP | HANDS_ON if (<object> code).co_name == "__torch_function__" else 0


cdef bint is_foreign(PyObject *code) noexcept:
    cdef object name = (<object> code).co_filename
    try:
        return name.startswith(installed)
    except MemoryError:
        return True


cdef inline uint32_t code_hash(PyObject *code) noexcept:
    return <uint32_t> (((<uintptr_t> code >> 4) * <uint64_t> 0x9E3779B97F4A7C15) >> 24)


cdef inline uint32_t place_hash(uint64_t place) noexcept:
    return <uint32_t> ((place * <uint64_t> 0x9E3779B97F4A7C15) >> 32)


cdef inline uint32_t code_index(PyObject *code) noexcept:
    """Index of a user's code object; SKIPPED for the library's own; takes a reference the first time."""
    global handed
    cdef uint32_t i = code_hash(code) & code_mask
    cdef uint32_t entry
    while True:
        entry = code_slots[i]
        if entry == 0:
            return new_code(code)
        if codes[entry & INDEX] == code:
            if not entry & SKIP:
                return entry
            handed += (entry & HANDS_ON) != 0
            return SKIPPED
        i = (i + 1) & code_mask


cdef uint32_t new_code(PyObject *code) noexcept:
    global codes, cap_codes, code_slots, code_mask, n_codes
    cdef PyObject **bigger
    cdef uint32_t *slots
    cdef uint32_t i, j
    cdef uint32_t skip
    if n_codes >= CODE_CAP:
        return SKIPPED
    try:
        skip = skipped(code)                   # first: it may run a finalizer that meets code not seen before
    except MemoryError:
        return SKIPPED                         # the line is unknown this time
    if n_codes == cap_codes:                   # the slots have twice as many entries
        bigger = <PyObject **> realloc(codes, 2 * cap_codes * sizeof(PyObject *))
        if bigger == NULL:
            return SKIPPED
        codes = bigger
        slots = <uint32_t *> calloc(4 * cap_codes, sizeof(uint32_t))
        if slots == NULL:
            return SKIPPED
        cap_codes *= 2
        for i in range(code_mask + 1):
            if code_slots[i]:
                j = code_hash(codes[code_slots[i] & INDEX]) & (2 * cap_codes - 1)
                while slots[j]:
                    j = (j + 1) & (2 * cap_codes - 1)
                slots[j] = code_slots[i]
        free(code_slots)
        code_slots = slots
        code_mask = 2 * cap_codes - 1
    i = code_hash(code) & code_mask
    while code_slots[i]:
        if codes[code_slots[i] & INDEX] == code:    # the finalizer met this very code
            return SKIPPED if code_slots[i] & SKIP else code_slots[i]
        i = (i + 1) & code_mask
    incref(code)
    codes[n_codes] = code
    foreign[n_codes] = is_foreign(code)
    code_slots[i] = n_codes | skip
    n_codes += 1
    return SKIPPED if skip else n_codes - 1


cdef uint32_t intern_place(uint32_t code, int lasti) noexcept:
    cdef uint64_t place = (<uint64_t> code << 32) | <uint32_t> lasti
    cdef uint32_t i = place_hash(place) & place_mask
    while place_slots[i]:
        if places[place_slots[i]] == place:
            return place_slots[i]
        i = (i + 1) & place_mask
    return new_place(place)


cdef uint32_t new_place(uint64_t place) noexcept:
    global places, n_places, cap_places, place_slots, place_mask
    cdef uint64_t *bigger
    cdef uint32_t *slots
    cdef uint32_t id, j
    if n_places == CHAIN:
        return 0
    if n_places == cap_places:
        bigger = <uint64_t *> realloc(places, 2 * cap_places * sizeof(uint64_t))
        if bigger == NULL:
            return 0
        places = bigger
        slots = <uint32_t *> calloc(4 * cap_places, sizeof(uint32_t))
        if slots == NULL:
            return 0
        cap_places *= 2
        place_mask = 2 * cap_places - 1
        for id in range(1, n_places):
            j = place_hash(places[id]) & place_mask
            while slots[j]:
                j = (j + 1) & place_mask
            slots[j] = id
        free(place_slots)
        place_slots = slots
    j = place_hash(place) & place_mask
    while place_slots[j]:
        j = (j + 1) & place_mask
    places[n_places] = place
    place_slots[j] = n_places
    n_places += 1
    return n_places - 1


cdef uint32_t current_location() noexcept:
    cdef mt_frame *frame
    cdef uint32_t index, found
    if chained:
        return current_chain()
    frame = mt_frame_now()
    while frame != NULL:
        index = code_index(mt_frame_code(frame))
        if index != SKIPPED:
            found = intern_place(index, mt_frame_lasti(frame))
            mt_frame_free(frame)
            return found
        frame = mt_frame_back(frame)
    return 0


cdef uint32_t own_location() noexcept:
    cdef mt_frame *frame
    cdef uint32_t index, found
    if chained:
        return current_chain(True) or current_chain()
    frame = mt_frame_now()
    while frame != NULL:
        index = code_index(mt_frame_code(frame))
        if index != SKIPPED and not foreign[index]:
            found = intern_place(index, mt_frame_lasti(frame))
            mt_frame_free(frame)
            return found
        frame = mt_frame_back(frame)
    return current_location()


# ---------------------------------------------------------------- chains: the line before, and a place called from it
#
# The lines of the program's own files that are being run, from the outermost to the innermost, and the place at which
# `current_location` says that they are without them. It takes a walk over all frames: for a table of lines alone.

cdef struct Chain:
    uint32_t parent                            # 0: none
    uint32_t place
    uint32_t next                              # of the same hash; 0 ends the list

cdef Chain *chains = NULL
cdef uint32_t n_chains = 1, cap_chains = 0, chain_mask = 0
cdef uint32_t *chain_heads = NULL


cdef inline uint32_t chain_hash(uint32_t parent, uint32_t place) noexcept:
    return place_hash((<uint64_t> parent << 32) | place)


cdef uint32_t chain_of(uint32_t parent, uint32_t place) noexcept:
    """Its number; 0 where there is no room for another."""
    global n_chains
    cdef uint32_t id = chain_heads[chain_hash(parent, place) & chain_mask] if n_chains > 1 else 0
    cdef uint32_t *head
    while id:
        if chains[id].parent == parent and chains[id].place == place:
            return id
        id = chains[id].next
    if n_chains >= cap_chains and not more_chains():
        return 0
    head = &chain_heads[chain_hash(parent, place) & chain_mask]
    chains[n_chains].parent = parent
    chains[n_chains].place = place
    chains[n_chains].next = head[0]
    head[0] = n_chains
    n_chains += 1
    return n_chains - 1


cdef bint more_chains() noexcept:
    global chains, chain_heads, cap_chains, chain_mask
    cdef uint32_t cap = 2 * cap_chains if cap_chains else 1024, i
    cdef uint32_t *head
    cdef uint32_t *heads
    cdef Chain *bigger
    if cap > CHAIN_CAP:
        return False
    bigger = <Chain *> realloc(chains, cap * sizeof(Chain))
    if bigger == NULL:
        return False
    chains = bigger
    heads = <uint32_t *> calloc(cap, sizeof(uint32_t))
    if heads == NULL:
        return False
    free(chain_heads)
    chain_heads = heads
    cap_chains = cap
    chain_mask = cap - 1
    for i in range(1, n_chains):
        head = &chain_heads[chain_hash(chains[i].parent, chains[i].place) & chain_mask]
        chains[i].next = head[0]
        head[0] = i
    return True


cdef uint32_t joined(const uint32_t *lines, uint32_t n) noexcept:
    """The location of a chain of `n` places, the innermost first."""
    cdef uint32_t id = 0, i = n
    while i > 0:
        i -= 1
        id = chain_of(id, lines[i])
        if id == 0:
            return lines[0]
    return CHAIN | id if id else 0


cdef uint32_t current_chain(bint own=False) noexcept:
    cdef mt_frame *frame = mt_frame_now()
    cdef uint32_t lines[DEEPEST]
    cdef uint32_t n = 0, index
    while frame != NULL:
        index = code_index(mt_frame_code(frame))
        if index != SKIPPED and (n == 0 and not own or not foreign[index]) and n < DEEPEST:
            lines[n] = intern_place(index, mt_frame_lasti(frame))
            n += 1
        frame = mt_frame_back(frame)
    return joined(lines, n)


def chains_wanted(int change):
    """One more (1) or fewer (-1) wants each location to know the lines that led there."""
    global chained
    chained += change


def location_at(frame):
    """Location id of a frame (of Python's); where chains are wanted, with the lines that led there."""
    cdef uint32_t lines[DEEPEST]
    cdef uint32_t n = 0, index, found = 0
    if not chained:
        while frame is not None and found == 0:
            found = place(frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return found
    while frame is not None and n < DEEPEST:
        code = frame.f_code
        index = code_index(<PyObject *> code)
        if index != SKIPPED and (n == 0 or not foreign[index]):
            lines[n] = intern_place(index, frame.f_lasti)
            n += 1
        frame = frame.f_back
    return joined(lines, n)


def chain(uint32_t id):
    """Location ids of the places of a chain, the innermost first; of any other location, itself."""
    cdef uint32_t at = id ^ CHAIN
    if id < CHAIN:
        return [id] if id else []
    if at >= n_chains:
        raise IndexError(f"[chain] expected a number below {n_chains}, got {at}")
    found = []
    while at:
        found.append(chains[at].place)
        at = chains[at].parent
    return found


def is_own(uint32_t id):
    """Is the location in one of the program's own files?"""
    if CHAIN < id < CHAIN + n_chains:
        id = chains[id ^ CHAIN].place
    return 0 < id < n_places and not foreign[places[id] >> 32]


def configure(prefixes, folders=()):
    """Code whose file name starts with one of `prefixes` is never the user's. Forgets earlier decisions.

    `folders`: what is installed there is the user's choice, but not the user's own.
    """
    global skip_prefixes, installed
    cdef uint32_t i, index
    skip_prefixes, installed = tuple(prefixes), tuple(folders)
    for i in range(1, n_codes):
        foreign[i] = is_foreign(codes[i])
    for i in range(code_mask + 1):
        index = code_slots[i] & INDEX
        if index:
            code_slots[i] = index | skipped(codes[index])


def look_inside(bint allowed):
    """May frames be read past CPython's public functions, where both agree (3.11)? Returns whether they are."""
    return mt_look_inside(allowed)


def get_location():
    return current_location()


def handed_on():
    """How often until now an operation was looked at that a class of tensors had handed on (`__torch_function__`)."""
    return handed


def place(code, int lasti):
    """Location id of an instruction (a byte offset) of a code object; 0 when it is the library's own."""
    cdef uint32_t index = code_index(<PyObject *> code)
    return 0 if index == SKIPPED else intern_place(index, lasti)


def location(id):
    """(file name, line, function) of a location id; None for 0 (no user frame)."""
    if CHAIN < id < CHAIN + n_chains:
        id = chains[<uint32_t> id ^ CHAIN].place
    if not 0 <= id < n_places:
        raise IndexError(f"[location] expected an id below {n_places}, got {id}")
    if id == 0:
        return None
    cdef uint64_t place = places[<uint32_t> id]
    cdef PyObject *pointer = codes[place >> 32]
    code = <object> pointer
    line = mt_code_line(pointer, <int32_t> (place & 0xFFFFFFFF))
    return code.co_filename, line if line > 0 else code.co_firstlineno, code.co_name


def call_of(uint32_t id):
    """(code object, byte offset) of the call that is a location, the innermost of a chain; None for 0.

    Where Python has specialized a call, it may run it at the instruction before: both are one call.
    """
    if CHAIN < id < CHAIN + n_chains:
        id = chains[id ^ CHAIN].place
    if not 0 < id < n_places:
        return None
    cdef uint64_t place = places[id]
    cdef uint32_t at = <uint32_t> (place & 0xFFFFFFFF)
    code = <object> codes[place >> 32]
    if MT_PRECALL and code.co_code[at] == MT_PRECALL:
        at += 4  # with its cache entry
    return code, at


def location_count():
    """Ids are 1 .. location_count() - 1."""
    return n_places


def table_bytes():
    """Bytes held by the tables of this extension; code objects belong to the program."""
    cdef size_t total = cap_chains * (sizeof(Chain) + 4) + (code_mask + 1 + place_mask + 1) * 4
    return total + cap_codes * sizeof(PyObject *) + cap_places * sizeof(uint64_t)
