"""What a profile knows of an operator (see opinfo.pyx)."""
from libc.stdint cimport uint32_t, uint64_t


cdef class Runs:
    cdef readonly uint64_t recorded, ran       # ran: only those that were seen recorded
    cdef readonly uint32_t sig                 # for runs whose calls were counted at recording
    cdef readonly uint32_t unseen              # for runs of ops that nobody saw being recorded


cdef class Op:
    cdef readonly object func
    cdef readonly object call                  # the callable beneath OpOverload.__call__
    cdef readonly str name
    cdef readonly str category
    cdef readonly bint has_formula             # ask for FLOPs; else 0 by definition, or unknown
    cdef readonly bint is_free                 # computes nothing by definition
    cdef readonly bint by_output               # FLOPs depend on nothing but the shape of the first result
    cdef readonly bint allocates               # has outputs that are neither views nor written arguments
    cdef readonly bint may_copy                # its output is a view, or new memory
    cdef readonly bint writes                  # writes into an argument
    cdef readonly bint detaches
    cdef readonly bint begins, ends            # a label: torch's own notes, no op
    cdef readonly bint is_run                  # stands for runs of recorded ops: no calls of its own
    cdef dict sigs                             # signature -> index
    cdef dict costs                            # FLOPs and MACs of a call -> index, where nothing else is asked
    cdef uint32_t plain                        # index used when the signature does not matter
