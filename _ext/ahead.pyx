"""Recorded calls that another thread makes while the program goes on recording (SPEC L16).

The program's thread hands over calls that are made without Python (`native_calls`), in program order: what they take,
or which earlier one of them gives it. The other thread makes them, and touches neither Python nor the tape. Its results
come into their slots when the program's thread collects them: at the next hand-over, or when `Tape.plan` waits for
them. A call that fails ends this: it and all after it are pending again, and run as if nobody had tried.

Torch counts the references to a tensor that Python has in such a way that the step from one to two takes the GIL. So
the program's thread holds a second one to each such tensor that it hands over, and never waits with the GIL. What one
core has written comes to another one slowly: results that nobody needs any more are freed where they were made.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, realloc
from libc.string cimport memcpy, memset

from .intern cimport SigS, has_native, sig_out_meta
from .lazy cimport get_tape
from .local_state cimport keys
from .native_calls cimport (
    MT_MOST_RESULTS, MT_MOST_TENSORS, MT_ON, Maker, NativeCall, bare, is_bare, maker, mt_native, release, set_waste,
    tensor_in,
)
from .replay cimport Segment, counted_native
from .sizes cimport MT_ASSERT
from .structs cimport (
    NEVER, REC_AHEAD, REC_GRAD, REC_PENDING, SIG_RANDOM, SIG_VERIFIED, SIG_VIEW, SIG_WRITES, SLOT_FAILED, SLOT_PENDING,
    SLOT_WRITTEN, MetaS, Record, Slot,
)
from .tape cimport Tape, Vec, rec_floats, rec_ins, rec_outs, sig_floats, vec_push

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #if defined(__x86_64__)
    #include <xmmintrin.h>
    #define mt_get_rounding() (_mm_getcsr() & ~0x3fu)      /* and whether denormal numbers are flushed */
    #define mt_set_rounding(csr) _mm_setcsr(csr)
    #else
    #define mt_get_rounding() 0u                           /* no call is made without Python there */
    #define mt_set_rounding(csr) (void)(csr)
    #endif
    #define mt_load(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #define mt_store(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
    static pthread_mutex_t mt_lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t mt_more = PTHREAD_COND_INITIALIZER, mt_less = PTHREAD_COND_INITIALIZER;
    static pthread_t mt_thread;
    static int mt_start(void *(*work)(void *)) {
        sigset_t most, before;               /* signals are for the program's threads */
        int failed;
        sigfillset(&most);
        sigdelset(&most, SIGSEGV); sigdelset(&most, SIGBUS); sigdelset(&most, SIGFPE); sigdelset(&most, SIGILL);
        pthread_sigmask(SIG_SETMASK, &most, &before);
        failed = pthread_create(&mt_thread, NULL, work, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return failed;
    }
    static void mt_join(void) { pthread_join(mt_thread, NULL); }
    static void mt_renew(void) {             /* in a child that was forked: nobody holds them */
        pthread_mutex_init(&mt_lock, NULL);
        pthread_cond_init(&mt_more, NULL);
        pthread_cond_init(&mt_less, NULL);
    }
    """
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    pthread_mutex_t mt_lock
    pthread_cond_t mt_more, mt_less          # to run; to wait for
    int pthread_mutex_lock(pthread_mutex_t *m) noexcept nogil
    int pthread_mutex_unlock(pthread_mutex_t *m) noexcept nogil
    int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) noexcept nogil
    int pthread_cond_signal(pthread_cond_t *c) noexcept nogil
    int pthread_cond_broadcast(pthread_cond_t *c) noexcept nogil
    int mt_start(void *(*work)(void *) noexcept nogil) noexcept
    void mt_join() noexcept nogil
    void mt_renew() noexcept
    uint32_t mt_get_rounding() noexcept nogil
    void mt_set_rounding(uint32_t csr) noexcept nogil
    uint64_t mt_load(uint64_t *p) noexcept nogil
    void mt_store(uint64_t *p, uint64_t v) noexcept nogil

cdef enum:
    RING = 1024                # calls under way
    EPOCH = 256                # calls between two looks at which references are still needed
    APART = 8                  # calls in a row that the program's thread makes, so that the other one can go on
    TENSORS = 16
    RESULTS = 8
    MOST_BYTES = 1 << 26       # of results that are on the way: each is there until it is collected

cdef struct Call:
    const mt_native *call
    uint64_t seq
    uint64_t tensors[TENSORS]  # addresses; odd: which result of which call, see _name
    double floats[TENSORS]
    void *results[RESULTS]
    uint64_t nbytes
    uint32_t rounding
    int grad

