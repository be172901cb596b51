"""The runtime pool: contexts, streams and events of each device, and what is current in each thread.

`unit_of` makes a device's unit once, whoever asks first. Its context is the device's primary one, which aclrtSetDevice
makes: operator libraries use it too, and a stream of another context would be foreign to them. A thread's context is
set when it works on another device than before. Streams are made when first asked for, 32 per priority, in turn.

An event's handle is used again only when what was recorded is over and every stream that waits for it has come past
the wait: the library does not promise that a wait remembers which recording it was for.
"""
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, strlen, strncmp

import atexit
import os

from mindtorch._ext.acl cimport (
    ERROR_NO_EVENT,
    ERROR_NO_STREAM,
    ERROR_NOT_SUPPORTED,
    ERROR_REPEATED_INITIALIZE,
    ERROR_SYNC_TIMEOUT,
    ERROR_UNINITIALIZED,
    EVENT_STATUS_COMPLETE,
    EVENT_SYNC,
    EVENT_TIME_LINE,
    STOP_ON_FAILURE,
    STREAM_COMPLETE,
    STREAM_FAST_LAUNCH,
    STREAM_FAST_SYNC,
    api,
    dismiss,
    hush,
    note,
    speak,
    throw,
)

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef extern from *:
    """
    #include <pthread.h>
    static __thread mt_thread mt_this;
    static inline mt_thread *mt_self(void) { return &mt_this; }

    static volatile int mt_initialized, mt_blocked, mt_inside;
    static pthread_mutex_t mt_init_lock = PTHREAD_MUTEX_INITIALIZER;
    static void mt_in_child(void) { if (mt_initialized) mt_blocked = -1; }
    static int mt_watch_forks(void) { return pthread_atfork(NULL, NULL, mt_in_child); }
    #define mt_get(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #define mt_set(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
    #define mt_add(p, v) __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)
    """
    mt_thread *mt_self() noexcept nogil
    int mt_initialized, mt_blocked, mt_inside
    pthread_mutex_t mt_init_lock
    int mt_watch_forks() noexcept nogil
    int mt_get(int *place) noexcept nogil
    void mt_set(int *place, int value) noexcept nogil
    int mt_add(int *place, int value) noexcept nogil
    Unit *mt_get_unit "mt_get"(Unit **place) noexcept nogil
    void mt_set_unit "mt_set"(Unit **place, Unit *unit) noexcept nogil

cdef enum:
    WAITS_ABROAD = 90200000       # as aclsysGetVersionNum counts: 9.2.0

cdef Unit *_units[MAX_DEVICES]
cdef int _count = -1          # devices, once known
cdef bint _owner = False      # whether aclInit was ours, and not another library's before us
cdef bint _prepared = False
# Whether a stream can wait for another device's event: 1, 0, or -1 while no device was asked. Runtimes and chips that
# cannot say that they did, and go on. Where it is not known that both can, the host waits.
cdef int _waits_abroad = -1
_load = None                  # makes sure that the library is bound, or raises why it cannot be


cdef bytes _configuration = None      # the path of a file for aclInit
cdef const char *_configured = NULL   # the same, without the GIL


def configure(load):
    """``load()`` is called before the first use: it binds the library, or raises why it cannot be used. It returns the
    path of a configuration for aclInit, or None.
    """
    global _load
    _load = load


# Making and ending units.

cdef bint usable() noexcept nogil:
    return mt_get(&mt_blocked) == 0


cdef int blocked() noexcept nogil:
    return mt_get(&mt_blocked)


cdef Unit *known_unit(int device) noexcept nogil:
    return mt_get_unit(&_units[device]) if 0 <= device < MAX_DEVICES else NULL


cdef int bind(Unit *unit) noexcept nogil:
    cdef mt_thread *here = mt_self()
    if here.bound == unit:
        return 0
    here.bound = NULL
    cdef int code = note(b"aclrtSetCurrentContext", api.aclrtSetCurrentContext(unit.context))
    if code == 0:
        here.bound = unit
    return code


