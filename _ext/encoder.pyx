"""A segment as two strings of bytes: its structure, which repeats, and the numbers in it, which change.

Structure: for each record the call (function, template without numbers, what its results are, dtypes and dimensions
that were predicted) and where its inputs come from; then dtypes and dimensions of the tensors that the segment begins
with, and which results have storages that stay. Addresses in it are of objects that live as long as the process.
Numbers, 8 bytes each: one for each tensor that the segment begins with, which the caller fills in; for each record the
ints and floats of its template, then of each output sizes, strides unless it is contiguous, and offset; at last sizes,
strides and offset of the tensors that the segment begins with.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from .intern cimport OpInfo, ref, sig_key, sig_out_meta, sig_written, unref
from .native_calls cimport object_of
from .replay cimport Segment
from .structs cimport REC_GRAD, REC_RUNNING, SIG_RANDOM, SIG_VIEW, MetaS, Record, SigS, Slot
from .tape cimport Tape, floats_at, rec_floats, rec_ins, rec_outs, sig_floats
from .template cimport (
    HEADER, TAG_BYTE, TAG_COMPLEX, TAG_FLOAT, TAG_INT, TAG_LIST, TAG_NUMBER, TAG_OBJECT, TAG_STRING, TAG_TENSOR,
    TAG_TUPLE, hole_metas,
)

cdef extern from "Python.h":
    int64_t PyLong_AsLongLong(object o) except? -1

cdef enum:
    NO_TENSOR = 0x7FFF         # a result that is none, among those of a call

cdef struct Buffer:
    uint8_t *data
    size_t n, cap

cdef struct Origin:            # where a record comes from
    uint32_t sig, module, loc
    uint8_t phase
    uint64_t seq
    uint32_t begin, call, end  # of the record in the structure; `call`: where its inputs begin
    uint32_t floats            # where those begin that its call leaves open, in bytes


cdef int _put(Buffer *b, const void *p, size_t n) except -1:
    cdef uint8_t *bigger
    cdef size_t cap
    if b.n + n > b.cap:
        cap = (b.n + n) * 2 + 256
        bigger = <uint8_t *>realloc(b.data, cap)
        if not bigger:
            raise MemoryError()
        b.data, b.cap = bigger, cap
    memcpy(b.data + b.n, p, n)
    b.n += n
    return 0


cdef int _byte(Buffer *b, uint8_t x) except -1:
    return _put(b, &x, 1)


cdef int _number(Buffer *b, int64_t x) except -1:
    return _put(b, &x, 8)


cdef int _tuple(Buffer *numbers, object sizes) except -1:
    cdef Py_ssize_t k
    for k in range(PyTuple_GET_SIZE(sizes)):
        _number(numbers, PyLong_AsLongLong(<object>PyTuple_GET_ITEM(sizes, k)))
    return 0


cdef const uint8_t *_argument(const uint8_t *p, const double **floats, Buffer *structure,
                              Buffer *numbers) except NULL:
    """One argument of a template, from `p` on; returns where the next one is. `floats`: those that the record has."""
    cdef uint8_t tag = p[0]
    cdef uint16_t size
    p += 1
    if tag == TAG_BYTE or tag == TAG_INT:
        _byte(structure, TAG_INT)
        if tag == TAG_BYTE:
            _number(numbers, <int8_t>p[0])
            return p + 1
        _put(numbers, p, 8)
        return p + 8
    if tag == TAG_NUMBER:
        _byte(structure, TAG_FLOAT)
        _put(numbers, floats[0], 8)
        floats[0] += 1
        return p + 1
    _byte(structure, tag)
    if tag == TAG_TENSOR:
        return p + 4
    if tag == TAG_FLOAT:
        _put(numbers, p, 8)
        return p + 8
    if tag == TAG_COMPLEX:
        _put(numbers, p, 16)
        return p + 16
    if tag == TAG_OBJECT:
        _put(structure, p, sizeof(void *))
        return p + sizeof(void *)
    if tag == TAG_STRING:
        memcpy(&size, p, 2)
        _put(structure, p, 2 + size)
        return p + 2 + size
    if tag == TAG_TUPLE or tag == TAG_LIST:
        memcpy(&size, p, 2)
        _put(structure, p, 2)
        p += 2
        for _ in range(size):
            p = _argument(p, floats, structure, numbers)
    return p


cdef int _meta(MetaS *m, Buffer *structure, Buffer *numbers) except -1:
    cdef object size = <object>m.size, stride = <object>m.stride if m.stride else None
    _put(structure, &m.dtype, sizeof(void *))
    _byte(structure, <uint8_t>PyTuple_GET_SIZE(size))
    _byte(structure, stride is not None)
    _byte(structure, m.bits)
    _tuple(numbers, size)
    if stride is not None:
        _tuple(numbers, stride)
    return _number(numbers, m.offset)


cdef int _call(Tape tape, Record *r, SigS *s, Buffer *structure, Buffer *numbers) except -1:
    cdef const uint8_t *p = sig_key(s)
    cdef const double *floats = <const double *>rec_floats(r, s)       # not aligned
    cdef bint grad = r.flags & REC_GRAD
    cdef uint8_t nargs = p[sizeof(void *)], nkw = p[sizeof(void *) + 1]
    cdef object ret = <object>s.ret if s.ret else None
    cdef object kind
    cdef PyObject *first
    cdef uint16_t code
    cdef uint32_t k
    _put(structure, p, sizeof(void *) + 2)
    _byte(structure, (1 if grad else 0) | (s.flags & (SIG_RANDOM | SIG_VIEW)))
    _byte(structure, s.device if s.flags & SIG_RANDOM else 0)
    p += HEADER
    for _ in range(nargs):
        p = _argument(p, &floats, structure, numbers)
    for _ in range(nkw):
        _put(structure, p, sizeof(void *))
        p = _argument(p + sizeof(void *), &floats, structure, numbers)
    _put(structure, sig_written(s), s.n_in)
    if ret is not None:
        kind = <object>PyTuple_GET_ITEM(ret, 0)        # a small number, or the type of a named tuple
        first = <PyObject *>kind
        _put(structure, &first, sizeof(first))
        for k in range(1, <uint32_t>PyTuple_GET_SIZE(ret)):
            kind = <object>PyTuple_GET_ITEM(ret, k)
            code = NO_TENSOR if kind is None else <uint16_t><int64_t>PyLong_AsLongLong(kind)
            _put(structure, &code, 2)
    _put(structure, &s.n_out, 2)
    for k in range(s.n_out):
        _meta(&tape.interner.metas[sig_out_meta(s)[k]], structure, numbers)
    return 0


@cython.final
@cython.no_gc_clear             # __dealloc__ needs the tape
cdef class Encoded:
    """What `encode` gives. Keeps the ids of calls in it from being used again.

    structure, numbers: as above. given: (what stands for its value, slot of its storage) of each tensor that the
    segment begins with; kept: (slot, slot of its storage, its number among all outputs, metadata, MetaBits) of the
    outputs that something will name when all have run, those with storages of their own first; `n_own` of them have
    one. n_outputs: outputs in all, of `nbytes` bytes; written: slots of the storages that records write into; viewed:
    of those that records make views of.
    """
    cdef Tape tape
    cdef Origin *origins
    cdef size_t n, cap, begin_given
    cdef readonly bytes structure
    cdef readonly bytearray numbers
    cdef bytes open                # the floats that calls leave open, one after the other
    cdef readonly list given, kept
    cdef readonly size_t n_own, n_outputs
    cdef readonly uint64_t nbytes
    cdef readonly list written
    cdef readonly set viewed

    def __init__(self):
        raise TypeError("Encoded is made by encode()")

    def __dealloc__(self):
        cdef size_t k
        for k in range(self.n):
            unref(&self.tape.interner.sigs[self.origins[k].sig].refs)
        free(self.origins)

    def __len__(self):
        return self.n

    cdef Origin *_at(self, Py_ssize_t k) except NULL:
        if not 0 <= k < <Py_ssize_t>self.n:
            raise IndexError(f"expected a record in 0..{self.n - 1}, got {k}")
        return &self.origins[k]

    def origin(self, Py_ssize_t k):
        """(name of the op, id of the call, module id, location id, phase) of a record."""
        cdef Origin *o = self._at(k)
        return ((<OpInfo>self.tape.interner.sigs[o.sig].info).name, o.sig, o.module, o.loc, o.phase)

    def call(self, Py_ssize_t k):
        """The call of a record without its inputs, as it is in the structure."""
        cdef Origin *o = self._at(k)
        return self.structure[o.begin:o.call]

    def grad(self, Py_ssize_t k):
        """Was torch's grad mode on when it was recorded?"""
        return self.structure[self._at(k).begin + sizeof(void *) + 2] & 1 != 0

    def inputs(self, Py_ssize_t k):
        """Where its inputs come from: 2 i: tensor i that is given; 2 i + 1: output i."""
        cdef Origin *o = self._at(k)
        return tuple(memoryview(self.structure)[o.call:o.end].cast("I").tolist())

    def floats(self, Py_ssize_t k):
        """The floats of a record that its call leaves open, in order."""
        cdef Origin *o = self._at(k)
        return floats_at(<const char *>self.open + o.floats, sig_floats(self.tape.interner.sigs[o.sig]))

    def seq(self, Py_ssize_t k):
        """Sequence number of a record."""
        return self._at(k).seq

    def begins(self):
        """(dtype, dimensions, are its strides told, MetaBits) of each tensor in `given`, as in the structure."""
        cdef const uint8_t *p = <const uint8_t *><const char *>self.structure + self.begin_given
        cdef PyObject *dtype
        cdef list found = []
        for _ in range(len(self.given)):
            memcpy(&dtype, p, sizeof(dtype))
            p += sizeof(dtype)
            found.append((<object>dtype, p[0], bool(p[1]), p[2]))
            p += 3
        return found

    cdef int _add(self, Record *r, uint64_t seq, uint32_t begin, uint32_t call, uint32_t end,
                  uint32_t floats) except -1:
        cdef Origin *o
        cdef size_t cap = self.cap * 2 + 64
        if self.n == self.cap:
            o = <Origin *>realloc(self.origins, cap * sizeof(Origin))
            if not o:
                raise MemoryError()
            self.origins, self.cap = o, cap
        o = &self.origins[self.n]
        o.sig, o.module, o.loc, o.phase = r.sig, r.module, r.loc, r.phase
        o.seq, o.begin, o.call, o.end, o.floats = seq, begin, call, end, floats
        ref(&self.tape.interner.sigs[r.sig].refs)
        self.n += 1
        return 0


