"""Device memory, pinned host memory, and copies between them, for Python.

Everything is put on the calling thread's current stream of the device concerned, and the GIL is released. A block that
was allocated on another stream notes that this one uses it, so that its memory is not reused too early.
"""
from collections import OrderedDict

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from mindtorch._ext.acl cimport (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MEMORY_DDR,
    MEMORY_HBM,
    api,
    dismiss,
    hush,
    is_device_full,
    note,
    speak,
    throw_memory,
)
from mindtorch._ext.allocator cimport (
    Figure,
    Memory,
    Piece,
    Pin,
    cap,
    find_pin,
    give,
    give_pin,
    memory_of,
    release,
    reset_peaks,
    take,
    take_pin,
    use,
    use_pin,
)
from mindtorch._ext.in_flight cimport Launch, begins, ends, hosts_clock, waited
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
    lock_with_gil,
    order,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    record,
    settle,
    stop,
    this_thread,
    unit_of,
    usable,
    wait_for,
)
from mindtorch._ext.streams cimport Stream, device_argument, stream_object

from mindtorch._ext.pool import check_index

cdef enum:
    ALIGNMENT = 64                # of addresses of asynchronous copies on the device
    STAGED = 1 << 20              # host memory up to this size is copied to pinned memory first: nobody waits
    CHUNK = 4 << 20               # of copies between devices


@cython.final
@cython.freelist(64)
cdef class Block:
    """``nbytes`` of memory on ``device``, made by `allocate`. It is free again when the object dies."""

    def __init__(self):
        raise TypeError("blocks are made by allocate(device, nbytes)")

    def __dealloc__(self):
        if self.piece != NULL and usable():
            with nogil:
                give(self.piece)

    @property
    def ptr(self):
        """The address on the device; 0 for a block of 0 bytes."""
        return <uintptr_t>self.address

    @property
    def owner_stream(self):
        """The stream it was allocated on."""
        return stream_object(self.lane) if self.lane != NULL else None

    @property
    def stream(self):
        """The stream it was allocated on."""
        return self.owner_stream

    def record_stream(self, Stream stream not None):
        """``stream`` has work on it: when the block dies, its memory is reused after what is on the stream then."""
        cdef Lane *lane = stream.there()
        cdef int code
        if lane.unit != self.unit:
            raise RuntimeError(f"a block on npu:{self.device} cannot be used by a stream of npu:{lane.unit.device}")
        if self.piece != NULL:
            with nogil:
                code = use(self.piece, lane)
            stop(code)

    def __repr__(self):
        return f"<npu block of {self.nbytes} bytes at {<uintptr_t>self.address:#x} on npu:{self.device}>"


def allocate(int device, Py_ssize_t nbytes):
    """A block of ``nbytes`` uninitialized bytes on ``device``, for the calling thread's current stream there.

    When the device has no more, what is cached is given back, after waiting for the device, and it is tried once more;
    then the out-of-memory error says what was asked for and what there is. 0 bytes: a block without memory.
    """
    cdef Unit *unit = unit_of(device)
    cdef Block block = Block.__new__(Block)
    cdef Lane *lane = current_lane(unit)
    cdef Piece *piece = NULL
    cdef int code
    if nbytes < 0:
        raise ValueError(f"expected a number of bytes that is not negative, got {nbytes}")
    if not _limited[unit.device]:
        _limit_as_told(unit.device)
    block.unit, block.lane, block.device, block.nbytes = unit, lane, device, nbytes
    if nbytes == 0:
        return block
    with nogil:
        code = enter(unit)
        if code == 0:
            code = take(lane, nbytes, &piece)
            leave()
    if is_device_full(code):
        _raise_memory(unit, nbytes)
    stop(code)
    block.piece, block.address = piece, piece.address
    return block


cdef str _human(int64_t size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / <double>unit:.2f} {name}"
    return f"{size} bytes"


cdef int _raise_memory(Unit *unit, Py_ssize_t asked) except -1:
    cdef Memory memory = _figures(unit.device)
    cdef size_t left = 0, total = 0
    with nogil:
        hush()
        if enter(unit) == 0:
            _memory_info(&left, &total)
            leave()
        speak()
    allocated, reserved = memory.allocated.current, memory.reserved.current
    limit = f"; this process may hold {_human(memory.most)}" if memory.most else ""
    much = "more than 1EB memory" if asked >> 60 else _human(asked)  # as torch.cuda puts it
    throw_memory(
        f"NPU out of memory. Tried to allocate {much} ({asked} bytes). npu:{unit.device} has a total capacity "
        f"of {_human(total)} of which {_human(left)} is free{limit}. Of the memory reserved here, {_human(reserved)}, "
        f"{_human(allocated)} is allocated and {_human(reserved - allocated)} is reserved but unallocated."
    )


