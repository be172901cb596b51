"""Wrappers: the torch tensors around handles, kept when they die and taken again.

Making and freeing one takes longer than all else of recording an op. A wrapper of the class that calls return is kept
when it dies, if nothing tells it from a new one of its metadata: not its C++ side (which is compared with a picture of
a new one, word by word), not its Python side (no attribute, no weak reference, no hook), and nobody else has it. Any
other is freed by torch, as ever.

This reads torch's structs: `start` proves on tensors of torch's own that they are laid out as is said here, and that
each change that a program can make is seen. Where they are not, no wrapper is kept.
"""
from cpython.dict cimport PyDict_CheckExact, PyDict_Size
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from .interpreter cimport (
    MT_SLOT, MT_SET_SLOT, mt_again, mt_attributes, mt_basicsize, mt_dealloc_of, mt_destructor, mt_has_finalizer,
    mt_has_weakrefs, mt_is_unshared, mt_let_go,
)
from .tape cimport Handle, Tape

cdef extern from *:
    """
    /* Backward passes count in threads of their own. */
    static inline void mt_add_one(uint64_t *at) { __atomic_fetch_add((uint32_t *)at, 1, __ATOMIC_SEQ_CST); }
    """
    void mt_add_one(uint64_t *at) noexcept

cdef enum:
    # What torch 2.12 to 2.15 have: c10::TensorImpl up to its sizes is vtable, counts, storage, autograd's, extra,
    # version, the Python object (behind its interpreter in 2.12), in words; then 16 more words, its keys the last.
    STORAGE = 2
    AUTOGRAD = 3
    EXTRA = 4
    VERSION = 5
    BEHIND_SELF = 16
    FLAGS = 14                         # behind the Python object: dtype, device, flags
    IMPL_WORDS = 24
    STORAGE_WORDS = 12                 # c10::StorageImpl
    DIMENSIONS = 5                     # more have their sizes elsewhere
    CDATA = 2                          # of the Python object: word in which the address of the C++ side is
    SHELVES = 256
    MAX_KEPT = 64                      # of one metadata
    MAX_WRAPPERS = 2048                # of all; about 600 bytes each

# Bytes that are nobody's and hold what was there before: behind a TensorImpl's flags; of a StorageImpl, behind the
# device of its pointer, and behind its flags.
cdef uint64_t IMPL_MASK = 0x00FFFFFFFFFFFFFF
cdef uint64_t[2] STORAGE_MASKS = [0xFFFF, 0x00FFFFFFFFFFFFFF]

cdef struct Picture:
    uint64_t impl[IMPL_WORDS]
    uint64_t storage[STORAGE_WORDS]
    uint64_t version[3]

cdef struct Shelf:
    uint64_t key
    PyObject *type
    Picture new
    uint32_t n
    PyObject *kept[MAX_KEPT]

cdef Shelf *shelves[SHELVES]
cdef Tape main = None
cdef bint keeping = False
cdef Py_ssize_t slot_offset = 0
cdef uint32_t self_at = 0              # word of the C++ side in which the Python object is
cdef uint64_t evictions = 0
cdef uint32_t n_kept = 0
cdef uint32_t freeing = 0              # calls of give_back() that have not returned
cdef mt_destructor torchs = NULL       # what frees a tensor
cdef PyObject *classes[2]
cdef object set_class = object.__dict__["__class__"].__set__


# ---- what is new -----------------------------------------------------------------------------------------------------
cdef bint take_picture(PyObject *o, Picture *p) noexcept:
    """What the C++ side of a tensor is, but for the addresses of its parts. False: it has none, or is not read."""
    cdef uint64_t *impl = (<uint64_t **>o)[CDATA]
    cdef uint64_t *storage
    cdef uint64_t *version
    cdef uint32_t i
    memset(p, 0, sizeof(Picture))
    if impl == NULL or impl[self_at] != <uint64_t>o or impl[AUTOGRAD] or impl[EXTRA]:
        return False
    if impl[self_at + 1] > DIMENSIONS:
        return False
    storage = <uint64_t *>impl[STORAGE]
    version = <uint64_t *>impl[VERSION]
    for i in range(self_at + BEHIND_SELF):
        p.impl[i] = impl[i]
    p.impl[STORAGE] = storage != NULL
    p.impl[VERSION] = version != NULL
    p.impl[self_at] = 0
    p.impl[self_at + FLAGS] &= IMPL_MASK
    if storage != NULL:
        for i in range(STORAGE_WORDS):
            p.storage[i] = storage[i]
        p.storage[5] &= STORAGE_MASKS[0]
        p.storage[7] &= STORAGE_MASKS[1]
    if version != NULL:
        p.version[0], p.version[1] = version[0], version[1]
        p.version[2] = <uint32_t>version[2]
    return True


