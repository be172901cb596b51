"""Torch calls on lazy tensors that are answered in Python: reads of metadata, assignments, what needs another way.

One file: a table of answers of a few lines each (`table`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from ..._ext import intercept as _intercept
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ..._ext.guards import NoGrad
from ..._ext.strides import contiguous
from ...base import torch_facts
from ...base.errors import LazyTensorError
from ...devices import mode
from ...devices.lazy_device import on_cuda, place_of
from ...devices.places import RECORDED, where
from ..tensor.recorded import ATTRIBUTES, RecordedTensor
from . import eager, predict, sequences, unwrapping
from .arguments import tensors_in
from .assigned_parts import set_part
from .meta import as_meta, value_of
from .placed import on_named_device

__all__ = [
    "histc", "lazy_gradient", "lend_storage", "may_have_history", "refuse_pinning", "set_data", "set_sources",
    "shape_only", "table",
]  # fmt: skip
Handler = Callable[[tuple, dict], Any]  # NotImplemented: let torch go on
_base = torch._C.TensorBase
_CPU = torch.device("cpu")


def _unsure(args: tuple, kwargs: dict) -> Any:
    # From here on the tensor may require grad: its ops go through torch's autograd.
    if kwargs.get("requires_grad", args[-1]) is False:
        return NotImplemented
    may_have_history(args)
    return NotImplemented


def may_have_history(tensors: Any) -> None:
    """Lazy tensors among these are no longer taken to need no autograd, whatever was known when they were made."""
    for t in predict.lazy_in(tensors):
        _core.may_require_grad(t._handle)  # a view that was made and written before gets a gradient, too


def set_data(args: tuple, kwargs: dict) -> Any:
    target, source = args
    if not isinstance(source, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return _base.data.__set__(target, source)  # type: ignore[attr-defined]  # which says what it wants
    if _core.get_handle(target) is None or _core.get_handle(source) is None:
        raise LazyTensorError(
            f"[data] expected two tensors on the same device, got {target.device} and {source.device}: "
            "assigning .data cannot move a tensor, use .to()"
        )
    with torch._C.DisableTorchFunctionSubclass():
        _base.data.__set__(target, source)  # type: ignore[attr-defined]  # sizes and strides, in C++
    _core.rebind(target._handle, source._handle)
    target._handle.no_grad = False
    return None


def _data(theirs: Any) -> property:
    """Attribute ``data``, which is bound anew also where classes have no say (``DisableTorchFunctionSubclass``)."""

    def bind(self: torch.Tensor, value: torch.Tensor) -> None:
        if torch._C._is_torch_function_enabled():
            theirs.__set__(self, value)
        else:
            set_data((self, value), {})

    return property(theirs.__get__, bind, theirs.__delete__)


RecordedTensor.data = _data(_base.data)  # type: ignore[assignment,method-assign]

_storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # handed out: whose they are


def lend_storage(t: Any, storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Remember whose storage this is, for a ``set_`` that names it."""
    _storages[storage._cdata] = t
    return storage


