"""Whose is an autograd node? Its sequence number says when it was made; these logs, which module ran then."""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

cdef enum:
    LOG_CAP = 1 << 18                          # boundaries remembered per thread: about 800 steps of GPT-2
    DEAD_LOGS = 8                              # logs of ended threads kept, as their graphs may still be run

cdef list logs = []                            # addresses of every mt_log


cdef mt_log *new_log() noexcept:
    cdef mt_log *log
    cdef list dead = None
    try:
        dead = []
        for address in logs:
            if (<mt_log *> <uintptr_t> address).dead:
                dead.append(address)
        if len(dead) > DEAD_LOGS:
            log = <mt_log *> <uintptr_t> dead[0]    # the oldest: its thread is gone
            log.n = 0
            log.dead = 0
            logs.remove(dead[0])
            logs.append(dead[0])
            return log
        log = <mt_log *> calloc(1, sizeof(mt_log))
        if log == NULL:
            return NULL
        try:
            logs.append(<uintptr_t> log)
        except MemoryError:
            free(log)
            return NULL
        return log
    except MemoryError:
        return NULL


cdef void log_from(mt_log *log, uint64_t seq, uint32_t module) noexcept:
    """Boundaries without a node between them cost nothing."""
    if log.n and log.module[log.n - 1] == module:
        return
    if log.n and log.seq[log.n - 1] == seq:
        log.module[log.n - 1] = module
        return
    if log.n == log.cap and not log_room(log):
        return
    log.seq[log.n] = seq
    log.module[log.n] = module
    log.n += 1


cdef bint log_room(mt_log *log) noexcept:
    cdef uint32_t half = log.n // 2
    cdef uint32_t cap = 2 * log.cap if log.cap else 16
    cdef uint64_t *seq
    cdef uint32_t *module
    if log.cap >= LOG_CAP:                     # forget the older half: their nodes read as "no module"
        memmove(log.seq, log.seq + half, (log.n - half) * sizeof(uint64_t))
        memmove(log.module, log.module + half, (log.n - half) * sizeof(uint32_t))
        log.n -= half
        return True
    seq = <uint64_t *> realloc(log.seq, cap * sizeof(uint64_t))
    if seq == NULL:
        return False
    log.seq = seq
    module = <uint32_t *> realloc(log.module, cap * sizeof(uint32_t))
    if module == NULL:
        return False
    log.module = module
    log.cap = cap
    return True


cdef uint32_t log_find(mt_log *log, uint64_t seq) noexcept:
    cdef uint32_t lo = 0, hi, mid
    if log == NULL or log.n == 0:
        return 0
    hi = log.n
    while lo < hi:                             # first entry with a number above seq
        mid = (lo + hi) // 2
        if log.seq[mid] <= seq:
            lo = mid + 1
        else:
            hi = mid
    return log.module[lo - 1] if lo else 0


def table_bytes():
    """Bytes held by the logs."""
    cdef size_t total = 0
    for address in logs:
        total += sizeof(mt_log) + (<mt_log *> <uintptr_t> address).cap * 12
    return total
