"""``torch.cuda.FloatTensor`` and its like where CUDA is not a CUDA device: a dtype there, as a type.

Programs make tensors with them, copy with ``t.type(torch.cuda.FloatTensor)``, ask ``isinstance``, and choose them for
all that they make with ``torch.set_default_tensor_type``. torch's own classes are of C++, and ask for a driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..base.patching import Patch
from ..devices import mode
from ..engine.record.plain_operands import bring_together

__all__ = ["patches"]
_NAMES = (
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
    "IntTensor", "LongTensor", "ShortTensor",
)  # fmt: skip
_OfTorch = type(torch.FloatTensor)
_torch_default = torch.set_default_tensor_type


class _TensorType(type):
    """plain: torch's type of that name for the CPU; kind: the device's name."""

    plain: Any
    kind: str
    is_cuda = True
    is_sparse = False

    @property
    def dtype(cls) -> torch.dtype:
        return cls.plain.dtype  # type: ignore[no-any-return]

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        device = cls.kind if device is None else device
        if all(isinstance(size, int) for size in args) or (len(args) == 1 and isinstance(args[0], torch.Size)):
            return torch.empty(*args or (0,), dtype=cls.dtype, device=device)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            if not isinstance(args[0], cls):
                raise TypeError(f"expected a {cls.__module__}.{cls.__name__} (got {args[0].type()})")
            return torch.ops.aten.alias(args[0])
        return cls.plain(*args).to(device)  # a sequence, an array; or an error

    def __instancecheck__(cls, t: object) -> bool:
        return isinstance(t, torch.Tensor) and t.is_cuda and t.dtype is cls.dtype


def patches(kind: str, named_otherwise: bool) -> Iterator[Patch]:
    """kind: what the program's "cuda" is called, as it says it. named_otherwise: tensors there do not know that they
    are on CUDA, and have to be told so."""
    types = {
        name: _TensorType(name, (), {"__module__": "torch.cuda", "plain": getattr(torch, name), "kind": kind})
        for name in _NAMES
    }

    def named(what: Any) -> Any:
        return types.get(what.removeprefix("torch.cuda."), what) if isinstance(what, str) else what

    before: Any = torch.Tensor.type

    def typed(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        """``t.type(dtype)``, whose device is part of the type."""
        dtype = named(dtype)
        if isinstance(dtype, _TensorType):
            there = f"{kind}:{self.get_device()}" if self.is_cuda else kind
            return self.to(there, dtype.dtype, non_blocking=non_blocking)
        if not (named_otherwise and self.is_cuda):
            return before(self, dtype, non_blocking, **kwargs)
        if dtype is None:
            name = before(self)
            return name if name.startswith("torch.cuda.") else name.replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
        if isinstance(dtype, _OfTorch):
            return self.to("cpu", dtype.dtype, non_blocking=non_blocking)
        return before(self, dtype, non_blocking, **kwargs)

    chosen, met = False, None

    def choose(device: str | None) -> None:
        nonlocal chosen, met
        if named_otherwise:
            # ``torch.Tensor(2, 3)`` is there, too, in torch. Here it stays on the CPU: it joins what it meets.
            met = met if chosen else mode.now.meets
            mode.change(meets=met if device is None else bring_together)
        chosen = device is not None
        torch.set_default_device(device)

    def set_default(t: Any) -> None:
        """``torch.set_default_tensor_type``: a dtype, and the device."""
        t = named(t)
        if isinstance(t, _TensorType):
            if not t.dtype.is_floating_point:
                raise TypeError("only floating-point types are supported as the default type")
            torch.set_default_dtype(t.dtype)
            choose(kind)
            return
        _torch_default(t)
        if chosen:
            choose(None)

    yield from ((torch.cuda, name, value) for name, value in types.items())
    yield torch.Tensor, "type", typed
    yield torch, "set_default_tensor_type", set_default