cdef int enter(Unit *unit) noexcept nogil:
    cdef int code
    mt_add(&mt_inside, 1)
    code = mt_get(&mt_blocked)
    if code == 0:
        code = bind(unit)
    if code != 0:
        mt_add(&mt_inside, -1)
    return code


cdef void leave() noexcept nogil:
    mt_add(&mt_inside, -1)


cdef int stop(int code) except -1:
    """Raises what ``code`` says, unless it is 0."""
    if code == 0:
        return 0
    if code == FORKED:
        raise RuntimeError(
            "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
            "'spawn' start method"
        )
    if code == CLOSED:
        raise RuntimeError("the NPU runtime has been shut down: the process is ending")
    if code == NO_MEMORY:
        raise MemoryError()
    throw()


cdef int _raise_index(object device) except -1:
    count = "no NPU is there" if _count == 0 else f"{_count} NPU(s), counted from 0"
    raise RuntimeError(f"Invalid NPU device index {device}: {count}")


cdef int _initialize() noexcept nogil:
    """aclInit, once. The init lock is held."""
    global _owner
    cdef int code
    if mt_get(&mt_initialized):
        return 0
    code = api.aclInit(_configured)
    if code == ERROR_REPEATED_INITIALIZE:
        dismiss(code)
    elif note(b"aclInit", code):
        return code
    _owner = code == 0
    mt_set(&mt_initialized, 1)
    return 0


cdef bint _can_wait_abroad() noexcept nogil:
    """From CANN's runtime 9.2 on, on Atlas A2 and A3. ``Ascend910B`` without a number is of the first generation.

    The version is that of the installation that ASCEND_HOME_PATH names, which need not be the library's: the library
    must have a function too that came after these waits did.
    """
    cdef int32_t version = 0
    cdef const char *name = api.aclrtGetSocName() if api.aclrtGetSocName != NULL else NULL
    if name == NULL or api.aclrtRecordEventWithFlag == NULL or api.aclsysGetVersionNum == NULL:
        return False
    if dismiss(api.aclsysGetVersionNum(b"runtime", &version)) != 0 or version < WAITS_ABROAD:
        return False
    if strncmp(name, b"Ascend910B", 10) == 0:
        return strlen(name) > 10 and c'1' <= name[10] <= c'9'
    return strncmp(name, b"Ascend910_93", 12) == 0


cdef int _start(int device) noexcept nogil:
    """The init lock is held."""
    global _count, _waits_abroad
    cdef int code
    cdef uint32_t count = 0
    cdef Unit *unit
    cdef Lane *lane
    if mt_get(&mt_blocked):
        return mt_get(&mt_blocked)
    if device < MAX_DEVICES and _units[device] != NULL:
        return 0
    code = _initialize()
    if code == 0:
        code = note(b"aclrtGetDeviceCount", api.aclrtGetDeviceCount(&count))
    if code != 0:
        return code
    _count = <int>count
    if device >= _count or device >= MAX_DEVICES:
        return NO_DEVICE
    unit = <Unit *>calloc(1, sizeof(Unit))
    if unit == NULL:
        return NO_MEMORY
    pthread_mutex_init(&unit.lock, NULL)
    pthread_mutex_init(&unit.scarce, NULL)
    unit.device = device
    mt_self().bound = NULL
    code = note(b"aclrtSetDevice", api.aclrtSetDevice(device))
    if code == 0:
        code = note(b"aclrtGetCurrentContext", api.aclrtGetCurrentContext(&unit.context))
        if code == 0:
            code = _make_lane(unit, 0, &lane)
        if code != 0:
            dismiss(api.aclrtResetDevice(device))
    if code != 0:
        free(unit)
        return code
    if _waits_abroad < 0:
        _waits_abroad = _can_wait_abroad()
    mt_self().bound = unit
    mt_set_unit(&_units[device], unit)
    return 0


cdef int _prepare() except -1:
    """What has to be there before the first call: the library, the watch over forks, the end."""
    global _configuration, _configured, _prepared
    if mt_get(&mt_blocked):
        stop(mt_get(&mt_blocked))
    if _prepared:
        return 0
    found = None if _load is None else _load()
    if api.aclInit == NULL:
        raise RuntimeError("no AscendCL library is loaded")
    if not _prepared:
        _prepared = True
        if found is not None:
            _configuration = found
            _configured = _configuration
        mt_watch_forks()
        atexit.register(shutdown)
    return 0