cdef int _memory_info(size_t *left, size_t *total) noexcept nogil:
    """Of the device whose context is bound. Chips without HBM answer for DDR."""
    cdef int code = note(b"aclrtGetMemInfo", api.aclrtGetMemInfo(MEMORY_HBM, left, total))
    if code != 0 or total[0] == 0:
        if dismiss(api.aclrtGetMemInfo(MEMORY_DDR, left, total)) == 0 and total[0] > 0:
            code = 0
    return code


# Copies.

cdef int _check(Block block, Py_ssize_t offset, Py_ssize_t nbytes) except -1:
    if block.unit == NULL:
        raise RuntimeError("the block was not made by allocate")
    if <size_t>offset > block.nbytes or <size_t>nbytes > block.nbytes - offset:  # what is less than 0 is more, too
        raise ValueError(f"expected bytes within a block of {block.nbytes}, got {nbytes} from byte {offset}")
    return 0


cdef int _used(Block block, Lane *lane) noexcept nogil:
    return use(block.piece, lane) if lane != block.lane else 0


def used_by(Block block not None):
    """Note that the thread's current stream has work on the block (`Block.record_stream`)."""
    cdef int code = 0
    if block.piece != NULL:
        with nogil:
            code = _used(block, current_lane(block.unit))
    stop(code)


cdef int _put(Lane *lane, void *to, const void *source, size_t size, int kind) noexcept nogil:
    """A copy that the lane makes later."""
    cdef Launch launch
    cdef int code
    begins(lane, &launch)
    code = note(b"aclrtMemcpyAsync", api.aclrtMemcpyAsync(to, size, source, size, kind, lane.stream))
    ends(lane, &launch, True, code)
    return code


cdef int _now(Lane *lane, void *to, const void *source, size_t size, int kind) noexcept nogil:
    """The library's own synchronous copy, which knows no stream: what is on ours comes first."""
    cdef uint64_t at
    cdef int code = settle(lane)
    if code == 0:
        at = hosts_clock()
        code = note(b"aclrtMemcpy", api.aclrtMemcpy(to, size, source, size, kind))
        waited(lane, at, code)
    return code


cdef int _queued(Lane *lane, Pin *pin, char *to, const char *source, size_t size, int kind) noexcept nogil:
    """A copy between the device and ``pin``, which is kept until the copy is over."""
    cdef int code = use_pin(pin, lane)
    return code if code != 0 else _put(lane, to, source, size, kind)


cdef int _staged_in(Lane *lane, char *to, const char *source, size_t size) noexcept nogil:
    cdef Pin *pin
    cdef int code = take_pin(lane.unit, size, &pin)
    if code != 0:
        return code
    memcpy(pin.address, source, size)
    code = _queued(lane, pin, to, pin.address, size, HOST_TO_DEVICE)
    give_pin(pin)
    return code


cdef int _in(Lane *lane, char *to, const char *source, size_t size, bint wait) noexcept nogil:
    cdef Pin *pin = find_pin(source, size)
    cdef int code
    if pin != NULL:
        code = _queued(lane, pin, to, source, size, HOST_TO_DEVICE)
        return settle(lane) if code == 0 and wait else code
    if size <= STAGED:
        return _staged_in(lane, to, source, size)
    return _now(lane, to, source, size, HOST_TO_DEVICE)


cdef int _out(Lane *lane, char *to, const char *source, size_t size, bint wait) noexcept nogil:
    cdef Pin *pin = find_pin(to, size)
    cdef int code
    if pin != NULL:
        code = _queued(lane, pin, to, source, size, DEVICE_TO_HOST)
        return settle(lane) if code == 0 and wait else code
    return _now(lane, to, source, size, DEVICE_TO_HOST)


