"""Calls that write memory which they also read: would torch's kernel refuse them?"""
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from .intern cimport OpInfo, sig_written
from .keys cimport Key, current_key
from .lazy cimport get_tape
from .structs cimport SLOT_OVERWRITTEN, MetaS, SigS, Slot
from .tape cimport Tape

cdef Key *K = current_key()


cdef bint refused_overlap(OpInfo info, SigS *s) noexcept:
    """May the kernel refuse the call in the static buffers, because it writes memory that it also reads?

    Torch compares addresses there; prediction, on storages of its own, cannot.
    """
    cdef Tape tape = get_tape()
    cdef uint8_t *written = sig_written(s)
    cdef uint32_t i, j
    cdef Slot *root
    cdef bint shared = False
    for i in range(s.n_in):
        if written[i]:
            root = tape.slot(tape.slot(K.ins[i]).root)
            if root.flags & SLOT_OVERWRITTEN:  # the planner's mark, borrowed
                shared = True
            root.flags |= SLOT_OVERWRITTEN
    for i in range(s.n_in):
        if not written[i] and tape.slot(tape.slot(K.ins[i]).root).flags & SLOT_OVERWRITTEN:
            shared = True
            break
    for i in range(s.n_in):
        if written[i]:
            tape.slot(tape.slot(K.ins[i]).root).flags &= ~SLOT_OVERWRITTEN
    if not shared:
        return False
    for i in range(s.n_in):
        if written[i]:
            for j in range(s.n_in):
                if j != i and tape.slot(K.ins[i]).root == tape.slot(K.ins[j]).root and _overlap(tape, info, i, j):
                    return True
    return False


cdef bint _overlap(Tape tape, OpInfo info, uint32_t i, uint32_t j) noexcept:
    # As at::get_overlap_status: only dense tensors are judged, by the range of memory that they take.
    cdef MetaS *a = &tape.interner.metas[K.metas[i]]
    cdef MetaS *b = &tape.interner.metas[K.metas[j]]
    cdef int64_t end_a, end_b
    if K.ins[i] == K.ins[j] or K.metas[i] == K.metas[j]:
        return not info.pointwise
    if a.dtype != b.dtype:
        return True
    end_a = a.offset + _dense_length(a)
    end_b = b.offset + _dense_length(b)
    if end_a == a.offset or end_b == b.offset:
        return False
    return a.offset < end_b and b.offset < end_a


cdef int64_t _dense_length(MetaS *m) noexcept:
    """Number of elements if the tensor fills the range of memory from its first to its last one, else 0."""
    cdef int64_t count = 1, last = 0, n
    cdef Py_ssize_t k
    for k in range(PyTuple_GET_SIZE(<object>m.size)):
        n = <int64_t><object>PyTuple_GET_ITEM(<object>m.size, k)
        count *= n
        if m.stride and n:
            last += (n - 1) * <int64_t><object>PyTuple_GET_ITEM(<object>m.stride, k)
    return count if not m.stride or count == last + 1 else 0
