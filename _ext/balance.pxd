"""What storages hold (see balance.pyx)."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mindtorch._ext.context cimport PHASE_COUNT
from mindtorch._ext.signature cimport PyTypeObject
from mindtorch._ext.timeline cimport EventLog, Timeline

cdef struct Maker:                             # where a storage comes from; all 0: from nowhere that is known
    uint32_t sig, module, location
    uint8_t phase


cdef struct Life:                              # a storage that was on the device that is asked for
    uint64_t nbytes
    uint32_t born, died                        # how many events there were by then
    uint32_t module, location
    uint8_t phase, mark, outlived, where


cdef enum:                                     # where storages are
    ON_HOST
    ON_CUDA
    ON_NPU


cdef class Balance:
    cdef uint64_t live                         # bytes on the host, until there is a tensor on a GPU or NPU: then there
    cdef readonly uint8_t where                # what `live` is of
    cdef uint64_t *peaks                       # by module id
    cdef uint32_t cap
    cdef uint64_t phase_peaks[PHASE_COUNT]
    cdef readonly uint64_t peak
    cdef dict storages                         # id -> (weak reference)
    cdef readonly uint64_t births              # storages so far
    cdef readonly uint64_t born_by_peak        # of them, at the peak
    cdef list departed                         # Blocks that were there at the peak, and died since
    cdef bint incomplete                       # there was no memory for one of those
    cdef bint closed
    cdef EventLog log                          # None: nobody asks what was there when
    cdef Life *ended                           # of storages that died, while there is room
    cdef size_t n_ended, room_ended
    cdef bint forgot                           # there was none for some
    cdef Maker at                              # what made the peak
    cdef public uint8_t making                 # what is made now is used for, where that is known; else 0
    cdef object tensor_class, storage_class    # torch's own
    cdef public object parts_of                # the dense tensors that a sparse one is made of
    cdef PyTypeObject *tensor_type             # borrowed from tensor_class

    cdef list living(self)                     # HeldStorages
    cdef void ends(self, const Life life) noexcept
    cdef uint64_t track(self, out, const Maker *maker, Timeline here) except? 0
    cdef int64_t hold(self, tensor, const Maker *maker, Timeline here) except -1
    cdef int64_t hold_parts(self, tensor, const Maker *maker, Timeline here) except -1
    cdef void rise(self, const Maker *maker) noexcept
    cdef void in_phase(self, uint32_t phase) noexcept      # a phase that allocates nothing still holds what is there
    cdef void settle(self, uint32_t was, uint32_t phase) noexcept
    cdef bint in_module(self, uint32_t module) noexcept    # False when there is no memory for so many modules
    cdef void only(self, uint8_t where) noexcept
    cdef object storage_of(self, tensor)
    cdef bint copied(self, out, tuple args) except -1
    cdef void restart(self) noexcept           # peaks start again from what is live