def set_sources(target: torch.Tensor, args: tuple, kwargs: dict) -> tuple | None:
    """The arguments of ``target.set_(...)`` with one tensor of ours in place of a storage, or a source and sizes.

    None: as they are. Torch itself would take the storage from the source in C++, where a lazy tensor has none.
    """
    source, *rest = (*args, *kwargs.values()) or (None,)
    if isinstance(source, (torch.UntypedStorage, torch.TypedStorage)):
        untyped = source if isinstance(source, torch.UntypedStorage) else source._untyped_storage
        source = _storages.get(untyped._cdata)
        if source is not None:
            source = source.detach()
            source = source if source.dtype is target.dtype else source.view(target.dtype)
            rest = rest or [0, (untyped.nbytes() // target.element_size(),), (1,)]
    if _core.get_handle(source) is None or not rest:
        return None
    offset, size, *stride = rest
    with NoGrad():
        return (source.detach().as_strided(size, stride[0] if stride else contiguous(size), offset),)


def _share_memory(args: tuple, kwargs: dict) -> Any:
    if eager.executor().place.type != "meta":
        return NotImplemented
    raise LazyTensorError(
        "[share_memory_] expected values in this process: those of another process cannot be in shared memory"
    )


def _detach(args: tuple, kwargs: dict) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        out = _base.detach(*args, **kwargs)
    handle = _core.get_handle(out)
    if handle is not None and torch.is_grad_enabled() and forward_ad._current_level < 0:
        handle.no_grad = True  # known here only: below, autograd may give what it detaches a history
    return out


def _type_as(args: tuple, kwargs: dict) -> Any:
    target, other = (*args, *kwargs.values())
    if target.device == other.device:
        return NotImplemented
    return target.to(other)  # C++ takes both to be on the CPU


def _query(name: str, answer: Handler) -> dict[Any, Handler]:
    """What a query gives, as a method and as the operator that dispatch modes see."""

    @functools.cache
    def operator() -> Any:
        # Not before it is needed: torch notes which operators somebody has asked for (L1).
        op = getattr(torch.ops.aten, name).default
        _intercept.register(op, _intern.OpInfo(op, f"aten::{name}", _intern.HANDLER, handler=answer))
        return op

    def asked(args: tuple, kwargs: dict[str, Any]) -> Any:
        if not sequences.watched():
            return answer(args, kwargs)
        op = operator()
        with torch._C.DisableTorchFunction():
            return op(*args, **kwargs)

    return {getattr(_base, name): asked}


def _is_same_size(args: tuple, kwargs: dict) -> Any:
    a, b = (*args, *kwargs.values())
    return NotImplemented if a.is_nested or b.is_nested else a.shape == b.shape


def _is_set_to(args: tuple, kwargs: dict) -> Any:
    a, b = (_core.get_handle(t) for t in (*args, *kwargs.values()))
    if a is None or b is None:
        return False
    return _core.same_root(a, b) and _core.meta_of(a) == _core.meta_of(b)


def refuse_pinning(t: torch.Tensor) -> NoReturn:
    """Raise torch's own error of ``pin_memory`` on a tensor that is not a dense one on the CPU."""
    raise RuntimeError(f"cannot pin a {t.dtype} tensor on {t.device}: only dense CPU tensors can be pinned")


def _gradient(args: tuple, kwargs: dict) -> Any:
    """C++ makes some zero gradients itself, on what it takes for the tensor's device: plain ones (`lazy_gradient`)."""
    target = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        found = _base.grad.__get__(target)  # type: ignore[attr-defined]
        if found is None or _core.get_handle(found) is not None:
            return found
        made = lazy_gradient(target, found)
        if made is not found:
            _base.grad.__set__(target, made)  # type: ignore[attr-defined]
        return made


def lazy_gradient(target: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """The gradient of a tensor on a device of ours as one there: a lazy tensor, when it is a dense plain one."""
    own = _core.get_handle(target) is not None
    sparse = target.layout is not torch.strided and getattr(target, "_is_mindtorchs", False)
    if _core.get_handle(found) is not None:
        return found
    if not (own or sparse) and not (type(found) is torch.Tensor and where(target.device) is RECORDED):
        return found  # the third: a class of the program's, around tensors of ours
    index = _core.device_index(target) if own else place_of(target.device)
    if found.layout is not torch.strided:
        return eager.labelled(found, index)
    if found.requires_grad or found.is_nested:
        return found
    if unwrapping.in_older_vmap(found):
        return unwrapping.below_older_vmap(lambda t: lazy_gradient(target, t), found)
    if unwrapping.wrapped(found):
        return found
    return eager.held(found, index, True)


def _split(args: tuple, kwargs: dict) -> Any:
    # torch reads a tensor of indices in C++, where a lazy one has no memory.
    at = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if at is None or _core.get_handle(at) is None:
        return NotImplemented
    at = value_of(at, "tensor_split") if _core.device_index(at) < 0 else at.cpu()
    kwargs = {k: v for k, v in kwargs.items() if k != "tensor_indices_or_sections"}
    return torch.tensor_split(args[0], at, *args[2:], **kwargs)


def _like(func: Any) -> Handler:
    def handler(args: tuple, kwargs: dict) -> Any:
        device = kwargs.get("device")
        if device is None or where(device) is RECORDED:
            if not kwargs.pop("requires_grad", False):
                return NotImplemented
            return func(*args, **kwargs).requires_grad_()  # C++ would set it after the tensor was made
        if mode.now.estimate is not None and _core.device_index(args[0]) < 0:
            made = func(*args, **{k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")})
            return mode.now.estimate.move(made, device).requires_grad_(kwargs.get("requires_grad", False))
        # ``zeros_like(lazy, device="cpu")``: to C++ the lazy tensor is on the CPU already, so say what is meant here.
        like = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device=device)
        made = func(like, *args[1:], **kwargs)
        return as_meta(made, place_of(device)).requires_grad_(made.requires_grad) if made.is_meta else made

    return handler


def _element_wise(name: str) -> Handler:
    """``x.apply_(f)``: torch calls a Python function per element of the memory, without asking a tensor's class."""

    info = _intern.OpInfo(_ELEMENT_WISE[name], f"torch::{name}", _intern.HANDLER, writes=(0,))

    def handler(args: tuple, kwargs: dict) -> Any:
        target, *others, function = (*args, *kwargs.values())
        if any(t.requires_grad for t in (target, *others)):
            raise RuntimeError(
                f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead."
            )
        if any(_core.get_handle(t) is None for t in (target, *others)):
            raise RuntimeError(f"[{name}] expected all tensors to be on the same device")
        return eager.run_eagerly(info, (target, *others, function), {})

    return handler


def shape_only() -> list[Any]:
    """(overload, OpInfo) of the ops that ask a tensor for its shape and dtype only: they do not wait for its value."""
    found = []
    for name in (
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty_strided",
    ):
        packet = getattr(torch.ops.aten, name)
        for overload in (getattr(packet, o) for o in packet.overloads()):
            arguments = overload._schema.arguments
            if not any(a.is_out or a.name == "generator" for a in arguments) and not any(
                "Tensor" in str(a.type) for a in arguments[1:]
            ):
                found.append((overload, _shape_only(overload, name)))
    return found


def made_like(
    overload: Any, size: Any, stride: Any, of: torch.dtype, /, *args: Any, device: torch.device, **kwargs: Any
) -> Any:
    """What ``overload`` makes from a tensor of this size, these strides and dtype, which need not be there."""
    # Torch's meta functions predict other strides for sizes of 1 than its kernels give: ask the kernels.
    at = _CPU if device.type == "meta" and _core.canonical(size, stride) is not None else device
    return overload(torch.empty_strided(size, stride, dtype=of, device=at), *args, device=device, **kwargs)


def _shape_only(overload: Any, name: str) -> Any:
    random = name.startswith("rand")

    made = _intern.OpInfo(
        overload, f"aten::{name}", _intern.RECORD, call=functools.partial(made_like, overload), random=random
    )

    def handler(args: tuple, kwargs: dict) -> Any:
        handle, device = _core.get_handle(args[0]), kwargs.get("device")
        if handle is None or kwargs.get("pin_memory") or (device is not None and not predict.same_device(device)):
            return NotImplemented
        dtype, size, stride, _offset, index = _core.meta_of(handle)
        if name.startswith("new_"):
            size, stride = (0,), (1,)
        elif stride is None:
            stride = args[0].stride()
        options = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        out = _intercept.record_creation(made, (size, stride, dtype, *args[1:]), {**options, "device": _CPU}, index)
        return NotImplemented if out is None else out

    info = _intern.OpInfo(overload, made.name, _intern.HANDLER, call=overload._op, random=random, handler=handler)
    info.at_function = on_named_device(overload)
    return info


def _set_item(args: tuple, kwargs: dict) -> Any:
    target, index, value = args
    if mode.now.estimate is None or _core.device_index(target) >= 0:
        return set_part(target, index, value)
    # C++ makes a number a tensor on the device of the other: of torch's own meta device, for ours, where it is lost.
    if not isinstance(value, (bool, int, float)):
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        _base.__setitem__(target, index, _number(value, target.dtype, target))
    return None


def _one_hot(args: tuple, kwargs: dict) -> Any:
    # Of tensor subclasses C++ compares the indices with all classes, which gives the layout of the indices; as above,
    # it makes the zeros itself. (Where nothing is known, torch's own way has the sizes right.)
    index = args[0]
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if _core.get_handle(index) is None or index.dtype is not torch.int64:
        return NotImplemented
    if _core.device_index(index) >= 0:
        if classes <= 0 and not index.numel():
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        if classes == 0 or classes < -1:
            negative = index.min().item() < 0
            which = "non-negative" if negative else "smaller than num_classes"
            raise RuntimeError(f"Class values must be {which}.")
        if classes == -1:
            least, greatest = index.aminmax() if torch_facts.one_hot_asks_once() else (index.min(), None)
            if least.item() < 0:
                raise RuntimeError("Class values must be non-negative.")
            classes = int((index.max() if greatest is None else greatest).item()) + 1
    elif mode.now.estimate is None:
        return NotImplemented
    elif index.numel():
        known = _core.kept(index._handle)
        if known is not None:
            with predict.quiet():  # on CUDA, the kernel that writes the ones looks
                least, greatest = known.min().item(), known.max().item()
            if least < 0 or 0 <= classes <= greatest:
                which = "non-negative" if least < 0 else "smaller than num_classes"
                raise RuntimeError(f"Class values must be {which}.")
        if known is not None and not on_cuda(index):
            found = index.aminmax() if torch_facts.one_hot_asks_once() else (index.min(), index.max())
            classes = max(classes, *(int(each.item()) + 1 for each in found))
        elif classes < 0:
            classes = int(index.max()) + 1
    elif classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if mode.now.estimate is not None or (sequences.watched() and _core.device_index(index) >= 0):
        zeros = torch.zeros((*index.shape, classes), dtype=index.dtype, device=index.device)
    else:
        zeros = index.new_zeros((*index.shape, classes))
    return zeros.scatter_(-1, index.unsqueeze(-1), 1)


def histc(args: tuple, kwargs: dict) -> Any:
    """Accelerators count whole numbers too, which the CPU's kernel refuses; models choose by the device's type."""
    x = args[0] if args else kwargs["input"]
    unknown = _core.device_index(x) < 0 and not _core.is_kept(x._handle)
    if x.dtype not in _WHOLE_NUMBERS or kwargs.get("out") is not None or unknown:
        return NotImplemented
    return _count_in_bins(*args, **{k: v for k, v in kwargs.items() if k != "out"})


_WHOLE_NUMBERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _count_in_bins(input: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> torch.Tensor:
    """``torch.histc`` of whole numbers, as torch's CUDA kernel counts them."""
    low, high = int(min), int(max)
    if bins <= 0 or low > high:
        raise RuntimeError("bins must be > 0" if bins <= 0 else "max must be larger than min")
    x = input.reshape(-1).long()
    first, last = (x.min(), x.max()) if low == high and x.numel() else (x.new_full((), low), x.new_full((), high))
    alike = (first == last).long()
    first, last = first - alike, last + alike
    inside = (x >= first) & (x <= last)
    at = torch.div((x - first) * bins, last - first, rounding_mode="floor").clamp(0, bins - 1)  # the last has both ends
    return input.new_zeros(bins).scatter_add_(0, at, inside.to(input.dtype))


def _validate_coo(args: tuple, kwargs: dict) -> Any:
    """Torch reads the indices in C++."""
    if any(_core.device_index(t) < 0 for t in tensors_in([*args, *kwargs.values()]) if _core.get_handle(t) is not None):
        return NotImplemented
    plain = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
    return torch._validate_sparse_coo_tensor_args(*plain[0], **plain[1])


def _meshgrid(args: tuple, kwargs: dict) -> Any:
    # C++ shows what it refuses, and would read the memory that a lazy tensor has not.
    given = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    if all(t.dim() < 2 for t in given) or any(_core.device_index(t) < 0 for t in given):
        return NotImplemented
    return torch.meshgrid(*(t.cpu() for t in given), **kwargs)


def _number(value: Any, dtype: torch.dtype, at: torch.Tensor) -> Any:
    """A known tensor of one number in the place of ``at``."""
    with torch._C.DisableTorchFunction():
        made = torch.tensor(value, dtype=dtype, device="cpu")
    return mode.now.estimate.adopt(made, _core.device_index(at), True)


def table() -> dict[Any, Handler]:
    T = torch.Tensor
    return {
        T.__setitem__: _set_item,
        torch.nn.functional.one_hot: _one_hot,
        **dict.fromkeys((torch.meshgrid, torch._C._VariableFunctions.meshgrid), _meshgrid),
        T.requires_grad_: _unsure,
        _base.requires_grad.__set__: _unsure,  # type: ignore[attr-defined]
        _base.data.__set__: set_data,  # type: ignore[attr-defined]
        torch._C._VariableFunctions._make_dual: _unsure,
        **{getattr(_base, name).__get__: attribute.answer for name, attribute in ATTRIBUTES.items()},
        **dict.fromkeys((torch.get_device, _base.get_device), lambda args, kwargs: args[0].get_device()),
        _base.item: lambda args, kwargs: args[0].item(),
        _base.tolist: lambda args, kwargs: args[0].tolist(),
        _base.cpu: lambda args, kwargs: args[0].cpu(*args[1:], **kwargs),
        _base.numpy: lambda args, kwargs: args[0].numpy(*args[1:], **kwargs),
        # These would read the memory that the C++ side of a lazy tensor does not have.
        **{func: lambda args, kwargs: args[0].data_ptr() for func in torch_facts.data_pointers()},
        _base.untyped_storage: lambda args, kwargs: args[0].untyped_storage(),
        **{func: _element_wise(name) for name, func in _ELEMENT_WISE.items()},
        _base.is_same_size: _is_same_size,
        **_query("is_set_to", _is_set_to),
        **_query("is_pinned", lambda args, kwargs: False),
        _base.type_as: _type_as,
        _base.dense_dim: lambda args, kwargs: args[0].dim(),
        _base.pin_memory: lambda args, kwargs: refuse_pinning(args[0]),
        _base.grad.__get__: _gradient,  # type: ignore[attr-defined]
        # Taken apart for a tensor subclass, torch's matmul has other last bits: let it be recorded whole.
        T.__rmatmul__: lambda args, kwargs: torch.matmul(args[1], args[0]),
        torch._C._VariableFunctions._pack_padded_sequence: sequences.pack,
        torch._C._VariableFunctions._pad_packed_sequence: lambda args, kwargs: sequences.pad_packed_sequence(
            *args, **kwargs
        ),
        **{func: sequences.ctc_loss(func) for func in (torch.ctc_loss, torch.nn.functional.ctc_loss)},
        torch._C._nn.pad_sequence: lambda args, kwargs: sequences.pad_sequence(*args, **kwargs),
        torch._C._VariableFunctions._validate_sparse_coo_tensor_args: _validate_coo,
        T.share_memory_: _share_memory,
        _base.detach: _detach,
        _base.tensor_split: _split,
        torch._C._VariableFunctions.tensor_split: _split,
        _base.histc: histc,
        torch._C._VariableFunctions.histc: histc,
        torch.ops.aten.histc.default: histc,  # where torch calls it, as when a checkpoint is computed again
        **{func: _like(func) for func in _LIKE},
    }


_ELEMENT_WISE = {name: getattr(_base, name) for name in ("apply_", "map_", "map2_")}
_LIKE = tuple(
    getattr(torch._C._VariableFunctions, f"{name}_like")
    for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
)