cdef Unit *unit_of(int device) except NULL:
    cdef Unit *unit = known_unit(device)
    cdef int code
    if unit == NULL or mt_get(&mt_blocked):
        _prepare()
        if device < 0:
            device_count()
            _raise_index(device)
        with nogil:
            pthread_mutex_lock(&mt_init_lock)
            code = _start(device)
            pthread_mutex_unlock(&mt_init_lock)
        if code == NO_DEVICE:
            _raise_index(device)
        stop(code)
        unit = known_unit(device)
    return unit


def device_count():
    """How many NPUs the library sees; asked once. Raises what the library or the search for it says.

    The library is not initialized for it where it, or the driver, can tell without.
    """
    global _count
    cdef uint32_t count = 0
    cdef int number = 0, code
    cdef bint driver
    if _count < 0:
        _prepare()
        # The driver knows nothing of the devices that this process may not see.
        driver = api.drvGetDevNum != NULL and "ASCEND_RT_VISIBLE_DEVICES" not in os.environ
        with nogil:
            pthread_mutex_lock(&mt_init_lock)
            code = api.aclrtGetDeviceCount(&count)
            if code == ERROR_UNINITIALIZED:
                dismiss(code)
                if driver and dismiss(api.drvGetDevNum(&number)) == 0:
                    code, count = 0, <uint32_t>number
            if code == ERROR_UNINITIALIZED:
                code = _initialize()
                if code == 0:
                    code = note(b"aclrtGetDeviceCount", api.aclrtGetDeviceCount(&count))
            elif code != 0:
                note(b"aclrtGetDeviceCount", code)
            if code == 0:
                _count = <int>count
            pthread_mutex_unlock(&mt_init_lock)
        stop(code)
    return _count


def check_index(device):
    """``device``, if there is one with that index; RuntimeError naming it and the count if not."""
    if not 0 <= device < device_count():
        _raise_index(device)
    return device


cdef void _close(Unit *unit) noexcept nogil:
    cdef int i
    if api.aclrtSetCurrentContext(unit.context) != 0:
        return
    if on_close != NULL:
        on_close(unit)
    for i in range(unit.events.count):
        api.aclrtDestroyEvent(unit.events.items[i])
    for i in range(unit.n_made):
        api.aclrtDestroyStream(unit.made[i].stream)


cdef bint _ends(Unit *unit, int milliseconds) noexcept nogil:
    """Whether all of the device's work is over in so much time, well or not. Its context is bound."""
    cdef int i, code = 0
    if api.aclrtSynchronizeDeviceWithTimeout != NULL:
        code = api.aclrtSynchronizeDeviceWithTimeout(milliseconds)
    elif api.aclrtSynchronizeStreamWithTimeout != NULL:
        for i in range(unit.n_made):
            code = api.aclrtSynchronizeStreamWithTimeout(unit.made[i].stream, milliseconds)
            if code == ERROR_SYNC_TIMEOUT:
                break
    else:
        api.aclrtSynchronizeDevice()
    return code != ERROR_SYNC_TIMEOUT


def shutdown(int patience=10000):
    """Wait for what runs, give everything back, end the library. Afterwards every use raises; tensors may still die.

    Runs when the process ends. Where a thread hangs in the library, or a stream does not end, for ``patience``
    milliseconds, it gives up: the system takes everything back then.
    """
    cdef int i, waited = 0
    cdef bint over = True
    cdef uint64_t left = 0
    if mt_get(&mt_blocked) or not mt_get(&mt_initialized):
        return
    with nogil:
        pthread_mutex_lock(&mt_init_lock)
        mt_set(&mt_blocked, CLOSED)
        pthread_mutex_unlock(&mt_init_lock)
        while mt_get(&mt_inside) > 0 and waited < patience:
            usleep(1000)
            waited += 1
        over = mt_get(&mt_inside) == 0
        for i in range(MAX_DEVICES):  # all of them first: a stream may wait for another device's event
            if over and _units[i] != NULL and api.aclrtSetCurrentContext(_units[i].context) == 0:
                over = _ends(_units[i], patience)
        if over:
            for i in range(MAX_DEVICES):
                if _units[i] != NULL:
                    _close(_units[i])
            if on_close != NULL:
                on_close(NULL)
            for i in range(MAX_DEVICES):
                if _units[i] != NULL:
                    api.aclrtResetDevice(i)
            mt_self().bound = NULL
            if api.aclFinalizeReference != NULL:  # with it came counting: every aclInit counts, repeated ones too
                api.aclFinalizeReference(&left)
            elif _owner:
                api.aclFinalize()


