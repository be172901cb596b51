"""What of a segment somebody needs to know who divides it among several executors."""
from libc.stdint cimport uint32_t, uint64_t

from .intern cimport OpInfo, SigS, sig_out_meta, sig_written
from .native_calls cimport object_of
from .replay cimport Segment, place_of
from .structs cimport MetaS, REC_GRAD, SIG_RANDOM, SIG_WRITES, SLOT_FAILED, SLOT_PENDING, Record, Slot
from .tape cimport Tape, floats_at, rec_floats, rec_ins, rec_outs, sig_floats

cdef enum:
    SMALL = 8                      # times as large as a small part is the whole, at least


def nbytes(Segment segment):
    """Bytes of all storages that the records make, whenever those die."""
    cdef Tape tape = segment.tape
    cdef Record *r
    cdef SigS *s
    cdef uint64_t found = 0
    cdef size_t k
    cdef uint32_t i, n
    segment.look_again()
    for k in range(segment.seqs.n):
        r = tape.record(segment.seqs.data[k])
        if not r:
            continue
        s = tape.interner.sigs[r.sig]
        for i in range(s.n_out):
            n = rec_outs(r, s)[i]
            if tape.slot(n).root == n:
                found += tape.interner.metas[sig_out_meta(s)[i]].nbytes
    return found


cdef uint64_t _size(dict sizes, dict begins, uint32_t root) except? 0:
    """Bytes of a storage; 0 where nobody knows them."""
    if root not in sizes:
        value = begins.get(root)
        sizes[root] = 0 if value is None else value.untyped_storage().nbytes()
    return sizes[root]


cdef uint64_t _reach(MetaS *m) except? 0:
    """Bytes from the first element to the last."""
    cdef uint64_t found = 1
    if not m.stride or not m.nbytes:
        return m.nbytes
    for size, stride in zip(<tuple>m.size, <tuple>m.stride):
        found += (size - 1) * stride
    return found * <uint64_t>(<object>m.dtype).itemsize


def facts(Segment segment, frozenset names=frozenset()):
    """What an executor needs to know that divides the records by itself: (records, begins, stays, counting, named).

    records: (module id, phase, index whose generator it draws from or -1, index of its device, was grad mode on,
    slots of the storages that it takes, of those that it writes, (slot, bytes) of those of its results; 0 bytes for
    one that was there before) of each. begins: slot -> what stands for a value on it, of storages that the segment
    begins with. stays: the slots of those that something will name when all have run. counting: of storages that the
    records make, the slots of those with integers or booleans, which have no gradients. named: positions of the records
    of these operators that neither draw nor write.

    A view of a small part of a storage which no record writes has its own slot in all of that besides, as if it were a
    storage: it moves alone.
    """
    cdef Tape tape = segment.tape
    cdef Record *r
    cdef SigS *s
    cdef Slot *slot
    cdef list records = [], takes, writes, makes
    cdef dict sizes = {}           # of storages
    cdef dict begins = {}, left = {}       # slot of a result -> those who use it and are no record of these
    cdef set stays = set(), counting = set(), named = set(), small = set(), written = set()
    cdef MetaS *meta
    cdef size_t k
    cdef uint32_t i, n
    cdef bint mixed, views
    cdef int place, draws
    cdef uint64_t reach
    cdef object found, dtype
    segment.look_again()
    for k in range(segment.seqs.n):
        r = tape.record(segment.seqs.data[k])
        s = tape.interner.sigs[r.sig] if r else NULL
        if s and s.flags & SIG_WRITES:
            for i in range(s.n_in):
                if sig_written(s)[i]:
                    written.add(tape.slot(rec_ins(r)[i]).root)
    for k in range(segment.seqs.n):
        r = tape.record(segment.seqs.data[k])
        takes, writes, makes = [], [], []
        if not r:
            records.append((0, 0, -1, 0, False, takes, writes, makes))
            continue
        s = tape.interner.sigs[r.sig]
        views = False
        for i in range(s.n_out):
            n = rec_outs(r, s)[i]
            views |= tape.slot(n).root != n
        for i in range(s.n_in):
            n = rec_ins(r)[i]
            slot = tape.slot(n)
            takes.append(n if n in small and not views else slot.root)
            if sig_written(s)[i]:
                writes.append(slot.root)
            found = left.get(n)
            if found is not None:
                left[n] = found - 1
            elif not slot.flags & (SLOT_PENDING | SLOT_FAILED) and slot.concrete and slot.root not in begins:
                begins[slot.root] = object_of(slot)
        for i in range(s.n_out):
            n = rec_outs(r, s)[i]
            slot = tape.slot(n)
            left[n] = slot.users
            if slot.handles:
                stays.add(slot.root)
            meta = &tape.interner.metas[sig_out_meta(s)[i]]
            if slot.root == n:
                makes.append((n, meta.nbytes))
                sizes[n] = meta.nbytes
                dtype = <object>meta.dtype
                if not (dtype.is_floating_point or dtype.is_complex):
                    counting.add(n)
            else:
                makes.append((slot.root, 0))
                reach = _reach(meta)
                if slot.root not in written and reach * SMALL <= _size(sizes, begins, slot.root):
                    small.add(n)
                    makes.append((n, reach))
                    if slot.handles:
                        stays.add(n)
                found = left.get(slot.root)
                if found is not None:
                    left[slot.root] = found - 1
        draws = s.device if s.flags & SIG_RANDOM else -1
        if draws < 0 and not writes and (<OpInfo>s.info).name in names:
            named.add(k)
        place = place_of(tape, r, &mixed)
        records.append((r.module, r.phase, draws, place, r.flags & REC_GRAD != 0, takes, writes, makes))
    for found in left:
        if left[found] > 0:
            n = found
            stays.add(tape.slot(n).root)
            if n in small:
                stays.add(n)
    return records, begins, stays, counting, named


def calls(Segment segment):
    """(id of the call, the floats that it leaves open) of each record, as `facts` has them; None for one that is gone.
    """
    cdef Tape tape = segment.tape
    cdef Record *r
    cdef SigS *s
    cdef list found = []
    cdef size_t k
    segment.look_again()
    for k in range(segment.seqs.n):
        r = tape.record(segment.seqs.data[k])
        if not r:
            found.append(None)
            continue
        s = tape.interner.sigs[r.sig]
        found.append((r.sig, floats_at(<const char *>rec_floats(r, s), sig_floats(s))))
    return found