MOST_APART = APART
ctypedef void (*SetsGrad)(int on) noexcept nogil
ctypedef int (*Counts)() noexcept nogil
ctypedef int (*Doubles)(void **tensor, void **made) noexcept
ctypedef int (*Deletes)(void *made) noexcept
cdef SetsGrad set_grad = NULL
cdef Counts count_threads = NULL
cdef Doubles double_of = NULL
cdef Deletes delete_it = NULL
cdef Maker make                            # of the calls

cdef Call *ring = NULL
# How many calls were handed over, were made, and are in their slots, since the beginning.
cdef uint64_t ready = 0, done = 0, collected = 0
cdef uint64_t failed = 0, sleeping = 0, quits = 0, awaited = 0      # awaited: how many have to be made, 0: nobody waits
cdef uint64_t own_threads = 0              # that torch uses in the other thread; 0: it has not begun

cdef Tape tape = None
cdef object allowed_, run_
cdef bint running = False, handing = False
cdef int paused = 0
cdef uint64_t flying = 0                   # bytes of results
cdef uint64_t n_waits = 0, n_failed = 0
cdef uint32_t *where = NULL                # by slot: _name of the result
cdef uint32_t *held = NULL                 # by slot: the epoch in which a reference to its tensor was taken
cdef uint32_t n_slots = 0, epoch = 1
cdef Vec doubles                           # (reference, number of calls after which it is not needed) …
cdef size_t first_double = 0


cdef void _assert_sizes() noexcept:
    MT_ASSERT(<int>TENSORS == <int>MT_MOST_TENSORS)
    MT_ASSERT(<int>RESULTS == <int>MT_MOST_RESULTS)


cdef void *wasted[RING]                    # C++ tensors that nobody needs any more
cdef uint64_t n_wasted = 0, freed = 0      # how many there were; those that the other thread has freed


# ---- the other thread ------------------------------------------------------------------------------------------------
cdef void *_work(void *_) noexcept nogil:
    cdef uint64_t k = mt_load(&done)
    cdef uint32_t rounding = mt_get_rounding()
    cdef int grad = -1
    keys().excluded = make.autograd
    pthread_mutex_lock(&mt_lock)
    mt_store(&own_threads, count_threads())
    pthread_cond_broadcast(&mt_less)
    pthread_mutex_unlock(&mt_lock)
    while True:
        if not k & 15 or k == mt_load(&ready):
            _free_wasted()
        if k == mt_load(&ready) or mt_load(&failed):
            pthread_mutex_lock(&mt_lock)
            mt_store(&sleeping, 1)
            while (k == mt_load(&ready) or mt_load(&failed)) and not mt_load(&quits):
                pthread_cond_wait(&mt_more, &mt_lock)
            mt_store(&sleeping, 0)
            pthread_mutex_unlock(&mt_lock)
            if mt_load(&quits):
                return NULL
            continue
        if ring[k % RING].rounding != rounding:
            rounding = ring[k % RING].rounding
            mt_set_rounding(rounding)
        if ring[k % RING].grad != grad:
            grad = ring[k % RING].grad
            set_grad(grad)
        if _make(&ring[k % RING]):
            mt_store(&failed, 1)
        else:
            k += 1
            mt_store(&done, k)
        if mt_load(&awaited) and (k >= mt_load(&awaited) or mt_load(&failed)):
            pthread_mutex_lock(&mt_lock)
            mt_store(&awaited, 0)
            pthread_cond_broadcast(&mt_less)
            pthread_mutex_unlock(&mt_lock)


cdef void _free_wasted() noexcept nogil:
    cdef uint64_t k = mt_load(&freed), n = mt_load(&n_wasted)
    while k < n:
        make.releaser(wasted[k % RING])
        k += 1
        mt_store(&freed, k)


cdef int _make(Call *c) noexcept nogil:
    """Make the call. 0: it has gone well."""
    cdef void *tensors[TENSORS]
    cdef uint64_t name
    cdef int i
    for i in range(c.call.n_tensors):
        name = c.tensors[i]
        tensors[i] = ring[name >> 5].results[name >> 1 & 15] if name & 1 else <void *>name
        if (<uint64_t *>tensors[i])[make.keys_at] != make.plain:
            return 1
    return make.caller(c.call, tensors, c.floats, c.results)


cdef inline uint32_t _name(uint64_t call, uint32_t result) noexcept:
    return <uint32_t>(call % RING) << 5 | result << 1 | 1


