"""Source lines as small numbers: (code object, instruction) interned, line numbers decoded only when asked for."""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

cdef extern from *:
    """
    #include "frameobject.h"
    static inline int mt_code_line(PyObject *c, int lasti) { return PyCode_Addr2Line((PyCodeObject *)c, lasti); }
    #if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
    /* The interpreter's own frames: PyEval_GetFrame makes an object of each, which the program would not have. */
    #ifndef Py_BUILD_CORE
    #define Py_BUILD_CORE 1
    #endif
    #include "internal/pycore_frame.h"
    typedef _PyInterpreterFrame mt_frame;
    static inline mt_frame *mt_whole(mt_frame *f) {     /* it, or the next one out that is not just being set up */
        while (f && _PyFrame_IsIncomplete(f)) f = f->previous;
        return f;
    }
    static inline mt_frame *mt_frame_now(void) {
        PyThreadState *state = _PyThreadState_UncheckedGet();
        return state ? mt_whole(state->cframe->current_frame) : NULL;
    }
    static inline mt_frame *mt_frame_back(mt_frame *f) { return mt_whole(f->previous); }
    static inline PyObject *mt_frame_code(mt_frame *f) { return (PyObject *)f->f_code; }
    static inline int mt_frame_lasti(mt_frame *f) {
        int at = _PyInterpreterFrame_LASTI(f);
        return at < 0 ? -1 : at * (int)sizeof(_Py_CODEUNIT);
    }
    static inline void mt_frame_free(mt_frame *f) { (void)f; }
    #else
    typedef PyFrameObject mt_frame;
    static inline mt_frame *mt_frame_now(void) {
        PyFrameObject *f = PyEval_GetFrame();
        Py_XINCREF(f);
        return f;
    }
    static inline mt_frame *mt_frame_back(mt_frame *f) {
        PyFrameObject *back = PyFrame_GetBack(f);
        if (!back) PyErr_Clear();              /* no memory to make the frame visible: the line is unknown */
        Py_DECREF(f);
        return back;
    }
    static inline PyObject *mt_frame_code(mt_frame *f) {
        PyCodeObject *code = PyFrame_GetCode(f);
        Py_DECREF(code);                       /* the frame's own reference stays */
        return (PyObject *)code;
    }
    static inline int mt_frame_lasti(mt_frame *f) {
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetLasti(f);
    #else
        return f->f_lasti < 0 ? f->f_lasti : f->f_lasti * 2;   /* 3.10 counts instructions, not bytes */
    #endif
    }
    static inline void mt_frame_free(mt_frame *f) { Py_DECREF(f); }
    #endif
    """
    ctypedef struct mt_frame:
        pass
    mt_frame *mt_frame_now() noexcept          # NULL where no Python runs; owned
    mt_frame *mt_frame_back(mt_frame *frame) noexcept      # frees it
    PyObject *mt_frame_code(mt_frame *frame) noexcept      # borrowed from it
    int mt_frame_lasti(mt_frame *frame) noexcept
    void mt_frame_free(mt_frame *frame) noexcept
    int mt_code_line(PyObject *code, int lasti) noexcept
    void incref "Py_INCREF" (PyObject *p) noexcept

cdef enum:
    CODE_CAP = 1 << 16                         # code objects kept alive at most; beyond, new lines read as unknown
    SKIP = 1 << 31                             # in code_slots: the library's own code
    SKIPPED = 0xFFFFFFFF

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
if codes == NULL or code_slots == NULL or places == NULL or place_slots == NULL:
    raise MemoryError


cdef bint skipped(PyObject *code) except -1:
    cdef object name = (<object> code).co_filename
    return name.startswith(skip_prefixes)


cdef inline uint32_t code_hash(PyObject *code) noexcept:
    return <uint32_t> (((<uintptr_t> code >> 4) * <uint64_t> 0x9E3779B97F4A7C15) >> 24)


cdef inline uint32_t place_hash(uint64_t place) noexcept:
    return <uint32_t> ((place * <uint64_t> 0x9E3779B97F4A7C15) >> 32)


cdef inline uint32_t code_index(PyObject *code) noexcept:
    """Index of a user's code object; SKIPPED for the library's own; takes a reference the first time."""
    cdef uint32_t i = code_hash(code) & code_mask
    cdef uint32_t entry
    while True:
        entry = code_slots[i]
        if entry == 0:
            return new_code(code)
        if codes[entry & ~SKIP] == code:
            return SKIPPED if entry & SKIP else entry
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
        skip = SKIP if skipped(code) else 0    # first: it may run a finalizer that meets code not seen before
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
                j = code_hash(codes[code_slots[i] & ~SKIP]) & (2 * cap_codes - 1)
                while slots[j]:
                    j = (j + 1) & (2 * cap_codes - 1)
                slots[j] = code_slots[i]
        free(code_slots)
        code_slots = slots
        code_mask = 2 * cap_codes - 1
    i = code_hash(code) & code_mask
    while code_slots[i]:
        if codes[code_slots[i] & ~SKIP] == code:    # the finalizer met this very code
            return SKIPPED if code_slots[i] & SKIP else code_slots[i]
        i = (i + 1) & code_mask
    incref(code)
    codes[n_codes] = code
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
    cdef mt_frame *frame = mt_frame_now()
    cdef uint32_t index, found
    while frame != NULL:
        index = code_index(mt_frame_code(frame))
        if index != SKIPPED:
            found = intern_place(index, mt_frame_lasti(frame))
            mt_frame_free(frame)
            return found
        frame = mt_frame_back(frame)
    return 0


def configure(prefixes):
    """Code whose file name starts with one of `prefixes` is never the user's. Forgets earlier decisions."""
    global skip_prefixes
    cdef uint32_t i, index
    skip_prefixes = tuple(prefixes)
    for i in range(code_mask + 1):
        index = code_slots[i] & ~SKIP
        if index:
            code_slots[i] = index | (SKIP if skipped(codes[index]) else 0)


def get_location():
    return current_location()


def place(code, int lasti):
    """Location id of an instruction (a byte offset) of a code object; 0 when it is the library's own."""
    cdef uint32_t index = code_index(<PyObject *> code)
    return 0 if index == SKIPPED else intern_place(index, lasti)


def location(id):
    """(file name, line, function) of a location id; None for 0 (no user frame)."""
    if not 0 <= id < n_places:
        raise IndexError(f"[location] expected an id below {n_places}, got {id}")
    if id == 0:
        return None
    cdef uint64_t place = places[<uint32_t> id]
    cdef PyObject *pointer = codes[place >> 32]
    code = <object> pointer
    line = mt_code_line(pointer, <int32_t> (place & 0xFFFFFFFF))
    return code.co_filename, line if line > 0 else code.co_firstlineno, code.co_name


def location_count():
    """Ids are 1 .. location_count() - 1."""
    return n_places


def table_bytes():
    """Bytes held by the tables of this extension; code objects belong to the program."""
    return cap_codes * sizeof(PyObject *) + cap_places * sizeof(uint64_t) + (code_mask + 1 + place_mask + 1) * 4
