"""Bytes of the storages that a program holds, from their birth to their death: what is live now, and the most that was.

Storages are counted once however many tensors view them. Where there is a tensor on CUDA, only that memory is asked
for, as torch's allocator there gives it out.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

from mindtorch._ext.context cimport PHASE_COUNT
from mindtorch._ext.lazy cimport handle_of
from mindtorch._ext.signature cimport PyObject_TypeCheck, PyTypeObject
from mindtorch._ext.structs cimport SLOT_FAILED, SLOT_PENDING, Slot
from mindtorch._ext.tape cimport Handle

import weakref

cdef enum:
    CUDA_GRAIN = 512                           # bytes: what torch's allocator on CUDA gives out a multiple of


@cython.final
@cython.freelist(256)
cdef class Death:
    """Callback of a storage's weak reference: takes its bytes off the balance."""
    cdef Balance balance
    cdef object key
    cdef uint64_t nbytes
    cdef bint cuda

    def __call__(self, reference):
        cdef Balance b = self.balance
        if b.storages.pop(self.key, None) is not None:
            if self.cuda == b.cuda:
                b.live -= self.nbytes
            else:
                b.aside -= self.nbytes


@cython.final
cdef class Balance:
    """Not thread-safe beyond the GIL."""

    def __cinit__(self, tensor_type):
        self.tensor_class = tensor_type
        self.tensor_type = <PyTypeObject *> <void *> tensor_type
        self.storages = {}
        self.cap = 256
        self.peaks = <uint64_t *> calloc(256, 8)
        if self.peaks == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.peaks)

    cdef uint64_t track(self, out, uint32_t module) except? 0:
        """Note the storages of an op's outputs; the bytes that are new, or will be for lazy ones."""
        cdef uint64_t made = 0
        if PyObject_TypeCheck(out, self.tensor_type):
            made += self.hold(out)
        elif type(out) is tuple or type(out) is list:
            for item in out:
                if PyObject_TypeCheck(item, self.tensor_type):
                    made += self.hold(item)
                elif type(item) is tuple or type(item) is list:
                    for inner in item:
                        if PyObject_TypeCheck(inner, self.tensor_type):
                            made += self.hold(inner)
        if made:
            if self.live > self.peak:
                self.peak = self.live
            self.in_module(module)
        return made

    cdef int64_t hold(self, tensor) except -1:
        """Count the tensor's storage while it lives; its bytes if it is new. Those that a lazy tensor will take."""
        cdef Death death
        cdef Slot *slot
        cdef Handle h = handle_of(tensor)
        if h is not None:                      # asking it for its storage would compute it
            if h.tape.interner.metas[h.meta].device < 0:
                return 0                       # it has none, and never will
            slot = h.tape.slot(h.slot)
            if slot.flags & (SLOT_PENDING | SLOT_FAILED):
                return tensor.nbytes if slot.root == h.slot else 0
            tensor = <object> slot.concrete
        try:
            storage = tensor.untyped_storage()
            key = <uintptr_t> <void *> storage     # one Python object per storage, for as long as that lives
            if key in self.storages or tensor.is_meta:
                return 0
            nbytes = storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            return 0                           # sparse, opaque and uninitialized tensors have no storage to ask
        death = Death.__new__(Death)
        death.balance = self
        death.key = key
        death.nbytes = nbytes
        death.cuda = tensor.is_cuda
        if death.cuda:
            death.nbytes = (death.nbytes + CUDA_GRAIN - 1) // CUDA_GRAIN * CUDA_GRAIN
            if not self.cuda:
                self.only_cuda()
        self.storages[key] = weakref.ref(storage, death)
        if death.cuda == self.cuda:
            self.live += death.nbytes
        else:
            self.aside += death.nbytes
        return nbytes

    cdef void only_cuda(self) noexcept:
        """The first tensor on CUDA: what is asked for from here on is that memory, as torch.cuda counts it."""
        self.cuda = True
        self.aside = self.live
        self.live = 0
        self.restart()

    cdef void restart(self) noexcept:
        cdef uint32_t i
        self.peak = self.live
        for i in range(PHASE_COUNT):
            self.phase_peaks[i] = 0
        for i in range(self.cap):
            self.peaks[i] = 0

    def hold_tensor(self, tensor):
        """Count a tensor that existed before (a parameter of a model built elsewhere)."""
        self.hold(tensor)
        if self.live > self.peak:
            self.peak = self.live

    cdef void in_phase(self, uint32_t phase) noexcept:
        if self.live > self.phase_peaks[phase]:
            self.phase_peaks[phase] = self.live

    cdef bint in_module(self, uint32_t module) noexcept:
        """Note the bytes live while `module` runs."""
        cdef uint64_t *peaks
        cdef uint32_t cap = self.cap, i
        if module >= cap:
            while cap <= module:
                cap *= 2
            peaks = <uint64_t *> realloc(self.peaks, cap * 8)
            if peaks == NULL:
                return False
            self.peaks = peaks
            for i in range(self.cap, cap):
                peaks[i] = 0
            self.cap = cap
        if self.live > self.peaks[module]:
            self.peaks[module] = self.live
        return True

    def module_peaks(self):
        """{module id: most bytes live while the module itself ran}."""
        cdef uint32_t i
        return {i: self.peaks[i] for i in range(self.cap) if self.peaks[i]}

    def phase_peak(self, phase):
        if not 0 <= phase < PHASE_COUNT:
            raise IndexError(f"[phase_peak] expected a phase in 0..{PHASE_COUNT - 1}, got {phase}")
        return self.phase_peaks[<uint32_t> phase]

    @property
    def live_bytes(self):
        return self.live
