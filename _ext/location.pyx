"""Source lines as small numbers: (code object, instruction) interned, line numbers decoded only when asked for."""
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

cdef extern from *:
    """
    #include "frameobject.h"
    static inline PyObject *mt_frame(void) { return (PyObject *)PyEval_GetFrame(); }
    static inline PyObject *mt_frame_back(PyObject *f) { return (PyObject *)PyFrame_GetBack((PyFrameObject *)f); }
    static inline PyObject *mt_frame_code(PyObject *f) { return (PyObject *)PyFrame_GetCode((PyFrameObject *)f); }
    static inline int mt_code_line(PyObject *c, int lasti) { return PyCode_Addr2Line((PyCodeObject *)c, lasti); }
    static inline int mt_frame_lasti(PyObject *o) {
        PyFrameObject *f = (PyFrameObject *)o;
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetLasti(f);
    #else
        return f->f_lasti < 0 ? f->f_lasti : f->f_lasti * 2;   /* 3.10 counts instructions, not bytes */
    #endif
    }
    """
    PyObject *mt_frame() noexcept
    PyObject *mt_frame_back(PyObject *frame) noexcept
    PyObject *mt_frame_code(PyObject *frame) noexcept
    int mt_frame_lasti(PyObject *frame) noexcept
    int mt_code_line(PyObject *code, int lasti) noexcept
    void decref "Py_DECREF" (PyObject *p) noexcept
    void incref "Py_INCREF" (PyObject *p) noexcept

cdef enum:
    CODE_CAP = 1 << 16                         # code objects kept alive at most; beyond, new lines read as unknown
    SKIPPED = 0xFFFFFFFF

cdef struct CodeSlot:                          # open addressing; empty when code == NULL
    PyObject *code                             # owned, so that the address means this code for good
    uint32_t index                             # order of arrival: the upper half of a place's key
    uint32_t skip                              # the library's own code

cdef struct Place:
    PyObject *code                             # borrowed from its CodeSlot
    int32_t lasti

cdef struct PlaceSlot:                         # open addressing; empty when id == 0
    uint64_t key                               # code index << 32 | instruction
    uint32_t id

cdef CodeSlot *code_slots = <CodeSlot *> calloc(256, sizeof(CodeSlot))
cdef uint32_t code_mask = 255
cdef uint32_t n_codes = 0
cdef PlaceSlot *place_slots = <PlaceSlot *> calloc(256, sizeof(PlaceSlot))
cdef uint32_t place_mask = 255
cdef Place *places = <Place *> calloc(128, sizeof(Place))
cdef uint32_t n_places = 1                     # 0 = unknown
cdef uint32_t cap_places = 128
cdef tuple skip_prefixes = ()
if code_slots == NULL or place_slots == NULL or places == NULL:
    raise MemoryError


cdef bint skipped(PyObject *code) noexcept:
    cdef object name = (<object> code).co_filename
    return name.startswith(skip_prefixes)


cdef bint grow_codes() noexcept:
    global code_slots, code_mask
    cdef CodeSlot *old = code_slots
    cdef uint32_t old_size = code_mask + 1, i, j
    cdef CodeSlot *new = <CodeSlot *> calloc(2 * old_size, sizeof(CodeSlot))
    if new == NULL:
        return False
    code_mask = 2 * old_size - 1
    for i in range(old_size):
        if old[i].code != NULL:
            j = code_hash(old[i].code)
            while new[j].code != NULL:
                j = (j + 1) & code_mask
            new[j] = old[i]
    code_slots = new
    free(old)
    return True


cdef inline uint32_t code_hash(PyObject *code) noexcept:
    return <uint32_t> (((<uintptr_t> code >> 4) * <uint64_t> 0x9E3779B97F4A7C15) >> 24) & code_mask


cdef inline uint32_t code_index(PyObject *code) noexcept:
    """Index of a user's code object; SKIPPED for the library's own; takes a reference the first time."""
    cdef uint32_t i = code_hash(code)
    while code_slots[i].code != NULL:
        if code_slots[i].code == code:
            return SKIPPED if code_slots[i].skip else code_slots[i].index
        i = (i + 1) & code_mask
    return new_code(code)


