"""Torch functions called on NPU tensors, before torch takes them apart (SPEC D4).

To C++ an NPU tensor is on the CPU. So what the program mixes is checked here, what would read its memory in C++ is
answered here, and what C++ makes on the way "on the tensor's device" is moved to where it belongs.

One file: a table of functions, and the few lines that answer each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .. import ops
from .._ext.guards import NoGrad
from ..base import torch_facts
from ..base.errors import LazyTensorError
from ..base.patching import with_names
from ..engine.record import intercept, mixing
from ..engine.record.handlers import refuse_pinning
from ..engine.record.meta import MetaTensor
from ..engine.record.predict import tensors_in
from ..engine.record.unwrapping import wrapped
from . import legacy, moves, staging
from .moves import move
from .tensor import NpuStorage, NpuTensor, as_npu, block_of, is_npu

_base = torch._C.TensorBase
_VF = torch._C._VariableFunctions
_infos: dict[Any, tuple[Any, int]] = {}
# Give plain tensors on purpose, or none that C++ could have made for us.
_AS_IT_IS = frozenset({_VF._pack_padded_sequence})
# Take tensors for numbers: sizes, which may be anywhere.
_MAKE = frozenset(
    {
        "zeros",
        "ones",
        "full",
        "empty",
        "rand",
        "randn",
        "randint",
        "randperm",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "normal",
        "range",
    }
)
_TAKE_SIZES = _MAKE | {
    "repeat",
    "expand",
    "view",
    "reshape",
    "narrow",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
    "unflatten",
    "tile",
    "broadcast_to",
    "resize_",
    "select",
    "roll",
    "flatten",
    "unfold",
}


def function(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """`__torch_function__` of NpuTensor."""
    kwargs = kwargs or {}
    handler = _HANDLERS.get(func)
    if handler is not None:
        out = handler(args, kwargs)
        if out is not NotImplemented:
            return out
    if len(types) > 1 and any(issubclass(t, MetaTensor) for t in types):
        return NotImplemented  # what meets a meta tensor becomes one: its class knows how
    operands = tensors_in([*args, *kwargs.values()])
    info, other_formula = _infos.get(func) or _describe(func)
    name = getattr(func, "__name__", "")
    if name not in _TAKE_SIZES and len({block_of(t).device if is_npu(t) else None for t in operands}) > 1:
        mixing.mixed_devices(info, args, kwargs, sparse_anywhere=True)
    if other_formula and any(is_npu(t) for t in operands):
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in operands)):
            if other_formula == _WHOLE:
                return staging.whole(func, info.name, args, kwargs)
        elif other_formula == _BACKWARD:
            return _through_cpu(func)(args, kwargs)
        elif other_formula == _BACKWARD_IN_PLACE:
            return args[0].copy_(_through_cpu(getattr(_base, name[:-1]))(args, kwargs))
    try:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
    except RuntimeError as error:
        if kwargs.get("out") is None or "not resizable" not in str(error):
            raise
        out = _into(kwargs["out"], func(*args, **{k: v for k, v in kwargs.items() if k != "out"}))
    if func in _AS_IT_IS or name in _MAKE or (kwargs and kwargs.get("device") is not None and name.startswith("new_")):
        return out
    if func is not torch.autograd.grad and any(_is_data_on_cpu(t) for t in operands):
        return out
    return _home(out, operands)


_WHOLE, _BACKWARD, _BACKWARD_IN_PLACE = 1, 2, 3


def _describe(func: Any) -> tuple[Any, int]:
    """(OpInfo; whether torch computes something else when handed a tensor subclass, see `mindtorch.ops.op_row`)."""
    info = intercept.describe(func, False)
    row = ops.row(info.name)
    other = 0
    if row is not None and info.name.endswith("_"):
        other = _BACKWARD_IN_PLACE if row.values_backward else 0
    elif row is not None and row.tag != "matmul":
        other = _WHOLE if row.whole else _BACKWARD if row.values_backward else 0
    _infos[func] = info, other
    return info, other


def _is_data_on_cpu(t: torch.Tensor) -> bool:
    return not is_npu(t) and t.layout is torch.strided and t.dim() > 0  # sparse tensors of NPUs are torch's own


def _into(targets: Any, made: Any) -> Any:
    """Write results to ``out=``: C++ would resize some of them itself, which storages without host memory refuse."""
    for target, t in zip(tensors_in(targets), tensors_in(made), strict=True):
        if target.shape != t.shape:
            target.resize_(t.shape)
        target.copy_(t)
    return targets


def _home(out: Any, operands: list[torch.Tensor]) -> Any:
    """Plain results of a call on NPU tensors alone belong where its operands are: C++ made them on what it took for
    their device."""
    if isinstance(out, torch.Tensor):
        if type(out) is not torch.Tensor or out.layout is not torch.strided or wrapped(out) or out.device.type != "cpu":
            return out
        if any(out is t for t in operands) or out.is_nested or out.is_quantized:
            return out
        first = next((t for t in operands if is_npu(t)), None)
        return out if first is None else move(out, first.device)
    if type(out) in (tuple, list):
        return type(out)(_home(item, operands) for item in out)
    return out


# ---- answered here ---------------------------------------------------------------------------------------------------
def _refuse_memory(what: str) -> Callable[[tuple, dict], NoReturn]:
    def handler(args: tuple, kwargs: dict) -> NoReturn:
        raise RuntimeError(f"[{what}] expected a tensor in host memory, got one on {args[0].device}: use .cpu()")

    return handler


def _through_cpu(func: Any) -> Callable[[tuple, dict], Any]:
    """For functions that read or make data in C++: all operands to the CPU, the results back. Differentiable."""

    def handler(args: tuple, kwargs: dict) -> Any:
        mine = [t for t in tensors_in([*args, *kwargs.values()]) if is_npu(t)]
        device = mine[0].device

        def there(a: Any) -> Any:
            return staging.map_tensors(a, lambda t: move(t, "cpu") if is_npu(t) else t)

        out = func(*there(args), **{k: there(v) for k, v in kwargs.items()})
        return staging.map_tensors(out, lambda t: move(t, device) if t.layout is torch.strided else t)

    return handler


def _element_wise(name: str) -> Callable[[tuple, dict], Any]:
    method = getattr(_base, name)

    def handler(args: tuple, kwargs: dict) -> Any:
        target, *others = args
        host = move(target.detach(), "cpu")
        method(host, *(move(a, "cpu") if is_npu(a) else a for a in others), **kwargs)
        with NoGrad():
            target.copy_(host)
        return target

    return handler


def _set_data(args: tuple, kwargs: dict) -> None:
    target, source = args
    if not is_npu(target) or not is_npu(source) or block_of(target).device != block_of(source).device:
        raise LazyTensorError(
            f"[data] expected two tensors on the same device, got {target.device} and {source.device}: "
            "assigning .data cannot move a tensor, use .to()"
        )
    with torch._C.DisableTorchFunctionSubclass():
        _base.data.__set__(target, source)  # type: ignore[attr-defined]


def _data(args: tuple, kwargs: dict) -> Any:
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        return as_npu(_base.data.__get__(args[0]))  # type: ignore[attr-defined]


def _gradient(args: tuple, kwargs: dict) -> Any:
    """C++ makes some zero gradients itself, on what it takes for the tensor's device: plain ones."""
    target = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        found = _base.grad.__get__(target)  # type: ignore[attr-defined]
        if found is None or is_npu(found) or not is_npu(target) or type(found) is not torch.Tensor:
            return found
        if found.layout is not torch.strided or wrapped(found) or found.requires_grad:
            return found
        made = move(found, target.device)
        _base.grad.__set__(target, made)  # type: ignore[attr-defined]
        return made


