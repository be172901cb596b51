"""Where the program is: module path, execution phase and source line of the calling thread.

All functions need the GIL, never raise and never run user code except a module's own attribute lookup
on the first call of that module from that parent.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum Phase:
    PHASE_OTHER = 0
    PHASE_FORWARD = 1
    PHASE_BACKWARD = 2
    PHASE_OPTIMIZER = 3
    PHASE_PREFILL = 4
    PHASE_DECODE = 5
    PHASE_DATA = 6
    PHASE_CANDIDATE = 7        # a call that may turn out to be a prefill: see generation.py. Reads as forward
    PHASE_COUNT = 8

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
