"""Current device and stream of each thread, and torch's Stream and Event over the runtime pool."""
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from mindtorch._ext.acl cimport STREAM_COMPLETE, api, note
from mindtorch._ext.pool cimport (
    LANES,
    MAX_DEVICES,
    MT_SAVED,
    STREAMS,
    Lane,
    Mark,
    Unit,
    advance,
    blocked,
    current_lane,
    drop,
    enter,
    leave,
    lock_with_gil,
    mt_thread,
    next_lane,
    order,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    query,
    record,
    selected_lane,
    settle,
    settle_unit,
    stop,
    this_thread,
    unit_of,
    usable,
    wait_for,
)

from mindtorch._ext.pool import check_index

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    PATIENCE = 20                 # tries
    DEVICE_TYPE = 20              # torch's PrivateUse1

_index = None                 # anything that names a device -> its index
_device = None                # index -> the public device object
cdef str _module = "mindtorch.npu"
cdef object _chosen = None    # told the device on which another stream is current than before
cdef object _follow = None
cdef bint _ever_chosen = False    # a stream other than a device's default one


def configure(index, device):
    """Callables: ``index(x)`` is the index that ``x`` names, or raises; ``device(i)`` the public device object."""
    global _index, _device
    _index, _device = index, device


def call_module(str name):
    """What the module of `Stream` and `Event` is called where one is printed."""
    global _module
    _module = name


def on_choice(chosen, follow):
    """``chosen(device index)`` is called where the calling thread's current stream on a device becomes another, and
    from then on ``follow()`` before anybody asks which one is.
    """
    global _chosen, _follow
    _chosen, _follow = chosen, follow


def follow():
    """In a backward, make the streams current that those were on which the running node's forward ran.

    To be called before work is put on a device. Costs nothing in programs that choose no stream.
    """
    if _ever_chosen and _follow is not None:
        _follow()


cdef class Runtime:
    """One device's part of the pool."""
    cdef Unit *unit

    @property
    def device_index(self):
        return self.unit.device

    @property
    def context(self):
        """The address of the device's context."""
        return <size_t>self.unit.context

    @property
    def default_stream(self):
        return stream_object(self.unit.lanes[0])

    def __repr__(self):
        return f"<npu runtime of device {self.unit.device}>"


cdef dict _runtimes = {}


def get_runtime(device):
    """The runtime of a device, made and initialized by the first who asks for it, in whatever thread."""
    cdef int index = device_argument(device)
    cdef Unit *unit = unit_of(index)
    cdef Runtime made
    found = _runtimes.get(index)
    if found is None:
        made = Runtime.__new__(Runtime)
        made.unit = unit
        found = _runtimes.setdefault(index, made)
    return found


# What is current in the calling thread.

cdef int device_argument(object device) except -1:
    """The index that ``device`` names; the thread's current device for None."""
    cdef long value
    cdef int overflow = 0
    if device is None:
        return this_thread().device
    if type(device) is int:
        value = PyLong_AsLongAndOverflow(device, &overflow)
        return <int>value if 0 <= value < MAX_DEVICES else check_index(device)
    if _index is None:
        raise ValueError(f"Expected a npu device, but got: {device}")
    index = _index(device)
    return index if 0 <= index < MAX_DEVICES else check_index(index)


cdef int _stream_device(object device) except -2:
    """The same, and -1 for None and for -1, which means the thread's current device as in torch."""
    cdef long value
    cdef int overflow = 0
    if device is None:
        return -1
    if type(device) is int:
        value = PyLong_AsLongAndOverflow(device, &overflow)
        return <int>value if -1 <= value < MAX_DEVICES and overflow == 0 else check_index(device)
    return device_argument(device)


cdef Lane *_selected(object device) except NULL:
    cdef int index = _stream_device(device)
    cdef Lane *lane = selected_lane(index)
    if lane == NULL:
        lane = current_lane(unit_of(index if index >= 0 else this_thread().device))
    return lane


cdef object stream_object(Lane *lane):
    cdef Stream made
    if lane.object == NULL:
        made = Stream.__new__(Stream)
        made.lane = lane
        if lane.object == NULL:  # making it may have let another thread in
            Py_INCREF(made)
            lane.object = <PyObject *>made
    return <object>lane.object


