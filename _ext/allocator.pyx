"""The caching allocator, after the conventions of torch's.

Sizes in steps of 512 bytes, of which the last 32 and what fills a unit of 32 before them are padding: operators may
touch them (ALIGN_UP(size, 32) + 32 bytes are a tensor's). As in torch_npu, what is told as allocated has the padding in
it, what is told as requested has not. Pieces up to 1 MiB are from segments of 2 MiB, larger ones from segments of
20 MiB or their own size in steps of 2 MiB; best fit, splitting and merging.

A free piece belongs to the lane it was allocated on: that stream's order makes reuse there safe at once. Where other
streams used it, an event on each tells when it may be reused. Nothing here needs the GIL.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from mindtorch._ext.acl cimport (
    ERROR_MEMORY_ALLOCATION,
    HUGE_FIRST,
    api,
    dismiss,
    hush,
    is_device_full,
    note,
    speak,
)
from mindtorch._ext cimport pool
from mindtorch._ext.pool cimport (
    NO_MEMORY,
    bind,
    enter,
    fence,
    leave,
    mt_load,
    mt_store,
    order,
    poll,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    reserve,
    settle_unit,
)

cdef extern from *:
    """
    static pthread_mutex_t mt_pins_lock = PTHREAD_MUTEX_INITIALIZER;
    """
    pthread_mutex_t mt_pins_lock

cdef enum:
    STEP = 512
    PADDING = 32
    SMALL = 1 << 20
    SMALL_SEGMENT = 2 << 20
    LARGE_SEGMENT = 20 << 20
    OWN_SEGMENT = 10 << 20
    LARGE_STEP = 2 << 20
    IDLE_PINS = 64 << 20      # so much pinned memory may be kept that nobody has

cdef size_t TOO_MUCH = <size_t>1 << 60    # nothing has so much; rounding it cannot overflow
cdef Stack _pins                          # every Pin, by address
cdef size_t _idle_pins = 0                # bytes of those that are not taken


cdef void _add(Figure *figure, int64_t change) noexcept nogil:
    figure.current += change
    if change > 0:
        figure.up += change
        figure.peak = max(figure.peak, figure.current)
    else:
        figure.down -= change


cdef void reset_peaks(Memory *memory) noexcept nogil:
    memory.allocated.peak = memory.allocated.current
    memory.reserved.peak = memory.reserved.current
    memory.requested.peak = memory.requested.current
    memory.active.peak = memory.active.current
    memory.pieces.peak = memory.pieces.current
    memory.segments.peak = memory.segments.current


cdef Memory *memory_of(Unit *unit) noexcept nogil:
    return <Memory *>unit.memory


# Free pieces of a lane, by size and address.

cdef int _place(Stack *stack, size_t size, char *address) noexcept nogil:
    """The index of the first piece that is not smaller."""
    cdef int low = 0, high = stack.count, middle
    cdef Piece *piece
    while low < high:
        middle = (low + high) // 2
        piece = <Piece *>stack.items[middle]
        if piece.size < size or (piece.size == size and piece.address < address):
            low = middle + 1
        else:
            high = middle
    return low


cdef void _remove(Piece *piece) noexcept nogil:
    cdef Stack *stack = &piece.lane.free[piece.large]
    cdef int at = _place(stack, piece.size, piece.address)
    stack.count -= 1
    memmove(stack.items + at, stack.items + at + 1, (stack.count - at) * sizeof(void *))


cdef void _insert(Piece *piece) noexcept nogil:
    cdef Stack *stack = &piece.lane.free[piece.large]
    cdef int at = _place(stack, piece.size, piece.address)
    memmove(stack.items + at + 1, stack.items + at, (stack.count - at) * sizeof(void *))
    stack.items[at] = piece
    stack.count += 1


cdef int _make_room(Memory *memory, Lane *lane, bint large) noexcept nogil:
    """Room in the lists for one piece more than there are, so that giving back cannot fail."""
    cdef Stack *stack = &lane.free[large]
    if reserve(<void **>&stack.items, &stack.room, memory.count + 1, sizeof(void *)) or reserve(
            <void **>&memory.waiting.items, &memory.waiting.room, memory.count + 1, sizeof(void *)):
        return NO_MEMORY
    return 0


cdef void _forget(Memory *memory, Piece *piece) noexcept nogil:
    memory.count -= 1
    free(piece.uses)
    free(piece)


cdef void _merge(Memory *memory, Piece *piece) noexcept nogil:
    """Into the list of free pieces, as one with its free neighbours."""
    cdef Piece *other
    while piece.before != NULL and not piece.before.taken and not piece.before.waiting:
        other = piece.before
        _remove(other)
        other.size += piece.size
        other.after = piece.after
        if piece.after != NULL:
            piece.after.before = other
        _forget(memory, piece)
        piece = other
    other = piece.after
    if other != NULL and not other.taken and not other.waiting:
        _remove(other)
        piece.size += other.size
        piece.after = other.after
        if other.after != NULL:
            other.after.before = piece
        _forget(memory, other)
    _insert(piece)


cdef void _split(Memory *memory, Piece *piece, size_t size) noexcept nogil:
    """Take ``size`` bytes of it and free the rest, where the rest is worth it: others need it. The unit's lock is held
    since the piece was found."""
    cdef size_t rest = piece.size - size
    cdef Piece *other
    piece.taken = True
    if rest < STEP or (piece.large and rest <= SMALL) or _make_room(memory, piece.lane, piece.large):
        return
    other = <Piece *>calloc(1, sizeof(Piece))
    if other == NULL:
        return
    other.address, other.size = piece.address + size, rest
    other.lane, other.large = piece.lane, piece.large
    other.before, other.after = piece, piece.after
    if piece.after != NULL:
        piece.after.before = other
    piece.after = other
    piece.size = size
    memory.count += 1
    _merge(memory, other)  # what follows it may have become free since the piece was taken


# Taking and giving.

cdef bint _is_over(const Use *uses, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        if mt_load(&uses[i].lane.passed) < uses[i].tick:
            return False
    return True


cdef void _sweep(Unit *unit) noexcept nogil:
    """What no lane uses any more becomes free. The unit's lock is held."""
    cdef Memory *memory = memory_of(unit)
    cdef Stack *waiting = &memory.waiting
    cdef Piece *piece
    cdef int i, count = waiting.count, kept = 0
    if count == 0:
        return
    poll(unit)
    for i in range(count):
        piece = <Piece *>waiting.items[i]
        if _is_over(piece.uses, piece.n_uses):
            piece.n_uses = 0
            piece.waiting = False
            _add(&memory.active, -<int64_t>piece.size)
            _merge(memory, piece)
        else:
            waiting.items[kept] = piece
            kept += 1
    waiting.count = kept


