"""What one call computes and moves: FLOPs, bytes read and written, the dtype it computes in.

Only shapes, strides, dtypes and plain arguments are looked at, so the answer may be kept per signature.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from torch._ops import OpOverload

from mindtorch import ops
from mindtorch.ops import byte_rules, schema
from mindtorch.ops.call import Call, size, sizes, strides, tensors
from mindtorch.ops.flop_rules import Args, Kwargs, is_tensor
from mindtorch.ops.op_row import MATRIX_TAGS, OpRow
from mindtorch.profile.cost import implicit_gemm
from mindtorch.profile.cost.implicit_gemm import Convolution

_log = logging.getLogger(__name__)


class Work(NamedTuple):
    """One call.

    flops: None where there is no formula; macs: the multiply-adds among them. dtype: that of the arithmetic
    ("float32"). tag: the op's, as in the op table. name: the op's ("aten::mm").
    bytes_new: those of `bytes_written` that lie in memory allocated for the result.
    bytes_rest: those of `bytes_read` that are not its largest operand's: what was probably not made just before.
    pieces: tensors of a list op, each of which is a loop of its own.
    product: (products, rows, columns, contracted) of matrix products, of convolutions by group, of scores by head.
    variant: arguments that select another algorithm: ``approximate="tanh"``, a whole power, evaluation mode, "causal".
    strided: what it reads or writes does not lie as the other side does, as in a transposition.
    seconds: what the call takes, where that is no matter of computing: communication; else None.
    turned: of a matrix product, that the second operand is transposed, as a linear layer's weight.
    unaligned: of a matrix product, that rows of an operand begin at odd multiples of two bytes.
    convolution: sizes of a convolution, where it is one.
    """

    flops: int | None
    macs: int
    bytes_read: int
    bytes_written: int
    dtype: str
    tag: str
    name: str = ""
    bytes_new: int = 0
    bytes_rest: int = 0
    pieces: int = 1
    product: tuple[int, int, int, int] | None = None
    strided: bool = False
    variant: str = ""
    seconds: float | None = None
    turned: bool = False
    unaligned: bool = False
    convolution: Convolution | None = None

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


def work(func: Any, args: Args, kwargs: Kwargs | None, out: Any) -> Work:
    """The work of ``out = func(*args, **kwargs)``; `func` is an operator, a function of torch or an op's name."""
    kwargs = kwargs or {}
    name = ops.op_name(func)
    row = ops.about(name)
    call = Call(args, kwargs, list(tensors(out)), _mutated(func, name, args, kwargs))
    tag = "view" if not row.name and isinstance(func, OpOverload) and schema.is_view(func) else row.tag
    counted = ops.count_flops(func, args, kwargs, out)
    read, written = _known(row.bytes, call, name) or byte_rules.by_tag(call, tag)
    if not call.mutated:  # statistics that the schema does not speak of
        written += sizes([args[i] for i in row.writes if i < len(args)])
    return Work(
        flops=None if counted is None else counted.flops,
        macs=0 if counted is None else counted.macs,
        bytes_read=read,
        bytes_written=written,
        dtype=_dtype(call, tag),
        tag=tag,
        name=name,
        bytes_new=0 if call.mutated or not written else sizes(call.results),
        bytes_rest=max(read - max(map(size, tensors([*args, *kwargs.values()])), default=0), 0),
        pieces=_pieces(args),
        product=_known(row.product, call, name),
        strided=tag != "view" and bool(_known(lambda call: _strided(row, call), call, name)),
        variant="causal" if tag == "attention" and _is_causal(func, args, kwargs) else _variant(row, call),
        turned=tag == "matmul" and _turned(args),
        unaligned=tag == "matmul" and _unaligned(args),
        convolution=_known(lambda call: implicit_gemm.described(name, call), call, name) if tag == "conv" else None,
    )


def _known(rule: Any, call: Call, name: str) -> Any:
    """What a rule says of the call; None where there is no rule, or it does not know such a call.

    Whatever a rule stumbles over: no report is lost by it.
    """
    if rule is None:
        return None
    try:
        return rule(call)
    except Exception as error:  # noqa: BLE001 - of a program's own tensors and arguments anything may come
        _log.debug("%s: no rule for this call: %r", name, error)
        return None


