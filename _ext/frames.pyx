"""Messages over a socket: each goes as a mark, its number and its length, then its bytes.

A signal handler of the program's may raise while one is waited for. None of the state is lost then, since nothing here
is Python code: what was sent is sent, what has come is kept, and the same call goes on where the other one stopped.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

import os

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout)
    short POLLIN
    short POLLOUT

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *data, size_t n, int flags)
    ssize_t recv(int fd, void *data, size_t n, int flags)
    int MSG_DONTWAIT

cdef extern from *:
    """
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    """
    int MSG_NOSIGNAL

cdef enum:
    MARK = 0x6E654701      # "\x01Gen" in the order of a little-endian machine, and no other's
    HEADER = 20

cdef uint64_t MOST = 1 << 40
cdef uint64_t STRETCH = 16 << 20    # bytes after which who waits has another look


@cython.final
cdef class Stream:
    """One end of a socket. Not for two threads at a time."""
    cdef readonly int fd
    cdef uint64_t number               # of the message that was asked last
    cdef dict asked                    # number -> message, as long as it is not dealt with
    cdef dict got                      # number -> what has come, oldest first
    cdef list out                      # what is still to be sent, oldest first
    cdef size_t sent                   # bytes of the first of those that are
    cdef char head[HEADER]
    cdef object body
    cdef size_t at                     # bytes of the next message that have come
    cdef size_t length
    cdef uint64_t coming
    cdef readonly uint64_t moved       # bytes, both ways

    def __init__(self, int fd):
        self.fd = fd
        self.asked, self.got, self.out = {}, {}, []

    # ---- the side that asks ------------------------------------------------------------------------------------------
    def ask(self, message):
        """Queue a message that is to be answered, unless it is the very object of one that was. Its number."""
        cdef object number
        for number, known in self.asked.items():
            if known is message:
                return number
        self.number += 1
        self.asked[self.number] = message
        self.put(message, self.number)
        return self.number

    def answer(self, number, int timeout):
        """What came under a number; None where it has not in so many ms, nobody waits for it any more, or much moved.

        Sends meanwhile what was queued. EOFError when there is nobody at the other end; ValueError for what is no
        message.
        """
        cdef uint64_t begin = self.moved
        while number in self.asked and number not in self.got:
            if self.moved - begin > STRETCH or not self._step(timeout, True):
                return None
            if not self.got.keys() <= self.asked.keys():
                raise ValueError(f"expected the answer to message {number}, got one to {max(self.got)}")
        return self.got.get(number)

    def awaits(self, number):
        """Was a message of this number asked that has not been dealt with?"""
        return number in self.asked

    def push(self, int timeout):
        """Send what was queued, and take in what comes meanwhile. False where that was not all after so many ms in
        which nothing moved, or after much that did. Errors as of answer().
        """
        cdef uint64_t begin = self.moved
        while self.out:
            if self.moved - begin > STRETCH or not self._step(timeout, True):
                return False
        return True

    def keep(self, messages):
        """All that was asked has been dealt with but these."""
        cdef object number, message, kept
        cdef dict asked = {}, got = {}
        for number, message in self.asked.items():
            for kept in messages:
                if message is kept:
                    asked[number] = message
                    if number in self.got:
                        got[number] = self.got[number]
        self.asked, self.got = asked, got

    # ---- the side that answers ---------------------------------------------------------------------------------------
    def receive(self):
        """(number, message) of the next that comes. Errors as of answer()."""
        while not self.got:
            self._step(-1, True)
        number = next(iter(self.got))
        return number, self.got.pop(number)

    def put(self, message, uint64_t number):
        """Queue a message under a number: that of what it answers."""
        cdef char head[HEADER]
        cdef uint32_t mark = MARK
        cdef uint64_t n = len(message)
        memcpy(head, &mark, 4)
        memcpy(head + 4, &number, 8)
        memcpy(head + 12, &n, 8)
        self.out.extend((PyBytes_FromStringAndSize(head, HEADER), message))

    def flush(self):
        """Send all that was queued."""
        while self.out:
            self._step(-1, False)

    cdef int _step(self, int timeout, bint reading) except -1:
        """Wait, send and receive what can be. 0 when the time is over."""
        cdef pollfd p
        cdef int n
        p.fd = self.fd
        p.events = (POLLIN if reading else 0) | (POLLOUT if self.out else 0)
        p.revents = 0
        with nogil:
            n = poll(&p, 1, timeout)
        if n < 0:
            if errno != EINTR:
                raise EOFError(os.strerror(errno))
            PyErr_CheckSignals()
            return 1
        if n == 0:
            PyErr_CheckSignals()
            return 0
        if self.out and p.revents & ~POLLIN:
            self._send(reading)
        if reading and p.revents & ~POLLOUT:
            self._receive()
        return 1

    cdef int _send(self, bint reading) except -1:
        cdef Py_buffer view
        cdef ssize_t n
        cdef int error
        while self.out:
            PyObject_GetBuffer(self.out[0], &view, PyBUF_SIMPLE)
            if self.sent < <size_t>view.len:
                n = send(self.fd, <char *>view.buf + self.sent, view.len - self.sent, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                n = 0
            error = errno
            if n >= 0:
                self.sent += n
                self.moved += n
                n = self.sent == <size_t>view.len
                PyBuffer_Release(&view)
                if n:
                    self.out.pop(0)
                    self.sent = 0
                continue
            PyBuffer_Release(&view)
            if error in (EAGAIN, EINTR):
                return 0
            if not reading:
                raise EOFError(os.strerror(error))
            self.out.clear()           # what the other end has said before it went is still to be read
        return 0

    cdef int _receive(self) except -1:
        cdef ssize_t n
        cdef char *place
        cdef size_t end
        while True:
            if self.at == HEADER and self.body is None:
                self._begin()          # where there is no memory for it, the next call tries again
            if self.at < HEADER:
                place, end = self.head + self.at, HEADER
            else:
                place, end = PyBytes_AS_STRING(self.body) + self.at - HEADER, HEADER + self.length
            n = recv(self.fd, place, end - self.at, MSG_DONTWAIT) if end > self.at else 0
            if n < 0:
                if errno in (EAGAIN, EINTR):
                    return 0
                raise EOFError(os.strerror(errno))
            if n == 0 and end > self.at:
                raise EOFError("end of file")
            self.at += n
            self.moved += n
            if self.body is not None and self.at == HEADER + self.length:
                self.got[self.coming] = self.body
                self.body = None
                self.at = 0
                return 0

    cdef int _begin(self) except -1:
        cdef uint32_t mark
        cdef uint64_t n
        memcpy(&mark, self.head, 4)
        memcpy(&self.coming, self.head + 4, 8)
        memcpy(&n, self.head + 12, 8)
        if mark != MARK or n > MOST:
            raise ValueError(f"expected a message, got the bytes {self.head[:HEADER].hex(' ')}")
        self.body = PyBytes_FromStringAndSize(NULL, n)
        self.length = n
        return 0
