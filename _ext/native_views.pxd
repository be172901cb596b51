from cpython.object cimport PyObject
from libc.stdint cimport int64_t

cdef extern from *:
    """
    /* A C++ object that is returned in memory which the caller gives. C does so with any struct of this size. */
    typedef struct { void *impl, *more[3]; } mt_tensor;
    /* std::optional<c10::SymInt> and c10::SymInt, handed on by address. */
    typedef struct { int64_t value; uint64_t is_set; } mt_optional;

    typedef mt_tensor (*mt_view_0)(const void *);
    typedef mt_tensor (*mt_view_1)(const void *, int64_t);
    typedef mt_tensor (*mt_view_2)(const void *, int64_t, int64_t);
    typedef mt_tensor (*mt_view_3)(const void *, int64_t, int64_t, int64_t);
    typedef mt_tensor (*mt_view_list)(const void *, const int64_t *, size_t);
    #ifdef __cplusplus
    typedef bool mt_bool;
    #else
    typedef _Bool mt_bool;
    #endif
    typedef mt_tensor (*mt_view_list_bool)(const void *, const int64_t *, size_t, mt_bool);
    typedef mt_tensor (*mt_view_select)(const void *, int64_t, const int64_t *);
    typedef mt_tensor (*mt_view_slice)(const void *, int64_t, const mt_optional *, const mt_optional *,
                                       const int64_t *);
    typedef mt_tensor (*mt_view_strided)(const void *, const int64_t *, size_t, const int64_t *, size_t,
                                         const mt_optional *);
    /* `a`, `b`: its numbers, and where the second list begins; the last number of each form stands at the end. */
    static mt_tensor mt_make(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                             int set_a, int set_b) {
        mt_optional first = {a[1], (uint64_t)set_a}, second = {a[2], (uint64_t)set_b};
        switch (how) {
            case 0: return ((mt_view_0)call)(on);
            case 1: return ((mt_view_1)call)(on, a[0]);
            case 2: return ((mt_view_2)call)(on, a[0], a[1]);
            case 3: return ((mt_view_3)call)(on, a[0], a[1], a[2]);
            case 4: return ((mt_view_list)call)(on, a, (size_t)n);
            case 5: return ((mt_view_list_bool)call)(on, a, (size_t)n, (mt_bool)set_a);
            case 6: return ((mt_view_select)call)(on, a[0], a + 1);
            case 7: return ((mt_view_slice)call)(on, a[0], &first, &second, a + 3);
            default:
                first.value = b[m];
                return ((mt_view_strided)call)(on, a, (size_t)n, b, (size_t)m, &first);
        }
    }
    /* The same, of what may throw: 1 where it did. */
    typedef int (*mt_viewer)(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                             int set_a, int set_b, void **made);
    """
    ctypedef struct mt_tensor:
        void *impl
    ctypedef int (*mt_viewer)(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                              int set_a, int set_b, void **made) noexcept
    mt_tensor mt_make(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                      int set_a, int set_b) noexcept

cdef enum:
    MAX_NUMBERS = 12

cdef struct View:
    void *call                 # at::_ops::NAME::call
    int how                    # which arguments it takes: see Form
    int n, m                   # numbers in the first list, in the second
    int64_t numbers[MAX_NUMBERS]
    bint set_a, set_b          # of optional numbers: are they given?

# Fill `view` with what makes the view that the operator makes of its first argument, given the others.
# False: it has no way here.
cdef bint describe(View *view, str name, tuple args) except -1

# The views made one of the other, beginning with the wrapper `base`: the last one, of class `cls`. None: not now.
# `no_node`: it is certain that autograd gives them no history. Else torch may refuse one, and says why in Python.
cdef object make(PyObject *base, View *views, int n, PyObject *cls, bint no_node=*)
