"""What tensors of ours have in common: metadata and origin, known without running anything (SPEC L3-L5).

To C++ they are wrappers without memory on the CPU, so autograd, autocast and the argument checks work natively;
``.device`` is overridden on the class.
"""

from __future__ import annotations

from typing import Any

import torch

from ._ext import intercept as _intercept
from ._ext import lazy as _core
from ._ext.guards import NoGrad
from .errors import LazyTensorError
from .lazy_device import device_at
from .metadata import TensorMetadata


class RecordedMeta(torch.nn.parameter._ParameterMeta):
    """Refuses to make tensors from data: torch's functions make them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise LazyTensorError(
            f"{cls.__name__} is made by torch functions: use device='remote_accelerator' or .to('remote_accelerator')"
        )


class Copied:
    """``copy`` and ``deepcopy`` of a tensor of ours, as torch's own do them; ``_copied(memo)`` copies the data."""

    def __deepcopy__(self: Any, memo: dict) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment.  If you were attempting to deepcopy a module, this may be because of a torch.nn.utils."
                "weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
            )
        with NoGrad():
            copied = self._copied(memo)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    def _copied(self: Any, memo: dict) -> Any:
        return self.detach().clone()

    def __copy__(self: Any) -> Any:
        copied = self.detach()  # shares storage, as copy.copy of a plain tensor does
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copied, self.requires_grad)
        return copied.requires_grad_(self.requires_grad)


def formatted(t: torch.Tensor, value: torch.Tensor) -> str:
    """As torch prints a tensor on a device of its own: ``value``, and device, size, dtype, grad_fn of ``t``."""
    suffixes = [f"device='{t.device}'"]
    if value.numel() == 0 and value.dim() != 1:
        suffixes.append(f"size={tuple(value.shape)}")
    default = torch.get_default_dtype()
    if value.numel() == 0:
        usual = value.dtype is default
    else:
        usual = value.dtype in (default, default.to_complex(), torch.int64, torch.bool)
    if not usual:
        suffixes.append(f"dtype={value.dtype}")
    if t.grad_fn is not None:
        suffixes.append(f"grad_fn=<{type(t.grad_fn).__name__}>")
    elif t.requires_grad:
        suffixes.append("requires_grad=True")
    with torch._C.DisableTorchFunction(), NoGrad():
        text = torch._tensor_str._tensor_str(value.cpu(), len("tensor(")) if value.numel() else "[]"
        whole = torch._tensor_str._add_suffixes("tensor(" + text, suffixes, len("tensor("), force_newline=False)
    return ("Parameter containing:\n" if isinstance(t, torch.nn.Parameter) else "") + whole


class RecordedTensor(Copied, torch.Tensor, metaclass=RecordedMeta):
    """A tensor whose calls are recorded: on ``remote_accelerator`` (LazyTensor) or without data (MetaTensor)."""

    _handle: Any

    __torch_function__: Any = classmethod(_intercept.torch_function)  # type: ignore[assignment]
    __torch_dispatch__: Any = classmethod(_intercept.torch_dispatch)  # type: ignore[assignment]

    # ---- metadata, without running anything (SPEC L3) ----------------------------------------------------------------
    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return _core.meta_of(self._handle)[1]

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return _core.meta_of(self._handle)[0]

    @property
    def device(self) -> Any:  # type: ignore[override]
        return device_at(_core.device_index(self))

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return _core.device_index(self)

    # ---- what was recorded (SPEC L4, L5) -----------------------------------------------------------------------------
    @property
    def id(self) -> int:
        """Unique number of the recorded value in this process."""
        return self._handle.id

    @property
    def operation(self) -> str:
        """Name of the op that makes it, ``aten::add``; ``genie::data`` for values that came from outside."""
        handle = self._handle
        return _core.sig_info(handle.sig).name if handle.sig else "genie::data"

    @property
    def inputs(self) -> list[RecordedTensor]:
        """Tensors the op reads, as lazy tensors; empty once the value was computed (the engine lets go of them)."""
        record = _core.producer(self._handle)
        if record is None:
            return []
        return [_core.wrap_slot(slot, meta) for slot, meta in zip(record[4], _core.input_metas(record[0]), strict=True)]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the recorded call, constants only; tensors read as None."""
        handle = self._handle
        return _core.constants(handle.sig)[1] if handle.sig else {}

    @property
    def metadata(self) -> TensorMetadata:
        """A view on what the engine knows about this value; built on demand."""
        return TensorMetadata(self)
