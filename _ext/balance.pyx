"""Bytes of the storages that a program holds, from their birth to their death: what is live now, and the most that was.

Storages are counted once however many tensors view them. Where there is a tensor on CUDA or on an NPU, only the memory
of such devices is asked for, as the allocator there gives it out.

What the peak was made of is known without a copy at each new one: all that was born by then, but for what had died.
What is live is at hand anyway; of what dies, that which was there at the peak is kept until the next one. So nothing
grows with the length of the run, but for 32 bytes of each storage, beside the log of events and as bounded as that.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

from mindtorch._ext.context cimport PHASE_CANDIDATE, PHASE_COUNT, PHASE_FORWARD, PHASE_INFERENCE
from mindtorch._ext.growing cimport number_at
from mindtorch._ext.lazy cimport handle_of
from mindtorch._ext.signature cimport PyObject_TypeCheck, PyTypeObject
from mindtorch._ext.stretches cimport (
    CUDA_GRAIN, NO_STRETCH, NPU_PADDING, OUTLIVED, Stretch, stretch_of, unless_it_dies,
)
from mindtorch._ext.structs cimport SLOT_FAILED, SLOT_PENDING, Slot
from mindtorch._ext.native_calls cimport object_of
from mindtorch._ext.tape cimport Handle
from mindtorch._ext.sizes cimport MT_ASSERT
from mindtorch._ext.timeline cimport EventLog, Timeline

import weakref

MT_ASSERT(sizeof(Life) == 32)
#: For numpy; ``died`` of what is alive is `ALIVE`.
LIFE = [("nbytes", "u8"), ("born", "u4"), ("died", "u4"), ("module", "u4"), ("location", "u4"), ("phase", "u1"),
        ("mark", "u1"), ("outlived", "u1"), ("where", "u1"), ("", "V4")]
ALIVE = 0xFFFFFFFF


@cython.final
@cython.freelist(256)
cdef class HeldStorage:
    """A storage; the callback of its weak reference, which takes its bytes off the balance."""
    cdef Balance balance
    cdef Timeline here                         # of the thread that made it; None: it was there before
    cdef object key
    cdef readonly uint64_t nbytes
    cdef uint64_t born                         # how many had been made by then, it included
    cdef uint32_t event                        # how many events there were by then
    cdef readonly uint32_t sig, module, location
    cdef readonly uint8_t phase, mark          # mark: what the program uses it for, as was said; 0: not known
    cdef readonly uint8_t outlived             # bits of Outlived (see stretches.pxd)
    cdef readonly bint found                   # by a backward pass, which began after the peak
    cdef uint8_t where

    def __call__(self, reference):
        cdef Balance b = self.balance
        cdef Stretch made_in
        if b.storages.pop(self.key, None) is None:
            return
        if self.here is not None and not b.closed:
            made_in = stretch_of(self.phase, self.module)
            if made_in != NO_STRETCH:
                if self.here.ended[<int> made_in] < self.born:
                    self.outlived &= ~OUTLIVED
        if b.log is not None:
            b.ends(self.life(b.log.n))
        if self.where != b.where:
            return
        b.live -= self.nbytes
        if self.born <= b.born_by_peak:
            try:
                b.departed.append(self)
            except MemoryError:
                b.incomplete = True

    cdef Life life(self, uint32_t died) noexcept:
        return Life(self.nbytes, self.event, died, self.module, self.location, self.phase, self.mark, self.outlived,
                    self.where)


def no_parts(tensor):
    return ()


@cython.final
cdef class Balance:
    """Not thread-safe beyond the GIL."""

    def __cinit__(self, tensor_type, EventLog log=None):
        self.log = log
        self.tensor_class = tensor_type
        self.tensor_type = <PyTypeObject *> <void *> tensor_type
        self.storage_class = type(tensor_type().untyped_storage())
        self.storages, self.departed = {}, []
        self.parts_of = no_parts
        self.cap = 256
        self.peaks = <uint64_t *> calloc(256, 8)
        if self.peaks == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.peaks)
        free(self.ended)

    cdef void ends(self, const Life life) noexcept:
        cdef size_t room
        cdef Life *bigger
        if self.n_ended == self.room_ended:
            room = min(2 * self.room_ended + 1024, <size_t> self.log.most)
            bigger = NULL if room <= self.n_ended else <Life *> realloc(self.ended, room * sizeof(Life))
            if bigger == NULL:
                self.forgot = True
                return
            self.ended = bigger
            self.room_ended = room
        self.ended[self.n_ended] = life
        self.n_ended += 1

    cdef uint64_t track(self, out, const Maker *maker, Timeline here) except? 0:
        """Note the storages of an op's outputs; the bytes that are new, or will be for lazy ones."""
        cdef uint64_t made = 0
        if PyObject_TypeCheck(out, self.tensor_type):
            made += self.hold(out, maker, here)
        elif type(out) is tuple or type(out) is list:
            for item in out:
                if PyObject_TypeCheck(item, self.tensor_type):
                    made += self.hold(item, maker, here)
                elif type(item) is tuple or type(item) is list:
                    for inner in item:
                        if PyObject_TypeCheck(inner, self.tensor_type):
                            made += self.hold(inner, maker, here)
        if made:
            if self.live > self.peak:
                self.rise(maker)
            self.in_module(maker.module)
        return made

    cdef int64_t hold(self, tensor, const Maker *maker, Timeline here) except -1:
        """Count the tensor's storage while it lives; its bytes if it is new. Those that a lazy tensor will take."""
        cdef HeldStorage block
        cdef Slot *slot
        cdef Handle h = handle_of(tensor)
        if h is not None:                      # asking it for its storage would compute it
            if h.tape.interner.metas[h.meta].device < 0:
                return 0                       # it has none, and never will
            slot = h.tape.slot(h.slot)
            if slot.flags & (SLOT_PENDING | SLOT_FAILED):
                return tensor.nbytes if slot.root == h.slot else 0
            tensor = object_of(slot)
        try:
            storage = self.storage_of(tensor)
            key = <uintptr_t> <void *> storage     # one Python object per storage, for as long as that lives
            if key in self.storages or tensor.is_meta:
                return 0
            nbytes = storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            return self.hold_parts(tensor, maker, here)    # sparse, opaque and uninitialized tensors have no storage
        block = HeldStorage.__new__(HeldStorage)
        block.balance = self
        block.here = here
        block.key = key
        block.nbytes = nbytes
        block.sig, block.module, block.location = maker.sig, maker.module, maker.location
        block.phase = maker.phase
        block.outlived = unless_it_dies(block.phase)
        block.mark = self.making
        if hasattr(storage, "_npu"):
            block.where = ON_NPU
            block.nbytes += NPU_PADDING if block.nbytes else 0
        elif tensor.is_cuda:
            block.where = ON_CUDA
        if block.where != ON_HOST:
            block.nbytes = (block.nbytes + CUDA_GRAIN - 1) // CUDA_GRAIN * CUDA_GRAIN
            if self.where == ON_HOST:
                self.only(block.where)
        block.born = self.births + 1
        block.event = 0 if self.log is None else self.log.n
        self.storages[key] = weakref.ref(storage, block)
        self.births += 1
        if block.where == self.where:
            self.live += block.nbytes
        return nbytes

    cdef int64_t hold_parts(self, tensor, const Maker *maker, Timeline here) except -1:
        """A sparse tensor's memory is that of its indices and values; that of opaque ones is not known."""
        cdef int64_t nbytes = 0
        for part in self.parts_of(tensor):
            nbytes += self.hold(part, maker, here)
        return nbytes

    cdef void rise(self, const Maker *maker) noexcept:
        """There is a new peak."""
        self.peak = self.live
        self.born_by_peak = self.births
        self.at = maker[0]
        self.incomplete = False
        if self.departed:
            self.departed.clear()

    cdef bint copied(self, out, tuple args) except -1:
        """Has what an op gives other memory than its first argument?"""
        if not args or not PyObject_TypeCheck(out, self.tensor_type):
            return False
        if not PyObject_TypeCheck(args[0], self.tensor_type) or handle_of(out) is not None:
            return True                        # `hold` tells of a lazy tensor
        try:
            return self.storage_of(out) is not self.storage_of(args[0])
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            return False                       # sparse and opaque tensors have none

    cdef object storage_of(self, tensor):
        """torch's object, of which there is one per storage; RuntimeError and others: there is no storage."""
        storage = tensor.untyped_storage()
        if type(storage) is self.storage_class:
            return storage
        return getattr(storage, "_torch", storage)     # an NPU tensor shows another object at each call

    cdef void only(self, uint8_t where) noexcept:
        """The first tensor on CUDA or an NPU: from here on, that memory is asked for, as its allocator counts it."""
        self.where = where
        self.live = 0
        self.restart()

    cdef void restart(self) noexcept:
        cdef Maker nothing = Maker(0, 0, 0, 0)
        cdef uint32_t i
        self.rise(&nothing)
        for i in range(PHASE_COUNT):
            self.phase_peaks[i] = 0
        for i in range(self.cap):
            self.peaks[i] = 0

    def hold_tensor(self, tensor):
        """Count a tensor that existed before (a parameter of a model built elsewhere)."""
        cdef Maker nothing = Maker(0, 0, 0, 0)
        self.hold(tensor, &nothing, None)
        if self.live > self.peak:
            self.rise(&nothing)

    def mark(self, tensor, uint8_t what):
        """Say what the tensor's storage is used for, if it is one of those held."""
        cdef Handle h = handle_of(tensor)
        if h is not None:
            if h.tape.interner.metas[h.meta].device < 0 or h.tape.slot(h.slot).flags & (SLOT_PENDING | SLOT_FAILED):
                return
            tensor = object_of(h.tape.slot(h.slot))
        try:
            storage = self.storage_of(tensor)
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            for part in self.parts_of(tensor):
                self.mark(part, what)
            return
        reference = self.storages.get(<uintptr_t> <void *> storage)
        if reference is not None and reference.__callback__ is not None:
            (<HeldStorage> reference.__callback__).mark = what

    cdef list living(self):
        cdef list found = []
        for reference in list(self.storages.values()):
            callback = reference.__callback__  # None of one that died
            if callback is not None:
                found.append(callback)
        return found

    def backward_begins(self):
        """Of what was there at the peak, what is there now is found by a backward pass."""
        cdef HeldStorage block
        for block in self.living():
            block.found = block.born <= self.born_by_peak

    def at_peak(self):
        """(Blocks live when most bytes were, what made the last of them: signature, module, location, phase)

        None when there was no memory to keep track of them.
        """
        cdef dict found = {}
        cdef HeldStorage block
        for block in self.living():
            if block.born <= self.born_by_peak and block.where == self.where:
                found[id(block)] = block
        for block in list(self.departed):      # now: one of those may have died meanwhile
            found[id(block)] = block
        if self.incomplete:
            return None
        return list(found.values()), (self.at.sig, self.at.module, self.at.location, self.at.phase)

    def lives(self):
        """Bytes of `LIFE`: every storage so far; None where there was no room for all."""
        cdef HeldStorage block
        cdef Life life
        if self.log is None or self.forgot:
            return None
        found = [(<char *> self.ended)[:self.n_ended * sizeof(Life)] if self.n_ended else b""]
        for block in self.living():
            life = block.life(<uint32_t> ALIVE)
            found.append((<char *> &life)[:sizeof(Life)])
        return b"".join(found)

    cdef void in_phase(self, uint32_t phase) noexcept:
        if self.live > self.phase_peaks[phase]:
            self.phase_peaks[phase] = self.live

    cdef void settle(self, uint32_t was, uint32_t phase) noexcept:
        """The peak of the phase `was` was that of `phase`."""
        if self.phase_peaks[was] > self.phase_peaks[phase]:
            self.phase_peaks[phase] = self.phase_peaks[was]
        self.phase_peaks[was] = 0

    cdef bint in_module(self, uint32_t module) noexcept:
        """Note the bytes live while `module` runs."""
        cdef uint64_t *most = number_at(&self.peaks, &self.cap, module)
        if most == NULL:
            return False
        if self.live > most[0]:
            most[0] = self.live
        return True

    def module_peaks(self):
        """{module id: most bytes live while the module itself ran}."""
        cdef uint32_t i
        return {i: self.peaks[i] for i in range(self.cap) if self.peaks[i]}

    def phase_peak(self, phase):
        if not 0 <= phase < PHASE_COUNT:
            raise IndexError(f"[phase_peak] expected a phase in 0..{PHASE_COUNT - 1}, got {phase}")
        if phase == PHASE_FORWARD:
            self.settle(PHASE_CANDIDATE, PHASE_FORWARD)         # a stage ended before that was known
            self.settle(PHASE_INFERENCE, PHASE_FORWARD)
        return self.phase_peaks[<uint32_t> phase]

    @property
    def device(self):
        """The type of device that all figures are of."""
        return ("cpu", "cuda", "npu")[self.where]

    @property
    def live_bytes(self):
        return self.live

    def close(self):
        """What dies from here on has outlived the program, as far as anybody looked."""
        self.closed = True
