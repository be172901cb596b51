"""Running a segment: rebuild each call from its interned template and the computed inputs, and call it."""
from time import perf_counter_ns

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from .forms cimport Form, Forms, Step
from .intern cimport (
    NO_NATIVE, RETURNS_NOTHING, RETURNS_TENSOR, OpInfo, SigS, has_native, sig_alias, sig_key, sig_out_meta, sig_written,
)
from .local_state cimport function_modes, no_keys
from .native_calls cimport MT_MOST_RESULTS, NativeCall, bare, is_bare, object_of, release
from .signals cimport interrupts
from .structs cimport (
    REC_GRAD, REC_PENDING, REC_RUNNING, SIG_FORGOTTEN, SIG_RANDOM, SIG_VERIFIED, SIG_VIEW, SIG_WRITES, SLOT_FAILED,
    SLOT_OVERWRITTEN, SLOT_PENDING, MetaS, Record, Slot,
)
from .template cimport HEADER, TAG_TENSOR, decode, decode_call, hole_metas
from .tape cimport Tape, Vec, floats_at, rec_floats, rec_ins, rec_outs, sig_floats, vec_push, vec_try_push

cdef extern from "Python.h":
    object PyObject_Vectorcall(PyObject *callable, PyObject **args, size_t nargsf, PyObject *kwnames)
    size_t VECTORCALL_OFFSET "PY_VECTORCALL_ARGUMENTS_OFFSET"

cdef enum:
    MAX_ARGS = 64


often = 200                    # making one takes as long as 500 calls
cdef uint64_t[4] otherwise           # calls made by a shorter way, results in an input's memory, bytes of those; native


def calls_otherwise():
    """(calls by a shorter way, those whose results took the memory of an input that nothing else needed, its bytes,
    those made without Python)
    """
    return otherwise[0], otherwise[1], otherwise[2], otherwise[3]


def native_after(size_t times):
    """Let calls that have run so often be made without Python, 4000 at most. Returns the number before."""
    global often
    before = often
    often = min(times, <size_t>(NO_NATIVE - 1))
    return before


cdef object again(object failure):
    """A kept failure, to be raised once more: a new object, so that tracebacks (and their frames) do not pile up."""
    cdef object fresh = type(failure)(*failure.args)
    fresh.__cause__ = failure.__cause__
    for note in getattr(failure, "__notes__", ()):
        fresh.add_note(note)
    return fresh


cdef object _words(uint64_t seq, object error, object on_error):
    """The exception to keep and raise for `error`; one about memory when there is none for its words."""
    try:
        return on_error(seq, error)
    except MemoryError as worse:
        worse.__traceback__ = None     # frames hold the tensors of whoever was reading
        return worse


cdef object _invoke(SigS *s, object call, PyObject **inputs, object device):
    """Make the call of its tensors and, behind those in `inputs`, of the floats that its record has."""
    cdef const uint8_t *p = sig_key(s) + HEADER
    cdef uint8_t nargs = sig_key(s)[sizeof(void *)]
    cdef uint8_t nkw = sig_key(s)[sizeof(void *) + 1]
    cdef PyObject **floats = inputs + s.n_in
    cdef PyObject *argv[MAX_ARGS + 1]
    cdef uint32_t k, filled = 0
    cdef object item, kwnames = None
    cdef PyObject *name
    cdef tuple whole
    if nargs + nkw > MAX_ARGS:
        whole = decode_call(sig_key(s), inputs, floats, device)
        return call(*whole[0], **whole[1])
    argv[0] = NULL
    try:
        for _ in range(nargs):
            item = decode(&p, &inputs, &floats, device)
            Py_INCREF(item)
            argv[1 + filled] = <PyObject *>item
            filled += 1
        if nkw:
            kwnames = PyTuple_New(nkw)
            for k in range(nkw):
                memcpy(&name, p, sizeof(name))
                p += sizeof(name)
                Py_INCREF(<object>name)
                PyTuple_SET_ITEM(kwnames, k, <object>name)
                item = decode(&p, &inputs, &floats, device)
                Py_INCREF(item)
                argv[1 + filled] = <PyObject *>item
                filled += 1
        item = None
        return PyObject_Vectorcall(<PyObject *>call, argv + 1, nargs | VECTORCALL_OFFSET,
                                   <PyObject *>kwnames if kwnames is not None else NULL)
    finally:
        for k in range(filled):
            Py_DECREF(<object>argv[1 + k])