def _like(func: Any) -> Callable[[tuple, dict], Any]:
    def handler(args: tuple, kwargs: dict) -> Any:
        device = kwargs.get("device")
        if device is None:
            if not kwargs.pop("requires_grad", False):
                return NotImplemented
            return func(*args, **kwargs).requires_grad_()  # C++ would set it after the tensor was made
        # ``zeros_like(npu, device="cpu")``: to C++ the tensor is on the CPU already, so say what is meant here.
        like = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device=device)
        return func(like, *args[1:], **{k: v for k, v in kwargs.items() if k != "device"})

    return handler


def _split(args: tuple, kwargs: dict) -> Any:
    at = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if at is None or not is_npu(at):
        return NotImplemented
    kwargs = {k: v for k, v in kwargs.items() if k != "tensor_indices_or_sections"}
    return torch.tensor_split(args[0], at.cpu(), *args[2:], **kwargs)


def _pad_packed_sequence(args: tuple, kwargs: dict) -> Any:
    padded, lengths = _through_cpu(_VF._pad_packed_sequence)(args, kwargs)
    return padded, lengths.cpu()  # where torch has the lengths


def _new_tensor(args: tuple, kwargs: dict) -> Any:
    """Of another tensor's data, wherever that is; torch's own for the rest."""
    data = args[1] if len(args) > 1 else kwargs.get("data")
    if not isinstance(data, torch.Tensor):
        return NotImplemented
    device, dtype = (
        getattr(args[0], name) if kwargs.get(name) is None else kwargs[name] for name in ("device", "dtype")
    )
    return data.detach().to(device, dtype, copy=True).requires_grad_(bool(kwargs.get("requires_grad", False)))