cdef bint is_bare(PyObject *o, Py_ssize_t handle) noexcept:
    """Is there nothing on the Python object that a program, or torch, has put there? `handle`: offset of its slot."""
    cdef Py_ssize_t at = (CDATA + 1) * sizeof(void *), size = mt_basicsize(o)
    cdef PyObject **attributes = mt_attributes(o)
    while at < size:
        if at != handle and <char *>o + at != <char *>attributes and MT_SLOT(o, at):
            return False
        at += sizeof(void *)
    if mt_has_weakrefs(o):
        return False
    return attributes == NULL or attributes[0] == NULL or (
        PyDict_CheckExact(<object>attributes[0]) and PyDict_Size(<object>attributes[0]) == 0
        and mt_is_unshared(attributes[0])
    )


cdef bint put_aside(PyObject *o) noexcept:
    """Keep the dying wrapper, if it is as new."""
    global n_kept
    cdef PyObject *h = MT_SLOT(o, slot_offset)
    cdef Shelf *shelf
    cdef Picture now
    cdef uint64_t *impl
    if h == NULL or not keeping or type(<object>h) is not Handle or (<Handle>h).tape is not main:
        return False
    if main.interner.evictions != evictions:
        clear()
    impl = (<uint64_t **>o)[CDATA]
    if impl == NULL:
        return False
    shelf = shelf_of((<Handle>h).meta, impl[VERSION] == 0)
    if shelf == NULL or shelf.n == MAX_KEPT or n_kept == MAX_WRAPPERS or shelf.type != (<PyObject **>o)[1]:
        return False
    if not take_picture(o, &now) or memcmp(&now, &shelf.new, sizeof(Picture)) or mt_has_finalizer(o):
        return False
    if not is_bare(o, slot_offset):
        return False
    mt_let_go(o)
    MT_SET_SLOT(o, slot_offset, NULL)
    shelf.kept[shelf.n] = o
    shelf.n += 1
    n_kept += 1
    Py_DECREF(<object>h)               # last: this may free tensors, and take what was just kept
    return True


cdef void dealloc(PyObject *o) noexcept:
    if not put_aside(o):
        give_back(o)


cdef void give_back(PyObject *o) noexcept:
    """Free the wrapper in the way of all objects: CPython looks for the class that is not freed by `torchs`.

    That may run a finalizer, in which others die and other threads run: nobody turns the classes back meanwhile.
    """
    global freeing
    freeing += 1
    set_dealloc(torchs)
    torchs(o)
    freeing -= 1
    if not freeing:
        set_dealloc(dealloc)


cdef void set_dealloc(mt_destructor how) noexcept:
    mt_dealloc_of(classes[0])[0] = mt_dealloc_of(classes[1])[0] = how


# ---- versions, keys --------------------------------------------------------------------------------------------------
cdef uint64_t *counter_of(PyObject *o) noexcept:
    """Where torch counts the writes to a tensor; NULL where it does not, or is not read."""
    cdef uint64_t *impl = (<uint64_t **>o)[CDATA] if self_at else NULL
    return NULL if impl == NULL else <uint64_t *>impl[VERSION]


cdef uint64_t *keys_of(PyObject *o) noexcept:
    """Where its dispatch keys are; NULL where tensors are not read."""
    return &(<uint64_t **>o)[CDATA][self_at + BEHIND_SELF - 1] if self_at else NULL


cdef int64_t version(PyObject *o) noexcept:
    cdef uint64_t *counter = counter_of(o)
    return -1 if counter == NULL else <int64_t><uint32_t>counter[2]


cdef void advance(PyObject *o) noexcept:
    mt_add_one(counter_of(o) + 2)


# ---- shelves ---------------------------------------------------------------------------------------------------------
cdef inline uint64_t key_of(uint32_t meta, bint inference) noexcept:
    return <uint64_t>meta << 1 | inference


cdef inline Shelf *shelf_of(uint32_t meta, bint inference) noexcept:
    cdef uint64_t key = key_of(meta, inference)
    cdef Shelf *shelf = shelves[key & (SHELVES - 1)]
    return shelf if shelf != NULL and shelf.key == key else NULL