def _pieces(args: Args) -> int:
    first = args[0] if args else None
    return max(len(first), 1) if isinstance(first, (list, tuple)) and first and is_tensor(first[0]) else 1


def _mutated(func: Any, name: str, args: Args, kwargs: Kwargs) -> list[Any]:
    found: list[Any] = []
    if isinstance(func, OpOverload):
        names = schema.argument_names(func)
        for which in schema.writes_told(func):
            at, name = (which, names[which]) if isinstance(which, int) else (len(args), which)
            found.extend(tensors(args[at] if at < len(args) else kwargs.get(name)))
    elif name.endswith("_") and not name.endswith("__") and args:
        found.extend(tensors(args[0]))
    else:
        found.extend(tensors(kwargs.get("out")))
    return found


def _dtype(call: Call, tag: str) -> str:
    """Products compute in the dtype of their first operand; other ops in the widest float there is, else as integers.

    Numbers and 0-dimensional tensors do not widen, as in type promotion.
    """
    given = list(tensors([*call.args, *call.kwargs.values()]))
    if tag in MATRIX_TAGS and given:
        return _name(given[0].dtype)
    both = [*given, *call.results]
    floats = [t for t in both if t.dtype.is_floating_point or t.dtype.is_complex]
    large = [t for t in floats if len(t.shape)] or floats
    if large:
        return _name(max((t.dtype for t in large), key=lambda dtype: (dtype.is_complex, dtype.itemsize)))
    large = [t for t in both if len(t.shape)] or both
    return _name(max((t.dtype for t in large), key=lambda dtype: dtype.itemsize)) if large else "float32"


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _variant(row: OpRow, call: Call) -> str:
    # No column: each is a rule of its own, for the one op that it is written for.
    name, args = row.name, call.args
    if name == "aten::pow" and len(args) > 1 and not is_tensor(args[1]) and args[1] in (2, 3, 0.5, -0.5, -1, -2):
        return "simple"
    if name in ("aten::native_batch_norm", "aten::batch_norm") and len(args) > 5 and not args[5]:
        return "eval"
    return ",".join(value for value in (*args, *call.kwargs.values()) if isinstance(value, str))


def _is_causal(func: Any, args: Args, kwargs: Kwargs) -> bool:
    names = list(schema.argument_names(func)) if isinstance(func, OpOverload) else [*"qkvmd", "is_causal"]
    at = names.index("is_causal") if "is_causal" in names else len(args)
    found = args[at] if at < len(args) else kwargs.get("is_causal")
    return not is_tensor(found) and bool(found)  # of other fused calls, known by name only, a weight may stand there


def _turned(args: Args) -> bool:
    last = [t for t in args if is_tensor(t)][-1:]
    step = strides(last[0]) if last else ()
    return len(step) > 1 and step[-1] != 1 and step[-2] == 1


def _unaligned(args: Args) -> bool:
    """Whether rows of one of the two operands, the last tensors, begin at odd multiples of two bytes."""
    operands = [t for t in args if is_tensor(t)][-2:]
    for t in operands:
        lines = [step for length, step in zip(t.shape, strides(t), strict=True) if length > 1 and step > 1]
        if t.dtype.itemsize == 2 and any(step % 2 for step in lines):
            return True
    return False


def _strided(row: OpRow, call: Call) -> bool:
    """Whether an operand lies otherwise than the result: the innermost dimension of one is not that of the other."""
    results = call.mutated or call.results
    if not results or not (row.bytes is None or isinstance(row.bytes, byte_rules.AllBut)):
        return False
    inner = _inner(results[0])
    if inner is None:
        return False
    same = [t for t in tensors(call.args) if tuple(t.shape) == tuple(results[0].shape)]
    return any(_inner(t) not in (None, inner) or strides(t)[inner] > 1 for t in same if 0 not in strides(t))


def _inner(tensor: Any) -> int | None:
    """The dimension along which its elements are nearest to each other; None if it has only one element."""
    wide = [(step, axis) for axis, (length, step) in enumerate(zip(tensor.shape, strides(tensor))) if length > 1]
    return min(wide)[1] if wide else None