def _type_as(args: tuple, kwargs: dict) -> Any:
    t, other = (*args, *kwargs.values())
    return t.to(other.device, other.dtype)


def _number(name: str) -> Callable[[tuple, dict], Any]:
    """Copied here, since C++ asks for it with torch's dispatch switched off: ``torch.tensor([scalar])``."""
    return lambda args, kwargs: getattr(moves.download(args[0]), name)()


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """In the products and the softmax that it is made of, as torch does it where it has no kernel for the whole.

    C++ would take the CPU's kernel. So it does where the results are to be the CPU's bit for bit: no native kernels.
    """
    given = [t for t in (query, key, value, attn_mask) if t is not None]
    if not staging.native() or not all(is_npu(t) and not t.is_nested for t in given):
        return NotImplemented
    if len({block_of(t).device for t in given}) > 1 or (is_causal and attn_mask is not None):
        return NotImplemented
    if torch.is_autocast_enabled("cpu"):  # as it casts what the whole is given
        shorter = torch.get_autocast_dtype("cpu")
        query, key, value, attn_mask = (
            t.to(shorter) if t is not None and t.is_floating_point() and t.dtype is not torch.float64 else t
            for t in (query, key, value, attn_mask)
        )
    if not query.dtype == key.dtype == value.dtype:
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return NotImplemented
    if is_causal:  # C++ would make this mask on the CPU
        ends = torch.full((query.shape[-2], key.shape[-2]), -math.inf, dtype=query.dtype).triu(1)
        attn_mask = move(ends, query.device)
    elif attn_mask is not None and attn_mask.dtype is torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill_(attn_mask.logical_not(), -math.inf)
    apart = torch.ops.aten._scaled_dot_product_attention_math.default
    with torch.autocast("cpu", enabled=False):
        return apart(query, key, value, attn_mask, dropout_p, scale=scale, enable_gqa=enable_gqa)[0]


def _multi_head(args: tuple, kwargs: dict) -> Any:
    """``nn.MultiheadAttention``, whose Python calls attention where nobody is asked about it any more."""
    with torch._C.DisableTorchFunctionSubclass():
        return _apart(*args, **kwargs)


def _whole_attention(*args: Any, **kwargs: Any) -> Any:
    found = _attention(*args, **kwargs)
    return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs) if found is NotImplemented else found


_torchs = torch.nn.functional.multi_head_attention_forward
_apart = with_names(_torchs, {"scaled_dot_product_attention": _whole_attention})


def _is_set_to(args: tuple, kwargs: dict) -> Any:
    a, b = (*args, *kwargs.values())
    if not (is_npu(a) and is_npu(b)):
        return False
    return NotImplemented


