"""Device memory in pieces of larger segments, and pinned host memory: both kept for reuse, behind what used them."""
from libc.stdint cimport int64_t

from mindtorch._ext.pool cimport Lane, Stack, Unit, Use

# Part of a segment that aclrtMalloc gave. Free pieces are in their lane's list, or wait there for other lanes.
cdef struct Piece:
    Piece *before                 # neighbours in the segment
    Piece *after
    char *address
    size_t size, asked
    Lane *lane                    # whose order makes reuse safe
    Use *uses                     # by other lanes
    int n_uses, room
    bint taken, large, waiting

cdef struct Figure:
    int64_t current, peak, up, down

cdef struct Memory:
    Figure allocated, reserved, requested, active, pieces, segments
    Stack waiting                 # free pieces that other lanes still use
    Stack spans                   # addresses of all segments
    int64_t retries, failures
    int64_t most                  # bytes that may be reserved; 0: all there are
    int count                     # pieces there are

# Pinned host memory. `taken` by a Pinned object or a copy; free ones are reused behind `uses`.
cdef struct Pin:
    char *address
    size_t size
    Use *uses
    int n_uses, room
    bint taken

# At most this much may be reserved, 0: all there is. What is reserved stays. A code.
cdef int cap(Unit *unit, int64_t most) noexcept nogil
# All between enter and leave, without a lock.
# A piece for `size` > 0 bytes on `lane`; a memory error of the library only after a retry.
cdef int take(Lane *lane, size_t size, Piece **found) noexcept nogil
# The piece's owner has no more use for it; other lanes' work may go on. Needs no enter, must not be called when not
# `usable`.
cdef void give(Piece *piece) noexcept nogil
# `lane` has got work on the piece.
cdef int use(Piece *piece, Lane *lane) noexcept nogil
cdef int release(Unit *unit) noexcept nogil                 # unused segments go back to the device
cdef int take_pin(Unit *unit, size_t size, Pin **found) noexcept nogil
cdef int use_pin(Pin *pin, Lane *lane) noexcept nogil
cdef void give_pin(Pin *pin) noexcept nogil
cdef Pin *find_pin(const char *address, size_t size) noexcept nogil    # that holds all of it, or NULL
cdef Memory *memory_of(Unit *unit) noexcept nogil           # NULL where nothing was allocated
cdef void reset_peaks(Memory *memory) noexcept nogil
