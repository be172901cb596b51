"""What sizes and strides say of memory, in elements. Numbers may be of any size: messages are asked, too."""
import functools


def extent(size, stride, offset):
    """How many elements of its storage such a tensor reaches; stride None: contiguous."""
    if 0 in size:
        return 0
    reached = offset + 1
    for n, s in zip(size, stride or contiguous(size), strict=True):
        reached += (n - 1) * s
    return reached


#: The same of tuples, which is found once for each.
known_extent = functools.lru_cache(maxsize=4096)(extent)


def contiguous(size):
    """The strides of a new tensor of this size."""
    cdef list strides = [1] * len(size)
    cdef Py_ssize_t k = len(size) - 1
    n_elements = 1
    while k >= 0:
        strides[k] = n_elements
        n_elements *= max(size[k], 1)
        k -= 1
    return tuple(strides)


def overlapping(size, stride):
    """Do elements of such a tensor certainly share memory, as those of an expanded one do?"""
    if stride is None or 0 in size:
        return False
    for n, s in zip(size, stride, strict=True):
        if n > 1 and s == 0:
            return True
    return False