cdef int _with_host(Block block, Py_ssize_t offset, char *address, Py_ssize_t nbytes, bint wait,
                    bint inwards) except -1:
    cdef Lane *lane
    cdef int code
    _check(block, offset, nbytes)
    if nbytes == 0:
        return 0
    if address == NULL:
        raise ValueError(f"expected the address of {nbytes} bytes of host memory, got 0")
    lane = current_lane(block.unit)
    with nogil:
        code = enter(block.unit)
        if code == 0:
            code = _used(block, lane)
            if code == 0:
                if inwards:
                    code = _in(lane, block.address + offset, address, nbytes, wait)
                else:
                    code = _out(lane, address, block.address + offset, nbytes, wait)
            leave()
    return stop(code)


def copy_in(Block block not None, Py_ssize_t offset, uintptr_t address, Py_ssize_t nbytes, bint wait=True):
    """Host memory at ``address`` to byte ``offset`` of the block, on the current stream.

    ``wait``: the host memory may be written to again when this returns. Without, it must be left alone until the stream
    has come so far; only pinned memory is then copied later, other memory is at once, as with ``wait``.
    """
    _with_host(block, offset, <char *>address, nbytes, wait, True)


def copy_out(Block block not None, Py_ssize_t offset, uintptr_t address, Py_ssize_t nbytes, bint wait=True):
    """Byte ``offset`` of the block to host memory at ``address``, on the current stream.

    ``wait``: the values are there when this returns. Without, they are when the stream has come so far, and the memory
    must live that long; this only makes a difference for pinned memory.
    """
    _with_host(block, offset, <char *>address, nbytes, wait, False)


cdef int _on_device(Lane *lane, char *to, const char *source, size_t size) noexcept nogil:
    if ((<uintptr_t>to | <uintptr_t>source) % ALIGNMENT) == 0:
        return _put(lane, to, source, size, DEVICE_TO_DEVICE)
    return _now(lane, to, source, size, DEVICE_TO_DEVICE)  # which takes addresses that are not aligned


cdef int _overlapping(Lane *lane, char *to, const char *source, size_t size) noexcept nogil:
    """Through memory of its own; aligned copies of it are queued, so it goes back in the lane's order."""
    cdef Piece *between
    cdef int code = take(lane, size, &between)
    if code != 0:
        return code
    code = _on_device(lane, between.address, source, size)
    if code == 0:
        code = _on_device(lane, to, between.address, size)
    give(between)
    return code


def copy_within(Block dst not None, Py_ssize_t dst_offset, Block src not None, Py_ssize_t src_offset,
                Py_ssize_t nbytes):
    """Between blocks of one device, or within one (the ranges may overlap), on the current stream.

    Asynchronous where both addresses are multiples of 64; otherwise it waits for the stream first.
    """
    cdef Lane *lane
    cdef int code
    cdef char *to = dst.address + dst_offset
    cdef char *source = src.address + src_offset
    _check(dst, dst_offset, nbytes)
    _check(src, src_offset, nbytes)
    if dst.unit != src.unit:
        raise RuntimeError(f"expected blocks of one device, got npu:{src.device} and npu:{dst.device}")
    if nbytes == 0 or to == source:
        return
    lane = current_lane(dst.unit)
    with nogil:
        code = enter(dst.unit)
        if code == 0:
            code = _used(dst, lane)
            if code == 0:
                code = _used(src, lane)
            if code == 0:
                if to < source + nbytes and source < to + nbytes:
                    code = _overlapping(lane, to, source, nbytes)
                else:
                    code = _on_device(lane, to, source, nbytes)
            leave()
    if is_device_full(code):
        _raise_memory(dst.unit, nbytes)
    stop(code)


cdef void _drop(Mark *mark) noexcept nogil:
    if mark != NULL:
        pthread_mutex_lock(&mark.unit.lock)
        drop(mark)
        pthread_mutex_unlock(&mark.unit.lock)


cdef int _hop(Lane *target, Lane *lane, Pin *pin, Mark **written, char *to, const char *source,
              size_t size) noexcept nogil:
    """One chunk: from the device on ``lane``, and on ``target`` to the other once it is there."""
    cdef int code = 0
    if written[0] != NULL:  # what was in the pinned memory before has to be read first
        code = wait_for(written[0], lane)
        _drop(written[0])
        written[0] = NULL
    if code == 0:
        code = bind(lane.unit)
    if code == 0:
        code = use_pin(pin, lane)
    if code == 0:
        code = use_pin(pin, target)
    if code == 0:
        code = _put(lane, pin.address, source, size, DEVICE_TO_HOST)
    if code == 0:
        code = order(target, lane)
    if code == 0:
        code = bind(target.unit)
    if code == 0:
        code = _put(target, to, pin.address, size, HOST_TO_DEVICE)
    if code == 0:
        code = record(target, False, written)
    return code