cdef object take(Tape tape, uint32_t meta, bint inference):
    global n_kept
    cdef Shelf *shelf
    if tape.interner.evictions != evictions:
        clear()
    shelf = shelf_of(meta, inference)
    if shelf == NULL or not shelf.n:
        return None
    shelf.n -= 1
    n_kept -= 1
    return mt_again(shelf.kept[shelf.n])


cdef void learn(Tape tape, uint32_t meta, bint inference, object wrapper) noexcept:
    cdef uint64_t key = key_of(meta, inference)
    cdef Shelf **place = &shelves[key & (SHELVES - 1)]
    cdef Shelf *shelf = place[0]
    if shelf != NULL and shelf.key == key:
        return
    if shelf == NULL:
        shelf = <Shelf *>malloc(sizeof(Shelf))
        if shelf == NULL:
            return
        shelf.n = 0
        place[0] = shelf
    shelf.key = 0
    empty(shelf)
    if take_picture(<PyObject *>wrapper, &shelf.new) and (shelf.new.impl[VERSION] == 0) == inference:
        shelf.type = (<PyObject **><PyObject *>wrapper)[1]
        shelf.key = key


cdef void empty(Shelf *shelf) noexcept:
    global n_kept
    while shelf.n:
        shelf.n -= 1
        n_kept -= 1
        give_back(shelf.kept[shelf.n])


cdef void clear() noexcept:
    """The numbers of metadata may be those of others by now."""
    global evictions
    cdef uint32_t i
    evictions = main.interner.evictions
    for i in range(SHELVES):
        if shelves[i] != NULL:
            empty(shelves[i])
            free(shelves[i])
            shelves[i] = NULL


# ---- proof -----------------------------------------------------------------------------------------------------------
cdef bint photograph(object tensor, Picture *p) except -1:
    return take_picture(<PyObject *>tensor, p) and is_bare(<PyObject *>tensor, -1)


def is_laid_out(make, list changes, address, storage_address):
    """Does the installed torch have the structs that are read here, and is each of the `changes` seen in them?

    `make`: of a new plain tensor of two dimensions. `changes`: functions of such a tensor, which return what has to
    stay alive meanwhile. `address`, `storage_address`: what torch says of the addresses of a tensor's C++ parts.
    """
    global self_at
    cdef Picture before, after
    cdef uint64_t *impl
    cdef uint32_t i
    tensor = make()
    impl = (<uint64_t **><PyObject *>tensor)[CDATA]
    if <uint64_t>impl != <uint64_t>address(tensor) or impl[STORAGE] != <uint64_t>storage_address(tensor):
        return False
    for i in range(VERSION + 1, VERSION + 3):
        if impl[i] == <uint64_t><PyObject *>tensor:
            self_at = i
            break
    else:
        return False
    for change in changes:
        tensor = make()
        if not photograph(tensor, &before) or not photograph(tensor, &after) or memcmp(&before, &after, sizeof(after)):
            return False
        held = change(tensor)
        if photograph(tensor, &after) and memcmp(&before, &after, sizeof(after)) == 0:
            return False
        del held
    return True


def start(Tape tape, fast, dataless, Py_ssize_t offset):
    """From now on, keep wrappers of these classes, whose handles are in the slot at `offset`. After is_laid_out()."""
    global main, slot_offset, torchs, keeping
    main, slot_offset = tape, offset
    torchs = mt_dealloc_of(<PyObject *>fast)[0]
    classes[0], classes[1] = <PyObject *>fast, <PyObject *>dataless
    if mt_dealloc_of(<PyObject *>dataless)[0] != torchs:
        raise TypeError(f"[start] expected classes whose objects are freed in one way, got {fast!r}, {dataless!r}")
    set_dealloc(dealloc)
    keeping = True


def keep(bint on):
    """Whether wrappers are kept from now on; those that were are freed."""
    global keeping
    if torchs != NULL:
        keeping = on
        clear()


def kept():
    """How many wrappers wait to be taken again."""
    return n_kept


def assign_class(t, cls):
    """``t.__class__ = cls``: Python compares how objects of the two classes are freed."""
    global freeing
    if torchs == NULL:
        set_class(t, cls)
        return
    freeing += 1
    set_dealloc(torchs)
    try:
        set_class(t, cls)
    finally:
        freeing -= 1
        if not freeing:
            set_dealloc(dealloc)
