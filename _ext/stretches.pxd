"""Stretches of a program that storages are made in, and outlive or not: that tells what they are for; their sizes.

As the two logs of storages, of a measured profile and of an estimate, understand them. Here for the compiler to inline.
"""
from libc.stdint cimport uint8_t, uint32_t

from mindtorch._ext.context cimport (
    PHASE_BACKWARD, PHASE_CANDIDATE, PHASE_DECODE, PHASE_FORWARD, PHASE_INFERENCE, PHASE_OPTIMIZER, PHASE_PREFILL,
    differentiates,
)

cdef enum:
    CUDA_GRAIN = 512                           # bytes: what torch's allocator on CUDA gives out a multiple of
    NPU_PADDING = 32                           # of such a multiple on NPUs at least (see allocator.pyx)

cdef enum Stretch:
    NO_STRETCH = -1                # what is made there is told apart in other ways
    IN_CALL                        # an outermost module call, until a backward pass begins in it
    BEFORE_BACKWARD                # after it: a loss is computed, until backward begins
    IN_BACKWARD                    # a backward pass
    IN_STEP                        # an optimizer's step, the outermost
    STRETCHES


cdef enum Outlived:                # bits of what is kept of a storage
    OUTLIVED = 1                   # it lived on when the stretch that it was made in had ended
    DIFFERENTIATED = 2             # made in a backward pass whose own graph is kept (create_graph)


cdef inline uint8_t unless_it_dies(uint8_t phase) noexcept:
    """Of a storage that is made in that phase now."""
    return OUTLIVED | (DIFFERENTIATED if phase == PHASE_BACKWARD and differentiates() else 0)


cdef inline Stretch stretch_of(uint8_t phase, uint32_t module) noexcept:
    """Where a storage is made, by the phase and the innermost module."""
    if phase == PHASE_FORWARD:
        return IN_CALL if module else BEFORE_BACKWARD
    if phase == PHASE_CANDIDATE or phase == PHASE_INFERENCE or phase == PHASE_PREFILL or phase == PHASE_DECODE:
        return IN_CALL if module else NO_STRETCH
    if phase == PHASE_BACKWARD:
        return IN_BACKWARD
    return IN_STEP if phase == PHASE_OPTIMIZER else NO_STRETCH