cdef int _across(Lane *target, Lane *lane, char *to, const char *source, size_t size) noexcept nogil:
    cdef Pin *pins[2]
    cdef Mark *written[2]
    cdef size_t done = 0, part
    cdef int code = 0, i, count = 1 if size <= CHUNK else 2, taken = 0
    while taken < count and code == 0:
        written[taken] = NULL
        code = take_pin(lane.unit, min(size, <size_t>CHUNK), &pins[taken])
        if code == 0:
            taken += 1
    i = 0
    while code == 0 and done < size:
        part = min(size - done, <size_t>CHUNK)
        code = _hop(target, lane, pins[i], &written[i], to + done, source + done, part)
        done += part
        i = (i + 1) % count
    for i in range(taken):
        _drop(written[i])
        give_pin(pins[i])
    return code


def copy_across(Block dst not None, Py_ssize_t dst_offset, Block src not None, Py_ssize_t src_offset,
                Py_ssize_t nbytes):
    """Between devices, through pinned host memory, in chunks.

    It is read on the source's current stream and written on the target's. Each stream's own order holds, events order
    the two; nobody waits where streams can wait for another device's events. The devices need not reach each other.
    The source's stream first waits for the target's, as with CUDA, which may have waited for what made the source.
    """
    cdef Lane *target
    cdef Lane *lane
    cdef int code
    _check(dst, dst_offset, nbytes)
    _check(src, src_offset, nbytes)
    if dst.unit == src.unit:
        copy_within(dst, dst_offset, src, src_offset, nbytes)
        return
    if nbytes == 0:
        return
    target, lane = current_lane(dst.unit), current_lane(src.unit)
    with nogil:
        code = enter(src.unit)
        if code == 0:
            code = _used(dst, target)
            if code == 0:
                code = _used(src, lane)
            if code == 0:
                code = order(lane, target)
            if code == 0:
                code = _across(target, lane, dst.address + dst_offset, src.address + src_offset, nbytes)
            leave()
    stop(code)


def fill(Block block not None, Py_ssize_t offset, int byte, Py_ssize_t nbytes):
    """Set ``nbytes`` bytes from ``offset`` on to ``byte`` (0 to 255), on the current stream."""
    cdef Lane *lane
    cdef Launch launch
    cdef int code
    cdef char *to = block.address + offset
    _check(block, offset, nbytes)
    if not 0 <= byte <= 255:
        raise ValueError(f"expected a byte from 0 to 255, got {byte}")
    if nbytes == 0:
        return
    lane = current_lane(block.unit)
    with nogil:
        code = enter(block.unit)
        if code == 0:
            code = _used(block, lane)
            if code == 0:
                if api.aclrtMemsetAsync != NULL:
                    begins(lane, &launch)
                    code = note(b"aclrtMemsetAsync", api.aclrtMemsetAsync(to, nbytes, byte, nbytes, lane.stream))
                    ends(lane, &launch, True, code)
                else:
                    code = settle(lane)
                    if code == 0:
                        code = note(b"aclrtMemset", api.aclrtMemset(to, nbytes, byte, nbytes))
            leave()
    stop(code)


# Pinned host memory.

cdef class Pinned:
    """``nbytes`` of pinned host memory, writable through the buffer protocol. Copies from and to it need not wait.

    When the object dies its memory is kept for the next one, once the streams that used it have come so far.
    """

    def __init__(self, Py_ssize_t nbytes):
        cdef Unit *unit
        cdef Pin *pin
        cdef int code
        if nbytes < 0:
            raise ValueError(f"expected a number of bytes that is not negative, got {nbytes}")
        if self.pin != NULL:
            raise RuntimeError("the memory is already allocated")
        unit = unit_of(this_thread().device)
        with nogil:
            code = enter(unit)
            if code == 0:
                code = take_pin(unit, nbytes, &pin)
                leave()
        if is_device_full(code):
            throw_memory(f"out of pinned host memory. Tried to allocate {_human(nbytes)} ({nbytes} bytes)")
        stop(code)
        self.pin, self.nbytes = pin, nbytes

    def __dealloc__(self):
        if self.pin != NULL and usable():
            with nogil:
                give_pin(self.pin)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.pin == NULL:
            raise RuntimeError("the pinned memory is not allocated")
        PyBuffer_FillInfo(view, self, self.pin.address, self.nbytes, 0, flags)

    @property
    def address(self):
        return <uintptr_t>self.pin.address if self.pin != NULL else 0


