"""What was put on each NPU and is not known to be over: op and line of the last calls, for errors that come late.

A device tells of work that failed when somebody waits for it, long after the call. So each call is noted: 32 bytes in a
ring of its device, without an allocation. It is known to be over once its stream, or all of the device, was waited for
without an error: an event behind it does not say that, since not every runtime stops a stream where work failed.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc

from mindtorch._ext.location cimport current_location
from mindtorch._ext.pool cimport MAX_DEVICES, Lane, Unit, current_lane, known_unit, mt_load, this_thread

cdef enum:
    KEPT = 1024                   # calls of a device; a power of two

cdef struct Put:
    PyObject *op                  # owned
    Lane *lane
    uint64_t tick                 # the call is over when all before this tick of the lane is
    uint32_t place

cdef struct Ring:
    Put *puts
    uint64_t count

# Used with the GIL alone.
cdef Ring[MAX_DEVICES] _rings


def put(int device, str op not None):
    """Note that the thread has put ``op`` on its current stream of ``device``."""
    cdef Unit *unit = known_unit(device)
    cdef Ring *ring
    cdef Put *here
    cdef PyObject *before
    if unit == NULL:
        return
    ring = &_rings[device]
    if ring.puts == NULL:
        ring.puts = <Put *>calloc(KEPT, sizeof(Put))
        if ring.puts == NULL:
            raise MemoryError("no memory for notes of what an NPU does")
    here = &ring.puts[ring.count % KEPT]
    before = here.op
    here.op, here.lane = <PyObject *>op, current_lane(unit)
    Py_INCREF(op)
    here.tick = mt_load(&here.lane.issued) + 1
    here.place = current_location()
    ring.count += 1
    Py_XDECREF(before)


def bound_device():
    """The index of the NPU whose context is the calling thread's; -1 without one."""
    cdef Unit *unit = <Unit *>this_thread().bound
    return -1 if unit == NULL else unit.device


def unfinished(int device):
    """([(op, location id)] in the order of their calls, whether there may be others before the first)."""
    cdef Ring *ring
    cdef Put *each
    cdef uint64_t at
    found = []
    if not 0 <= device < MAX_DEVICES or _rings[device].puts == NULL:
        return found, False
    ring = &_rings[device]
    at = ring.count - KEPT if ring.count > KEPT else 0
    lost = at > 0
    while at < ring.count:
        each = &ring.puts[at % KEPT]
        if each.tick > mt_load(&each.lane.sound):
            found.append((<object>each.op, each.place))
        elif not found:
            lost = False
        at += 1
    return found, lost
