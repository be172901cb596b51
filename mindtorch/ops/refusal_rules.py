"""Calls that a kernel may refuse for what is in a matrix: singular, not positive definite, not finite.

Rules of a row's ``refuses``: whether a call with these arguments is one of them. Programs catch such errors where they
make the call.
"""

from __future__ import annotations

from typing import Any


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, *names: str) -> Any:
    """An argument by position, or by any of its names; None where it is left out."""
    return args[position] if len(args) > position else next((kwargs[n] for n in names if n in kwargs), None)


def always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whatever the arguments."""
    return True


def if_checked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``inv_ex`` and its like say in a result what went wrong, unless they are to raise it."""
    return bool(kwargs.get("check_errors"))


def if_inverted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Negative powers of a matrix are those of its inverse."""
    exponent = _given(args, kwargs, 1, "n")
    return isinstance(exponent, int) and exponent < 0


def if_decomposed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Norms of a matrix that are made of its singular values."""
    return _given(args, kwargs, 1, "ord", "p") in (2, -2, "nuc")


def if_nuclear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``torch.norm`` has one name of a norm that is made of singular values; its 2 is the vector's."""
    return _given(args, kwargs, 1, "p") == "nuc"


def if_matrix_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The same of a function that takes vectors, too, which have a norm 2 of their own."""
    dim = _given(args, kwargs, 2, "dim")
    dims = len(dim) if isinstance(dim, (tuple, list)) else _given(args, kwargs, 0, "A", "input", "self").dim()
    return if_decomposed(args, kwargs) and not isinstance(dim, int) and dims == 2


def if_condition(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Condition numbers by singular values; by other norms they come from an inverse, and are infinite without one."""
    p = _given(args, kwargs, 1, "p")
    return p is None or p in (2, -2, "nuc")
