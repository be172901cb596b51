"""Where the program is: module path, execution phase and source line of the calling thread.

All functions need the GIL, never raise and never run user code except a module's own attribute lookup
on the first call of that module from that parent.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mindtorch._ext.node_log cimport mt_log

cdef enum Phase:
    PHASE_OTHER = 0
    PHASE_FORWARD = 1
    PHASE_BACKWARD = 2
    PHASE_OPTIMIZER = 3
    PHASE_PREFILL = 4
    PHASE_DECODE = 5
    PHASE_DATA = 6
    PHASE_CANDIDATE = 7        # a call that may turn out to be a prefill: see generation.py. Reads as forward
    PHASE_INFERENCE = 8        # an outermost call without gradients that is no step of a generation. Reads as forward
    PHASE_COUNT = 9

cdef enum Transition:
    MODULE_ENTER = 0
    MODULE_EXIT = 1
    PHASE_CHANGE = 2
    PHASE_SETTLED = 9          # nothing begins: what was in the phase `module` until now was in `phase`

# Called *before* the state changes, so current_module()/current_phase() still answer for the time that ends now.
# `module` is the module being entered or left (0 for a change of phase), `phase` the phase that begins.
ctypedef void (*transition_fn)(void *data, int kind, uint32_t module, uint8_t phase) noexcept

cdef uint32_t current_module() noexcept     # interned path of the innermost running nn.Module; 0 = none
cdef uint8_t current_phase() noexcept       # a Phase
cdef uint64_t outermost_optimizer() noexcept    # address of the one whose step runs, begins or ended last; 0 = none
cdef bint differentiates() noexcept         # the backward pass that runs is to be differentiated itself
cdef bint in_step() noexcept                # an optimizer's step runs: False as the outermost begins and ends
from mindtorch._ext.location cimport current_location    # re-exported: innermost user frame; 0 = none
cdef void add_transition_hook(transition_fn hook, void *data) except *
cdef void remove_transition_hook(transition_fn hook, void *data) noexcept     # nothing where it was not added

# ---- for named_forwards, which finds modules whose forward the program calls by that name
cdef extern from *:
    """
    #ifndef MT_CONTEXT_STATE
    #define MT_CONTEXT_STATE
    enum { MT_MOST_NAMED = 16 };
    /* A module whose forward was called by that name: the depth of the stack, path and phase before it; its Mark,
       borrowed, or NULL; whether `follow_generation` is told of its end. */
    typedef struct mt_named { PyObject *mark; uint32_t depth, module; uint8_t phase, followed; } mt_named;

    /* `stack` owns a reference to each running module; base = its depth when the running backward began; own = its
       depth where the last one on it is in a __call__ of its class, on the way to Module.__call__; before = the phases
       that the steps of opt began in; seen = the number that the next node had when the module was last asked for;
       named from named_from on belong to the innermost call; differentiates: has it begun a backward pass? */
    typedef struct mt_tls {
        mt_log *log;
        mt_named named[MT_MOST_NAMED];
        uint64_t seen;
        PyObject **stack;
        uint32_t *ids;
        void *opt[8];
        uint32_t depth, cap, module, base, own;
        uint8_t before[8];
        uint32_t n_named, named_from;
        uint8_t phase, between, n_opt, known, looking, differentiates;
    } mt_tls;
    #endif
    """
    enum:
        MT_MOST_NAMED
    ctypedef struct mt_named:
        PyObject *mark
        uint32_t depth
        uint32_t module
        uint8_t phase
        uint8_t followed
    ctypedef struct mt_tls:
        mt_log *log
        mt_named *named
        uint64_t seen
        PyObject **stack
        uint32_t *ids
        void **opt
        uint32_t depth
        uint32_t cap
        uint32_t module
        uint32_t base
        uint32_t own
        uint8_t *before
        uint32_t n_named
        uint32_t named_from
        uint8_t phase
        uint8_t between
        uint8_t n_opt
        uint8_t known
        uint8_t looking
        uint8_t differentiates

ctypedef void (*look_fn)(mt_tls *t) noexcept   # asked before each answer and change of state

cdef mt_tls *thread_state() noexcept           # of the calling thread
cdef void look_with(look_fn look) noexcept     # NULL: no more
cdef bint push(mt_tls *t, PyObject *module, uint32_t id) noexcept
cdef void tell(int kind, uint32_t module, uint8_t phase) noexcept
cdef void leave_named(mt_tls *t, uint32_t index, bint late) noexcept
cdef void log_seen(mt_tls *t, uint32_t module) noexcept
cdef void note_seen(mt_tls *t) noexcept
cdef bint is_constructor(PyObject *code) noexcept
cdef bint is_followed(uint8_t before, PyObject *module) noexcept    # its outermost call, which begins in that phase
cdef uint8_t phase_of(PyObject *module, tuple given, dict named) noexcept      # … as `follow_generation` says
