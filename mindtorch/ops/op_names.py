"""One name per op, whatever the caller holds: an overload, a builtin, a method, an operator, a functional wrapper.

Names are ``aten::add``: namespace, overload stripped, the in-place underscore kept. What is not an ATen op (Python
composites such as ``multi_head_attention_forward``) is ``torch::name``; custom ops keep their own namespace.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

#: Operators and conversions whose Python name is not the op's. ``x[i]`` may turn out to be views only; ``aten::index``
#: stands for all of them, as ``aten::index_put_`` does for ``x[i] = y``.
_PYTHON_NAMES = {
    "__abs__": "abs", "__add__": "add", "__radd__": "add", "__iadd__": "add_",
    "__sub__": "sub", "__rsub__": "rsub", "__isub__": "sub_",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul_",
    "__div__": "div", "__truediv__": "div", "__rdiv__": "div", "__rtruediv__": "div",
    "__idiv__": "div_", "__itruediv__": "div_",
    "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__ifloordiv__": "floor_divide_",
    "__mod__": "remainder", "__rmod__": "remainder", "__imod__": "remainder_",
    "__pow__": "pow", "__rpow__": "pow", "__ipow__": "pow_",
    "__matmul__": "matmul", "__rmatmul__": "matmul",
    "__and__": "bitwise_and", "__rand__": "bitwise_and", "__iand__": "bitwise_and_",
    "__or__": "bitwise_or", "__ror__": "bitwise_or", "__ior__": "bitwise_or_",
    "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__ixor__": "bitwise_xor_",
    "__lshift__": "bitwise_left_shift", "__rlshift__": "bitwise_left_shift", "__ilshift__": "bitwise_left_shift_",
    "__rshift__": "bitwise_right_shift", "__rrshift__": "bitwise_right_shift", "__irshift__": "bitwise_right_shift_",
    "__invert__": "bitwise_not", "__neg__": "neg", "__pos__": "positive",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
    "__getitem__": "index", "__setitem__": "index_put_", "__contains__": "any",
    "__bool__": "is_nonzero", "__nonzero__": "is_nonzero",
    "__int__": "item", "__long__": "item", "__float__": "item", "__complex__": "item", "__index__": "item",
    "__reversed__": "flip", "__len__": "size", "ndimension": "dim", "nelement": "numel",
    # conversions are all Tensor.to
    "bfloat16": "to", "bool": "to", "byte": "to", "char": "to", "double": "to", "cdouble": "to", "float": "to",
    "cfloat": "to", "half": "to", "int": "to", "long": "to", "short": "to", "type": "to", "cpu": "to", "cuda": "to",
    "xpu": "to", "ipu": "to", "mtia": "to",
    "dsmm": "mm", "saddmm": "sspaddmm", "hsmm": "hspmm",
    "unique": "_unique2",
}  # fmt: skip

#: Attributes that are ops: what ``Tensor.T.__get__`` computes.
_ATTRIBUTES = {
    "T": "numpy_T", "H": "matrix_H", "mT": "mT", "mH": "mH", "real": "real", "imag": "imag", "data": "detach",
}  # fmt: skip

#: Reflected operators of non-commutative ops that are called with the operands the other way round.
_REFLECTED = frozenset({"__rmatmul__"})

_names: dict[Any, str] = {}
_functional: dict[Any, str] = {}


def op_name(func: Any) -> str:
    """The normalized name of `func`; a string is normalized too (``aten.add.Tensor`` -> ``aten::add``).

    Never raises: something that is not an op of torch is named ``python::module.qualname``.
    """
    try:
        return _names[func]
    except (KeyError, TypeError):
        pass
    name = _resolve(func)
    if _is_permanent(func):
        _names[func] = name
    return name


def is_reflected(func: Any) -> bool:
    """Whether `func` is a reflected operator whose operands stand the other way round (``Tensor.__rmatmul__``)."""
    return getattr(func, "__name__", None) in _REFLECTED


def _is_permanent(func: Any) -> bool:
    # Remember only what lives as long as torch does: a bound method would keep its tensor alive, a closure its cells.
    if isinstance(func, (str, OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return True
    if isinstance(getattr(func, "__self__", None), torch.Tensor):
        return False
    module = getattr(func, "__module__", None)
    return module is None or module == "torch" or module.startswith("torch.")


def _resolve(func: Any) -> str:
    if isinstance(func, OpOverload):
        return func._schema.name
    if isinstance(func, OpOverloadPacket):
        return func._qualified_op_name
    if isinstance(func, HigherOrderOperator):
        return f"{func.namespace}::{func.name()}"
    if isinstance(func, str):
        return _normalize(func)
    name = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(func.__self__, "__name__", None)  # None: a Python property, not an op
        if name == "__get__" and attribute in _ATTRIBUTES:
            return f"aten::{_ATTRIBUTES[attribute]}"
        return f"torch::{attribute or 'property'}.{name}"
    module = getattr(func, "__module__", None) or ""
    if module == F.__name__ or "boolean_dispatch" in getattr(func, "__qualname__", ""):
        known = _functional_names().get(func)
        if known is not None:
            return known
    if module and module != "torch" and not module.startswith("torch."):
        wrapped = getattr(func, "__wrapped__", None)  # a hook around torch's own function is still that function
        if wrapped is not None:
            return op_name(wrapped)
        return f"python::{module}.{getattr(func, '__qualname__', name)}"
    if isinstance(func, FunctionType) and not module.startswith(_OP_MODULES):
        return f"torch::{name}"
    if name.startswith("__"):
        name = _PYTHON_NAMES.get(name, "")
    else:
        name = _PYTHON_NAMES.get(name, name)
    if name and hasattr(torch.ops.aten, name):
        return f"aten::{name}"
    return f"torch::{name or func.__name__}"


#: Modules whose Python functions are named after the op they call. Others (``torch.nn.init.uniform_``) only seem to be.
_OP_MODULES = ("torch._tensor", "torch.functional")


def _normalize(name: str) -> str:
    namespace, separator, rest = name.replace("::", ".", 1).partition(".")
    if not separator:
        namespace, rest = "aten", namespace
    return f"{namespace}::{rest.partition('.')[0]}"


def _functional_names() -> dict[Any, str]:
    if not _functional:
        from .table import ROWS

        for row in ROWS:
            for name in row.python:
                function = getattr(F, name, None)  # absent from a torch older or newer than the table
                if function is not None:
                    _functional[function] = row.name
        _functional[torch.unique] = "aten::_unique2"
        _functional[torch.unique_consecutive] = "aten::unique_consecutive"
    return _functional