cdef Piece *_best(Lane *lane, bint large, size_t size) noexcept nogil:
    cdef Stack *stack = &lane.free[large]
    cdef int at = _place(stack, size, NULL)
    cdef Piece *piece
    if at == stack.count:
        return NULL
    piece = <Piece *>stack.items[at]
    _remove(piece)
    return piece


cdef Piece *_cached(Lane *lane, bint large, size_t size) noexcept nogil:
    cdef Unit *unit = lane.unit
    cdef Piece *piece
    pthread_mutex_lock(&unit.lock)
    _sweep(unit)
    piece = _best(lane, large, size)
    if piece != NULL:
        _split(memory_of(unit), piece, size)
    pthread_mutex_unlock(&unit.lock)
    return piece


cdef int _new_segment(Lane *lane, bint large, size_t size, bint tight, Piece **made) noexcept nogil:
    cdef Unit *unit = lane.unit
    cdef Memory *memory = memory_of(unit)
    cdef void *address = NULL
    cdef size_t span
    cdef int code
    cdef bint full
    cdef Piece *piece
    if not large:
        span = SMALL_SEGMENT
    elif size < OWN_SEGMENT and not tight:
        span = LARGE_SEGMENT
    else:
        span = (size + LARGE_STEP - 1) // LARGE_STEP * LARGE_STEP
    piece = <Piece *>calloc(1, sizeof(Piece))
    if piece == NULL:
        return NO_MEMORY
    pthread_mutex_lock(&unit.lock)
    code = _make_room(memory, lane, large)
    full = memory.most and memory.reserved.current + <int64_t>span > memory.most
    if code == 0 and not full:  # counted before it is there: another thread may make room meanwhile
        memory.count += 1
    pthread_mutex_unlock(&unit.lock)
    if code == 0 and full:  # as the library would say it
        code = note(b"aclrtMalloc", ERROR_MEMORY_ALLOCATION)
    elif code == 0:
        if api.aclrtMallocAlign32 != NULL:  # without the padding that would take another page
            code = note(b"aclrtMallocAlign32", api.aclrtMallocAlign32(&address, span, HUGE_FIRST))
        else:
            code = note(b"aclrtMalloc", api.aclrtMalloc(&address, span, HUGE_FIRST))
        pthread_mutex_lock(&unit.lock)
        if code == 0:
            code = reserve(<void **>&memory.spans.items, &memory.spans.room, memory.spans.count + 1, sizeof(void *))
            if code == 0:
                memory.spans.items[memory.spans.count] = address
                memory.spans.count += 1
                _add(&memory.reserved, span)
                _add(&memory.segments, 1)
                piece.address, piece.size, piece.lane = <char *>address, span, lane
                piece.large = large
                _split(memory, piece, size)
        if code != 0:
            memory.count -= 1
        pthread_mutex_unlock(&unit.lock)
        if code != 0 and address != NULL:
            dismiss(api.aclrtFree(address))
    if code != 0:
        free(piece)
        return code
    made[0] = piece
    return 0


