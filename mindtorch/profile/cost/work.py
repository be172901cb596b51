"""What one call computes and moves: FLOPs, bytes read and written, the dtype it computes in.

Bytes are what has to cross the memory bus if nothing is in a cache and nothing is read twice: each element that the
operation really reads, once (an expanded tensor's distinct elements, a look-up's selected rows and its indices), and
each that it writes. Views and questions about metadata move nothing, and neither does memory that is only reserved.

Only shapes, strides, dtypes and plain arguments are looked at, so the answer may be kept per signature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from mindtorch import ops
from mindtorch.ops import schema
from mindtorch.ops.row import MATRIX_TAGS
from mindtorch.ops.rules import is_tensor, numel

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Work(NamedTuple):
    """One call.

    flops: None where there is no formula; macs: the multiply-adds among them. dtype: that of the arithmetic
    ("float32"). tag: the op's, as in the op table. name: the op's ("aten::mm").
    bytes_new: those of `bytes_written` that lie in memory allocated for the result.
    bytes_rest: those of `bytes_read` that are not its largest operand's: what was probably not made just before.
    pieces: tensors of a list op, each of which is a loop of its own.
    product: (products, rows, columns, contracted) of matrix products, of convolutions by group, of scores by head.
    variant: arguments that select another algorithm: ``approximate="tanh"``, a whole power, evaluation mode.
    strided: what it reads or writes does not lie as the other side does, as in a transposition.
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

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


def work(func: Any, args: Args, kwargs: Kwargs | None, out: Any) -> Work:
    """The work of ``out = func(*args, **kwargs)``; `func` is an operator, a function of torch or an op's name."""
    kwargs = kwargs or {}
    name = ops.op_name(func)
    row = ops.row(name)
    call = _Call(name, args, kwargs, _results(out), _mutated(func, name, args, kwargs))
    tag = row.tag if row is not None else ("view" if _is_view(func) else "other")
    counted = ops.count_flops(func, args, kwargs, out)
    read, written = (0, 0) if tag == "view" else _bytes(call, tag)
    if row is not None and row.writes and not call.mutated:  # statistics that the schema does not speak of
        written += sum(size(args[i]) for i in row.writes if i < len(args) and is_tensor(args[i]))
    return Work(
        flops=None if counted is None else counted.flops,
        macs=0 if counted is None else counted.macs,
        bytes_read=read,
        bytes_written=written,
        dtype=_dtype(call, tag),
        tag=tag,
        name=name,
        bytes_new=0 if call.mutated or not written else sum(map(size, call.results)),
        bytes_rest=max(read - max(map(size, _tensors([*args, *kwargs.values()])), default=0), 0),
        pieces=_pieces(args),
        product=_product(call),
        strided=tag != "view" and _strided(call),
        variant=_variant(call),
    )


class _Call(NamedTuple):
    name: str
    args: Args
    kwargs: Kwargs
    results: list[Any]  # tensors
    mutated: list[Any]  # arguments it writes into

    @property
    def base(self) -> str:
        """Without the namespace and the underscore of in-place ops."""
        name = self.name.partition("::")[2]
        return name[:-1] if name.endswith("_") else name


# -- tensors -----------------------------------------------------------------------------------------------------------


def strides(tensor: Any) -> tuple[int, ...]:
    """Its strides; those of a dense tensor for what has only a shape, or none to tell (sparse)."""
    if getattr(tensor, "layout", torch.strided) is torch.strided and hasattr(tensor, "stride"):
        return tuple(tensor.stride())
    found, step = [], 1
    for length in reversed(tensor.shape):
        found.append(step)
        step *= max(length, 1)
    return tuple(reversed(found))


def distinct(tensor: Any) -> int:
    """Elements in memory: one for each place that its indices reach."""
    shape, steps = tuple(tensor.shape), strides(tensor)
    if 0 in shape:
        return 0
    reached = 1 + sum((length - 1) * abs(step) for length, step in zip(shape, steps))
    return min(math.prod(length for length, step in zip(shape, steps) if step), reached)


def size(tensor: Any) -> int:
    """Bytes of its distinct elements."""
    return distinct(tensor) * int(tensor.dtype.itemsize)