cdef int place_of(Tape tape, Record *r, bint *mixed) except -2:
    """The device that a record runs on; `mixed`: takes it values of another one?"""
    cdef SigS *s = tape.interner.sigs[r.sig]
    cdef uint8_t *written = sig_written(s)
    cdef MetaS *metas = tape.interner.metas
    cdef uint32_t *holes = <uint32_t *>malloc((s.n_in + 1) * sizeof(uint32_t))
    cdef uint32_t i, at = 0
    cdef int place
    if not holes:
        raise MemoryError()
    hole_metas(sig_key(s), holes)
    for i in range(s.n_in):
        if written[i]:
            at = i
    if s.flags & SIG_RANDOM:
        place = s.device
    elif s.n_out and not s.flags & SIG_WRITES:
        place = metas[sig_out_meta(s)[0]].device
    else:
        place = metas[holes[at]].device if s.n_in else 0
    mixed[0] = False
    for i in range(s.n_in):
        mixed[0] |= metas[holes[i]].device != place
    free(holes)
    return place


@cython.final
cdef class Segment:
    def __init__(self):
        raise TypeError("Segment is made by the engine")

    def __dealloc__(self):
        free(self.seqs.data)
        free(self.slots.data)
        free(self.fresh)
        free(self.targets)

    cdef int look_again(self) except -1:
        """Plan it anew if the tape has gone on since, unless it has begun."""
        if not self.claimed and (self.tail != self.tape.tail or self.pending != self.tape.n_pending):
            self._plan()
        return 0

    cdef int _plan(self) except -1:
        cdef Tape tape = self.tape
        cdef uint32_t *written = self.targets + self.n_targets if self.targets else NULL
        cdef size_t k
        self.tail, self.pending = tape.tail, tape.n_pending
        self.whole = tape.plan(self.targets, self.n_targets, written, self.n_written, &self.seqs)
        self.random = False
        if self.whole and self.targets and not self.seqs.n:
            tape.unmark_writes(self.targets, self.n_targets)       # they have run, for others that were asked for
        for k in range(self.seqs.n):
            if tape.interner.sigs[tape.record(self.seqs.data[k]).sig].flags & SIG_RANDOM:
                self.random = True
        return 0

    cdef int _claim(self) except -1:
        """Take the records from the tape. Not before they run: a signal handler may raise in between.

        If anything was recorded or run since they were looked for, they are looked for again.
        """
        cdef Tape tape = self.tape
        cdef size_t k
        cdef Record *r
        if self.closed or self.done or self.claimed:
            return 0
        self.claimed = True
        if self.fixed:
            for k in range(self.seqs.n):
                r = tape.record(self.seqs.data[k])
                if r and r.state == REC_PENDING:
                    r.state = REC_RUNNING
            return 0
        if self.tail != tape.tail or self.pending != tape.n_pending:
            self._plan()
        if self.whole and self.targets:
            tape.unmark_writes(self.targets, self.n_targets)
        for k in range(self.seqs.n):
            tape.record(self.seqs.data[k]).state = REC_RUNNING
        return 0

    def __len__(self):
        return self.seqs.n

    def run(self, device, verify, on_error, set_grad, generator, states, observer=None, Forms forms=None,
            bint in_place=False, native=None):
        """Run the records in program order on `device`, storing results in the tape's slots.

        set_grad(bool) sets torch's grad mode; the caller restores it;
        generator: the torch.Generator that kernels draw from; states[index]: its state for remote_accelerator:index,
        swapped in when that device draws and kept up to date;
        verify(sig, output index, tensor) -> tensor is asked on the first run of each interned call;
        on_error(sequence number, exception) -> exception to raise (and keep in the failed values).
        observer(sequence number, start, end), if given, gets each op's time in ns (time.perf_counter_ns);
        forms, if given: what is known of segments that came before; in_place: may results take their inputs' memory?
        native(call, tensors, floats) -> NativeCall, or None where it makes none for the interned call of that number.
        An op that fails leaves everything before it computed, takes what depends on it with it (see _fail), and leaves
        everything else after it pending. So does an interrupt, which takes nothing with it
        (a signal handler that raises, whatever it raises): it gets its chance between ops, and where Python code is
        called.
        """
        cdef Tape tape = self.tape
        cdef Record *r
        cdef SigS *s
        cdef PyObject *small[16]
        cdef PyObject **inputs
        cdef Vec big
        cdef uint64_t seq
        cdef object result, failure, interrupt
        cdef int grad = -1
        cdef int rng = -1
        cdef object started = None, outside = None
        cdef object get_state = generator.get_state, set_state = generator.set_state
        cdef Form form = None
        cdef PyObject *step
        cdef uint32_t n_floats, k
        cdef bint called
        cdef tuple numbers
        big.data = NULL
        big.n = big.cap = 0
        self._claim()
        try:
            if in_place and self.seqs.n > 1 and not self.fresh:
                self.fresh = <uint8_t *>calloc((tape.n_slots >> 3) + 1, 1)
                self.n_fresh = tape.n_slots if self.fresh else 0
            if forms is not None and self.seqs.n >= forms.fewest:
                form = forms.find(tape, &self.seqs, &self.slots)
                if form is not None:
                    self._keep(form)
            while self.done < self.seqs.n and not self.closed:
                PyErr_CheckSignals()
                if form is not None:
                    self._let_go(form, self.done)
                seq = self.seqs.data[self.done]
                r = tape.record(seq)
                if not r or r.state != REC_RUNNING:
                    self.done += 1             # it failed with what it depends on
                    continue
                s = tape.interner.sigs[r.sig]
                inputs = small
                n_floats = sig_floats(s)
                if s.n_in + n_floats > 16:
                    while big.n < s.n_in + n_floats:
                        vec_push(&big, 0)
                    inputs = <PyObject **>big.data
                failure = None
                step = self._step(form, r, s) if form is not None else NULL
                called = not step or (<Step>step).call is not None
                if not called and (<Step>step).skips:
                    r.state = REC_PENDING      # it is dropped when the last record that names its result has run
                    self.done += 1
                    continue
                if called and self._gather(r, s, inputs):
                    failure = self._failed_input(r, s)
                    if failure is None:
                        raise SystemError(f"record {seq}: an input was never computed")
                    self.done += 1
                    if self._fail(seq, failure):
                        raise again(failure)   # else nobody would hear that something was not written
                    continue                   # whoever asks for these values is told
                if grad != (r.flags & REC_GRAD):
                    grad = r.flags & REC_GRAD
                    set_grad(grad != 0)
                if s.flags & SIG_RANDOM and rng != s.device:
                    result = states[s.device]
                    if rng < 0:
                        outside = get_state()
                    else:
                        states[rng] = get_state()
                    set_state(result)
                    rng = s.device
                if native is not None and not step and s.flags & SIG_VERIFIED and observer is None:
                    if <size_t>s.native < NO_NATIVE and not s.flags & SIG_RANDOM:
                        self._look_for_native(r, s, inputs, native)
                    if has_native(s) and self._run_native(r, s, inputs):
                        otherwise[3] += 1
                        if (<OpInfo>s.info).fresh:
                            self._note_fresh(r, s)
                        self._finish(seq, r)
                        continue
                if observer is not None:
                    started = perf_counter_ns()
                try:
                    for k in range(s.n_in if called else 0):
                        if is_bare(inputs[k]):
                            object_of(tape.slot(rec_ins(r)[k]))
                            inputs[k] = tape.slot(rec_ins(r)[k]).concrete
                    if n_floats and called:
                        numbers = floats_at(rec_floats(r, s), n_floats)
                        for k in range(n_floats):
                            inputs[s.n_in + k] = <PyObject *>PyTuple_GET_ITEM(numbers, k)
                    if not step:
                        result = _invoke(s, self._call(r, s), inputs, device)
                    elif called:
                        result = (<Step>step).run(inputs)
                    elif (<Step>step).value is not None:
                        result = (<Step>step).value
                    else:
                        result = self._share(<Step>step, r, s)
                    self._store(r, s, result)
                    if called and (<OpInfo>s.info).fresh:
                        self._note_fresh(r, s)
                except MemoryError as e:
                    if not s.flags & (SIG_WRITES | SIG_RANDOM) or interrupts(e):
                        raise          # it has had no effect: it stays pending, and runs when there is memory
                    failure = _words(seq, e, on_error)
                except Exception as e:
                    if interrupts(e):
                        raise
                    failure = _words(seq, e, on_error)
                if failure is not None:
                    self.done += 1
                    self._fail(seq, failure)
                    raise again(failure)
                # The op has run, so its record is finished whatever is raised from here on: it must not run twice,
                # unless that makes no difference (see _verify).
                result = None
                if s.flags & SIG_VERIFIED and observer is None:
                    self._finish(seq, r)
                    continue
                try:
                    interrupt = None if s.flags & SIG_VERIFIED else self._verify(seq, r, s, verify, on_error)
                    if observer is not None:
                        observer(seq, started, perf_counter_ns())
                finally:
                    if not self.undone:
                        self._finish(seq, r)
                if interrupt is not None:
                    raise interrupt
        finally:
            # Nothing here runs Python code before the records are back on the tape and the generator is torch's again.
            free(big.data)
            self._give_back()
            tape._advance_head()
            tape.rearm()
            try:
                if rng >= 0:
                    try:
                        states[rng] = get_state()
                    finally:
                        set_state(outside)
            finally:
                if form is not None:
                    self._let_go(form, self.seqs.n)

    cdef void _finish(self, uint64_t seq, Record *r) noexcept:
        if self.wanted is not None:
            self._collect(r)
        self.tape.n_executed += 1
        self.done += 1
        self.tape.finish(r)
        self.tape._retire(seq)
        self.tape._drain()

    cdef void _collect(self, Record *r) noexcept:
        # Without memory for it the value is not there for whoever wants it.
        cdef SigS *s = self.tape.interner.sigs[r.sig]
        cdef Slot *slot
        cdef uint32_t i
        try:
            for i in range(s.n_out):
                slot = self.tape.slot(rec_outs(r, s)[i])
                if rec_outs(r, s)[i] in self.wanted and not slot.flags & (SLOT_FAILED | SLOT_PENDING):
                    self.wanted[rec_outs(r, s)[i]] = object_of(slot)
        except MemoryError:
            return

    cdef object _call(self, Record *r, SigS *s):
        """What is called for the record: in place, where that cannot be seen."""
        cdef OpInfo info = <OpInfo>s.info
        otherwise[0] += info.replay is not info.call
        return info.in_place if self._overwrites(r, s, info) else info.replay

    cdef bint _overwrites(self, Record *r, SigS *s, OpInfo info) noexcept:
        """Does the result take the memory of the first argument? If so, it is counted."""
        cdef const uint8_t *p = sig_key(s)
        cdef uint32_t i, meta
        cdef Slot *slot
        if info.in_place is None or s.flags & (SIG_VERIFIED | SIG_WRITES | SIG_RANDOM | SIG_VIEW) != SIG_VERIFIED:
            return False
        if not p[sizeof(void *)] or p[HEADER] != TAG_TENSOR or s.ret:   # no tensor comes first, or it gives several
            return False
        i = rec_ins(r)[0]
        if i >= self.n_fresh or not self.fresh[i >> 3] & (1 << (i & 7)):
            return False
        slot = self.tape.slot(i)
        memcpy(&meta, p + HEADER + 1, sizeof(meta))
        if slot.users != 1 or slot.handles or slot.root != i or meta != sig_out_meta(s)[0]:
            return False
        otherwise[1] += 1
        otherwise[2] += self.tape.interner.metas[meta].nbytes
        return True

    cdef void _note_fresh(self, Record *r, SigS *s) noexcept:
        """Values on memory that this run has made. Nobody beside the tape knows it, unless a tensor names it."""
        cdef uint32_t *outs = rec_outs(r, s)
        cdef uint32_t k, i
        for k in range(s.n_out):
            i = outs[k]
            if i < self.n_fresh and sig_alias(s)[k] == 0xFFFF and not self.tape.slot(i).handles:
                self.fresh[i >> 3] |= 1 << (i & 7)

    cdef PyObject *_step(self, Form form, Record *r, SigS *s) noexcept:
        """What is run in place of the record that comes next; NULL: what was recorded."""
        cdef PyObject *step = form.steps[self.done]
        cdef Slot *slot
        cdef uint32_t i
        if not step or not s.flags & SIG_VERIFIED:
            return NULL
        if (<Step>step).call is not None:
            return step
        for i in range(s.n_in):
            if self.tape.slot(rec_ins(r)[i]).flags & SLOT_FAILED:
                return NULL                    # it fails as well
        if (<Step>step).value is None and not (<Step>step).skips:
            slot = self.tape.slot(<uint32_t>self.slots.data[(<Step>step).same])
            return NULL if slot.flags & (SLOT_FAILED | SLOT_PENDING) else step
        return step

    cdef object _share(self, Step step, Record *r, SigS *s):
        """The value that the record gives was computed already. The tape is told that both are on one storage."""
        cdef Slot *slot = self.tape.slot(<uint32_t>self.slots.data[step.same])
        cdef uint32_t number = rec_outs(r, s)[0]
        cdef Slot *out = self.tape.slot(number)
        if out.root == number:
            out.root = slot.root
            self.tape.add_user(self.tape.slot(slot.root))
        return object_of(slot)

    cdef void _keep(self, Form form) noexcept:
        """Values that others are to share live until then."""
        cdef size_t k
        for k in range(form.shared.n):
            self.tape.add_user(self.tape.slot(<uint32_t>self.slots.data[form.step(form.shared.data[k]).same]))

    cdef void _let_go(self, Form form, size_t until) noexcept:
        """Those that no record from number `until` on shares."""
        cdef uint32_t i
        while self.let_go < form.shared.n and form.shared.data[self.let_go] < until:
            i = <uint32_t>self.slots.data[form.step(form.shared.data[self.let_go]).same]
            self.let_go += 1
            self.tape.drop_user(self.tape.slot(i))
            self.tape.settle(i)

    cdef bint _gather(self, Record *r, SigS *s, PyObject **inputs) noexcept:
        """The inputs' values, into inputs[n_in]; True when one is not there."""
        cdef Slot *slot
        cdef uint32_t *ins = rec_ins(r)
        cdef uint32_t i, missing = 0
        for i in range(s.n_in):
            slot = self.tape.slot(ins[i])
            inputs[i] = slot.concrete
            missing |= slot.flags & (SLOT_FAILED | SLOT_PENDING)
        return missing != 0

    cdef object _failed_input(self, Record *r, SigS *s):
        """The error of the first input that failed; None when none did."""
        cdef Slot *slot
        cdef uint32_t i
        for i in range(s.n_in):
            slot = self.tape.slot(rec_ins(r)[i])
            if slot.flags & SLOT_FAILED:
                return <object>slot.concrete
        return None

    cdef int _store(self, Record *r, SigS *s, object result) except -1:
        cdef uint32_t *outs = rec_outs(r, s)
        cdef tuple template
        cdef Py_ssize_t pos
        cdef int code
        cdef object item
        if not s.ret:
            self._put(outs[0], result)
            return 0
        template = <tuple>s.ret
        if template[0] == RETURNS_TENSOR:  # a single tensor: an input returned (code < 0) or a fresh one
            result = (result,)
        elif template[0] == RETURNS_NOTHING:
            return 0
        for pos in range(len(template) - 1):
            if template[pos + 1] is None:
                continue
            code = template[pos + 1]
            if code >= 0:
                item = result[pos]
                if item is None:
                    s.flags &= ~SIG_VERIFIED       # left out by the kernel: `verify` says what stands for it
                self._put(outs[code], item)
        return 0

    cdef int _put(self, uint32_t slot_id, object tensor) except -1:
        cdef Slot *slot = self.tape.slot(slot_id)
        cdef PyObject *old = NULL if slot.flags & SLOT_PENDING else slot.concrete
        Py_INCREF(tensor)
        slot.concrete = <PyObject *>tensor
        slot.flags &= ~SLOT_PENDING
        if old:
            release(old)
        return 0

    cdef bint _run_native(self, Record *r, SigS *s, PyObject **inputs):
        """Make the call without Python, and store what it gives. False: it was not made, or has failed."""
        cdef NativeCall call = <NativeCall>s.native
        cdef void *results[MT_MOST_RESULTS]
        cdef uint32_t *outs = rec_outs(r, s)
        cdef tuple template
        cdef Py_ssize_t pos
        cdef list held = None
        cdef uint32_t k
        cdef Slot *slot
        if not call.brief:             # other threads take their turn meanwhile: what it reads stays
            held = []
            for k in range(s.n_in):
                held.append(object_of(self.tape.slot(rec_ins(r)[k])))
                inputs[k] = <PyObject *>held[k]
        if call.in_place is not None and self._overwrites(r, s, <OpInfo>s.info):
            if (<NativeCall>call.in_place).run(inputs, <const double *>rec_floats(r, s), results):
                return False
            slot = self.tape.slot(rec_ins(r)[0])
            self._put_value(outs[0], slot.concrete)        # what it held is the result's: nobody reads it any more
            slot.concrete = NULL
            return True
        if call.run(inputs, <const double *>rec_floats(r, s), results):
            return False
        if not s.ret:
            self._put_value(outs[0], bare(results[0]))
        else:
            template = <tuple>s.ret
            for pos in range(call.c.n_results):
                code = template[pos + 1]       # of one for each result, as it was proven
                if code is None or code < 0:
                    release(bare(results[pos]))
                else:
                    self._put_value(outs[<uint32_t>code], bare(results[pos]))
        return True

    cdef void _put_value(self, uint32_t number, PyObject *value) noexcept:
        cdef Slot *slot = self.tape.slot(number)
        slot.concrete = value
        slot.flags &= ~SLOT_PENDING

    cdef int _look_for_native(self, Record *r, SigS *s, PyObject **inputs, native) except -1:
        """Count the call; once it has run often enough to pay, let `native` make one that does without Python."""
        cdef list tensors
        cdef uint32_t k, n = sig_floats(s)
        cdef size_t times = <size_t>s.native + 1
        if not no_keys() or function_modes():      # who looks on would see how it is proven
            return 0
        s.native = <PyObject *>times
        if times < often:
            return 0
        s.native = <PyObject *><size_t>NO_NATIVE
        tensors = []
        for k in range(s.n_in):
            tensors.append(object_of(self.tape.slot(rec_ins(r)[k])))
            inputs[k] = <PyObject *>tensors[k]
        found = native(r.sig, tensors, floats_at(rec_floats(r, s), n) if n else ())
        if found is not None:
            Py_INCREF(found)
            s.native = <PyObject *>found
            self.tape.interner.bytes += (<NativeCall>found).nbytes
        return 0

    cdef object _verify(self, uint64_t seq, Record *r, SigS *s, object verify, object on_error):
        """Let `verify` compare the stored outputs with what was predicted, and replace them.

        Returns an interrupt that came meanwhile, to be raised once the record is finished.
        """
        cdef uint32_t i
        cdef uint32_t *outs = rec_outs(r, s)
        cdef Slot *slot
        cdef object interrupt = None, value
        cdef uint32_t k = 0
        s.flags |= SIG_VERIFIED
        while k < s.n_out:
            slot = self.tape.slot(outs[k])
            try:
                if not slot.flags & SLOT_PENDING:
                    value = object_of(slot)
                    self._put(outs[k], verify(r.sig, k, value))
                k += 1
            except BaseException as e:
                if interrupts(e):
                    interrupt = e          # once more: what was promised to the program must be kept
                    continue
                if isinstance(e, MemoryError) and not s.flags & (SIG_WRITES | SIG_RANDOM):
                    self._undo(seq, outs, s)
                    raise
                failure = _words(seq, e, on_error)
                for i in range(s.n_out):
                    self._put(outs[i], failure)
                    self.tape.slot(outs[i]).flags |= SLOT_FAILED
                raise again(failure)
            if s.flags & SIG_FORGOTTEN:
                s.flags &= ~SIG_VERIFIED   # mispredicted: every record that made this promise is looked at
        return interrupt

    cdef void _undo(self, uint64_t seq, uint32_t *outs, SigS *s) noexcept:
        """The record has had no effect but its outputs: let go of them, so that it is pending again."""
        cdef uint32_t i
        cdef Slot *slot
        cdef PyObject *old
        self.undone = True
        s.flags &= ~SIG_VERIFIED
        for i in range(s.n_out):
            slot = self.tape.slot(outs[i])
            if not slot.flags & SLOT_PENDING:
                old = slot.concrete
                slot.producer = seq
                slot.flags |= SLOT_PENDING
                release(old)

    cdef bint _fail(self, uint64_t seq, object failure) noexcept:
        """The record fails, and with it what was recorded after it and depends on it, by a value or by a storage that
        one of them should have written: eager would never have come to them. What was in that storage stays.
        True when something should have been written.
        """
        cdef Tape tape = self.tape
        cdef uint64_t k
        cdef uint32_t i
        cdef Record *r = tape.record(seq)
        cdef bint writes
        # Storages that were not written as they should have been bear the planner's mark: no memory is needed for it.
        writes = self._fail_one(seq, r, failure)
        for k in range(seq + 1, tape.tail):
            r = tape.record(k)
            if r and (r.state == REC_PENDING or r.state == REC_RUNNING) and self._takes(r):
                writes |= self._fail_one(k, r, failure)
        for i in range(1, tape.n_slots):
            tape.slot(i).flags &= ~SLOT_OVERWRITTEN
        tape._drain()
        self.lost_write |= writes
        return writes

    cdef bint _takes(self, Record *r) noexcept:
        cdef SigS *s = self.tape.interner.sigs[r.sig]
        cdef Slot *slot
        cdef uint32_t i
        for i in range(s.n_in):
            slot = self.tape.slot(rec_ins(r)[i])
            if slot.flags & SLOT_FAILED or self.tape.slot(slot.root).flags & SLOT_OVERWRITTEN:
                return True
        return False

    cdef bint _fail_one(self, uint64_t seq, Record *r, object failure) noexcept:
        cdef SigS *s = self.tape.interner.sigs[r.sig]
        cdef uint32_t *outs = rec_outs(r, s)
        cdef Slot *slot
        cdef uint32_t i
        cdef bint writes = 0
        if s.flags & SIG_WRITES:
            for i in range(s.n_in):
                if sig_written(s)[i]:
                    slot = self.tape.slot(self.tape.slot(rec_ins(r)[i]).root)
                    writes |= not slot.flags & SLOT_FAILED     # else who reads it is told of that
                    slot.flags |= SLOT_OVERWRITTEN
        for i in range(s.n_out):
            slot = self.tape.slot(outs[i])
            if not slot.flags & SLOT_PENDING:
                vec_try_push(&self.tape.trash, <uint64_t>slot.concrete)    # released when the marks are gone
            Py_INCREF(failure)
            slot.concrete = <PyObject *>failure
            slot.flags = slot.flags & ~SLOT_PENDING | SLOT_FAILED
        self.tape.finish(r)
        self.tape._retire(seq)
        return writes

    cdef void _give_back(self) noexcept:
        # Records that did not get their turn are pending again.
        cdef Record *r
        cdef size_t k
        if self.closed:
            return
        self.closed = True
        for k in range(self.done, self.seqs.n):
            r = self.tape.record(self.seqs.data[k])
            if r and r.state == REC_RUNNING:
                r.state = REC_PENDING
                self.tape.mark_writes(r, self.tape.interner.sigs[r.sig])

    def close(self):
        """Put what has not run back on the tape."""
        self._give_back()

    @property
    def next(self):
        """Sequence number of the first record that has not run; None when all have, or have failed."""
        cdef size_t k
        cdef Record *r
        for k in range(self.done, self.seqs.n):
            r = self.tape.record(self.seqs.data[k])
            if r and (r.state == REC_RUNNING or r.state == REC_PENDING):
                return self.seqs.data[k]
        return None

    cdef int take(self) except -1:
        """Claim the records, for an executor that runs them elsewhere; settle() must follow.

        Those that take what failed fail, too, as they do in run(). What is to be run is REC_RUNNING now.
        """
        cdef Tape tape = self.tape
        cdef Record *r
        cdef object failure
        cdef size_t k
        self._claim()
        for k in range(self.seqs.n):
            r = tape.record(self.seqs.data[k])
            if r and r.state == REC_RUNNING:
                failure = self._failed_input(r, tape.interner.sigs[r.sig])
                if failure is not None and self._fail(self.seqs.data[k], failure):
                    raise again(failure)       # else nobody would hear that something was not written
        return 0

    def settle(self, dict values, list asked=None, list writes=None, object states=None, dict ends=None):
        """What stands for the values that are kept, by slot: the records have run, or will before anybody looks.

        In the same step, so that no signal handler comes in between: of ``asked``, pairs of lists of requests, which
        see to that, the first ones get those of the second; of ``writes``, pairs of plain tensors, the first ones get
        the numbers of the second; the generators' ``states`` become ``ends``.
        """
        cdef Tape tape = self.tape
        cdef Record *r
        cdef SigS *s
        cdef uint64_t seq
        cdef uint32_t i, n
        cdef tuple pair
        try:
            if not self.closed:
                for pair in writes or ():
                    pair[0].copy_(pair[1])
                if states is not None:
                    states.update(ends)
            while self.done < self.seqs.n and not self.closed:
                seq = self.seqs.data[self.done]
                r = tape.record(seq)
                if not r or r.state != REC_RUNNING:
                    self.done += 1             # it failed with what it depends on
                    continue
                s = tape.interner.sigs[r.sig]
                for i in range(s.n_out):
                    n = rec_outs(r, s)[i]
                    self._put(n, values.get(n))
                self._finish(seq, r)
            for pair in asked or ():
                (<list>pair[0]).extend(<list>pair[1])
        finally:
            self._give_back()
            tape._advance_head()
            tape.rearm()

    cdef Segment _part(self):
        cdef Segment seg = Segment.__new__(Segment)
        seg.tape = self.tape
        seg.fixed = True
        return seg

    def parts(self):
        """[(index of a device, Segment)]: the same records by the device that they run on.

        Records of one device depend on those of another only where they take its values (a copy): such a record is a
        part of its own, after all that came before it and before all that comes after.
        """
        cdef Tape tape = self.tape
        cdef Record *r
        cdef list found = []
        cdef dict current = {}
        cdef Segment part
        cdef size_t k
        cdef int place
        cdef bint mixed
        self.look_again()
        for k in range(self.seqs.n):
            r = tape.record(self.seqs.data[k])
            place = place_of(tape, r, &mixed)
            if mixed:
                current.clear()
            part = current.get(place)
            if part is None:
                part = current[place] = self._part()
                found.append((place, part))
            vec_push(&part.seqs, self.seqs.data[k])
            if mixed:
                current.clear()
        return found

    def part(self, positions):
        """The records at these positions, as a segment of its own."""
        cdef Segment part = self._part()
        cdef size_t k
        for k in positions:
            vec_push(&part.seqs, self.seqs.data[k])
        return part

    def instructions(self):
        """Yield (function name, sig id, input slots, output slots) per record, for executors that ship segments."""
        cdef size_t k
        for k in range(self.seqs.n):
            sig, _module, _loc, _phase, ins, outs = self.tape.describe(self.seqs.data[k])
            yield (<OpInfo>self.tape.interner.sigs[<uint32_t>sig].info).name, sig, ins, outs