cdef int _borrow(Lane *lane, size_t size, Piece **found) noexcept nogil:
    """A free piece of another lane, whose work so far ``lane`` then waits for. It stays the other's: given back, it
    waits for ``lane``."""
    cdef Unit *unit = lane.unit
    cdef Stack *stack
    cdef Piece *piece = NULL
    cdef int i, at, code
    pthread_mutex_lock(&unit.lock)
    for i in range(2 * unit.n_made):
        stack = &unit.made[i // 2].free[i % 2]
        at = _place(stack, size, NULL)
        if at < stack.count and (piece == NULL or (<Piece *>stack.items[at]).size < piece.size):
            piece = <Piece *>stack.items[at]
    if piece != NULL:
        _remove(piece)
        _split(memory_of(unit), piece, size)
    pthread_mutex_unlock(&unit.lock)
    found[0] = piece
    if piece == NULL:
        return 0
    code = use(piece, lane)
    if code == 0:
        code = order(lane, piece.lane)
    if code != 0:
        pthread_mutex_lock(&unit.lock)
        piece.taken = False
        piece.n_uses = 0
        _merge(memory_of(unit), piece)
        pthread_mutex_unlock(&unit.lock)
    return code


cdef int _find_more(Lane *lane, bint large, size_t size, Piece **found) noexcept nogil:
    """When the device has no more: what is free but cut to other sizes, or other streams', may be enough."""
    cdef Unit *unit = lane.unit
    cdef Memory *memory = memory_of(unit)
    cdef int code
    pthread_mutex_lock(&unit.lock)
    memory.retries += 1
    pthread_mutex_unlock(&unit.lock)
    code = _give_back(unit)
    if code != 0:
        return code
    found[0] = _cached(lane, large, size)
    if found[0] != NULL:
        return 0
    code = _new_segment(lane, large, size, True, found)
    if is_device_full(code):
        code = _borrow(lane, size, found)
        if code == 0 and found[0] == NULL:
            pthread_mutex_lock(&unit.lock)
            memory.failures += 1
            pthread_mutex_unlock(&unit.lock)
            code = ERROR_MEMORY_ALLOCATION
    return code


cdef Memory *_made_memory(Unit *unit) noexcept nogil:
    pthread_mutex_lock(&unit.lock)
    if unit.memory == NULL:
        unit.memory = calloc(1, sizeof(Memory))
    pthread_mutex_unlock(&unit.lock)
    return memory_of(unit)


cdef int cap(Unit *unit, int64_t most) noexcept nogil:
    cdef Memory *memory = _made_memory(unit)
    if memory == NULL:
        return NO_MEMORY
    pthread_mutex_lock(&unit.lock)
    memory.most = most
    pthread_mutex_unlock(&unit.lock)
    return 0


cdef int take(Lane *lane, size_t size, Piece **found) noexcept nogil:
    cdef Unit *unit = lane.unit
    cdef Memory *memory = _made_memory(unit)
    cdef Piece *piece
    cdef size_t asked = size
    cdef bint large
    cdef int code = 0
    if memory == NULL:
        return NO_MEMORY
    size = (min(size, TOO_MUCH) + PADDING + STEP - 1) // STEP * STEP  # a multiple of 32, too
    large = size > SMALL
    piece = _cached(lane, large, size)
    if piece == NULL:
        # One thread at a time asks the device: what another has just got, or is giving back, would be missed.
        pthread_mutex_lock(&unit.scarce)
        piece = _cached(lane, large, size)
        if piece == NULL:
            code = _new_segment(lane, large, size, False, &piece)
            if is_device_full(code):
                code = _find_more(lane, large, size, &piece)
        pthread_mutex_unlock(&unit.scarce)
        if code != 0:
            return code
    pthread_mutex_lock(&unit.lock)
    piece.asked = asked
    _add(&memory.allocated, piece.size)
    _add(&memory.active, piece.size)
    _add(&memory.requested, asked)
    _add(&memory.pieces, 1)
    pthread_mutex_unlock(&unit.lock)
    found[0] = piece
    return 0


cdef int use(Piece *piece, Lane *lane) noexcept nogil:
    cdef Unit *unit = piece.lane.unit
    cdef int i, code
    if lane == piece.lane:
        return 0
    pthread_mutex_lock(&unit.lock)
    for i in range(piece.n_uses):
        if piece.uses[i].lane == lane:
            pthread_mutex_unlock(&unit.lock)
            return 0
    code = reserve(<void **>&piece.uses, &piece.room, piece.n_uses + 1, sizeof(Use))
    if code == 0:
        piece.uses[piece.n_uses].lane = lane
        piece.n_uses += 1
    pthread_mutex_unlock(&unit.lock)
    return code


cdef void _want(Use *used, bint bound) noexcept nogil:
    """Have an event tell when ``used.lane`` has come past what it has now. Its unit's lock is held.

    Where the event cannot be recorded, the lane's next poll tries again.
    """
    if bound and fence(used.lane) == 0:
        used.tick = used.lane.issued
    else:
        used.tick = used.lane.issued + 1
        if mt_load(&used.lane.wanted) < used.tick:
            mt_store(&used.lane.wanted, used.tick)


cdef void give(Piece *piece) noexcept nogil:
    cdef Unit *unit = piece.lane.unit
    cdef Memory *memory = memory_of(unit)
    cdef bint bound
    cdef int i
    hush()
    bound = piece.n_uses > 0 and enter(unit) == 0
    pthread_mutex_lock(&unit.lock)
    piece.taken = False
    _add(&memory.allocated, -<int64_t>piece.size)
    _add(&memory.requested, -<int64_t>piece.asked)
    _add(&memory.pieces, -1)
    if piece.n_uses == 0:
        _add(&memory.active, -<int64_t>piece.size)
        _merge(memory, piece)
    else:
        for i in range(piece.n_uses):
            _want(&piece.uses[i], bound)
        piece.waiting = True
        memory.waiting.items[memory.waiting.count] = piece
        memory.waiting.count += 1
    pthread_mutex_unlock(&unit.lock)
    if bound:
        leave()
    speak()


cdef void _forget_span(Memory *memory, char *address) noexcept nogil:
    cdef int i
    for i in range(memory.spans.count):
        if memory.spans.items[i] == address:
            memory.spans.count -= 1
            memory.spans.items[i] = memory.spans.items[memory.spans.count]
            return


cdef int release(Unit *unit) noexcept nogil:
    cdef int code
    pthread_mutex_lock(&unit.scarce)
    code = _give_back(unit)
    pthread_mutex_unlock(&unit.scarce)
    return code


cdef int _give_back(Unit *unit) noexcept nogil:
    """Unused segments, to the device. `unit.scarce` is held."""
    cdef Memory *memory = memory_of(unit)
    cdef Piece *gone = NULL
    cdef Piece *piece
    cdef Stack *stack
    cdef int i, j, kept, failed, code
    if memory == NULL:
        return 0
    code = settle_unit(unit)  # so that no lane uses what waits
    if code != 0:
        return code
    pthread_mutex_lock(&unit.lock)
    _sweep(unit)
    for i in range(2 * unit.n_made):
        stack = &unit.made[i // 2].free[i % 2]
        kept = 0
        for j in range(stack.count):
            piece = <Piece *>stack.items[j]
            if piece.before == NULL and piece.after == NULL:
                piece.taken = True
                piece.before = gone
                gone = piece
            else:
                stack.items[kept] = piece
                kept += 1
        stack.count = kept
    pthread_mutex_unlock(&unit.lock)
    if gone == NULL:
        return 0
    code = settle_unit(unit)  # what was given back since then may still have work on its own lane
    while gone != NULL:
        piece, gone = gone, gone.before
        piece.before = NULL
        if code == 0:
            # Whatever it says: memory that it was asked to free is not used again.
            failed = note(b"aclrtFree", api.aclrtFree(piece.address))
        pthread_mutex_lock(&unit.lock)
        if code == 0:
            _add(&memory.reserved, -<int64_t>piece.size)
            _add(&memory.segments, -1)
            _forget_span(memory, piece.address)
            _forget(memory, piece)
        else:
            piece.taken = False
            _insert(piece)
        pthread_mutex_unlock(&unit.lock)
        if code == 0:
            code = failed
    return code


# Pinned host memory.

cdef int _pin_place(const char *address) noexcept nogil:
    """The index of the first pin that begins after ``address``."""
    cdef int low = 0, high = _pins.count, middle
    while low < high:
        middle = (low + high) // 2
        if (<Pin *>_pins.items[middle]).address <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef Pin *find_pin(const char *address, size_t size) noexcept nogil:
    cdef Pin *pin = NULL
    cdef int at
    pthread_mutex_lock(&mt_pins_lock)
    at = _pin_place(address)
    if at > 0:
        pin = <Pin *>_pins.items[at - 1]
        if not pin.taken or <size_t>(address - pin.address) >= pin.size or (
                size > pin.size - <size_t>(address - pin.address)):
            pin = NULL
    pthread_mutex_unlock(&mt_pins_lock)
    return pin


cdef Pin *_cached_pin(size_t size) noexcept nogil:
    global _idle_pins
    cdef Pin *pin
    cdef Pin *best = NULL
    cdef int i
    pthread_mutex_lock(&mt_pins_lock)
    for i in range(_pins.count):
        pin = <Pin *>_pins.items[i]
        if not pin.taken and size <= pin.size <= 2 * size and (best == NULL or pin.size < best.size) and _is_over(
                pin.uses, pin.n_uses):
            best = pin
    if best != NULL:
        _idle_pins -= best.size
        best.taken = True
        best.n_uses = 0
    pthread_mutex_unlock(&mt_pins_lock)
    return best


cdef void _trim_pins() noexcept nogil:
    """Gives back what nobody has and no lane uses any more."""
    global _idle_pins
    cdef Pin *pin
    cdef int i, kept = 0
    pthread_mutex_lock(&mt_pins_lock)
    for i in range(_pins.count):
        pin = <Pin *>_pins.items[i]
        if pin.taken or not _is_over(pin.uses, pin.n_uses):
            _pins.items[kept] = pin
            kept += 1
        else:
            _idle_pins -= pin.size
            dismiss(api.aclrtFreeHost(pin.address))
            free(pin.uses)
            free(pin)
    _pins.count = kept
    pthread_mutex_unlock(&mt_pins_lock)


cdef int take_pin(Unit *unit, size_t size, Pin **found) noexcept nogil:
    cdef size_t span = STEP, idle
    cdef void *address = NULL
    cdef Pin *pin
    cdef int at, code = bind(unit)
    if code != 0:
        return code
    size = min(max(size, STEP), TOO_MUCH)
    while span < size:
        span *= 2
    found[0] = _cached_pin(span)
    if found[0] == NULL:
        pthread_mutex_lock(&unit.lock)
        poll(unit)
        pthread_mutex_unlock(&unit.lock)
        found[0] = _cached_pin(span)
    if found[0] != NULL:
        return 0
    pthread_mutex_lock(&mt_pins_lock)
    idle = _idle_pins
    pthread_mutex_unlock(&mt_pins_lock)
    if idle > IDLE_PINS:  # a program that runs far ahead of its device waits for it here
        code = settle_unit(unit)
        if code != 0:
            return code
        _trim_pins()
    pin = <Pin *>calloc(1, sizeof(Pin))
    if pin == NULL:
        return NO_MEMORY
    code = note(b"aclrtMallocHost", api.aclrtMallocHost(&address, span))
    if code == 0:
        pin.address, pin.size, pin.taken = <char *>address, span, True
        pthread_mutex_lock(&mt_pins_lock)
        code = reserve(<void **>&_pins.items, &_pins.room, _pins.count + 1, sizeof(void *))
        if code == 0:
            at = _pin_place(pin.address)
            memmove(_pins.items + at + 1, _pins.items + at, (_pins.count - at) * sizeof(void *))
            _pins.items[at] = pin
            _pins.count += 1
        pthread_mutex_unlock(&mt_pins_lock)
        if code != 0:
            dismiss(api.aclrtFreeHost(address))
    if code != 0:
        free(pin)
        return code
    found[0] = pin
    return 0


cdef int use_pin(Pin *pin, Lane *lane) noexcept nogil:
    cdef int i, code = 0
    pthread_mutex_lock(&mt_pins_lock)
    for i in range(pin.n_uses):
        if pin.uses[i].lane == lane:
            break
    else:
        code = reserve(<void **>&pin.uses, &pin.room, pin.n_uses + 1, sizeof(Use))
        if code == 0:
            pin.uses[pin.n_uses].lane = lane
            pin.n_uses += 1
    pthread_mutex_unlock(&mt_pins_lock)
    return code


cdef void give_pin(Pin *pin) noexcept nogil:
    """Nobody else has the pin, so its uses are read without the lock."""
    global _idle_pins
    cdef Unit *unit
    cdef bint bound
    cdef int i
    hush()
    for i in range(pin.n_uses):
        unit = pin.uses[i].lane.unit
        bound = enter(unit) == 0
        pthread_mutex_lock(&unit.lock)
        _want(&pin.uses[i], bound)
        pthread_mutex_unlock(&unit.lock)
        if bound:
            leave()
    speak()
    pthread_mutex_lock(&mt_pins_lock)
    _idle_pins += pin.size
    pin.taken = False
    pthread_mutex_unlock(&mt_pins_lock)


# The end of the process.

cdef void _free_segments(Unit *unit) noexcept nogil:
    """Everything goes back, also what Python objects still stand for: they will not touch it any more."""
    cdef Memory *memory = memory_of(unit)
    cdef int i
    if memory == NULL:
        return
    for i in range(memory.spans.count):
        api.aclrtFree(memory.spans.items[i])


cdef void _end(Unit *unit) noexcept nogil:
    cdef int i
    if unit != NULL:
        _free_segments(unit)
        return
    for i in range(_pins.count):
        api.aclrtFreeHost((<Pin *>_pins.items[i]).address)


pool.on_close = _end