def is_initialized():
    """Whether the library was initialized by this process (a forked child counts as not)."""
    return mt_get(&mt_initialized) != 0 and mt_get(&mt_blocked) == 0


def in_bad_fork():
    """Whether this is a forked child of a process that had initialized the library."""
    return mt_get(&mt_blocked) == FORKED


# Lanes.

cdef int reserve(void **items, int *room, int count, size_t size) noexcept nogil:
    """Room for ``count`` items."""
    cdef int wanted
    cdef void *grown
    if count <= room[0]:
        return 0
    wanted = max(8, 2 * count)
    grown = realloc(items[0], wanted * size)
    if grown == NULL:
        return NO_MEMORY
    items[0] = grown
    room[0] = wanted
    return 0


cdef int _make_lane(Unit *unit, int number, Lane **made) noexcept nogil:
    """The unit's lock is held, or nobody knows the unit yet; its context is bound."""
    cdef int code
    cdef Lane *lane = <Lane *>calloc(1, sizeof(Lane))
    if lane == NULL:
        return NO_MEMORY
    lane.unit, lane.number = unit, number
    if api.aclrtCreateStreamWithConfig != NULL:
        # AscendCL counts priorities from 0, the highest.
        code = note(b"aclrtCreateStreamWithConfig", api.aclrtCreateStreamWithConfig(
            &lane.stream, 0 if number > STREAMS else 1, STREAM_FAST_LAUNCH | STREAM_FAST_SYNC))
    else:
        code = note(b"aclrtCreateStream", api.aclrtCreateStream(&lane.stream))
    if code == 0 and api.aclrtSetStreamFailureMode != NULL:
        # What comes after work that failed would go on with what that left.
        code = api.aclrtSetStreamFailureMode(lane.stream, STOP_ON_FAILURE)
        if code == ERROR_NOT_SUPPORTED:
            dismiss(code)
            code = 0
        elif note(b"aclrtSetStreamFailureMode", code):
            dismiss(api.aclrtDestroyStream(lane.stream))
    if code != 0:
        free(lane)
        return code
    unit.made[unit.n_made] = lane
    unit.n_made += 1
    unit.lanes[number] = lane
    made[0] = lane
    return 0


cdef int next_lane(Unit *unit, bint high, Lane **found) noexcept nogil:
    cdef int code = enter(unit), first = 1 + (STREAMS if high else 0), number
    if code != 0:
        return code
    pthread_mutex_lock(&unit.lock)
    number = first + unit.turn[high] % (unit.most[high] if unit.most[high] > 0 else STREAMS)
    found[0] = unit.lanes[number]
    if found[0] == NULL:
        code = _make_lane(unit, number, found)
        if code == ERROR_NO_STREAM and number > first:  # they go round sooner
            unit.most[high] = number - first
            unit.turn[high] = 0
            found[0] = unit.lanes[first]
            code = 0
    if code == 0:
        unit.turn[high] += 1
    pthread_mutex_unlock(&unit.lock)
    leave()
    return code


cdef void lock_with_gil(Unit *unit) noexcept:
    if pthread_mutex_trylock(&unit.lock) != 0:
        with nogil:
            pthread_mutex_lock(&unit.lock)


cdef void advance(Lane *lane, uint64_t tick) noexcept nogil:
    if lane.passed < tick:
        mt_store(&lane.passed, tick)


cdef void _sound(Lane *lane, uint64_t tick) noexcept nogil:
    """The lane was waited for: it has passed the tick, and nothing before had failed."""
    advance(lane, tick)
    if lane.sound < tick:
        mt_store(&lane.sound, tick)