cdef uint32_t new_code(PyObject *code) noexcept:
    global n_codes
    cdef uint32_t i
    if n_codes >= CODE_CAP or ((n_codes + 1) * 3 > (code_mask + 1) * 2 and not grow_codes()):
        return SKIPPED
    i = code_hash(code)
    while code_slots[i].code != NULL:
        i = (i + 1) & code_mask
    incref(code)
    code_slots[i].code = code
    code_slots[i].index = n_codes
    code_slots[i].skip = skipped(code)
    n_codes += 1
    return SKIPPED if code_slots[i].skip else code_slots[i].index


cdef uint32_t intern_place(PyObject *code, uint32_t index, int lasti) noexcept:
    cdef uint64_t key = (<uint64_t> index << 32) | <uint32_t> lasti
    cdef uint32_t i = <uint32_t> ((key * <uint64_t> 0x9E3779B97F4A7C15) >> 32) & place_mask
    while place_slots[i].id:
        if place_slots[i].key == key:
            return place_slots[i].id
        i = (i + 1) & place_mask
    return new_place(code, key, lasti)


cdef uint32_t new_place(PyObject *code, uint64_t key, int lasti) noexcept:
    global places, n_places, cap_places, place_slots, place_mask
    cdef Place *bigger
    cdef PlaceSlot *old = place_slots
    cdef PlaceSlot *new
    cdef uint32_t i, j, old_size = place_mask + 1
    if n_places == cap_places:
        bigger = <Place *> realloc(places, 2 * cap_places * sizeof(Place))
        if bigger == NULL:
            return 0
        places = bigger
        cap_places *= 2
    if (n_places + 1) * 3 > old_size * 2:
        new = <PlaceSlot *> calloc(2 * old_size, sizeof(PlaceSlot))
        if new == NULL:
            return 0
        place_mask = 2 * old_size - 1
        for i in range(old_size):
            if old[i].id:
                j = <uint32_t> ((old[i].key * <uint64_t> 0x9E3779B97F4A7C15) >> 32) & place_mask
                while new[j].id:
                    j = (j + 1) & place_mask
                new[j] = old[i]
        place_slots = new
        free(old)
    i = <uint32_t> ((key * <uint64_t> 0x9E3779B97F4A7C15) >> 32) & place_mask
    while place_slots[i].id:
        i = (i + 1) & place_mask
    places[n_places].code = code
    places[n_places].lasti = lasti
    place_slots[i].key = key
    place_slots[i].id = n_places
    n_places += 1
    return n_places - 1


cdef uint32_t current_location() noexcept:
    cdef PyObject *frame = mt_frame()
    cdef PyObject *back
    cdef PyObject *code
    cdef uint32_t index, found
    if frame == NULL:
        return 0
    incref(frame)
    while frame != NULL:
        code = mt_frame_code(frame)
        index = code_index(code)
        if index != SKIPPED:
            found = intern_place(code, index, mt_frame_lasti(frame))
            decref(code)                       # the table's own reference stays
            decref(frame)
            return found
        decref(code)
        back = mt_frame_back(frame)
        decref(frame)
        frame = back
    return 0


def configure(prefixes):
    """Code whose file name starts with one of `prefixes` is never the user's. Forgets earlier decisions."""
    global skip_prefixes
    cdef uint32_t i
    skip_prefixes = tuple(prefixes)
    for i in range(code_mask + 1):
        if code_slots[i].code != NULL:
            code_slots[i].skip = skipped(code_slots[i].code)


def get_location():
    return current_location()


def location(id):
    """(file name, line, function) of a location id; None for 0 (no user frame)."""
    if not 0 <= id < n_places:
        raise IndexError(f"[location] expected an id below {n_places}, got {id}")
    if id == 0:
        return None
    cdef Place *p = &places[<uint32_t> id]
    code = <object> p.code
    line = mt_code_line(p.code, p.lasti)
    return code.co_filename, line if line > 0 else code.co_firstlineno, code.co_name


def location_count():
    """Ids are 1 .. location_count() - 1."""
    return n_places


def table_bytes():
    """Bytes held by the tables of this extension; code objects belong to the program."""
    return ((code_mask + 1) * sizeof(CodeSlot) + (place_mask + 1) * sizeof(PlaceSlot)
            + cap_places * sizeof(Place))