def encode(Segment segment):
    """Claim the records of `segment` and write them down; its settle() must follow."""
    cdef Tape tape = segment.tape
    cdef Encoded made = Encoded.__new__(Encoded)
    cdef Buffer structure, numbers, floats
    cdef dict index = {}           # slot -> 2 i or 2 i + 1, as in Encoded.inputs
    cdef dict users = {}           # of outputs
    cdef dict metas = {}
    cdef list given = [], given_metas = []
    cdef set viewed = set()
    cdef dict written = {}         # slot of a storage -> None: as a set, in order
    cdef Record *r
    cdef SigS *s
    cdef Slot *slot
    cdef uint32_t *holes = NULL
    cdef uint32_t i, n, begin, call, first, most = 0, outputs = 0
    cdef size_t k
    cdef object found
    memset(&structure, 0, sizeof(Buffer))
    memset(&numbers, 0, sizeof(Buffer))
    memset(&floats, 0, sizeof(Buffer))
    made.tape = tape
    segment.take()
    tape.interner.frozen += 1
    try:
        for k in range(segment.seqs.n):
            r = tape.record(segment.seqs.data[k])
            if not r or r.state != REC_RUNNING:
                continue
            s = tape.interner.sigs[r.sig]
            begin = <uint32_t>structure.n
            first = <uint32_t>floats.n
            _put(&floats, rec_floats(r, s), sig_floats(s) * sizeof(double))
            _call(tape, r, s, &structure, &numbers)
            call = <uint32_t>structure.n
            if s.n_in > most or not holes:
                free(holes)
                most = s.n_in + 16
                holes = <uint32_t *>malloc(most * sizeof(uint32_t))
                if not holes:
                    raise MemoryError()
            hole_metas(sig_key(s), holes)
            for i in range(s.n_in):
                n = rec_ins(r)[i]
                found = index.get(n)
                if found is None:
                    found = index[n] = 2 * len(given)
                    slot = tape.slot(n)
                    given.append((object_of(slot), slot.root))
                    given_metas.append(holes[i])
                elif n in users:
                    users[n] -= 1
                if sig_written(s)[i]:
                    slot = tape.slot(n)
                    written[slot.root] = None
                n = <uint32_t>found
                _put(&structure, &n, 4)
            for i in range(s.n_out):
                n = rec_outs(r, s)[i]
                index[n] = 2 * outputs + 1
                outputs += 1
                users[n] = tape.slot(n).users
                if tape.slot(n).root != n:
                    viewed.add(tape.slot(n).root)
                metas[n] = sig_out_meta(s)[i]
                made.nbytes += tape.interner.metas[metas[n]].nbytes
            made._add(r, segment.seqs.data[k], begin, call, <uint32_t>structure.n, first)
        made.n_outputs = outputs
        made.begin_given = structure.n
        for found in given_metas:
            _meta(&tape.interner.metas[<uint32_t>found], &structure, &numbers)
        _choose(tape, made, index, users, metas, given, &structure)
        made.given, made.written, made.viewed = given, list(written), viewed
        made.structure = PyBytes_FromStringAndSize(<char *>structure.data, structure.n)
        made.numbers = PyByteArray_FromStringAndSize(NULL, 8 * len(given) + numbers.n)
        memset(<char *>made.numbers, 0, 8 * len(given))
        memcpy(<char *>made.numbers + 8 * len(given), numbers.data, numbers.n)
        made.open = PyBytes_FromStringAndSize(<char *>floats.data, floats.n)
    finally:
        tape.interner.frozen -= 1
        free(holes)
        free(structure.data)
        free(numbers.data)
        free(floats.data)
    return made


cdef int _choose(Tape tape, Encoded made, dict index, dict users, dict metas, list given, Buffer *structure) except -1:
    """Which outputs stay: those that a tensor names, and those whose storage another one that stays is on."""
    cdef set roots = {root for _, root in given}
    cdef list dead = [], own = [], views = []
    cdef uint32_t n, i, root
    cdef object slot
    for slot in users:
        if not users[slot] and not tape.slot(slot).handles:
            dead.append(slot)
    while dead:
        n = dead.pop()
        del metas[n]
        root = tape.slot(n).root
        if root != n and root in users:
            users[root] -= 1
            if not users[root] and not tape.slot(root).handles:
                dead.append(root)
    for slot in metas:
        i = metas[slot]
        root = tape.slot(slot).root
        (views if root in roots or root != slot else own).append(
            (slot, root, index[slot] >> 1, tape.interner.meta(i), tape.interner.metas[i].bits)
        )
    made.n_own = len(own)
    made.kept = own + views
    for slot in own:
        n = slot[2]
        _put(structure, &n, 4)
    return 0
