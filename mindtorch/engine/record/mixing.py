"""Operands on two devices: refused as torch refuses them, in an error that names both (SPEC D4).

To C++ a lazy tensor is on the CPU, and so are the tensors that torch's own code makes on the way to a kernel. Below
Python they cannot be told from the program's: what the program mixes is seen where it calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from ... import ops
from ..._ext import lazy as _core
from ..._ext.guards import NoGrad, Unseen
from ...devices import mode
from ...devices.lazy_device import device_at, device_of, place_of
from .predict import tensors_in
from .unwrapping import wrapped

__all__ = ["SPARSE", "common_place", "joined", "mixed_devices", "no_ordinary_cpu_tensor", "parts", "refuse_two_devices",
           "torchs_meta"]  # fmt: skip

SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def mixed_devices(info: Any, args: tuple, kwargs: dict | None, sparse_anywhere: bool = False) -> None:
    """Refuse operands on different devices as torch does: 0-dim CPU tensors join anything.

    sparse_anywhere: so do sparse ones. Those of NPUs are made on the host.
    """
    row, kwargs = ops.about(info.name), kwargs or {}
    if row.anywhere or info.name.startswith("python::"):  # others' functions decide themselves
        return
    if any(torchs_meta(t) or (_core.device_index(t) < 0 and t.is_meta) for t in tensors_in([*args, *kwargs.values()])):
        return  # what meets a meta tensor becomes one
    if row.indexed:
        _check_index(info, args, kwargs)
        return
    free = row.elsewhere
    if row.tag == "rnn" and len(args) > 3 and isinstance(args[3], (list, tuple)):
        free = (1,)  # of packed sequences: the batch sizes
    _check(info, {key: a for key, a in (*enumerate(args), *kwargs.items()) if key not in free}, sparse_anywhere)


def joined(info: Any, args: tuple, kwargs: dict | None, looked_at: bool) -> tuple[tuple, dict | None]:
    """The arguments of a call of the program's: CPU tensors that join it and want a gradient are moved to its device.

    Their gradients are the CPU's then, as autograd's engine sees to for torch's own devices; it takes ours for the CPU.
    looked_at: `mixed_devices` has taken all; else it does below Python, and what it refuses must get there as it is.
    """
    copies = info.name in ("aten::copy_", "aten::fill_")  # from anywhere, whatever the sizes
    if not torch.is_grad_enabled() or not info.name.startswith("aten::"):
        return args, kwargs
    if ops.about(info.name).anywhere and not copies:
        return args, kwargs
    at = common_place(info, args, kwargs or {})
    name = getattr(info.func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
    kept = {*info.writes, "out", *[0] * in_place}

    def moved(key: Any, a: Any) -> Any:
        if key in kept or not isinstance(a, torch.Tensor) or not a.requires_grad or not a.is_cpu or wrapped(a):
            return a
        if a.layout is not torch.strided or (a.dim() and not looked_at and not copies):
            return a
        if at < 0 if _core.get_handle(a) is None else _core.device_index(a) == at:
            return a  # what was made before an estimate began has a gradient of its own
        return a.to(device_at(at))

    new = tuple(moved(key, a) for key, a in enumerate(args))
    return new, None if kwargs is None else {key: moved(key, a) for key, a in kwargs.items()}


def common_place(info: Any, args: tuple, kwargs: dict) -> int:
    """Where a call runs: on meta if any operand is there, else where the first is that does not join others; of the
    places of tensors without data, if there are any, else a device's index."""
    found = [
        (t, place_of(t.device) if torchs_meta(t) else _core.device_index(t))
        for t in tensors_in([*args, *kwargs.values()])
        if torchs_meta(t) or _core.get_handle(t) is not None
    ]
    dataless = [(t, place) for t, place in found if place < 0]
    if not dataless:
        return found[-1][1] if found else 0
    meta = [place for t, place in dataless if t.is_meta]
    if meta:
        return meta[0]
    for t, place in dataless if not ops.about(info.name).anywhere and 0 not in info.writes else ():
        if t.dim() or not t.is_cpu:
            return place
    return dataless[0][1]


