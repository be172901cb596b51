"""The interpreter that this runs in: what is refused, and what is found out at import."""
from types import MethodWrapperType

METHOD_WRAPPER = <PyObject *>MethodWrapperType
