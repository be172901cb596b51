"""Measures every op of a program from inside a dispatch mode: time, FLOPs per signature, bytes, live memory.

One clock reading ends one interval and starts the next, and every interval is added to exactly one row, so rows sum
to the measured time to the nanosecond. FLOPs are asked for once per signature and kept.

An op on lazy tensors is seen twice: when it is recorded (`dispatch`: calls, FLOPs, bytes) and when it runs, at a later
read (`ran`: time). Its run counts for the module, phase and line that recorded it.

Every thread has a timeline of its own. Ops count in full in each; the time between a thread's ops counts only as far
as no other thread was accounted for meanwhile, since a thread that waits for another one does nothing. So rows sum to
the measured time of a program whose threads take turns, and to more where they work at once.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from mindtorch._ext.balance cimport Balance, Maker
from mindtorch._ext.clock cimport mt_now
from mindtorch._ext.context cimport (
    MODULE_ENTER, MODULE_EXIT, PHASE_BACKWARD, PHASE_CANDIDATE, PHASE_CHANGE, PHASE_DATA, PHASE_FORWARD,
    PHASE_OPTIMIZER, PHASE_OTHER, PHASE_SETTLED,
    add_transition_hook, current_module, current_phase, in_step, outermost_optimizer, remove_transition_hook,
)
from mindtorch._ext.labels cimport Labels
from mindtorch._ext.lazy cimport get_tape, handle_of
from mindtorch._ext.location cimport current_location, own_location
from mindtorch._ext.opinfo cimport Op, Runs
from mindtorch._ext.rowtable cimport ModuleCalls, Row, RowTable
from mindtorch._ext.sampler cimport BUSY, Sampler, mt_beat
from mindtorch._ext.signals cimport interrupts
from mindtorch._ext.signature cimport (
    PyObject_TypeCheck, PyTypeObject, append_layout, append_shape, append_stored, shape_of,
)
from mindtorch._ext.stretches cimport BEFORE_BACKWARD, IN_BACKWARD, IN_CALL, IN_STEP
from mindtorch._ext.tape cimport Handle, Tape
from mindtorch._ext.timeline cimport (
    EVENT_LABEL, EVENT_OP, EVENT_RECORD, EVENT_RUN, FOR_THREADS, Event, EventLog, SpanLog, Timeline,
)

from mindtorch._ext.signals import raise_soon

cdef extern from *:
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    SIGS_PER_OP = 4096                         # remembered; programs with ever new shapes must not fill the memory


def now_ns():
    """The clock of every time here, nanoseconds."""
    return mt_now()


cdef class Collector:
    """Everything recorded about one run; `dispatch` is the body of a dispatch mode.

    Not final: the mode itself is a subclass, because torch insists that ``__torch_dispatch__`` is bound to the mode.
    Not thread-safe beyond the GIL. The thread that calls `start` is followed, and others after their `join`.
    """
    cdef readonly RowTable table
    cdef readonly SpanLog spans                # where to look for what the host was at
    cdef EventLog log
    cdef uint32_t candidates                   # where in it the last call began that may be a prefill
    cdef readonly Labels labels
    cdef readonly Sampler sampler              # tells lines apart where no op runs
    cdef dict waited                           # (what for, location) -> ns of rows in which a thread was seen waiting
    cdef readonly dict loads                   # line where a batch was made -> the program's line that waited for it
    cdef uint64_t accounted                    # ns in rows, interception and imports, of all threads
    cdef readonly uint64_t imported, compiled  # ns spent on loading modules, on compiling; in none of the rows
    cdef readonly uint64_t overhead            # ns of interception taken off the rows
    cdef public uint64_t cost_in, cost_out, cost_module    # ns per op inside and around it, per module boundary
    cdef readonly Balance balance              # of the memory
    cdef ModuleCalls entries
    cdef readonly dict order                   # path id of a module -> how many were called first before it
    cdef dict ops                              # id of function -> Op
    cdef readonly list sig_ops                 # signature index -> Op; index 0 is the time between ops
    cdef readonly list sig_flops               # signature index -> (flops, macs) or None
    cdef readonly list sig_works               # signature index -> what `weigh` said, or None
    cdef object function_modes, functions_seen, no_functions, below_autograd, fake, symbolic
    cdef public object weigh                   # None, or (func, args, kwargs, out) -> Work: asked once per signature
    cdef public object noted                   # None, or `begins(func, args, kwargs)` and `ended` (see `Sampling`)
    cdef object describe, count, tensor_class, on_mark
    cdef public object synchronize             # None, or called after each op with what it gave
    cdef PyTypeObject *tensor_type             # borrowed from tensor_class
    cdef object strided                        # layout of dense tensors
    cdef readonly Timeline first               # of the thread that started it
    cdef Timeline caller                       # … that called backward last
    cdef Timeline recent                       # of the thread seen last, whose identity is `ident`
    cdef unsigned long ident
    cdef readonly dict threads                 # identity of a thread -> Timeline
    cdef uint16_t n_threads
    cdef readonly bint enabled, other_thread   # other_thread: modules ran in one that did not join
    cdef readonly bint backward                # there was a backward pass
    cdef uint64_t looked_at                    # the peak at the last "backward end"
    cdef readonly dict runs                    # name -> Runs
    cdef readonly uint64_t plain_ops, lazy_ops, lazy_runs, lazy_devices    # since the last split; bit set of indices
    cdef readonly object mark_error
    cdef readonly uint64_t n_ops, failed
    cdef readonly uint64_t started, stopped, first_op
    cdef object __weakref__

    def __cinit__(self, describe, count, tensor_type, on_mark, max_events=1 << 20, synchronize=None,
                  look=None):
        """`describe(func or name of a recorded op) -> Op`, `count(func, args, kwargs, out) -> (flops, macs) or None`,
        `on_mark(kind, now, which)` is told about outermost calls ("enter", "exit", with the module's path id), steps of
        optimizers ("step begins", "step", with its address), "backward", and "backward end" where there was a new
        peak since the last one. `look()` is asked where nothing was
        accounted for in a while.
        """
        self.describe = describe
        self.count = count
        self.tensor_class = tensor_type
        self.tensor_type = <PyTypeObject *> <void *> tensor_type
        self.strided = tensor_type().layout
        self.on_mark = on_mark
        self.synchronize = synchronize
        self.log = EventLog(max_events)
        self.spans = SpanLog()
        self.labels = Labels()
        self.sampler = Sampler(look)
        self.order, self.ops, self.runs, self.threads, self.waited = {}, {}, {}, {}, {}
        self.loads = {}
        self.sig_ops, self.sig_flops, self.sig_works = [None], [(0, 0)], [None]
        self.table = RowTable()
        self.entries = ModuleCalls()
        self.balance = Balance(tensor_type, self.log)

    def keep_apart(self, function_modes, functions_seen, no_functions, below_autograd, fake, symbolic, parts):
        """What torch says of function modes (number, whether on, a context without), of an op (was it dispatched?), of
        compilers' tensors (their class, whether there are sizes among them that are not chosen yet), of sparse
        tensors (the dense ones that they are made of)."""
        self.function_modes, self.functions_seen, self.no_functions = function_modes, functions_seen, no_functions
        self.below_autograd, self.fake, self.symbolic = below_autograd, fake, symbolic
        self.balance.parts_of = parts

    # ------------------------------------------------------------ start and stop

    def start(self, at=0):
        """Begin the timeline, `at` ns on the clock or now. The semantics must be installed."""
        self.enabled = True
        self.threads = {}
        self.n_threads = 0
        self.first = self.caller = self.join(at if at else mt_now())
        self.started = self.first.last
        add_transition_hook(on_transition, <void *> self)

    def stop(self):
        """End the timeline; time since the last op goes to the module and phase of now."""
        cdef Timeline here = self.here()
        if not self.enabled:
            return
        self.stopped = mt_now()
        if here is not None:
            self.gap(here, self.stopped, 0, current_module(), current_phase(), here.place)
        self.enabled = False
        remove_transition_hook(on_transition, <void *> self)

    def set_aside(self):
        """What happens until `resume` is not the program's: another profile is made ready within this one."""
        cdef Timeline here = self.here() if self.enabled else None
        if here is not None:
            self.gap(here, mt_now(), 0, current_module(), current_phase(), current_location())
            self.enabled = False
        return here is not None

    def resume(self):
        """The program goes on, in the thread that called `set_aside`."""
        cdef Timeline here = self.here()
        self.enabled = True
        if here is not None:
            self.ours(here, here.last)

    def aside(self, since):
        """The calling thread watched from `since` until now: what came before was the program's own."""
        cdef Timeline here = self.here() if self.enabled else None
        cdef uint64_t begun = since, ns
        if here is None:
            return
        if here.in_op:
            ns = mt_now() - (begun if begun > here.last else here.last)    # not what an import in it has counted
            here.inner += ns
            self.accounted += ns
            self.overhead += ns
            return
        if begun > here.last:
            self.gap(here, begun, 0, current_module(), current_phase(), current_location())
        self.ours(here, here.last)

    def join(self, at=0):
        """The calling thread is accounted for from here on, or from `at` ns on the clock; its timeline."""
        cdef Timeline here = Timeline.__new__(Timeline)
        here.number = self.n_threads
        here.last = at if at else mt_now()
        here.seen = self.accounted
        if self.n_threads < 0xFFFF:
            self.n_threads += 1
        self.ident = PyThread_get_thread_ident()
        self.recent = here
        self.threads[self.ident] = here
        return here

    def leave(self):
        """The calling thread ends. Where it never was at a line of the program's, its time is that of who waits."""
        cdef unsigned long ident = PyThread_get_thread_ident()
        cdef Timeline here = self.threads.pop(ident, None)
        if here is not None and self.enabled and (here.n_ops or here.was_somewhere()):
            self.gap(here, mt_now(), 0, current_module(), current_phase(), here.place)
        if ident == self.ident:
            self.ident = 0
            self.recent = None

    cdef Timeline here(self):
        """The timeline of the calling thread; None when it has none."""
        cdef unsigned long ident = PyThread_get_thread_ident()
        if ident == self.ident and self.recent is not None:
            return self.recent
        found = self.threads.get(ident)
        if found is not None:
            self.ident = ident
            self.recent = <Timeline> found
            return self.recent
        # The engine's own threads (one for each CUDA device) work while the one that called it waits.
        return self.caller if current_phase() == PHASE_BACKWARD else None

    def begin_import(self, bint installed, bint nested):
        """A module is being loaded: the time since the last interval was the program's own.

        installed: it is a library's; all that it does between ops is loading it. nested: within an import of the
        program's own; what that did until now was loading, too, unless it ran an op.
        """
        cdef Timeline here = self.here() if self.enabled else None
        if here is None:
            return
        if nested and (here.in_op or here.n_ops == here.n_ops_before):
            self.end_import(False)
        elif here.in_op:
            here.last = mt_now()               # until now it was the op's
        else:
            self.gap(here, mt_now(), 0, current_module(), current_phase(), current_location())
        if not nested:
            here.n_ops_before = here.n_ops
        here.importing = installed

    def end_import(self, bint installed=False):
        """The time since `begin_import`, or since the last op that the module ran, went into loading it."""
        cdef uint64_t now = mt_now(), ns
        cdef Timeline here = self.here() if self.enabled else None
        if here is not None and installed:
            here.importing = False
        if here is not None and now > here.last:
            ns = now - here.last
            if here.in_op:
                here.inner += ns
            else:
                ns -= min(ns, self.accounted - here.seen)      # by other threads meanwhile
            self.imported += ns
            self.until(here, now, ns)

    def compiling(self, begins):
        """The calling thread begins or ends compiling a function."""
        cdef Timeline here = self.here() if self.enabled else None
        if here is not None:
            self.gap(here, mt_now(), 0, current_module(), current_phase(), current_location())
            here.compiling = begins

    def disable(self):
        """Ignore what follows (in a forked child, where the timeline means nothing)."""
        self.enabled = False
        remove_transition_hook(on_transition, <void *> self)

    # ------------------------------------------------------------ rows

    cdef void until(self, Timeline here, uint64_t at, uint64_t ns) noexcept:
        """The thread is accounted for up to `at`; `ns` of that are new."""
        self.accounted += ns
        mt_beat(&self.sampler.beat, at)
        here.n_looks = 0
        here.last = at
        here.seen = self.accounted

    cdef void gap(self, Timeline here, uint64_t at, uint64_t cost, uint32_t module, uint32_t phase,
                  uint32_t place) noexcept:
        """The time since the last interval was the program's own; up to `cost` ns of it were ours.

        It is that of the lines where the thread was seen meanwhile, else of `place`, which it came to; of the line that
        waits for a DataLoader.
        """
        cdef uint64_t ns = at - here.last if at > here.last else 0
        cdef uint64_t elsewhere = self.accounted - here.seen    # by other threads meanwhile
        cdef uint64_t ours
        cdef Row *r
        ns = ns - elsewhere if elsewhere < ns else 0
        if here.compiling:
            self.compiled += ns
            self.until(here, at if at > here.last else here.last, ns)
            return
        if here.importing:
            self.imported += ns
            self.until(here, at if at > here.last else here.last, ns)
            return
        ours = cost if cost < ns else ns
        here.place = place
        if here.n_looks:                       # so long that no loss is computed there
            self.looked(here, at - here.last, ns - ours, module,
                        PHASE_OTHER if phase == PHASE_FORWARD and module == 0 else phase)
        else:
            if phase == PHASE_DATA:
                place = here.loading
                self.note_load(here, place)
            r = self.table.row(0, module, place, phase)
            r.ns += ns - ours
            r.calls += 1
            self.spans.add(here.last, ns - ours, 0, module, place, phase, here.number)
        self.overhead += ours
        self.until(here, at if at > here.last else here.last, ns)

    cdef void ours(self, Timeline here, uint64_t since) noexcept:
        """The time since then went into watching, but for what is accounted for: an import in it, lazy ops that ran."""
        cdef uint64_t now = mt_now()
        if since < here.last:
            since = here.last
        self.overhead += now - since
        self.until(here, now, now - since)

    cdef void watched(self, Timeline here, uint64_t since, uint64_t counted, uint64_t op=0) noexcept:
        """The time since then went into watching, but for the `op`, and what is `counted` already."""
        cdef uint64_t now = mt_now()
        self.overhead += now - since - counted - op
        self.until(here, now, now - since - counted)

    cdef void looked(self, Timeline here, uint64_t whole, uint64_t ns, uint32_t module, uint32_t phase) noexcept:
        """`ns` of the `whole` time since the last interval, by the lines where the thread was seen in it.

        What other threads were at meanwhile is theirs: first of all of the time in which this one waited for threads.
        """
        cdef uint64_t left = ns, waited = 0, theirs, part
        cdef uint32_t i
        cdef Row *r
        for i in range(here.n_looks):
            if here.look_waits[i] == FOR_THREADS:
                waited += here.look_ns[i]
        theirs = whole - ns if whole - ns < waited else waited
        for i in range(here.n_looks):
            part = here.look_ns[i]
            if here.look_waits[i] == FOR_THREADS:
                part -= <uint64_t> (<double> theirs * part / waited)
            part = <uint64_t> (<double> ns * part / (whole - theirs)) if whole > theirs else 0
            part = part if part < left else left
            r = self.table.row(0, module, here.look_place[i], phase)
            r.ns += part
            r.calls += 1
            self.spans.add(here.last + ns - left, part, 0, module, here.look_place[i], phase, here.number)
            left -= part
            self.note_wait(here, i, part, phase)
        # What is left is shorter than the time between two looks; a line that was seen is more likely than one that was
        # not.
        r = self.table.row(0, module, here.look_place[here.look_last], phase)
        r.ns += left
        r.calls += 1
        self.spans.add(here.last + ns - left, left, 0, module, here.look_place[here.look_last], phase, here.number)
        self.note_wait(here, here.look_last, left, phase)

    cdef void note_wait(self, Timeline here, uint32_t i, uint64_t ns, uint32_t phase) noexcept:
        """`ns` were spent as the thread was seen the i-th time; waiting for a DataLoader has a name already."""
        if phase == PHASE_DATA:
            self.note_load(here, here.look_place[i])
            return
        if here.look_waits[i] == 0:
            return
        try:
            key = here.look_waits[i], here.look_place[i]
            self.waited[key] = self.waited.get(key, 0) + ns
        except MemoryError:
            self.failed += 1

    cdef void note_load(self, Timeline here, uint32_t place) noexcept:
        try:
            self.loads[place] = here.loading
        except MemoryError:
            self.failed += 1

    def timelines(self):
        """(identity of the thread, Timeline) of those that may be at something that no hook sees."""
        cdef uint64_t now = mt_now()
        cdef Timeline here
        found = []
        for ident, timeline in self.threads.items():
            here = <Timeline> timeline
            if not here.in_op and not here.compiling and now > here.last:
                found.append((ident, here))
        return found if self.enabled else []

    def seen_at(self, Timeline here, place, waits):
        """The thread was seen at that line: a location id. waits: a number for what it waited for, 0 for nothing."""
        if not here.in_op:
            here.look(mt_now(), place, waits)

    def take_waits(self):
        """{(what for, location): ns} of waiting seen since the last time; they are in rows, too."""
        found, self.waited = self.waited, {}
        return found

    def take_rows(self):
        """List of (sig, module, location, phase, calls, ns, bytes); the table is empty afterwards."""
        return self.table.take(self.sig_ops)

    def split(self, at):
        """End the interval at `at` ns and return what was recorded so far: rows, overhead, the peak, module
        calls, those of them without gradients that are no step of a generation.

        Peaks start again from what is live.
        """
        cdef Timeline here = self.here() if self.enabled else None
        if here is not None and <uint64_t> at > here.last:
            self.gap(here, at, 0, current_module(), current_phase(), current_location())
        if self.enabled and <uint64_t> at > self.first.last and not self.first.in_op:
            # It may be waiting since the start: that was another stage.
            self.gap(self.first, at, 0, 0, 0, self.first.place)
        taken = self.take_rows(), self.overhead, self.balance.peak, *self.entries.take()
        self.overhead = self.plain_ops = self.lazy_ops = self.lazy_runs = self.lazy_devices = 0
        for timeline in list(self.threads.values()):   # others begin meanwhile
            self.labels.stage(timeline, at if at > 0 else mt_now(), self.elsewhere())
        self.balance.restart()
        return taken

    def up_to(self, uint64_t at):
        """The calling thread's time until then is the program's own."""
        cdef Timeline here = self.here() if self.enabled else None
        if here is not None and not here.in_op and at > here.last:
            self.gap(here, at, 0, current_module(), current_phase(), current_location())

    def made(self, tensor):
        """A tensor's memory was taken. While an op runs, it is counted with the op's results, if it is one of them."""
        cdef Timeline here = self.here() if self.enabled else None
        cdef Maker maker
        if here is None or here.in_op:
            return
        cdef uint32_t module = current_module(), phase = current_phase()
        maker = Maker(0, module, current_location(), <uint8_t> phase)
        self.balance.track(tensor, &maker, here)
        self.balance.in_phase(phase)

    # ------------------------------------------------------------ one op

    def dispatch(self, func, types, args=(), kwargs=None):
        """Run one op and account for it. The signature of ``__torch_dispatch__``."""
        cdef uint64_t t_in = mt_now(), t0, t1, ns, ours
        cdef uint64_t before_it, within        # what was counted already, before the op and in it
        cdef uint32_t module, location, phase, sig
        cdef uint64_t nbytes = 0, before
        cdef Maker maker
        cdef bint recorded
        cdef Tape tape
        cdef Op op
        cdef Row *r
        cdef Timeline here
        if self.function_modes is not None and self.function_modes() and self.functions_seen():
            with self.no_functions():          # modes of the program's: they are not told of what is called from here
                return self.dispatch(func, types, args, kwargs)
        found = self.ops.get(<uintptr_t> <void *> func)
        op = <Op> found if found is not None else self.new_op(func)
        if not self.enabled:
            return op.call(*args, **kwargs) if kwargs else op.call(*args)
        here = self.here()
        if here is None:
            self.other_thread = True           # a mode put there by somebody else; its time is not ours to sum
            return op.call(*args, **kwargs) if kwargs else op.call(*args)
        if types and self.fake in types and self.symbolic((*args, *kwargs.values()) if kwargs else args):
            return op.call(*args, **kwargs) if kwargs else op.call(*args)
        module = current_module()              # first: it finds out where the program is, and may account for a while
        t_in = max(t_in, here.last)
        phase = current_phase()
        if self.first_op == 0:
            self.first_op = t_in
            self.mark("op", t_in, 0)
        location = current_location()
        self.gap(here, t_in, self.cost_out, module, phase, location)
        if self.spans.n > self.spans.enough:
            self.spans.full()
            t_in = here.last
        if op.detaches and self.below_autograd is not None and not self.below_autograd():
            out = op.call(*args)               # a handle copied, as of results that autograd saves: none of a plain run
            self.ours(here, t_in)
            return out
        tape = get_tape()
        before = tape.n_recorded if tape is not None else 0
        here.inner = before_it = 0
        here.in_op = True                      # what is imported from here on is in `inner`, not a gap of the program's
        t0 = 0
        try:
            noted = self.noted                 # another thread may end it meanwhile
            begun = None if noted is None else noted.begins(func, args, kwargs)
            before_it = here.inner
            here.inner = 0
            mt_beat(&self.sampler.beat, BUSY)
            t0 = mt_now()
            if kwargs:
                out = op.call(*args, **kwargs)
            else:
                out = op.call(*args)
            if self.synchronize is not None:
                self.synchronize(out)
        except BaseException:
            if t0:
                self.failed += 1
                self.overhead += t0 - t_in - before_it
                self.until(here, t0 + here.inner, t0 - t_in - before_it)    # the time it took is between ops
            raise
        finally:
            here.in_op = False
        t1 = mt_now()
        if type(out) is self.fake and self.symbolic(out):
            self.watched(here, t_in, before_it + here.inner)
            return out
        within = here.inner
        here.inner = 0
        here.in_op = True
        try:
            self.n_ops += 1
            recorded = tape is not None and tape.n_recorded != before
            sig = self.signature(op, args, kwargs, out)
            if op.allocates or (op.may_copy and self.balance.copied(out, args)):
                maker = Maker(sig, module, location, <uint8_t> phase)
                nbytes = self.balance.track(out, &maker, here)
            elif op.writes:
                maker = Maker(sig, module, location, <uint8_t> phase)
                nbytes = self.written(out, &maker, here)
            if begun is not None:
                noted.ended(begun, args, kwargs, out)
            self.balance.in_module(module)     # it holds what is there, also where it only makes views
            self.balance.in_phase(phase)
            self.note_place(out, args)
        finally:
            here.in_op = False
        ns = t1 - t0 - within
        ours = self.cost_in if self.cost_in < ns else ns
        r = self.table.row(sig, module, location, phase)
        r.calls += 1
        r.nbytes += nbytes
        if recorded:                           # its own time is that of its run; making a note of it is Python's
            (<Runs> self.runs_of(op.name)).recorded += 1
            r = self.table.row(0, module, location, phase)
            r.calls += 1
        r.ns += ns - ours
        self.spans.add(t0, ns - ours, 0 if recorded else sig, module, location, phase, here.number)
        if sig:
            self.note(here, EVENT_RECORD if recorded else EVENT_OP, t0, t1 - t0, sig, module, location, phase)
        elif op.begins or op.ends:
            self.label(here, op, args, t_in, t1, t0 - t_in - before_it + ours)
        here.n_ops += sig != 0                 # a label is none
        here.op_ns += ns - ours
        self.overhead += ours
        self.watched(here, t_in, before_it + within + here.inner, ns)
        return out

    # ------------------------------------------------------------ lazy ops

    def ran(self, name, uint32_t module, uint32_t phase, uint32_t location, uint64_t start, uint64_t end):
        """A recorded op ran from `start` to `end` (ns); the rest is that of its recording. An op observer (L14)."""
        cdef uint64_t now
        cdef Runs runs
        cdef uint32_t sig, running
        cdef Row *r
        cdef Timeline here
        if not self.enabled:
            return
        here = self.here()
        if here is None:
            self.other_thread = True
            return
        if self.synchronize is not None:
            self.synchronize(None)
            end = mt_now()
        running = current_module()             # which may account for a while
        start = max(start, here.last)
        end = max(start, end)
        runs = <Runs> self.runs_of(name)
        if runs.ran < runs.recorded:
            runs.ran += 1
            sig = runs.sig
        else:                                  # made by a creation function, or recorded before the start
            sig = runs.unseen
        if not here.in_op:
            self.gap(here, start, 0, running, current_phase(), current_location())
        r = self.table.row(sig, module, location, phase)
        r.calls += 1
        r.ns += end - start
        self.spans.add(start, end - start, sig, module, location, phase, here.number)
        self.lazy_runs += 1
        self.note(here, EVENT_RUN, start, end - start, sig, module, location, phase)
        here.op_ns += end - start
        now = mt_now()
        self.overhead += now - end
        if here.in_op:
            here.inner += now - start
            self.accounted += now - start
        else:
            self.until(here, now, now - start)

    cdef Runs runs_of(self, str name):
        cdef Runs runs = <Runs> self.runs.get(name)
        cdef Op op
        if runs is None:
            runs = Runs.__new__(Runs)
            op = self.describe(name)
            runs.sig = self.new_sig(op, (0, 0))
            op = Op(None, None, name, op.category, False, op.is_free, False, False)
            runs.unseen = self.new_sig(op, (0, 0) if op.is_free else None)
            self.runs[name] = runs
        return runs

    cdef void note_place(self, object out, tuple args):
        """Where the tensors of an op are: plain torch's devices, or ours."""
        cdef Handle h
        while (type(out) is tuple or type(out) is list) and out:
            out = out[0]
        h = handle_of(out)
        if h is None and args:                 # reads and in-place lists of lazy tensors
            out = args[0]
            if (type(out) is tuple or type(out) is list) and out:
                out = out[0]
            h = handle_of(out)
        if h is None:
            self.plain_ops += 1
        else:
            self.lazy_ops += 1
            self.lazy_devices |= (<uint64_t> 1) << (h.tape.interner.metas[h.meta].device & 63)

    cdef Op new_op(self, func):
        cdef Op op = self.describe(func)
        if not op.name.startswith("profiler::"):               # torch's own notes: time between ops, as they are no ops
            op.plain = self.new_sig(op, None if not op.is_free else (0, 0))
        self.ops[<uintptr_t> <void *> func] = op           # op.func keeps the function, so the address stays its own
        return op

    cdef uint32_t new_sig(self, Op op, flops, work=None) except? 0:
        self.sig_ops.append(op)
        try:
            self.sig_flops.append(flops)
            self.sig_works.append(work)
        except MemoryError:
            del self.sig_ops[len(self.sig_works):], self.sig_flops[len(self.sig_works):]   # the three go together
            raise
        return <uint32_t> (len(self.sig_ops) - 1)

    cdef uint32_t signature(self, Op op, tuple args, kwargs, out) except? 0xFFFFFFFF:
        cdef list key
        if not op.plain:
            return 0
        if self.weigh is not None:
            if op.category == "view":          # all alike
                if self.sig_works[op.plain] is None:
                    self.sig_works[op.plain] = self.weigh(op.func, args, kwargs, out)
                return op.plain
            key = []
            append_layout(key, args, self.tensor_type)
            if PyObject_TypeCheck(out, self.tensor_type) or type(out) is tuple or type(out) is list:
                append_layout(key, out, self.tensor_type)  # sizes may depend on values; but no value that is read
            if kwargs:
                for name, value in kwargs.items():
                    key.append(name)
                    append_layout(key, value, self.tensor_type)
            return self.sig_of(op, tuple(key), args, kwargs, out)
        if not op.has_formula:
            return op.plain
        if op.by_output and PyObject_TypeCheck(out, self.tensor_type):
            # A shape is no key of the other kind: those have a shape in them, or a list's length before anything else.
            return self.sig_of(op, shape_of(out), args, kwargs, out)
        key = []
        for value in args:
            append_shape(key, value, self.tensor_type)
        if op.category == "matmul":
            append_stored(key, args, self.tensor_type, self.strided)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                append_shape(key, value, self.tensor_type)
        return self.sig_of(op, tuple(key), args, kwargs, out)

    cdef uint32_t sig_of(self, Op op, object signature, tuple args, kwargs, out) except? 0:
        try:
            found = op.sigs.get(signature)
        except TypeError:                      # an argument that can't be hashed: counted every time
            return self.ask(op, args, kwargs, out)
        if found is not None:
            return found
        index = self.ask(op, args, kwargs, out)
        if len(op.sigs) < SIGS_PER_OP:
            op.sigs[signature] = index
        return index

    cdef uint32_t ask(self, Op op, tuple args, kwargs, out) except? 0:
        flops = self.count(op.func, args, kwargs, out) if op.has_formula else (0, 0) if op.is_free else None
        if self.weigh is not None:
            return self.new_sig(op, flops, self.weigh(op.func, args, kwargs, out))
        if flops not in op.costs:              # calls that cost the same are one, however many shapes there are
            op.costs[flops] = self.new_sig(op, flops)
        return op.costs[flops]

    cdef uint64_t written(self, out, const Maker *maker, Timeline here) except? 0:
        cdef uint64_t nbytes = 0
        if not PyObject_TypeCheck(out, self.tensor_type):
            return 0
        if out.layout is self.strided:
            return out.nbytes
        self.balance.track(out, maker, here)   # a sparse tensor may have other indices and values now
        for part in self.balance.parts_of(out):
            nbytes += part.nbytes
        return nbytes

    # ------------------------------------------------------------ events

    cdef void note(self, Timeline here, uint8_t kind, uint64_t start, uint64_t ns, uint32_t sig, uint32_t module,
                   uint32_t location, uint32_t phase) noexcept:
        cdef Event *e = self.log.add()
        if e == NULL:
            return
        e.start = start
        e.ns = ns
        e.live = self.balance.live
        e.sig = sig
        e.module = module
        e.location = location
        e.thread = here.number
        e.kind = kind
        e.phase = <uint8_t> phase

    cdef void label(self, Timeline here, Op op, tuple args, uint64_t before, uint64_t after, uint64_t own) noexcept:
        """A note of torch's: a named stretch begins or ends. `own`: interception until `after`, not yet in overhead."""
        cdef uint64_t start = 0
        cdef int64_t number
        try:
            if op.begins:
                self.labels.begin(here, str(args[0]) if args else "", after, self.elsewhere() + own)
                return
            number = self.labels.end(here, before, self.elsewhere(), &start)
        except MemoryError:
            self.failed += 1
            return
        if number >= 0:
            self.note(here, EVENT_LABEL, start, before - start, <uint32_t> number, 0, 0, current_phase())

    cdef inline uint64_t elsewhere(self) noexcept:
        """ns that went into recording, loading modules and compiling: no part of what is named."""
        return self.overhead + self.imported + self.compiled

    def event_count(self):
        return self.log.n

    def event(self, index):
        return self.log.event(index)

    def events(self):
        return self.log.as_bytes()

    @property
    def dropped_events(self):
        return self.log.dropped

    cdef void transition(self, int kind, uint32_t module, uint8_t phase) noexcept:
        cdef uint64_t now = mt_now()
        cdef Timeline here
        if kind == PHASE_SETTLED:
            self.table.settle(module, phase)
            self.log.settle(self.candidates if module == PHASE_CANDIDATE else 0, module, phase)
            self.spans.settle(module, phase)
            self.balance.settle(module, phase)
            self.entries.settle(module, phase)
        if kind == PHASE_SETTLED or not self.enabled:
            return
        here = self.here()
        if here is None:
            self.other_thread = True
            return
        if here.in_op:
            return
        if phase == PHASE_CANDIDATE and here.depth == 0:
            self.candidates = self.log.n
        if kind == MODULE_ENTER and here.depth == 0 and phase != PHASE_DATA:
            self.mark("enter", now, module)
            if not self.enabled:
                return
        # A module that is left was at its last line; its caller's frame is the current one.
        self.gap(here, now, self.cost_module, current_module(), current_phase(),
                 here.place if kind == MODULE_EXIT and here.place else current_location())
        if kind == PHASE_CHANGE and phase == PHASE_DATA:
            here.loading = own_location()
        if phase == PHASE_BACKWARD and kind != PHASE_CHANGE and not self.labels.recompute(
                here, kind == MODULE_ENTER, now, self.elsewhere()):
            self.failed += 1
        self.note(here, <uint8_t> (1 + kind), now, 0, 0, module, 0, phase)
        if kind == MODULE_ENTER:
            here.depth += 1
            if self.balance.in_module(module) and self.entries.add(module, phase):
                self.first_call(module)
        elif kind == MODULE_EXIT:
            here.depth -= here.depth > 0       # 0: entered before the timeline began
            if here.depth == 0:
                here.ended[<int> IN_CALL] = self.balance.births
                self.mark("exit", now, module)
        elif phase == PHASE_BACKWARD:
            self.caller = here
            self.backward = True
            here.ended[<int> IN_CALL] = here.ended[<int> BEFORE_BACKWARD] = self.balance.births  # within a call, too
            self.mark("backward", now, 0)
        elif not in_step() and phase == PHASE_OPTIMIZER:
            self.mark("step begins", now, outermost_optimizer())
        elif not in_step() and current_phase() == PHASE_OPTIMIZER:
            here.ended[<int> IN_STEP] = self.balance.births
            self.mark("step", now, outermost_optimizer())
        elif current_phase() == PHASE_BACKWARD:
            here.ended[<int> IN_BACKWARD] = self.balance.births
            if self.looked_at != self.balance.born_by_peak:    # gradients may be what the peak is made of
                self.looked_at = self.balance.born_by_peak
                self.mark("backward end", now, 0)
        if kind != MODULE_EXIT:
            self.balance.in_phase(phase)
        self.ours(here, now)

    cdef void first_call(self, uint32_t module) noexcept:
        """Of this stage; the report lists modules in the order of the run."""
        try:
            self.order.setdefault(module, len(self.order))
        except MemoryError:
            self.failed += 1                   # it is listed last

    cdef void mark(self, str kind, uint64_t now, uint64_t which) noexcept:
        try:
            self.on_mark(kind, now, which)
        except BaseException as error:         # a C caller can't raise; the report says that it happened
            if interrupts(error):
                raise_soon(error)
                return
            self.failed += 1
            self.on_mark, self.mark_error = ignore, error


def ignore(kind, now, which):
    """Stands in for a mark handler that failed."""


cdef void on_transition(void *data, int kind, uint32_t module, uint8_t phase) noexcept:
    (<Collector> data).transition(kind, module, phase)
