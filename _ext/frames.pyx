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


@cython.final
cdef class Stream:
    """One end of a socket. Not for two threads at a time."""
    cdef readonly int fd
    cdef readonly uint64_t number      # of the last message that was put
    cdef object last                   # that message
    cdef list out                      # what is still to be sent, oldest first
    cdef size_t sent                   # bytes of the first of those that are
    cdef char head[HEADER]
    cdef object body
    cdef size_t at                     # bytes of the next message that have come
    cdef size_t length
    cdef uint64_t coming
    cdef object got                    # the message that came last; None: there is none
    cdef readonly uint64_t got_number

    def __init__(self, int fd):
        self.fd = fd
        self.out = []

    def put(self, message, uint64_t number=0):
        """Queue a message, unless it is the very object that was put last. Its number: one more than that one's."""
        cdef char head[HEADER]
        cdef uint32_t mark = MARK
        cdef uint64_t n
        if message is self.last:
            return
        n = len(message)
        number = number or self.number + 1
        memcpy(head, &mark, 4)
        memcpy(head + 4, &number, 8)
        memcpy(head + 12, &n, 8)
        self.out.extend((PyBytes_FromStringAndSize(head, HEADER), message))
        self.last, self.number = message, number

    def flush(self):
        """Send all that was put."""
        while self.out:
            self._step(-1, False)

    def receive(self, uint64_t number, int timeout):
        """The message of this number, or of any (0); None where none has come in so many ms, or none will come any more
        since another was put.

        Sends meanwhile what was put. EOFError when there is nobody at the other end; ValueError for what is no message.
        """
        cdef int found
        while self.got is None or (number and self.got_number != number):
            if number and number != self.number:
                return None
            found = self._step(timeout, True)
            if not found:
                return None
        return self.got

    def drop(self):
        """The message that came last has been dealt with."""
        self.got = None

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
            if self.at == HEADER and self.body is None:
                self._begin()
            if self.body is not None and self.at == HEADER + self.length:
                self.got, self.got_number = self.body, self.coming
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