def _table() -> dict[Any, Callable[[tuple, dict], Any]]:
    through = (torch._C._nn.pad_sequence, torch._C._nn.one_hot, torch.sparse_coo_tensor, torch.sparse_csr_tensor)
    likes = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
    return {
        _base.device.__get__: lambda args, kwargs: args[0].device,  # type: ignore[attr-defined]
        _base.tolist: lambda args, kwargs: args[0].tolist(),
        _base.numpy: lambda args, kwargs: args[0].numpy(*args[1:], **kwargs),
        _base.cpu: lambda args, kwargs: args[0].cpu(*args[1:], **kwargs),
        **{func: lambda args, kwargs: args[0].data_ptr() for func in torch_facts.data_pointers()},
        _base.untyped_storage: lambda args, kwargs: args[0].untyped_storage(),
        _base.data.__set__: _set_data,  # type: ignore[attr-defined]
        _base.data.__get__: _data,  # type: ignore[attr-defined]
        _base.grad.__get__: _gradient,  # type: ignore[attr-defined]
        _base.is_pinned: lambda args, kwargs: False,
        _base.pin_memory: lambda args, kwargs: refuse_pinning(args[0]),
        _base.is_set_to: _is_set_to,
        torch.nn.functional.scaled_dot_product_attention: lambda args, kwargs: _attention(*args, **kwargs),
        _torchs: _multi_head,
        _base.type: lambda args, kwargs: legacy.typed(*args, **kwargs),
        _base.type_as: _type_as,
        _base.new_tensor: _new_tensor,
        torch.get_device: lambda args, kwargs: args[0].get_device(),
        torch.Tensor.share_memory_: _refuse_memory("share_memory_"),
        torch.Tensor.is_shared: lambda args, kwargs: False,
        _VF._pad_packed_sequence: _pad_packed_sequence,
        _base.tensor_split: _split,
        _VF.tensor_split: _split,
        **{func: _through_cpu(func) for func in through},
        **{getattr(_base, name): _element_wise(name) for name in ("apply_", "map_", "map2_")},
        **{
            getattr(_base, name): _number(name)
            for name in ("__float__", "__int__", "__index__", "__bool__", "__complex__")
        },
        **{func: _like(func) for func in (getattr(_VF, f"{name}_like") for name in likes)},
    }


_HANDLERS = _table()


# ---- the class's methods that move -----------------------------------------------------------------------------------
def install() -> None:
    """Give NpuTensor its interception (imports go one way: the class does not know this module)."""
    cls: Any = NpuTensor
    cls.__torch_function__ = classmethod(function)
    cls.__torch_dispatch__ = classmethod(staging.dispatch)
    cls.to = lambda self, *args, **kwargs: moves.to(self, args, kwargs)
    cls.cpu = lambda self, memory_format=torch.preserve_format: moves.to(self, ("cpu",), _given(memory_format))
    cls.cuda = lambda self, device="cuda", non_blocking=False, **kwargs: moves.to(
        self, (torch.device("cuda", device) if isinstance(device, int) else device,), {"non_blocking": non_blocking}
    )
    cls.set_ = _set
    cls.record_stream = lambda self, stream: block_of(self).record_stream(stream)
    cls.npu = lambda self, device=None, non_blocking=False, **kwargs: moves.to(
        self, ("npu" if device is None else device,), {"non_blocking": non_blocking, **kwargs}
    )


def _set(self: NpuTensor, source: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``t.set_(storage, offset, size, stride)``: C++ takes the storage of its own that ours stands for."""
    if isinstance(source, torch.TypedStorage):
        if source.dtype is not self.dtype:
            raise RuntimeError(
                f"[set_] expected a storage of {self.dtype}, as the tensor is, got one of {source.dtype}"
            )
        source = source._untyped_storage
    if not isinstance(source, NpuStorage):
        return _base.set_(self, *(() if source is None else (source,)), *args, **kwargs)
    if block_of(self).device != source.get_device():
        raise RuntimeError(f"[set_] expected a storage on {self.device}, got one on {source.device}")
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        _base.set_(self, source._torch, *args, **kwargs)
    return self


def _given(memory_format: torch.memory_format) -> dict[str, Any]:
    return {} if memory_format is torch.preserve_format else {"memory_format": memory_format}


install()
