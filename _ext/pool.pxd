"""The runtime pool: one `Unit` per device, its streams (`Lane`) and events; what is current in each thread.

Units and lanes live until the process ends, so pointers to them stay valid. Time on a lane is counted in ticks: work
put on it now is over once its `passed` reaches `issued + 1`. That is how memory and events know when they may be used
again. Locks are taken without the GIL, or tried with it, and nothing that blocks is called under one.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *lock, void *options)
    int pthread_mutex_lock(pthread_mutex_t *lock)
    int pthread_mutex_trylock(pthread_mutex_t *lock)
    int pthread_mutex_unlock(pthread_mutex_t *lock)

cdef extern from *:
    """
    /* Acquire and release: what was written before a tick was stored is seen by who reads the tick. */
    #define mt_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define mt_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    """
    uint64_t mt_load(uint64_t *place) noexcept nogil
    void mt_store(uint64_t *place, uint64_t value) noexcept nogil

cdef extern from *:
    """
    #ifndef MT_THREAD_STATE
    #define MT_THREAD_STATE
    #define MT_SAVED 64
    typedef struct mt_saved { int device; void *lane; int other; void *other_lane; } mt_saved;
    /* A new thread starts with zeros: device 0, default streams (NULL), no context bound. */
    typedef struct mt_thread {
        int device, depth;
        void *bound;
        void *current[128];
        mt_saved saved[MT_SAVED];
    } mt_thread;
    #endif
    """
    ctypedef struct mt_saved:
        int device
        void *lane
        int other
        void *other_lane
    ctypedef struct mt_thread:
        int device
        int depth
        void *bound
        void **current
        mt_saved *saved
    int MT_SAVED

cdef enum:
    MAX_DEVICES = 128
    STREAMS = 32                  # per priority, as torch has
    LANES = 1 + 2 * STREAMS       # the default stream, then normal and high priority
    # Codes of our own beside the library's positive ones; `stop` turns all of them into exceptions.
    FORKED = -1
    CLOSED = -2
    NO_MEMORY = -3
    NO_DEVICE = -4

cdef struct Use:                  # work on `lane` that is over when it has passed `tick`
    Lane *lane
    uint64_t tick

cdef struct Fence:
    void *event
    uint64_t tick

cdef struct Stack:
    void **items
    int count, room

# One stream. Ticks are read anywhere, written under the unit's lock.
cdef struct Lane:
    Unit *unit
    void *stream
    uint64_t issued, passed, wanted
    uint64_t sound                # up to here it was waited for, and nothing had failed
    Fence *fences                 # recorded and not known to be over: [head, n_fences)
    Stack free[2]                 # the allocator's: small and large pieces of memory, by size
    PyObject *object              # the Stream that stands for it, made at first use and kept
    int head, n_fences, room, number

# A recorded event that somebody may still look at or wait for. Freed to the pool when all of that is over.
cdef struct Mark:
    Unit *unit
    Lane *lane
    void *event
    uint64_t tick
    Use *waits
    int n_waits, room, holders, timing

cdef struct Unit:
    pthread_mutex_t lock
    pthread_mutex_t scarce        # the allocator's: one thread at a time gets memory from the device, or gives back
    void *context                 # the device's primary one: libraries that only know aclrtSetDevice share it
    Lane *lanes[LANES]            # NULL until first used
    Lane *made[LANES]
    Stack events                  # all there are
    Stack idle[2]                 # without and with timing
    Stack retired                 # marks without a holder
    void *memory                  # the allocator's
    uint32_t turn[2]              # by priority: which stream is handed out next
    uint32_t most[2]              # how many there can be, where the device has fewer than STREAMS more; 0: not known
    int device, n_made

# Set by the allocator: called for each unit, and at last with NULL, when the process ends.
cdef void (*on_close)(Unit *unit) noexcept nogil

# The device's unit, made when it is not there. Raises; checks the index. The GIL is released while it is made.
cdef Unit *unit_of(int device) except NULL
# The same when it is there already, else NULL.
cdef Unit *known_unit(int device) noexcept nogil
# Before ACL is called for a unit: binds its context to the thread and keeps `shutdown` waiting until `leave`.
# Any code but 0: nothing was done, and `leave` must not be called.
cdef int enter(Unit *unit) noexcept nogil
cdef void leave() noexcept nogil
# Another unit, between enter and leave.
cdef int bind(Unit *unit) noexcept nogil
# Whether ACL may be called at all: False after shutdown and in a forked child.
cdef bint usable() noexcept nogil
cdef int stop(int code) except -1
# What `stop` would raise for, or 0.
cdef int blocked() noexcept nogil
cdef mt_thread *this_thread() noexcept nogil
cdef Lane *current_lane(Unit *unit) noexcept nogil
# The same for a device from 0 on, or -1 for the thread's current one; NULL where `unit_of` has to be asked first.
cdef Lane *selected_lane(int device) noexcept nogil
cdef void lock_with_gil(Unit *unit) noexcept

# Under the unit's lock, its context bound:
cdef int fence(Lane *lane) noexcept nogil                     # records an event; lane.issued is its tick
cdef void poll(Unit *unit) noexcept nogil                     # looks what is over
cdef void drop(Mark *mark) noexcept nogil                     # one holder less
cdef void advance(Lane *lane, uint64_t tick) noexcept nogil   # lane has passed tick
cdef int reserve(void **items, int *room, int count, size_t size) noexcept nogil
# Without it, between enter and leave:
cdef int settle(Lane *lane) noexcept nogil                    # waits for the lane's work
cdef int settle_unit(Unit *unit) noexcept nogil               # for the device's
cdef int order(Lane *later, Lane *earlier) noexcept nogil     # later goes on after earlier's work so far
cdef int next_lane(Unit *unit, bint high, Lane **found) noexcept nogil    # takes part in `enter` itself
cdef int record(Lane *lane, bint timing, Mark **made) noexcept nogil      # a new mark with one holder
cdef int wait_for(Mark *mark, Lane *lane) noexcept nogil      # lane goes on when the mark's event is over
cdef int query(void *event, bint *over) noexcept nogil