def fail_dependents(Tape tape, uint64_t seq, slots, object failure):
    """The record of this number failed, elsewhere, and the storages of these slots were not written as they should have
    been: what was recorded since and depends on them, or on what has failed, fails. See Segment._fail.
    """
    cdef Segment seg = Segment.__new__(Segment)
    cdef Record *r
    cdef object first
    cdef uint64_t k
    cdef uint32_t i
    seg.tape = tape
    for slot in slots:
        i = slot
        if i < tape.n_slots:
            tape.slot(tape.slot(i).root).flags |= SLOT_OVERWRITTEN
    for k in range(max(seq + 1, tape.head), tape.tail):
        r = tape.record(k)
        if r and (r.state == REC_PENDING or r.state == REC_RUNNING) and seg._takes(r):
            first = seg._failed_input(r, tape.interner.sigs[r.sig])
            seg._fail_one(k, r, failure if first is None else first)
    for i in range(1, tape.n_slots):
        tape.slot(i).flags &= ~SLOT_OVERWRITTEN
    seg.closed = True
    tape._drain()
    tape._advance_head()
    tape.rearm()


cdef Segment plan_segment(Tape tape, const uint32_t *targets, size_t n, const uint32_t *written, size_t n_written):
    cdef Segment seg = Segment.__new__(Segment)
    seg.tape = tape
    if targets:
        seg.targets = <uint32_t *>malloc((n + n_written + 1) * sizeof(uint32_t))
        if not seg.targets:
            raise MemoryError()
        memcpy(seg.targets, targets, n * sizeof(uint32_t))
        if n_written:
            memcpy(seg.targets + n, written, n_written * sizeof(uint32_t))
        seg.n_targets, seg.n_written = n, n_written
    seg._plan()
    return seg