def _tensors(value: Any) -> Iterator[Any]:
    if is_tensor(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _results(out: Any) -> list[Any]:
    return list(_tensors(out))


def _pieces(args: Args) -> int:
    first = args[0] if args else None
    return max(len(first), 1) if isinstance(first, (list, tuple)) and first and is_tensor(first[0]) else 1


def _is_view(func: Any) -> bool:
    return isinstance(func, OpOverload) and schema.is_view(func)


def _mutated(func: Any, name: str, args: Args, kwargs: Kwargs) -> list[Any]:
    found: list[Any] = []
    if isinstance(func, OpOverload):
        names = schema.argument_names(func)
        for which in schema.writes_told(func):
            at, name = (which, names[which]) if isinstance(which, int) else (len(args), which)
            found.extend(_tensors(args[at] if at < len(args) else kwargs.get(name)))
    elif name.endswith("_") and not name.endswith("__") and args:
        found.extend(_tensors(args[0]))
    else:
        found.extend(_tensors(kwargs.get("out")))
    return found


# -- bytes -------------------------------------------------------------------------------------------------------------

Bytes = tuple[int, int]

#: Arguments (by position) of which only the shape matters.
_NOT_READ = {
    "nll_loss_backward": (1,), "nll_loss2d_backward": (1,), "avg_pool2d_backward": (1,), "avg_pool3d_backward": (1,),
    "_adaptive_avg_pool2d_backward": (1,), "_adaptive_avg_pool3d_backward": (1,),
    "max_pool2d_with_indices_backward": (1,), "max_pool3d_with_indices_backward": (1,),
    "adaptive_max_pool2d_backward": (1,), "adaptive_max_pool3d_backward": (1,),
    "copy": (0,), "_foreach_copy": (0,), "set_data": (0, 1), "view_as": (1,), "resize_as": (0, 1),
}  # fmt: skip
#: Reserve memory and leave it as it is.
_RESERVES = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize resize_as _resize_output "
    "empty_quantized _empty_affine_quantized _efficientzerotensor pin_memory".split()
)
#: Creation ops that do read tensors.
_COMBINES = frozenset(("complex", "tensor", "as_tensor", "linspace", "logspace", "fill"))
#: Copies of a part: they read what they return.
_PARTS = frozenset(
    "slice_copy select_copy narrow_copy diagonal_copy unbind_copy unfold_copy split_copy split_with_sizes_copy "
    "index_select gather take take_along_dim index _unsafe_index embedding masked_select slice_inverse diag".split()
)
_ADDS = frozenset(("scatter_add", "scatter_reduce", "index_add", "index_reduce"))
_READS_ONE = frozenset(("item", "_local_scalar_dense", "is_nonzero"))


def _bytes(call: _Call, tag: str) -> Bytes:
    base = call.base
    if base in _RESERVES:
        return 0, 0
    if base in _READS_ONE:
        return (int(call.args[0].dtype.itemsize) if call.args and is_tensor(call.args[0]) else 0), 0
    special = _SPECIAL.get(base)
    if special is not None:
        return special(call)
    if tag == "other" and not call.results and not call.mutated and base != "equal":
        return 0, 0
    written = sum(map(size, call.mutated)) or sum(map(size, call.results))
    if base in _PARTS:
        first, *rest = call.args
        if not is_tensor(first):  # embedding by its Python signature
            return _all_read(call), written
        return min(sum(numel(t) * t.dtype.itemsize for t in call.results), size(first)) + _read(rest, {}), written
    skipped = set(_NOT_READ.get(base, ()))
    if tag == "random" and (call.mutated or base.endswith("_like")):
        skipped.add(0)
    elif tag == "creation" and base not in _COMBINES:
        return 0, written
    elif base == "fill":
        skipped.add(0)
    return _all_read(call, skipped), written


def _all_read(call: _Call, skipped: set[int] | frozenset[int] = frozenset()) -> int:
    args = [value for index, value in enumerate(call.args) if index not in skipped]
    return _read(args, call.kwargs)


def _read(args: Any, kwargs: Kwargs) -> int:
    named = [value for name, value in kwargs.items() if name not in ("out", "out0", "out1", "out2")]
    return sum(map(size, _tensors([*args, *named])))


