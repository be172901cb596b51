"""What cannot be compared, one reason a row. Everything else about these calls is compared."""

from __future__ import annotations

from typing import Any

#: Entries whose values are uninitialized memory in eager, too: dtype, shape, strides, aliasing and errors are compared.
NO_VALUES = {
    "empty": "uninitialized memory",
    "empty_like": "uninitialized memory",
    "empty_permuted": "uninitialized memory",
    "empty_strided": "uninitialized memory",
    "new_empty": "uninitialized memory",
    "new_empty_strided": "uninitialized memory",
    "resize_": "what it grows by is uninitialized memory",
    "resize_as_": "what it grows by is uninitialized memory",
}

#: Entries of which torch itself gives other values from one run to the next for these keyword arguments.
NO_VALUES_WHEN = {
    "linalg.lstsq": ({"driver": "gelsy"}, "torch hands LAPACK's gelsy uninitialized pivots, which it reads"),
    "linalg.lstsq.grad_oriented": ({"driver": "gelsy"}, "torch hands LAPACK's gelsy uninitialized pivots"),
}

_HIDDEN_VIEWS = "what it gives are views that its schema does not tell of, and so have the input's flags"
#: Entries not called in inference mode with inputs that require grad.
NOT_IN_INFERENCE_MODE = {
    "unsafe_chunk": _HIDDEN_VIEWS,
    "unsafe_split": _HIDDEN_VIEWS,
    "as_strided_scatter": "torch fails an assertion of its own",
}


def values_compared(entry: str, kwargs: dict[str, Any]) -> bool:
    """Whether eager's values are the same each time it runs this call."""
    if entry in NO_VALUES:
        return False
    if entry in NO_VALUES_WHEN:
        given = NO_VALUES_WHEN[entry][0]
        return any(kwargs.get(key) != value for key, value in given.items())
    return True