cdef int settle(Lane *lane) noexcept nogil:
    cdef Unit *unit = lane.unit
    cdef uint64_t tick
    cdef int code = bind(unit)
    if code != 0:
        return code
    pthread_mutex_lock(&unit.lock)
    tick = lane.issued + 1
    mt_store(&lane.issued, tick)
    pthread_mutex_unlock(&unit.lock)
    code = note(b"aclrtSynchronizeStream", api.aclrtSynchronizeStream(lane.stream))
    if code == 0:
        pthread_mutex_lock(&unit.lock)
        _sound(lane, tick)
        pthread_mutex_unlock(&unit.lock)
    return code


cdef int settle_unit(Unit *unit) noexcept nogil:
    cdef uint64_t ticks[LANES]
    cdef int i, count, code = bind(unit)
    if code != 0:
        return code
    pthread_mutex_lock(&unit.lock)
    count = unit.n_made
    for i in range(count):
        ticks[i] = unit.made[i].issued + 1
        mt_store(&unit.made[i].issued, ticks[i])
    pthread_mutex_unlock(&unit.lock)
    code = note(b"aclrtSynchronizeDevice", api.aclrtSynchronizeDevice())
    if code == 0:
        pthread_mutex_lock(&unit.lock)
        for i in range(count):
            _sound(unit.made[i], ticks[i])
        pthread_mutex_unlock(&unit.lock)
    return code


# Events: handles, fences, marks.

cdef int _create_event(uint32_t flag, void **event) noexcept nogil:
    if api.aclrtCreateEventExWithFlag != NULL:
        return note(b"aclrtCreateEventExWithFlag", api.aclrtCreateEventExWithFlag(event, flag))
    if api.aclrtCreateEventWithFlag != NULL:
        return note(b"aclrtCreateEventWithFlag", api.aclrtCreateEventWithFlag(event, flag))
    return note(b"aclrtCreateEvent", api.aclrtCreateEvent(event))


cdef bint _destroy_idle(Unit *unit, bint timing) noexcept nogil:
    """Make room on a device that has no more events: one of this kind that nobody uses goes. True if there was one."""
    cdef Stack *idle = &unit.idle[timing]
    cdef void *event
    cdef int i
    if idle.count == 0:
        return False
    idle.count -= 1
    event = idle.items[idle.count]
    for i in range(unit.events.count):
        if unit.events.items[i] == event:
            unit.events.count -= 1
            unit.events.items[i] = unit.events.items[unit.events.count]
            break
    return note(b"aclrtDestroyEvent", api.aclrtDestroyEvent(event)) == 0


cdef int _take_event(Unit *unit, bint timing, void **event) noexcept nogil:
    cdef Stack *idle = &unit.idle[timing]
    cdef uint32_t flag = EVENT_SYNC | (EVENT_TIME_LINE if timing else 0)
    cdef int code
    if idle.count > 0:
        idle.count -= 1
        event[0] = idle.items[idle.count]
        return 0
    # Room for every event everywhere, so that putting one back cannot fail.
    if reserve(<void **>&unit.events.items, &unit.events.room, unit.events.count + 1, sizeof(void *)) or reserve(
            <void **>&idle.items, &idle.room, unit.events.count + 1, sizeof(void *)):
        return NO_MEMORY
    code = _create_event(flag, event)
    if code == ERROR_NO_EVENT and _destroy_idle(unit, not timing):
        code = _create_event(flag, event)
    if code == 0:
        unit.events.items[unit.events.count] = event[0]
        unit.events.count += 1
    return code


cdef void _put_event(Unit *unit, bint timing, void *event) noexcept nogil:
    unit.idle[timing].items[unit.idle[timing].count] = event
    unit.idle[timing].count += 1


cdef int query(void *event, bint *over) noexcept nogil:
    cdef int status = 0, code
    if api.aclrtQueryEventStatus != NULL:
        code = note(b"aclrtQueryEventStatus", api.aclrtQueryEventStatus(event, &status))
        over[0] = code == 0 and status == EVENT_STATUS_COMPLETE
    else:
        code = note(b"aclrtQueryEvent", api.aclrtQueryEvent(event, &status))
        over[0] = code == 0 and status == STREAM_COMPLETE
    return code


