"""Segments that repeat themselves, and calls made ready for them.

A segment's form says what a pass may rely on: the calls in order, which value each reads and gives, which storage each
value is on, and which of them somebody can name when all have run. Finding it costs some nanoseconds a record; what is
done with it is done once for each form.
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from .intern cimport ref, unref
from .structs cimport REC_GRAD, REC_RUNNING, SIG_VERIFIED, Record, SigS, Slot
from .tape cimport Tape, Vec, rec_floats, rec_ins, rec_outs, sig_floats, vec_push

cdef extern from "Python.h":
    object PyObject_Vectorcall(PyObject *callable, PyObject **args, size_t nargsf, PyObject *kwnames)
    size_t VECTORCALL_OFFSET "PY_VECTORCALL_ARGUMENTS_OFFSET"

cdef enum:
    MOST_ARGUMENTS = 32
    MOST_TIMES = 4096          # segments that came seldom, of which it is known how often


@cython.final
cdef class Step:
    def __cinit__(self, call, tuple args=(), dict kwargs=None, tuple inputs=(), uint32_t same=0, value=None,
                  bint skips=False):
        """call(*args, **kwargs), where the `inputs` are put in: (position among both, number of the input) each. A
        record has floats of its own after its inputs.

        call None: nothing is called. The result is the tensor `value`; without one, value `same` of the form; skips:
        there is no result, because no record of the form needs it.
        """
        cdef Py_ssize_t k
        kwargs = kwargs or {}
        self.call, self.same, self.value, self.skips = call, same, value, skips
        self.names, self.inputs = tuple(kwargs) or None, inputs
        self.held = [*args, *kwargs.values()]
        self.n_args, self.n_keywords = len(args), len(kwargs)
        self.n_places = len(inputs)
        if self.n_args + self.n_keywords > MOST_ARGUMENTS:
            raise ValueError(f"[Step] expected at most {MOST_ARGUMENTS} arguments, got {len(self.held)}")
        self.argv = <PyObject **>calloc(len(self.held) + 1, sizeof(PyObject *))
        self.places = <uint32_t *>calloc(2 * len(inputs) + 1, sizeof(uint32_t))
        if not self.argv or not self.places:
            raise MemoryError()
        for k in range(len(self.held)):
            self.argv[k] = <PyObject *>self.held[k]
        for k in range(len(inputs)):
            position, number = inputs[k]
            if not 0 <= position < len(self.held):
                raise IndexError(f"[Step] expected a position below {len(self.held)}, got {position}")
            self.places[2 * k], self.places[2 * k + 1] = position, number

    def __dealloc__(self):
        free(self.argv)
        free(self.places)

    def put(self, Py_ssize_t position, value):
        """Another constant at a position among the arguments, where no input goes."""
        self.held[position] = value
        self.argv[position] = <PyObject *>value

    cdef object run(self, PyObject **inputs):
        cdef PyObject *argv[MOST_ARGUMENTS + 1]
        cdef uint32_t k
        cdef PyObject *given
        argv[0] = NULL
        memcpy(argv + 1, self.argv, (self.n_args + self.n_keywords) * sizeof(PyObject *))
        for k in range(self.n_places):
            given = inputs[self.places[2 * k + 1]]
            Py_INCREF(<object>given)
            argv[1 + self.places[2 * k]] = given
        try:
            return PyObject_Vectorcall(<PyObject *>self.call, argv + 1, self.n_args | VECTORCALL_OFFSET,
                                       <PyObject *>self.names if self.names is not None else NULL)
        finally:
            for k in range(self.n_places):
                Py_DECREF(<object>argv[1 + self.places[2 * k]])


@cython.final
@cython.no_gc_clear            # __dealloc__ needs the tape
cdef class Form:
    def __init__(self):
        raise TypeError("Form is made by the engine")

    def __dealloc__(self):
        cdef size_t k
        for k in range(self.n):
            if self.steps and self.steps[k]:
                Py_DECREF(<object>self.steps[k])
        self._count(False)
        free(self.steps)
        free(self.words)
        free(self.shared.data)
        free(self.stepped.data)

    cdef void _count(self, bint more) noexcept:
        """Keep the ids of calls in it from being used again, or no more."""
        cdef size_t at = 0
        cdef SigS *s
        for _ in range(self.n if self.words else 0):
            s = self.tape.interner.sigs[self.words[at]]
            if more:
                ref(&s.refs)
            at += 2 + s.n_in + sig_floats(s)
            if not more:
                unref(&s.refs)

    def records(self):
        """[(id of the call, was torch's grad mode on, numbers of the values read, of the values given, of the floats
        that the call leaves open: equal ones are one)]
        """
        cdef list found = [], ins, outs, floats
        cdef size_t at = 0
        cdef uint32_t i, j, number = 0
        cdef uint32_t *roots = self.words + self.n_words - self.n_values
        cdef SigS *s
        for _ in range(self.n):
            s = self.tape.interner.sigs[self.words[at]]
            ins, outs, floats = [], [], []
            for i in range(s.n_in):
                j = self.words[at + 2 + i]
                ins.append(j)
                number = max(number, j + 1, (roots[j] >> 1) + 1)
            for _ in range(s.n_out):
                outs.append(number)
                number = max(number + 1, (roots[number] >> 1) + 1)
            for i in range(sig_floats(s)):
                floats.append(self.words[at + 2 + s.n_in + i])
            found.append((self.words[at], self.words[at + 1] != 0, tuple(ins), tuple(outs), tuple(floats)))
            at += 2 + s.n_in + len(floats)
        return found

    def values(self):
        """[(number of the value that owns the storage, can it be read when all have run?)]"""
        cdef list found = []
        cdef size_t k
        cdef uint32_t *roots = self.words + self.n_words - self.n_values
        for k in range(self.n_values):
            found.append((roots[k] >> 1, bool(roots[k] & 1)))
        return found

    def set(self, dict steps):
        """What records run, by number."""
        cdef size_t k, at = 0
        cdef Step found
        cdef PyObject **made = <PyObject **>calloc(self.n, sizeof(PyObject *))
        if not made:
            raise MemoryError()
        if self.steps:
            free(made)
            raise RuntimeError("the steps of a form are set once")
        self.steps = made
        for k, step in sorted(steps.items()):
            if k >= self.n or not isinstance(step, Step):
                raise ValueError(f"expected a Step for a record in 0..{self.n - 1}, got {step!r} for {k}")
            found = step
            if found.call is None and found.value is None and not found.skips:
                vec_push(&self.shared, k)
            self.skips |= found.skips
            Py_INCREF(step)
            made[k] = <PyObject *>step
        for k in range(self.n):
            if made[k]:
                vec_push(&self.stepped, self.words[at])
            at += 2 + self.tape.interner.sigs[self.words[at]].n_in + sig_floats(self.tape.interner.sigs[self.words[at]])
        self.changed = bool(steps)

    cdef bint is_ready(self) noexcept:
        """May its Steps be used? A record that is skipped comes back for none that reads it after all: each of those
        must run its Step. And a tape that keeps its records drops none.
        """
        cdef size_t k
        if not self.skips:
            return True
        for k in range(self.stepped.n):
            if not self.tape.interner.sigs[self.stepped.data[k]].flags & SIG_VERIFIED:
                return False
        return not self.tape.retain

    cdef Step step(self, size_t k):
        return <Step>self.steps[k]


@cython.final
cdef class Forms:
    def __init__(self, improve, uint32_t after, size_t fewest=8, size_t most=1 << 18):
        """improve(form) is called when a form comes for the `after`-th time; `most`: records of all forms."""
        self.improve, self.after, self.fewest, self.most = improve, after, fewest, most
        self.times, self.known, self.counted = {}, {}, {}

    def __dealloc__(self):
        free(self.marks)
        free(self.seen)
        free(self.words)
        free(self.uses.data)

    def forget(self):
        """All forms: what their steps rest on has changed."""
        self.counted = self.totals()
        self.times, self.known, self.records = {}, {}, 0

    def totals(self):
        """Name → sums of the two numbers that the notes of forms have for it, each as often as the form has run."""
        cdef dict sums = dict(self.counted)
        cdef Form form
        for form in self.known.values():
            for name, (first, second) in (form.notes or {}).items():
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + first * form.runs, before[1] + second * form.runs)
        return sums

    cdef Form find(self, Tape tape, Vec *seqs, Vec *slots):
        """The form of claimed records, if it was improved and something has come of it. `slots`: gets that of each
        value, by number.
        """
        cdef uint64_t h = 0x9E3779B97F4A7C15ULL
        cdef size_t k
        cdef Form form
        if not self._describe(tape, seqs, slots):
            return None
        for k in range(self.n_words):
            h = (h ^ self.words[k]) * 0xBF58476D1CE4E5B9ULL
            h ^= h >> 29
        key = h
        form = self.known.get(key)
        if form is None:
            count = self.times.get(key, 0) + 1
            if count < self.after:
                if len(self.times) >= MOST_TIMES:
                    self.times.clear()
                self.times[key] = count
                return None
            self.times.pop(key, None)
            if self.records + seqs.n > self.most:
                self.forget()
            form = self._form(tape, seqs.n, slots.n)
            self.improve(form)
            self.known[key] = form
            self.records += seqs.n
        elif form.n_words != self.n_words or memcmp(form.words, self.words, self.n_words * sizeof(uint32_t)):
            return None                # of another form, by a chance of 1 in 2 ** 64
        if not form.changed or not form.is_ready():
            return None
        form.runs += 1
        return form

    cdef Form _form(self, Tape tape, size_t n, size_t n_values):
        cdef Form form = Form.__new__(Form)
        form.tape = tape
        form.words = <uint32_t *>malloc(self.n_words * sizeof(uint32_t))
        if not form.words:
            raise MemoryError()
        memcpy(form.words, self.words, self.n_words * sizeof(uint32_t))
        form.n, form.n_words, form.n_values = n, self.n_words, n_values
        form._count(True)
        return form

    cdef int _describe(self, Tape tape, Vec *seqs, Vec *slots) except -1:
        """Write down in `words`: for each record its call, grad mode, the values that it reads and the floats that its
        call leaves open; then for each value the one that owns its storage, twice, and one more if anything can read it
        when all have run. 0: some record has failed. Values are numbered as they come, the owner of a storage after the
        first value on it; floats as they come, equal ones alike.
        """
        cdef size_t k
        cdef uint32_t i, root
        cdef uint32_t *ids
        cdef Record *r
        cdef SigS *s
        cdef Slot *slot
        cdef const uint8_t *floats
        cdef uint64_t bits
        self.n_words = self.n_seen = 0
        self.uses.n = slots.n = 0
        self.round += 1
        if self.n_marks < tape.n_slots or not self.round:
            free(self.marks)
            free(self.seen)            # with marks of rounds that come again
            self.seen = NULL
            self.n_marks = self.cap_seen = 0
            self.marks = <Mark *>calloc(tape.n_slots + 1024, sizeof(Mark))
            if not self.marks:
                raise MemoryError()
            self.n_marks = tape.n_slots + 1024
            self.round = 1
        for k in range(seqs.n):
            r = tape.record(seqs.data[k])
            if not r or r.state != REC_RUNNING:
                return 0
            s = tape.interner.sigs[r.sig]
            self._word(r.sig)
            self._word(r.flags & REC_GRAD)
            ids = rec_ins(r)
            for i in range(s.n_in):
                root = self._number(tape, ids[i], slots) - 1
                self._word(root)
                self.uses.data[root] += 1
            floats = <const uint8_t *>rec_floats(r, s)
            for i in range(sig_floats(s)):
                memcpy(&bits, floats + i * sizeof(double), sizeof(double))
                self._float(bits)
            ids = rec_outs(r, s)
            for i in range(s.n_out):
                self._number(tape, ids[i], slots)
        for k in range(slots.n):
            slot = tape.slot(<uint32_t>slots.data[k])
            if slot.root != slots.data[k]:
                self.uses.data[self.marks[slot.root].number] += 1
        for k in range(slots.n):
            slot = tape.slot(<uint32_t>slots.data[k])
            self._word(self.marks[slot.root].number << 1 | (slot.handles != 0 or slot.users > self.uses.data[k]))
        return 1

    cdef uint32_t _number(self, Tape tape, uint32_t slot, Vec *slots) except 0:
        """One more than the number of a slot's value."""
        cdef Mark *mark = &self.marks[slot]
        cdef uint32_t root
        if mark.round != self.round:
            mark.round, mark.number = self.round, <uint32_t>slots.n
            vec_push(slots, slot)
            vec_push(&self.uses, 0)
            root = tape.slot(slot).root
            if root != slot:
                self._number(tape, root, slots)
        return mark.number + 1

    cdef int _float(self, uint64_t bits) except -1:
        """Write down the float's number."""
        cdef Seen *old = self.seen
        cdef Seen *at
        cdef size_t cap = self.cap_seen, k
        if 2 * self.n_seen >= cap:
            self.seen = <Seen *>calloc(2 * cap + 64, sizeof(Seen))
            if not self.seen:
                self.seen = old
                raise MemoryError()
            self.cap_seen = 2 * cap + 64
            for k in range(cap):
                if old[k].round == self.round:
                    self._place(old[k].bits)[0] = old[k]
            free(old)
        at = self._place(bits)
        if at.round != self.round:
            at.bits, at.round, at.number = bits, self.round, <uint32_t>self.n_seen
            self.n_seen += 1
        return self._word(at.number)

    cdef Seen *_place(self, uint64_t bits) noexcept:
        """Where the float is, or belongs."""
        cdef size_t k = (bits * 0x9E3779B97F4A7C15ULL >> 32) % self.cap_seen
        while self.seen[k].round == self.round and self.seen[k].bits != bits:
            k = (k + 1) % self.cap_seen
        return &self.seen[k]

    cdef int _word(self, uint32_t word) except -1:
        cdef uint32_t *more
        if self.n_words == self.cap_words:
            more = <uint32_t *>realloc(self.words, (2 * self.cap_words + 256) * sizeof(uint32_t))
            if not more:
                raise MemoryError()
            self.words, self.cap_words = more, 2 * self.cap_words + 256
        self.words[self.n_words] = word
        self.n_words += 1
        return 0
