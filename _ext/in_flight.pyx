"""What was put on each NPU: op and line of the last calls, for errors that come late, and when each launch ran.

A device tells of work that failed when somebody waits for it, long after the call. So each call is noted: 32 bytes in a
ring of its device, without an allocation. It is known to be over once its stream, or all of the device, was waited for
without an error: an event behind it does not say that, since not every runtime stops a stream where work failed.

For a profile (SPEC C2), there are events with time around each launch, which are read once many others were put behind
it, or at the end: so the host waits for a device only where it is that far ahead. Times of a device become the host's
by two instants that both know, one where the tracing of the device begins and one where it ends. What cannot be traced
is counted as lost; the launch itself goes on.
"""
import os

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from mindtorch._ext.acl cimport api, hush, note, speak
from mindtorch._ext.clock cimport mt_now
from mindtorch._ext.location cimport current_location
from mindtorch._ext.pool cimport (
    MAX_DEVICES,
    Lane,
    Mark,
    Unit,
    bind,
    current_lane,
    drop,
    enter,
    known_unit,
    leave,
    mt_load,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    record,
    this_thread,
)
from mindtorch._ext.sizes cimport MT_ASSERT

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
            raise MemoryError("no memory to note what an NPU does")
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


# ---- when each launch ran
cdef extern from "<pthread.h>" nogil:
    uint64_t pthread_self()

cdef enum:
    PENDING = 256                 # launches whose events are held, of a device: some have no more than 1,023 events
    TRIES = 5                     # of reading both clocks: the reading that took least time counts

cdef struct Done:
    uint64_t launched, thread
    double start, ns              # of the device's clock since `Since.host`, then of the host's
    int32_t stream, device
    uint8_t copy, waited

cdef struct Pending:
    Mark *before
    Mark *after
    uint64_t at, thread
    bint copy

cdef struct Since:                # of a device
    Mark *mark                    # NULL: nothing was traced there
    double host                   # ns
    Pending launches[PENDING]
    int first, count

MT_ASSERT(sizeof(Done) == 48)
#: For numpy: a launch on the host's clock, of which ``start`` and ``ns`` are the device's work.
DONE = [("launched", "u8"), ("thread", "u8"), ("start", "f8"), ("ns", "f8"), ("stream", "i4"), ("device", "i4"),
        ("copy", "u1"), ("waited", "u1"), ("", "V6")]

cdef bint _tracing = False
cdef pthread_mutex_t _lock        # of everything below; taken without the GIL, and before a unit's lock
cdef Since *_since[MAX_DEVICES]
cdef Done *_done = NULL
cdef size_t _n_done = 0, _room = 0
cdef uint64_t _lost = 0
cdef uint32_t _turn = 0           # how often the tracing began
pthread_mutex_init(&_lock, NULL)


cdef void _drop(Mark *mark) noexcept nogil:
    cdef Unit *unit = mark.unit
    pthread_mutex_lock(&unit.lock)
    drop(mark)
    pthread_mutex_unlock(&unit.lock)


cdef int _add(Done done) noexcept nogil:
    global _done, _room, _n_done
    cdef Done *bigger
    if _n_done == _room:
        bigger = <Done *>realloc(_done, (2 * _room + 1024) * sizeof(Done))
        if bigger == NULL:
            return 1
        _done = bigger
        _room = 2 * _room + 1024
    _done[_n_done] = done
    _n_done += 1
    return 0


cdef int _both(Lane *lane, Mark **mark, double *host) noexcept nogil:
    """A mark that is over, and what the host's clock said then."""
    cdef uint64_t before, after, least = <uint64_t>-1
    cdef Mark *made
    cdef int code = 0, _
    mark[0] = NULL
    for _ in range(TRIES):
        before = mt_now()
        code = record(lane, True, &made)
        if code != 0:
            break
        code = note(b"aclrtSynchronizeEvent", api.aclrtSynchronizeEvent(made.event))
        after = mt_now()
        if code == 0 and after - before < least:
            least = after - before
            host[0] = before + <double>least / 2
            mark[0], made = made, mark[0]
        if made != NULL:
            _drop(made)
        if code != 0:
            break
    if code != 0 and mark[0] != NULL:
        _drop(mark[0])
        mark[0] = NULL
    return code


cdef int _between(Mark *start, Mark *end, double *ns) noexcept nogil:
    cdef float milliseconds = 0
    cdef int code = note(b"aclrtEventElapsedTime", api.aclrtEventElapsedTime(&milliseconds, start.event, end.event))
    ns[0] = 1e6 * milliseconds
    return code