# ---- the program's threads, which hold the GIL -----------------------------------------------------------------------
cdef void _wait(uint64_t until) noexcept nogil:
    """Until so many calls are made, or one has failed."""
    if mt_load(&done) >= until or mt_load(&failed):
        return
    pthread_mutex_lock(&mt_lock)
    while True:
        if not mt_load(&awaited) or mt_load(&awaited) > until:
            mt_store(&awaited, until)      # first: then the other thread looks, or has made it
        if mt_load(&done) >= until or mt_load(&failed):
            break
        pthread_cond_wait(&mt_less, &mt_lock)
    mt_store(&awaited, 0)
    pthread_cond_broadcast(&mt_less)       # who else waits says again for what
    pthread_mutex_unlock(&mt_lock)


cdef void _publish(uint64_t n) noexcept:
    if n <= ready:
        return
    mt_store(&ready, n)
    if mt_load(&sleeping):
        mt_store(&sleeping, 0)
        pthread_mutex_lock(&mt_lock)
        pthread_mutex_unlock(&mt_lock)     # it waits by now
        pthread_cond_signal(&mt_more)


cdef bint _waste(void *tensor) noexcept:
    """Leave it to the other thread, which has made most of them, to free a tensor: what this core has to read of it
    comes from the other one. Not while it sleeps: the memory is to be free soon.
    """
    if not running or mt_load(&sleeping) or n_wasted - mt_load(&freed) == RING:
        return False
    wasted[n_wasted % RING] = tensor
    mt_store(&n_wasted, n_wasted + 1)
    return True


cdef void wait_for(uint64_t seq) noexcept:
    """Until the record has run, if it was handed over; NEVER: until all have that were."""
    cdef uint64_t k
    if seq == NEVER:
        while collected != ready:          # another thread of the program may hand over meanwhile
            collect(ready)
        return
    for k in range(collected, ready):
        if ring[k % RING].seq == seq:
            collect(k + 1)
            return


cdef void _wait_for_targets(const uint32_t *targets, size_t n, size_t n_written) noexcept:
    """As far as a plan depends on it: for what is asked for, if it is under way, and for all where it is not, or where
    writes to its storage are.
    """
    cdef size_t k
    cdef Slot *s
    if collected == ready:
        return
    if targets == NULL or n_written:
        wait_for(NEVER)
        return
    for k in range(n):
        s = tape.slot(targets[k])
        if tape.slot(s.root).flags & SLOT_WRITTEN or (
                s.flags & SLOT_PENDING and tape.record(s.producer).state != REC_AHEAD):
            wait_for(NEVER)
            return
    for k in range(n):
        s = tape.slot(targets[k])
        if s.flags & SLOT_PENDING:
            wait_for(s.producer)


cdef void collect(uint64_t until) noexcept:
    """Put the results of so many calls into their slots, once they are there."""
    global collected, flying, n_waits, first_double, epoch
    cdef Call *c
    cdef Record *r
    cdef SigS *s
    cdef uint32_t *outs
    cdef tuple template
    cdef Py_ssize_t pos
    cdef uint64_t before = collected
    if mt_load(&done) < until and not mt_load(&failed):
        n_waits += 1
        with nogil:
            _wait(until)
    while collected < min(until, mt_load(&done)):
        c = &ring[collected % RING]
        r = tape.record(c.seq)
        s = tape.interner.sigs[r.sig]
        outs = rec_outs(r, s)
        collected += 1                     # first: releasing a value may run code that comes here
        flying -= c.nbytes
        if not s.ret:
            _put(outs[0], c.results[0])
        else:
            template = <tuple>s.ret
            for pos in range(c.call.n_results):
                code = template[pos + 1]
                if code is None or code < 0:
                    release(bare(c.results[pos]))
                else:
                    _put(outs[<uint32_t>code], c.results[pos])
        counted_native()
        tape.n_executed += 1
        tape.finish(r)
        tape._retire(c.seq)
        tape._drain()
    if collected != before:
        tape._advance_head()
    if mt_load(&failed) and collected == mt_load(&done):
        _take_back()
    while first_double < doubles.n and (doubles.data[first_double + 1] <= collected or collected == ready):
        first_double += 2
        delete_it(<void *>doubles.data[first_double - 2])
    if doubles.n and first_double == doubles.n:
        doubles.n = first_double = 0
        epoch += 1


cdef void _put(uint32_t number, void *tensor) noexcept:
    cdef Slot *slot = tape.slot(number)
    slot.concrete = bare(tensor)
    slot.flags &= ~SLOT_PENDING