def current_device():
    """Index of the calling thread's current device: 0 until it is set. Needs no library."""
    return this_thread().device


def exchange_device(int device):
    """Make ``device`` (not checked; below 0: as it is) the calling thread's current one; returns the one before."""
    cdef mt_thread *here = this_thread()
    before = here.device
    if 0 <= device < MAX_DEVICES:
        here.device = device
    return before


def current_stream(device=None):
    """The calling thread's current stream on ``device`` (None or -1: its current device).

    In a backward it is the one that the running node's forward ran on.
    """
    if _ever_chosen and _follow is not None:
        _follow()
    return stream_object(_selected(device))


def selected_stream(device=None):
    """The same, as it is: a backward that has not come to its stream yet is not followed."""
    return stream_object(_selected(device))


def default_stream(device=None):
    """The default stream of ``device`` (None or -1: the thread's current one)."""
    return stream_object(_selected(device).unit.lanes[0])


cdef int _choose(int device, void *lane) except -1:
    """Make the stream (NULL: the default one) current on its device in the calling thread."""
    global _ever_chosen
    cdef mt_thread *here = this_thread()
    cdef void *before = here.current[device]
    here.current[device] = lane
    if lane != before and _chosen is not None:
        _ever_chosen = True
        _chosen(device)
    return 0


def choose_stream(Stream stream not None):
    """Make ``stream`` the thread's current one on its device; the current device stays."""
    cdef Lane *lane = stream.there()
    _choose(lane.unit.device, lane)


def set_stream(Stream stream not None):
    """Make ``stream`` the thread's current one on its device, and that device the current one."""
    cdef Lane *lane = stream.there()
    this_thread().device = lane.unit.device
    _choose(lane.unit.device, lane)


def synchronize(device=None):
    """Wait for everything on ``device`` (None: the thread's current one)."""
    cdef Unit *unit = unit_of(device_argument(device))
    cdef int code
    with nogil:
        code = enter(unit)
        if code == 0:
            code = settle_unit(unit)
            leave()
    stop(code)


cdef Lane *_existing(stream_id, device_index, device_type) except NULL:
    """The stream that these three name, as another `Stream` tells them."""
    cdef Unit *unit = NULL
    cdef Lane *lane = NULL
    if device_type == DEVICE_TYPE and device_index is not None and device_index >= 0:
        unit = unit_of(device_index)
    if unit != NULL and stream_id is not None and 0 <= stream_id < LANES:
        lane = unit.lanes[<int>stream_id]
    if lane == NULL:
        raise RuntimeError(
            f"[Stream] expected stream_id, device_index and device_type of a stream that was made, got {stream_id}, "
            f"{device_index} and {device_type}"
        )
    return lane