def _scatter(call: _Call) -> Bytes:
    """Writes `count` elements of its first argument, or of a copy of it."""
    target, rest = call.args[0], call.args[1:]
    base = call.base
    others = list(_tensors([*rest, *(value for name, value in call.kwargs.items() if name != "out")]))
    if base.endswith("index_put"):
        count, adds = _indexed(target, call.args[1], call.args[2] if len(call.args) > 2 else None), len(call.args) > 3
        adds = adds and bool(call.args[3])
    else:
        adds = base in _ADDS
        index = next((t for t in others if not t.dtype.is_floating_point), None)
        if base == "index_fill" and index is not None:
            axis = call.args[1]
            count = numel(target) // max(target.shape[axis], 1) * numel(index)
        elif base.startswith("index_"):
            count = max(map(numel, others), default=0)
        else:
            count = numel(index) if index is not None else 0
    moved = count * int(target.dtype.itemsize)
    read = sum(map(size, others)) + (moved if adds else 0)
    if call.mutated:
        return read, moved
    return read + size(target), moved + sum(map(size, call.results))


def _indexed(target: Any, indices: Any, values: Any) -> int:
    """Elements that ``target[indices]`` has at most: a mask may select everything."""
    given = [index for index in indices if index is not None]
    if any(index.dtype == torch.bool for index in given):
        return numel(target) if values is None or numel(values) <= 1 else numel(values)
    picked = math.prod(torch.broadcast_shapes(*(tuple(index.shape) for index in given))) if given else 1
    lengths = [target.shape[axis] for axis in range(len(target.shape)) if axis >= len(indices) or indices[axis] is None]
    return picked * math.prod(lengths)


def _embedding(call: _Call) -> Bytes:
    """The rows looked up, and which."""
    given = list(_tensors([*call.args[:2], call.kwargs.get("weight"), call.kwargs.get("indices")]))
    weight = next(t for t in given if t.dtype.is_floating_point or t.dtype.is_complex)
    indices = next(t for t in given if t is not weight)
    rows = numel(indices) * weight.shape[-1] * int(weight.dtype.itemsize)
    return min(rows, size(weight)) + size(indices), sum(map(size, call.results))


def _embedding_backward(call: _Call) -> Bytes:
    """Zeros everywhere, then each gradient added to its row."""
    read = _all_read(call)
    whole = sum(map(size, call.results))
    rows = min(size(call.args[0]), whole)
    return read + rows, whole + rows


def _into_zeros(call: _Call) -> Bytes:
    """select_backward, slice_backward ...: zeros, and the gradient copied into a part of them."""
    read = _all_read(call)
    return read, sum(map(size, call.results)) + read


def _onto_copy(call: _Call) -> Bytes:
    """select_scatter, slice_scatter ...: a copy, and a part of it overwritten."""
    part = size(call.args[1])
    return _all_read(call), sum(map(size, call.results)) + part


def _nll(call: _Call) -> Bytes:
    """One number of each row is looked at."""
    scores, target = call.args[:2]
    read = numel(target) * int(scores.dtype.itemsize) + _read(call.args[1:], call.kwargs)
    return read, sum(map(size, call.results))


def _convolution_backward(call: _Call) -> Bytes:
    """Input and weight are needed for each other's gradient only."""
    grad, x, weight = call.args[:3]
    mask = call.args[10] if len(call.args) > 10 else call.kwargs.get("output_mask", (True, True, True))
    read = size(grad) + (size(weight) if mask[0] else 0) + (size(x) if mask[1] else 0)
    return read, sum(map(size, call.results))


def _fused_optimizer(call: _Call) -> Bytes:
    """Everything is read; all but the gradients is written (those too while they are scaled)."""
    read = _all_read(call)
    lists = list(call.args)
    if call.kwargs.get("grad_scale") is None and len(lists) > 1:
        del lists[1]
    written = sum(map(size, _tensors([value for value in lists if isinstance(value, (list, tuple))])))
    return read, written