cdef void _take_back() noexcept:
    """A call has failed. It runs again with the segment that needs it, and fails there in its own words."""
    global n_failed, flying
    cdef Record *r
    cdef uint64_t k
    for k in range(collected, ready):
        r = tape.record(ring[k % RING].seq)
        r.state = REC_PENDING
        tape.mark_writes(r, tape.interner.sigs[r.sig])
    flying = 0
    n_failed += 1
    tape.ahead_at = NEVER
    mt_store(&ready, collected)
    mt_store(&failed, 0)


cdef bint _has_thread() noexcept:
    """Is there the other thread, in which torch uses as many threads as in this one?"""
    global running
    cdef uint64_t n = count_threads()
    if running and own_threads == n:
        return True
    _end()
    mt_store(&quits, 0)
    mt_store(&own_threads, 0)
    if mt_start(_work):
        return False
    running = True
    with nogil:
        pthread_mutex_lock(&mt_lock)
        while not mt_load(&own_threads):
            pthread_cond_wait(&mt_less, &mt_lock)
        pthread_mutex_unlock(&mt_lock)
    return own_threads == n


cdef void _end() noexcept:
    global running
    wait_for(NEVER)
    if running:
        running = False
        with nogil:
            pthread_mutex_lock(&mt_lock)
            mt_store(&quits, 1)
            pthread_cond_signal(&mt_more)
            pthread_mutex_unlock(&mt_lock)
            mt_join()
        _free_wasted()


cdef int hand_over() except -1:
    global handing
    tape.ahead_at = tape.tail + tape.ahead
    if handing or paused or tape.running:  # what a segment has not come to yet may have to be first
        return 0
    handing = True
    try:
        if not allowed_() or not _has_thread() or not _hand_over():
            tape.ahead_at = NEVER          # until a segment has run
    finally:
        handing = False
    return 0


cdef bint _hand_over() except -1:
    """All that is pending, in order. False: something has to wait for a segment."""
    cdef uint64_t seq, n = 0, failures = n_failed
    cdef Record *r
    cdef int can
    if mt_load(&failed):
        collect(ready)
        return False
    if n_slots < tape.n_slots:
        _grow(tape.n_slots + 4096)
    n = ready
    seq = tape.head
    try:
        while seq < tape.tail:
            r = tape.record(seq)
            if not r or r.state != REC_PENDING:
                seq += 1
            elif n - collected == RING or flying > MOST_BYTES:
                break
            elif _takes(seq, r, n):
                n += 1
                seq += 1
            else:
                _publish(n)
                n = 0
                can = _apart(seq)
                if can <= 0:
                    return can == 0
                n = ready
    finally:
        _publish(n)
        collect(mt_load(&done))            # now: the other thread is awake, and frees what nobody needs any more
    return n_failed == failures


cdef int _grow(uint32_t n) except -1:
    """Make room for what is known of so many slots."""
    global where, held, n_slots
    cdef uint32_t *more = <uint32_t *>realloc(where, n * sizeof(uint32_t))
    if not more:
        raise MemoryError()
    where = more
    more = <uint32_t *>realloc(held, n * sizeof(uint32_t))
    if not more:
        raise MemoryError()
    held = more
    memset(held + n_slots, 0, (n - n_slots) * sizeof(uint32_t))
    n_slots = n
    return 0


cdef bint _takes(uint64_t seq, Record *r, uint64_t n) except -1:
    """Lay the call out as the `n`-th, if the other thread can make it."""
    cdef SigS *s = tape.interner.sigs[r.sig]
    cdef Call *c = &ring[n % RING]
    cdef MetaS *metas = tape.interner.metas
    cdef uint32_t *ins = rec_ins(r)
    cdef uint32_t *outs = rec_outs(r, s)
    cdef Slot *slot
    cdef tuple template
    cdef Py_ssize_t pos
    cdef uint32_t i
    if not has_native(s) or s.flags & (SIG_VERIFIED | SIG_RANDOM) != SIG_VERIFIED:
        return False
    for i in range(s.n_in):
        slot = tape.slot(ins[i])
        if slot.flags & SLOT_FAILED:
            return False
        if slot.flags & SLOT_PENDING:
            if tape.record(slot.producer).state != REC_AHEAD:
                return False
            c.tensors[i] = where[ins[i]]
        else:
            c.tensors[i] = <uint64_t>tensor_in(slot.concrete)
            if not is_bare(slot.concrete) and held[ins[i]] != epoch:
                _hold(ins[i], slot, n)
    c.call = &(<NativeCall>s.native).c
    c.seq = seq
    c.rounding = mt_get_rounding()
    c.grad = r.flags & REC_GRAD != 0
    memcpy(c.floats, rec_floats(r, s), sig_floats(s) * sizeof(double))
    c.nbytes = 0
    for i in range(0 if s.flags & SIG_VIEW else s.n_out):
        c.nbytes += metas[sig_out_meta(s)[i]].nbytes
    flying_more(c.nbytes)
    if not s.ret:
        where[outs[0]] = _name(n, 0)
    else:
        template = <tuple>s.ret
        for pos in range(c.call.n_results):
            code = template[pos + 1]
            if code is not None and code >= 0:
                where[outs[<uint32_t>code]] = _name(n, <uint32_t>pos)
    r.state = REC_AHEAD
    return True