cdef class Stream:
    """A stream of work on one device, of the 32 there are for its priority; they are handed out in turn.

    ``priority`` below 0 is high. Equal to every other object that stands for the same stream. As a context manager it
    is the thread's current stream inside the block, as ``with mindtorch.npu.stream(s)``. ``stream_id``,
    ``device_index`` and ``device_type``, which another one has, give that stream.
    """

    def __init__(self, device=None, int priority=0, *, stream_id=None, device_index=None, device_type=None):
        cdef Unit *unit
        cdef Lane *lane
        cdef int code
        if stream_id is not None or device_index is not None or device_type is not None:
            self.lane = _existing(stream_id, device_index, device_type)
            return
        unit = unit_of(device_argument(device))
        with nogil:
            code = next_lane(unit, priority < 0, &lane)
        stop(code)
        self.lane = lane

    cdef Lane *there(self) except NULL:
        if self.lane == NULL:
            raise RuntimeError("the stream was not initialized")
        if blocked():
            stop(blocked())
        return self.lane

    @staticmethod
    def priority_range():
        """(least, greatest) priority."""
        return 0, -1

    @property
    def device_index(self):
        return self.there().unit.device

    @property
    def device(self):
        index = self.there().unit.device
        return index if _device is None else _device(index)

    @property
    def npu_stream(self):
        """The address of the aclrtStream."""
        return <size_t>self.there().stream

    @property
    def stream_id(self):
        """0 for the default stream of its device."""
        return self.there().number

    @property
    def device_type(self):
        """The number of torch's device type."""
        return DEVICE_TYPE

    @property
    def priority(self):
        return -1 if self.there().number > STREAMS else 0

    def is_capturing(self):
        """Graphs of the runtime are not driven."""
        return False

    def query(self):
        """Whether all its work is over."""
        cdef Lane *lane = self.there()
        cdef int code, status = 0
        cdef Mark *mark
        cdef bint over = False
        with nogil:
            code = enter(lane.unit)
            if code == 0:
                if api.aclrtStreamQuery != NULL:
                    code = note(b"aclrtStreamQuery", api.aclrtStreamQuery(lane.stream, &status))
                    over = status == STREAM_COMPLETE
                else:
                    code = record(lane, False, &mark)
                    if code == 0:
                        # Over a moment after the work before it: the stream has to come to it first.
                        for _ in range(PATIENCE):
                            code = query(mark.event, &over)
                            if code != 0 or over:
                                break
                            usleep(50)
                        pthread_mutex_lock(&lane.unit.lock)
                        drop(mark)
                        pthread_mutex_unlock(&lane.unit.lock)
                leave()
        stop(code)
        return over

    def synchronize(self):
        """Wait for all its work."""
        cdef Lane *lane = self.there()
        cdef int code
        with nogil:
            code = enter(lane.unit)
            if code == 0:
                code = settle(lane)
                leave()
        stop(code)

    def wait_event(self, event):
        """What comes next on this stream waits for ``event``."""
        event.wait(self)

    def wait_stream(self, Stream stream not None):
        """What comes next on this stream waits for what is on ``stream`` now."""
        cdef Lane *later = self.there()
        cdef Lane *earlier = stream.there()
        cdef int code
        with nogil:
            code = enter(earlier.unit)
            if code == 0:
                code = order(later, earlier)
                leave()
        stop(code)

    def record_event(self, event=None):
        """Record ``event`` (None: a new one) here; returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __enter__(self):
        cdef mt_thread *here = this_thread()
        cdef Lane *lane = self.there()
        if here.depth >= MT_SAVED:
            raise RuntimeError(f"more than {MT_SAVED} streams entered within each other")
        here.saved[here.depth].device = here.device
        here.saved[here.depth].other = lane.unit.device
        here.saved[here.depth].other_lane = here.current[lane.unit.device]
        here.depth += 1
        here.device = lane.unit.device
        _choose(lane.unit.device, lane)
        return self

    def __exit__(self, *exception):
        cdef mt_thread *here = this_thread()
        if here.depth == 0:
            raise RuntimeError("the stream was not entered in this thread")
        here.depth -= 1
        here.device = here.saved[here.depth].device
        _choose(here.saved[here.depth].other, here.saved[here.depth].other_lane)

    def __eq__(self, other):
        return self.lane == (<Stream>other).lane if isinstance(other, Stream) else NotImplemented

    def __hash__(self):
        return hash(<size_t>self.lane)

    def __repr__(self):
        cdef Lane *lane = self.there()
        return f"<{_module}.Stream device=npu:{lane.unit.device} npu_stream={<size_t>lane.stream:#x}>"


cdef class Event:
    """A point in a stream's work, as torch.cuda.Event; it belongs to the device it is first recorded on."""
    cdef Mark *mark
    cdef Unit *unit
    cdef readonly bint timing, blocking

    def __init__(self, bint enable_timing=False, bint blocking=False, bint interprocess=False):
        if interprocess:
            raise RuntimeError("npu events cannot be shared between processes")
        self.timing, self.blocking = enable_timing, blocking

    def __dealloc__(self):
        if self.mark != NULL and usable():
            lock_with_gil(self.unit)
            drop(self.mark)
            pthread_mutex_unlock(&self.unit.lock)

    cdef Mark *hold(self):
        """The mark with one holder more, or NULL when nothing was recorded."""
        cdef Mark *mark = NULL
        if self.mark != NULL:
            if not usable():
                stop(blocked())
            lock_with_gil(self.unit)
            mark = self.mark
            mark.holders += 1
            pthread_mutex_unlock(&self.unit.lock)
        return mark

    cdef void release(self, Mark *mark) noexcept nogil:
        pthread_mutex_lock(&mark.unit.lock)
        drop(mark)
        pthread_mutex_unlock(&self.unit.lock)

    def record(self, Stream stream=None):
        """Record on ``stream`` (None: the thread's current one)."""
        cdef Lane *lane = (<Stream>(current_stream() if stream is None else stream)).there()
        cdef Mark *made = NULL
        cdef Mark *before
        cdef int code
        if self.unit == NULL:
            self.unit = lane.unit
        if self.unit != lane.unit:
            raise RuntimeError(
                f"Event device {self.unit.device} does not match recording stream's device {lane.unit.device}."
            )
        with nogil:
            code = enter(lane.unit)
            if code == 0:
                code = record(lane, self.timing, &made)
                leave()
        stop(code)
        before, self.mark = self.mark, made
        if before != NULL:
            with nogil:
                self.release(before)

    def wait(self, Stream stream=None):
        """What comes next on ``stream`` (None: the thread's current one) waits for this event."""
        cdef Lane *lane
        cdef int code
        cdef Mark *mark = self.hold()
        if mark == NULL:
            return
        try:
            lane = (<Stream>(current_stream() if stream is None else stream)).there()
            with nogil:
                code = enter(lane.unit)
                if code == 0:
                    code = wait_for(mark, lane)
                    leave()
            stop(code)
        finally:
            with nogil:
                self.release(mark)

    def query(self):
        """Whether what was recorded is over; True when nothing was."""
        cdef Mark *mark = self.hold()
        cdef bint over = False
        cdef int code
        if mark == NULL:
            return True
        with nogil:
            code = enter(self.unit)
            if code == 0:
                code = query(mark.event, &over)
                leave()
            self.done(mark, code == 0 and over)
        stop(code)
        return over

    cdef void done(self, Mark *mark, bint over) noexcept nogil:
        pthread_mutex_lock(&mark.unit.lock)
        if over:
            advance(mark.lane, mark.tick)
        drop(mark)
        pthread_mutex_unlock(&self.unit.lock)

    def synchronize(self):
        """Wait until what was recorded is over."""
        cdef Mark *mark = self.hold()
        cdef int code
        if mark == NULL:
            return
        with nogil:
            code = enter(self.unit)
            if code == 0:
                code = note(b"aclrtSynchronizeEvent", api.aclrtSynchronizeEvent(mark.event))
                leave()
            self.done(mark, code == 0)
        stop(code)

    def elapsed_time(self, Event end_event not None):
        """Milliseconds from this event to ``end_event``, both made with ``enable_timing=True`` and recorded.

        Waits until both are over, as torch_npu does.
        """
        cdef float milliseconds = 0
        cdef int code
        cdef Mark *start
        cdef Mark *end
        if not (self.timing and end_event.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.mark == NULL or end_event.mark == NULL:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self.synchronize()
        end_event.synchronize()
        start, end = self.hold(), end_event.hold()
        with nogil:
            code = enter(self.unit)
            if code == 0:
                code = note(b"aclrtEventElapsedTime", api.aclrtEventElapsedTime(&milliseconds, start.event, end.event))
                leave()
            self.release(start)
            end_event.release(end)
        stop(code)
        return milliseconds

    def recorded_time(self):
        raise RuntimeError(
            "[Event.recorded_time] points in time (aclrtEventGetTimestamp) are not read: elapsed_time gives the time "
            "between two events"
        )

    @property
    def device(self):
        """The device of the first stream it was recorded on; None before."""
        if self.unit == NULL:
            return None
        return self.unit.device if _device is None else _device(self.unit.device)

    @property
    def npu_event(self):
        """The address of the aclrtEvent; 0 before it was recorded, another one after each recording."""
        return <size_t>self.mark.event if self.mark != NULL else 0

    def __repr__(self):
        if self.mark == NULL:
            return f"<{_module}.Event uninitialized>"
        return f"<{_module}.Event {<size_t>self.mark.event:#x}>"