def _conversion(call: _Call) -> Bytes:
    """`to` and `contiguous` return what they are given where nothing has to change."""
    source, results = call.args[0], call.results
    kept = bool(results) and all(
        getattr(results[0], name, None) == getattr(source, name, None) for name in ("dtype", "device")
    )
    if kept and strides(results[0]) == strides(source):
        return 0, 0
    return size(source), sum(map(size, results))


_SPECIAL: dict[str, Callable[[_Call], Bytes]] = {
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce",
         "index_put", "_index_put_impl", "_unsafe_index_put"),
        _scatter,
    ),
    **dict.fromkeys(("select_backward", "slice_backward", "diagonal_backward"), _into_zeros),
    **dict.fromkeys(
        ("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"), _onto_copy
    ),
    **dict.fromkeys(("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _embedding),
    **dict.fromkeys(
        ("embedding_dense_backward", "_embedding_bag_dense_backward", "embedding_backward"), _embedding_backward
    ),
    **dict.fromkeys(("nll_loss", "nll_loss_forward", "nll_loss2d_forward", "nll_loss2d", "nll_loss_nd"), _nll),
    **dict.fromkeys(("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"), _fused_optimizer),
    **dict.fromkeys(("to", "contiguous", "type_as"), _conversion),
    "convolution_backward": _convolution_backward,
}  # fmt: skip


# -- the rest ----------------------------------------------------------------------------------------------------------


def _dtype(call: _Call, tag: str) -> str:
    """Products compute in the dtype of their first operand; other ops in the widest float there is, else as integers.

    Numbers and 0-dimensional tensors do not widen, as in type promotion.
    """
    given = list(_tensors([*call.args, *call.kwargs.values()]))
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


def _variant(call: _Call) -> str:
    base, args = call.base, call.args
    if base == "pow" and len(args) > 1 and not is_tensor(args[1]) and args[1] in (2, 3, 0.5, -0.5, -1, -2):
        return "simple"
    if base in ("native_batch_norm", "batch_norm") and len(args) > 5 and not args[5]:
        return "eval"
    return ",".join(value for value in (*args, *call.kwargs.values()) if isinstance(value, str))


def _product(call: _Call) -> tuple[int, int, int, int] | None:
    base, given = call.base, list(_tensors(call.args))
    if base in ("addmm", "baddbmm", "addmv", "_addmm_activation"):
        given = given[1:]
    if len(given) < 2:
        return None
    a, b = tuple(given[0].shape), tuple(given[1].shape)
    if base in ("mm", "addmm", "_addmm_activation", "_int_mm", "_scaled_mm"):
        return 1, a[0], b[1], a[1]
    if base in ("bmm", "baddbmm"):
        return a[0], a[1], b[2], a[2]
    if base in ("mv", "addmv"):
        return 1, a[0], 1, a[1]
    if base in ("convolution", "convolution_backward"):
        result, weight = (given[0], given[2]) if base != "convolution" else (call.results[0], given[1])
        groups = call.args[9 if base != "convolution" else 8]
        count, channels = int(groups), weight.shape[0]
        return count, numel(result) // max(channels, 1), channels // count, math.prod(weight.shape[1:])
    if base.startswith("_scaled_dot_product") or base == "scaled_dot_product_attention":
        query, key = given[1:3] if base.endswith("backward") else given[:2]
        return math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]
    if base == "linear":
        return 1, math.prod(a[:-1]), b[0] if len(b) > 1 else 1, b[-1]
    return None


def _strided(call: _Call) -> bool:
    """Whether an operand lies otherwise than the result: the innermost dimension of one is not that of the other."""
    results = call.mutated or call.results
    if not results or call.base in _SPECIAL or call.base in _PARTS:
        return False
    inner = _inner(results[0])
    if inner is None:
        return False
    same = [t for t in _tensors(call.args) if tuple(t.shape) == tuple(results[0].shape)]
    return any(_inner(t) not in (None, inner) or strides(t)[inner] > 1 for t in same if 0 not in strides(t))


def _inner(tensor: Any) -> int | None:
    """The dimension along which its elements are nearest to each other; None if it has only one element."""
    wide = [(step, axis) for axis, (length, step) in enumerate(zip(tensor.shape, strides(tensor))) if length > 1]
    return min(wide)[1] if wide else None