cdef void flying_more(uint64_t nbytes) noexcept:
    global flying
    flying += nbytes


cdef int _hold(uint32_t number, Slot *slot, uint64_t n) except -1:
    """Take a reference to a tensor of Python's, for a while."""
    global epoch
    cdef void *made
    cdef uint64_t until = (n // EPOCH + 1) * EPOCH
    if doubles.n and doubles.data[doubles.n - 1] != until:
        epoch += 1
    vec_push(&doubles, 0)
    try:
        vec_push(&doubles, until)
    except MemoryError:
        doubles.n -= 1
        raise
    if double_of(MT_ON(slot.concrete), &made):
        doubles.n -= 2
        raise MemoryError()
    doubles.data[doubles.n - 2] = <uint64_t>made
    held[number] = epoch
    return 0


cdef int _apart(uint64_t seq) except -2:
    """Let this thread run what the other one cannot, if that is little and the other one can go on then.

    1: it has run; 0: that shows when more is recorded; -1: it is for a segment.
    """
    cdef Record *r
    cdef SigS *s
    cdef Segment found = Segment.__new__(Segment)
    cdef bint takes = False
    cdef uint32_t i
    cdef uint64_t failures = n_failed
    found.tape = tape
    found.fixed = found.tentative = True
    while seq < tape.tail:
        r = tape.record(seq)
        if not r or r.state != REC_PENDING:
            seq += 1
            continue
        s = tape.interner.sigs[r.sig]
        if found.seqs.n and has_native(s) and s.flags & SIG_VERIFIED:
            break
        if s.flags & SIG_WRITES or found.seqs.n == APART:
            return -1
        for i in range(s.n_in):
            if tape.slot(rec_ins(r)[i]).flags & SLOT_FAILED:
                return -1
        vec_push(&found.seqs, seq)
        takes |= s.n_in != 0
        seq += 1
        if s.flags & SIG_RANDOM:           # alone: a state of the generator is its own
            break
    else:
        return 0
    if takes:
        wait_for(NEVER)
        if n_failed != failures or tape.running:
            return -1
    return 1 if run_(found) else -1


# ---- for mindtorch.engine.execute.ahead ------------------------------------------------------------------------------
def begin(tuple functions, allowed, run):
    """Called once. functions: addresses of torch's C++ functions that set the grad mode and count threads, and of its C
    functions that make and delete a reference to a tensor; allowed(): may calls be handed over now? run(segment): run
    it here; False: one of its records has failed, and is pending again.
    """
    global set_grad, count_threads, double_of, delete_it, make, tape, allowed_, run_, ring
    set_grad, count_threads = <SetsGrad><size_t>functions[0], <Counts><size_t>functions[1]
    double_of, delete_it = <Doubles><size_t>functions[2], <Deletes><size_t>functions[3]
    make = maker()
    if make.caller == NULL or keys() == NULL:
        raise RuntimeError("[ahead] expected calls that are made without Python, but there are none")
    ring = <Call *>calloc(RING, sizeof(Call))
    if not ring:
        raise MemoryError()
    tape, allowed_, run_ = get_tape(), allowed, run
    tape.waiter = _wait_for_targets
    set_waste(_waste)


def hand_over_after(uint64_t n):
    """Hand over whenever so many operations were recorded; 0: never. Returns the number before."""
    before = tape.ahead
    wait_for(NEVER)
    tape.ahead = n
    tape.rearm()
    return before


def pause():
    """End the other thread, and let none follow before resume()."""
    global paused
    paused += 1
    _end()


def resume():
    """The other way round."""
    global paused
    paused -= 1


def resume_in_child():
    """The same in a child that was forked meanwhile, in which no other thread of the program goes on."""
    global handing
    handing = False
    mt_store(&awaited, 0)
    mt_renew()
    resume()


def counts():
    """(calls that the other thread has made, waits for it, failures of its calls)"""
    return mt_load(&done), n_waits, n_failed