def _check(info: Any, operands: dict[Any, Any], sparse_anywhere: bool = False) -> None:
    # Transforms make tensors of their own and traced code holds constants, where they took the lazy tensor to be.
    # In an estimate, autograd's C++ hands out zeros like that, too.
    made_below = (
        isinstance(info.func, torch._ops.OpOverload)
        or mode.now.estimate is not None
        or (torch._C._functorch.peek_interpreter_stack() is not None)
    )
    first = ""
    for key, a in operands.items():
        for t in a if isinstance(a, (tuple, list)) else (a,):
            if not isinstance(t, torch.Tensor):
                continue
            foreign = _core.get_handle(t) is None and not getattr(type(t), "_is_mindtorchs", False)
            if foreign and (made_below or (no_ordinary_cpu_tensor(t) and (sparse_anywhere or not _is_sparse(t)))):
                continue
            if t.dim() == 0 and t.is_cpu and key not in info.writes and key != "out":
                continue
            here = str(device_of(t))
            if not first:
                first = here
            elif here != first:
                refuse_two_devices(info.name, first, here)


def refuse_two_devices(name: str, first: str, second: str) -> NoReturn:
    """Raise torch's own error of operands on two devices, with the op's name."""
    raise RuntimeError(
        f"[{name}] Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def _check_index(info: Any, args: tuple, kwargs: dict) -> None:
    """Indices may be on the CPU, whatever they index; what is written is where it is written to.

    Without a tensor among the indices an assignment is a copy, which may cross devices.
    """
    target, indices, *value = (*args, *kwargs.values())
    advanced = getattr(info.func, "__name__", "") != "__setitem__"
    for t in _indices(indices):
        advanced = True
        elsewhere = isinstance(t, torch.Tensor) and t.dim() and not t.is_cpu and device_of(t) != device_of(target)
        if elsewhere and not wrapped(t):
            _refuse_index(info, target, t)
    if advanced and value:
        _check(info, {0: target, 1: value[0]})


def _indices(a: Any) -> Iterator[Any]:
    """What makes an index more than a view: tensors and lists."""
    if isinstance(a, list) and not any(isinstance(item, (torch.Tensor, list, tuple)) for item in a):
        yield a
    elif isinstance(a, (list, tuple)):
        for item in a:
            yield from _indices(item)
    elif isinstance(a, torch.Tensor) and (a.dim() or a.dtype in (torch.bool, torch.uint8)):
        yield a


def _refuse_index(info: Any, target: torch.Tensor, index: torch.Tensor) -> NoReturn:
    raise RuntimeError(
        f"[{info.name}] indices should be either on cpu or on the same device as the indexed tensor "
        f"({device_of(target)}), but found one on {device_of(index)}"
    )


def no_ordinary_cpu_tensor(t: torch.Tensor) -> bool:
    """Sparse, nested and quantized results of eager runs stay torch's own; functorch's wrappers may have a lazy tensor
    inside."""
    return t.is_nested or t.is_quantized or t.layout is not torch.strided or wrapped(t)


def _is_sparse(t: torch.Tensor) -> bool:
    """Is this a sparse tensor of torch's? What an eager run gives on the device is not one: it knows where it is."""
    return type(t) is torch.Tensor and t.layout in SPARSE and not t.is_nested and not wrapped(t)


def torchs_meta(t: torch.Tensor) -> bool:
    """Is this one of torch's own meta tensors?"""
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.is_meta


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a sparse one is made of, of which there are none in others."""
    with Unseen(), NoGrad(), torch._C.DisableTorchFunctionSubclass():
        if t.layout is torch.sparse_coo:
            return [t._indices(), t._values()]
        if t.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [t.crow_indices(), t.col_indices(), t.values()]
        if t.layout in SPARSE:
            return [t.ccol_indices(), t.row_indices(), t.values()]
        return []
