"""Where is a program that runs no op? A thread of its own looks, every few milliseconds, but only then.

The hooks of a profile say exactly how long the time between two ops is, not what the program did in it. This thread
sleeps without Python's lock; only when nothing was accounted for in `PERIOD` ns, and no op runs, does it ask for
the lock and call ``look()``. A program that keeps torch busy is never looked at, and the naps become longer.
"""
cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

import os
import threading

from mindtorch._ext.clock cimport mt_now

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #include <time.h>
    typedef struct { pthread_t id; uint64_t *beat; void *owner; volatile int stop; } mt_watch;
    static uint64_t mt_last_beat(mt_watch *w) { return __atomic_load_n(w->beat, __ATOMIC_RELAXED); }
    static int mt_stopped(mt_watch *w) { return __atomic_load_n(&w->stop, __ATOMIC_ACQUIRE); }
    static void mt_nap(long ns) { struct timespec t = {0, ns}; nanosleep(&t, NULL); }
    static int mt_watch_begin(mt_watch *w, void *(*run)(void *)) {
        sigset_t all, before;
        int failed;
        sigfillset(&all);                      /* the program's signals are its own threads' */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(&w->id, NULL, run, w);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return failed;
    }
    static void mt_watch_end(mt_watch *w) {
        __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
        pthread_join(w->id, NULL);
    }
    """
    int Py_AddPendingCall(int (*func)(void *) except -1, void *arg) noexcept
    void incref "Py_INCREF" (object o) noexcept
    void decref "Py_DECREF" (object o) noexcept
    ctypedef struct mt_watch:
        uint64_t *beat
        void *owner
    uint64_t mt_last_beat(mt_watch *w) noexcept nogil
    int mt_stopped(mt_watch *w) noexcept nogil
    void mt_nap(long ns) noexcept nogil
    int mt_watch_begin(mt_watch *w, void *(*run)(void *) noexcept nogil) noexcept
    void mt_watch_end(mt_watch *w) noexcept nogil

cdef enum:
    PERIOD = 2_000_000                         # ns
    LONGEST = 8_000_000                        # ns, of a nap while ops are seen to run: waking up is not free
    BETWEEN = 5_000_000                        # ns from one look to the next: each may keep the program for a moment


@cython.final
cdef class Sampler:
    """`look()` is called with the lock, in no thread of Python's. It ends with the first error, kept in `error`."""

    def __cinit__(self, look):
        self.look = look
        self.beat = BUSY

    def start(self):
        """Begin to watch; nothing happens where threads are short."""
        cdef mt_watch *w
        self.due = False
        if self.thread != NULL:
            return
        register()
        w = <mt_watch *> calloc(1, sizeof(mt_watch))
        if w == NULL:
            raise MemoryError
        w.beat = &self.beat
        w.owner = <void *> self
        self.pid = os.getpid()
        if mt_watch_begin(w, watch) != 0:
            free(w)
            return
        self.thread = w
        incref(self)                           # as the thread refers to it

    def stop(self):
        """The thread has ended when this returns. In a forked child there is none."""
        cdef mt_watch *w = <mt_watch *> self.thread
        self.due = False
        self.thread = NULL
        if w == NULL:
            return
        if os.getpid() == self.pid:
            with nogil:
                mt_watch_end(w)
        free(w)
        decref(self)

    def pause(self):
        """Stop until the fork that begins now is done: a process that is forked has no threads but the program's."""
        if self.thread != NULL:
            self.stop()
            self.due = True
            _paused.append(self)

    def free(self):
        """Nobody says when an op runs: the program is looked at whatever it does."""
        mt_beat(&self.beat, 0)

    @property
    def running(self):
        return self.thread != NULL


_paused = []


def go_on():
    """A fork is done, in the parent. Python 3.13 counts threads after this, and warns of more than one: in the main
    thread they begin once the function that forks has returned. This is compiled, as Python code would let them begin.
    """
    cdef Sampler sampler
    cdef bint later = threading.get_ident() == threading.main_thread().ident
    for sampler in _paused:
        incref(sampler)
        if not later or Py_AddPendingCall(start_now, <void *> sampler) != 0:
            start_now(<void *> sampler)
    _paused.clear()


cdef bint _registered = False


cdef int register() except -1:
    """For forks, behind whatever was registered when modules were loaded: Python code that is called afterwards would
    let threads begin."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_parent=go_on, after_in_child=_paused.clear)


cdef int start_now(void *data) except -1:
    cdef Sampler sampler = <Sampler> data
    decref(sampler)
    if sampler.due:
        sampler.start()
    return 0


cdef void *watch(void *data) noexcept nogil:
    cdef mt_watch *w = <mt_watch *> data
    cdef uint64_t now, beat, last = 0
    cdef long nap = PERIOD
    while not mt_stopped(w):
        mt_nap(nap)
        beat = mt_last_beat(w)
        now = mt_now()
        nap = PERIOD if beat != BUSY else 2 * nap if 2 * nap < LONGEST else LONGEST
        if beat == BUSY or beat + PERIOD > now or last + BETWEEN > now or mt_stopped(w):
            continue
        with gil:
            if not mt_stopped(w):
                call(<Sampler> w.owner)
        last = mt_now()
    return NULL


cdef void call(Sampler sampler) noexcept:
    if sampler.error is not None:
        return
    try:
        sampler.looks += 1
        sampler.look()
    except BaseException as error:             # there is nobody to raise it to; the report says so
        sampler.error = error