cdef bint is_over(void *event) noexcept nogil:
    """An event that cannot be asked counts as not over: what waits for it is kept, the next real call reports."""
    cdef bint over = False
    query(event, &over)
    return over


cdef int fence(Lane *lane) noexcept nogil:
    cdef void *event
    cdef int code
    if lane.head > 0 and lane.n_fences == lane.room:
        lane.n_fences -= lane.head
        memmove(lane.fences, lane.fences + lane.head, lane.n_fences * sizeof(Fence))
        lane.head = 0
    if reserve(<void **>&lane.fences, &lane.room, lane.n_fences + 1, sizeof(Fence)):
        return NO_MEMORY
    code = _take_event(lane.unit, False, &event)
    if code != 0:
        return code
    code = note(b"aclrtRecordEvent", api.aclrtRecordEvent(event, lane.stream))
    if code != 0:
        _put_event(lane.unit, False, event)
        return code
    mt_store(&lane.issued, lane.issued + 1)
    lane.fences[lane.n_fences].event = event
    lane.fences[lane.n_fences].tick = lane.issued
    lane.n_fences += 1
    return 0


cdef bint _finished(Mark *mark) noexcept nogil:
    cdef int i
    if mark.lane.passed < mark.tick:
        if not is_over(mark.event):
            return False
        advance(mark.lane, mark.tick)
    for i in range(mark.n_waits):
        if mt_load(&mark.waits[i].lane.passed) < mark.waits[i].tick:
            # Nothing says so far when that stream has come past its wait: its device's next poll asks for it.
            if mt_load(&mark.waits[i].lane.wanted) < mark.waits[i].tick:
                mt_store(&mark.waits[i].lane.wanted, mark.waits[i].tick)
            return False
    return True


cdef void poll(Unit *unit) noexcept nogil:
    cdef Lane *lane
    cdef Mark *mark
    cdef uint64_t wanted
    cdef int i, kept = 0, busy = 0
    hush()  # what cannot be told now is asked again
    for i in range(unit.n_made):
        lane = unit.made[i]
        wanted = mt_load(&lane.wanted)
        if wanted > lane.passed and (lane.head == lane.n_fences or lane.fences[lane.n_fences - 1].tick < wanted):
            fence(lane)  # tried again by the next poll if it fails
        while lane.head < lane.n_fences and (
                lane.fences[lane.head].tick <= lane.passed or is_over(lane.fences[lane.head].event)):
            advance(lane, lane.fences[lane.head].tick)
            _put_event(unit, False, lane.fences[lane.head].event)
            lane.head += 1
        if lane.head == lane.n_fences:
            lane.head = lane.n_fences = 0
    for i in range(unit.retired.count):
        mark = <Mark *>unit.retired.items[i]
        if busy < 16 and _finished(mark):
            _put_event(unit, mark.timing, mark.event)
            free(mark.waits)
            free(mark)
        else:
            busy += 1
            unit.retired.items[kept] = mark
            kept += 1
    unit.retired.count = kept
    speak()


cdef int record(Lane *lane, bint timing, Mark **made) noexcept nogil:
    """A new mark with one holder, recorded on ``lane``."""
    cdef int i, code = _record(lane, timing, made)
    if code == ERROR_NO_EVENT:  # what has an event is over after this, and has no use for it
        code = 0
        for i in range(MAX_DEVICES):
            if code == 0 and known_unit(i) != NULL:
                code = settle_unit(known_unit(i))
        if code == 0:
            code = _record(lane, timing, made)
    return code