cdef void _resolve(Unit *unit, int count) noexcept nogil:
    """Read the events of that many launches, the oldest, once the last of them is over. Our lock is held."""
    global _lost
    cdef Since *since = _since[unit.device]
    cdef Pending *one
    cdef Done done
    cdef int _, code = bind(unit)
    for _ in range(count):
        one = &since.launches[since.first]
        if code == 0:
            code = note(b"aclrtSynchronizeEvent", api.aclrtSynchronizeEvent(one.after.event))
        if code == 0:
            code = _between(since.mark, one.before, &done.start)
        if code == 0:
            code = _between(one.before, one.after, &done.ns)
        if code == 0:
            done.launched, done.thread, done.copy, done.waited = one.at, one.thread, one.copy, False
            done.stream, done.device = one.after.lane.number, unit.device
            code = _add(done)
        _lost += code != 0
        _drop(one.before)
        _drop(one.after)
        since.first = (since.first + 1) % PENDING
        since.count -= 1


cdef void begins(Lane *lane, Launch *launch) noexcept nogil:
    global _lost
    cdef Since *since
    cdef int code = 0
    launch.before = NULL
    if not _tracing:
        return
    launch.at = mt_now()
    hush()
    pthread_mutex_lock(&_lock)
    since = _since[lane.unit.device]
    if since == NULL:
        since = _since[lane.unit.device] = <Since *>calloc(1, sizeof(Since))
    if since == NULL:
        code = 1
    elif since.mark == NULL:
        code = _both(lane, &since.mark, &since.host)
    if code == 0:
        code = record(lane, True, &launch.before)
    if code != 0:
        launch.before = NULL
        _lost += 1
    launch.turn = _turn
    pthread_mutex_unlock(&_lock)
    speak()


cdef void ends(Lane *lane, Launch *launch, bint copy, int code) noexcept nogil:
    global _lost
    cdef Since *since
    cdef Mark *after
    if launch.before == NULL:
        return
    hush()
    pthread_mutex_lock(&_lock)
    since = _since[lane.unit.device]
    if code != 0 or not _tracing or launch.turn != _turn:
        _drop(launch.before)
    elif record(lane, True, &after) != 0:
        _drop(launch.before)
        _lost += 1
    else:
        since.launches[(since.first + since.count) % PENDING] = Pending(
            launch.before, after, launch.at, pthread_self(), copy)
        since.count += 1
        if since.count == PENDING:
            _resolve(lane.unit, PENDING // 2)
    pthread_mutex_unlock(&_lock)
    speak()


cdef uint64_t hosts_clock() noexcept nogil:
    return mt_now() if _tracing else 0


cdef void waited(Lane *lane, uint64_t at, int code) noexcept nogil:
    global _lost
    if at == 0 or code != 0:
        return
    pthread_mutex_lock(&_lock)
    _lost += _add(Done(at, pthread_self(), at, mt_now() - at, lane.number, lane.unit.device, True, True))
    pthread_mutex_unlock(&_lock)


def start():
    """From now on launches are traced. Nothing that was put on a device before may still be to run."""
    global _tracing, _turn
    with nogil:
        pthread_mutex_lock(&_lock)
        _tracing = True
        _turn += 1
        pthread_mutex_unlock(&_lock)


cdef void _finish(Unit *unit) noexcept nogil:
    """Bring the device's times to the host's clock. Our lock is held; the device has nothing to do."""
    cdef Since *since = _since[unit.device]
    cdef Mark *now = NULL
    cdef double host = 0, ns = 0, scale = 1
    cdef size_t i
    _resolve(unit, since.count)
    if _both(current_lane(unit), &now, &host) == 0 and _between(since.mark, now, &ns) == 0 and ns > 1e9:
        scale = (host - since.host) / ns
    for i in range(_n_done):
        if _done[i].device == unit.device and not _done[i].waited:
            _done[i].start = since.host + scale * _done[i].start
            _done[i].ns *= scale
    if now != NULL:
        _drop(now)
    _drop(since.mark)
    since.mark = NULL


cdef bint _finish_all() noexcept nogil:
    """False where no device can be asked any more: the process ends, or is a child."""
    cdef Unit *unit
    cdef bint all_ = True
    cdef int i
    for i in range(MAX_DEVICES):
        unit = known_unit(i)
        if _since[i] == NULL or _since[i].mark == NULL or unit == NULL:
            continue
        if enter(unit) != 0:
            _since[i].mark = NULL
            _since[i].count = 0
            all_ = False
            continue
        _finish(unit)
        leave()
    return all_


def stop():
    """(what was traced since `start`, bytes of `DONE`; how many launches were lost), once the devices were waited for.
    """
    global _tracing, _done, _n_done, _room, _lost
    cdef Done *done
    cdef size_t n
    cdef uint64_t lost
    with nogil:
        hush()
        pthread_mutex_lock(&_lock)
        _tracing = False
        n = _n_done if _finish_all() else 0
        lost, done = _lost + (_n_done - n), _done
        _done, _n_done, _room, _lost = NULL, 0, 0, 0
        pthread_mutex_unlock(&_lock)
        speak()
    try:
        return (<char *>done)[:n * sizeof(Done)] if n else b"", lost
    finally:
        free(done)


def _take():
    with nogil:
        pthread_mutex_lock(&_lock)


def _give():
    pthread_mutex_unlock(&_lock)


os.register_at_fork(before=_take, after_in_parent=_give, after_in_child=_give)