def is_pinned(uintptr_t address):
    """Whether ``address`` lies in memory of a living `Pinned`."""
    return find_pin(<const char *>address, 1) != NULL


# Figures.

def empty_cache(device=None):
    """Give unused segments back to ``device`` (None: to every device in use), after waiting for it."""
    cdef Unit *unit
    cdef int code, index
    for index in range(128) if device is None else (device_argument(device),):
        unit = known_unit(index)
        if unit != NULL:
            with nogil:
                code = enter(unit)
                if code == 0:
                    code = release(unit)
                    leave()
            stop(code)


def mem_get_info(device=None):
    """(free, total) bytes of the device's memory, as the driver sees it: other processes count too."""
    cdef Unit *unit = unit_of(device_argument(device))
    cdef size_t left = 0, total = 0
    cdef int code
    with nogil:
        code = enter(unit)
        if code == 0:
            code = _memory_info(&left, &total)
            leave()
    stop(code)
    return left, total


cdef Memory _figures(object device):
    """A copy; all zero for a device that was not used yet."""
    cdef int index = device_argument(device)
    cdef Unit *unit = known_unit(index)
    cdef Memory found
    if unit == NULL and api.aclInit != NULL:
        check_index(index)
    memset(&found, 0, sizeof(found))
    if unit != NULL:
        lock_with_gil(unit)
        if memory_of(unit) != NULL:
            found = memory_of(unit)[0]
        pthread_mutex_unlock(&unit.lock)
    return found


def limit_memory(device, nbytes):
    """Hold at most so many bytes on ``device`` from now on; None: all that there are."""
    cdef Unit *unit = unit_of(device_argument(device))
    stop(cap(unit, 0 if nbytes is None else max(1, nbytes)))
    _limited[unit.device] = True


_fraction = None  # what `configure` was told


def configure(fraction):
    """``fraction()`` gives the share of a device's memory that may be held where the program does not say."""
    global _fraction
    _fraction = fraction


cdef bint[MAX_DEVICES] _limited  # whether the program, or its environment, has said how much


cdef int _limit_as_told(int device) except -1:
    fraction = 1 if _fraction is None else _fraction()
    limit_memory(device, None if fraction == 1 else int(mem_get_info(device)[1] * fraction))


def memory_allocated(device=None):
    """Bytes of living blocks on ``device``, each rounded up to 512."""
    return _figures(device).allocated.current


def max_memory_allocated(device=None):
    """The most that `memory_allocated` was since the start or `reset_peak_memory_stats`."""
    return _figures(device).allocated.peak


def memory_reserved(device=None):
    """Bytes held on ``device``: living blocks and what is kept for the next ones."""
    return _figures(device).reserved.current


def max_memory_reserved(device=None):
    """The most that `memory_reserved` was since the start or `reset_peak_memory_stats`."""
    return _figures(device).reserved.peak


def reset_peak_memory_stats(device=None):
    """Let the peaks begin anew from what is there now."""
    cdef Unit *unit = known_unit(device_argument(device))
    if unit != NULL:
        lock_with_gil(unit)
        if memory_of(unit) != NULL:
            reset_peaks(memory_of(unit))
        pthread_mutex_unlock(&unit.lock)


cdef int _enter_figure(dict into, str name, Figure figure) except -1:
    into[f"{name}.all.current"] = figure.current
    into[f"{name}.all.peak"] = figure.peak
    into[f"{name}.all.allocated"] = figure.up
    into[f"{name}.all.freed"] = figure.down
    return 0


def memory_stats(device=None):
    """Figures under torch.cuda.memory_stats' names: ``allocated_bytes.all.current``, ``num_ooms`` and so on."""
    cdef Memory memory = _figures(device)
    cdef dict found = {}
    _enter_figure(found, "allocation", memory.pieces)
    _enter_figure(found, "segment", memory.segments)
    _enter_figure(found, "allocated_bytes", memory.allocated)
    _enter_figure(found, "reserved_bytes", memory.reserved)
    _enter_figure(found, "active_bytes", memory.active)
    _enter_figure(found, "requested_bytes", memory.requested)
    found["num_alloc_retries"] = memory.retries
    found["num_ooms"] = memory.failures
    return OrderedDict(found)