cdef int _record(Lane *lane, bint timing, Mark **made) noexcept nogil:
    cdef Unit *unit = lane.unit
    cdef Mark *mark
    cdef int code = bind(unit)
    if code != 0:
        return code
    mark = <Mark *>calloc(1, sizeof(Mark))
    if mark == NULL:
        return NO_MEMORY
    pthread_mutex_lock(&unit.lock)
    if unit.idle[timing].count == 0:
        poll(unit)
    code = _take_event(unit, timing, &mark.event)
    if code == 0:
        # Every mark has an event, so this much room is enough for retiring any of them.
        code = reserve(<void **>&unit.retired.items, &unit.retired.room, unit.events.count, sizeof(void *))
        if code == 0:
            code = note(b"aclrtRecordEvent", api.aclrtRecordEvent(mark.event, lane.stream))
        if code != 0:
            _put_event(unit, timing, mark.event)
    if code == 0:
        mt_store(&lane.issued, lane.issued + 1)
        mark.tick = lane.issued
        mark.unit, mark.lane, mark.timing, mark.holders = unit, lane, timing, 1
    pthread_mutex_unlock(&unit.lock)
    if code != 0:
        free(mark)
        return code
    made[0] = mark
    return 0


cdef int _wait_here(Mark *mark, Unit *unit) noexcept nogil:
    """On the host, until the mark's event is over; ``unit`` is bound then."""
    cdef int code = bind(mark.unit)
    if code == 0:
        code = note(b"aclrtSynchronizeEvent", api.aclrtSynchronizeEvent(mark.event))
    if code == 0:
        pthread_mutex_lock(&mark.unit.lock)
        advance(mark.lane, mark.tick)
        pthread_mutex_unlock(&mark.unit.lock)
        code = bind(unit)
    return code


cdef int wait_for(Mark *mark, Lane *lane) noexcept nogil:
    """``lane`` goes on when the mark's event is over. No lock is held; the caller holds the mark.

    Where a stream cannot wait for another device's event, the calling thread does: all that it puts there later is.
    """
    cdef int i, code
    cdef uint64_t tick
    if mark.unit != lane.unit and not _waits_abroad:
        return _wait_here(mark, lane.unit)
    code = bind(lane.unit)
    if code != 0:
        return code
    pthread_mutex_lock(&mark.unit.lock)
    code = reserve(<void **>&mark.waits, &mark.room, mark.n_waits + 1, sizeof(Use))
    if code == 0:
        code = note(b"aclrtStreamWaitEvent", api.aclrtStreamWaitEvent(lane.stream, mark.event))
    if code == 0:
        tick = mt_load(&lane.issued) + 1
        for i in range(mark.n_waits):
            if mark.waits[i].lane == lane:
                mark.waits[i].tick = tick
                break
        else:
            mark.waits[mark.n_waits].lane = lane
            mark.waits[mark.n_waits].tick = tick
            mark.n_waits += 1
    pthread_mutex_unlock(&mark.unit.lock)
    if code == 0 and mt_load(&lane.wanted) > mt_load(&lane.passed):
        pthread_mutex_lock(&lane.unit.lock)
        poll(lane.unit)  # for the sake of the devices whose events this lane waited for before
        pthread_mutex_unlock(&lane.unit.lock)
    return code


cdef void drop(Mark *mark) noexcept nogil:
    """One holder less. The unit's lock is held."""
    cdef Unit *unit = mark.unit
    mark.holders -= 1
    if mark.holders == 0:
        unit.retired.items[unit.retired.count] = mark
        unit.retired.count += 1


cdef int order(Lane *later, Lane *earlier) noexcept nogil:
    cdef Mark *mark
    cdef int code
    if later == earlier:
        return 0
    code = record(earlier, False, &mark)
    if code != 0:
        return code
    code = wait_for(mark, later)
    pthread_mutex_lock(&mark.unit.lock)
    drop(mark)
    pthread_mutex_unlock(&earlier.unit.lock)
    return code


# The calling thread.

cdef mt_thread *this_thread() noexcept nogil:
    return mt_self()


cdef Lane *current_lane(Unit *unit) noexcept nogil:
    cdef Lane *lane = <Lane *>mt_self().current[unit.device]
    return lane if lane != NULL else unit.lanes[0]


cdef Lane *selected_lane(int device) noexcept nogil:
    cdef mt_thread *here = mt_self()
    cdef Unit *unit
    if device < 0:
        device = here.device
    unit = mt_get_unit(&_units[device])
    if unit == NULL or mt_get(&mt_blocked):
        return NULL
    return <Lane *>here.current[device] if here.current[device] != NULL else unit.lanes[0]
