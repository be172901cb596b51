"""What tensors of ours have in common: metadata and origin, known without running anything (SPEC L3-L5).

To C++ they are wrappers without memory on the CPU, so autograd, autocast and the argument checks work natively;
``.device`` is overridden on the class.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch.overrides import handle_torch_function

from ..._ext import attributes as _attributes
from ..._ext import intercept as _intercept
from ..._ext import lazy as _core
from ..._ext.guards import NoGrad, Unseen
from ...devices import mode
from . import classes
from .metadata import TensorMetadata


class Copied:
    """``copy`` and ``deepcopy`` of a tensor of ours, as torch's own do them; ``_copied(memo)`` copies the data."""

    _is_mindtorchs = True

    def __deepcopy__(self: Any, memo: dict) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not _is_leaf(self):
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment.  If you were attempting to deepcopy a module, this may be because of a torch.nn.utils."
                "weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
            )
        if isinstance(self, torch.nn.Parameter):  # of which torch copies neither gradient nor attributes
            parameter = classes.plain_class(type(self))
            parameter = parameter if issubclass(parameter, torch.nn.Parameter) else torch.nn.Parameter
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = copied = parameter(data, self.requires_grad)
            return copied
        with Unseen(), NoGrad():
            copied = self._copied(memo)
            if not (copied.is_inference() or copied._version):
                torch.autograd.graph.increment_version(copied)  # torch sets the storage of a new tensor
        memo[id(self)] = copied = _of_the_class(self, copied)
        with Unseen():
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)
        return classes.set_state(copied, copy.deepcopy(classes.own_state(self), memo))

    def _copied(self: Any, memo: dict) -> Any:
        return self.detach().clone()

    def __copy__(self: Any) -> Any:
        with Unseen():
            copied = self.detach()  # shares storage, as copy.copy of a plain tensor does
            if isinstance(self, torch.nn.Parameter):
                made: Any = torch.nn.Parameter(copied, self.requires_grad)
            else:
                made = _of_the_class(self, copied)
        return classes.set_state(made, classes.own_state(self))


def _is_leaf(t: Any) -> bool:
    with Unseen():
        return t.is_leaf


#: Methods that torch's own tensors have, too, and tell function modes of.
_SHOWN = (
    "item", "tolist", "numpy", "__array__", "cpu", "cuda", "__bool__", "__int__", "__float__", "__complex__",
    "__index__", "__repr__", "__format__", "__dlpack__", "__dlpack_device__", "data_ptr", "untyped_storage", "storage",
    "new", "__deepcopy__",
)  # fmt: skip
_modes_on = torch._C._len_torch_function_stack
_functions_on = torch._C._is_torch_function_enabled


def show(cls: Any) -> tuple[str, ...]:
    """Have function modes of the program see calls of the methods of ``cls`` as they see torch's. Returns the names."""
    for name in _SHOWN:
        setattr(cls, name, _shown(getattr(torch.Tensor, name), getattr(cls, name), name == "__deepcopy__"))
    return _SHOWN


def _shown(theirs: Any, ours: Any, not_of_parameters: bool) -> Any:
    @functools.wraps(ours)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _modes_on() and _functions_on() and not (not_of_parameters and isinstance(self, torch.nn.Parameter)):
            return handle_torch_function(theirs, (self,), self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    return method


def answered_by(name: str) -> Any:
    """What to do when modes are through with a call of the method ``name``: call it on our tensor."""
    theirs = getattr(torch.Tensor, name)

    def handler(args: tuple, kwargs: dict[str, Any]) -> Any:
        if getattr(type(args[0]), name) is theirs:
            return NotImplemented
        return getattr(args[0], name)(*args[1:], **kwargs)

    return handler


def _of_the_class(t: Any, copied: Any) -> Any:
    """``copied``, as a leaf of the class of ``t`` that requires a gradient if ``t`` does."""
    plain = classes.plain_class(type(t))
    if plain is not torch.Tensor and _core.get_handle(copied) is not None:
        return classes.make_subclass(plain, copied, t.requires_grad)
    return classes.requiring(copied, t.requires_grad)


def formatted(t: torch.Tensor, value: torch.Tensor) -> str:
    """As torch prints a tensor on a device of its own: ``value``, and device, size, dtype, grad_fn of ``t``."""
    with Unseen(), NoGrad():
        return _formatted(t, value)


def _formatted(t: torch.Tensor, value: torch.Tensor) -> str:
    # As torch, which does not name the default device. The index is of ours alone.
    at_home = mode.now.default is not None and _core.device_index(t) == mode.now.default
    suffixes = [] if at_home else [f"device='{t.device}'"]
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
    plain = classes.plain_class(type(t))
    known = plain in (torch.Tensor, torch.nn.Parameter) or not isinstance(t, RecordedTensor)
    start = "tensor(" if known else f"{plain.__name__}("
    text = torch._tensor_str._tensor_str(value.cpu(), len(start)) if value.numel() else "[]"
    whole = torch._tensor_str._add_suffixes(start + text, suffixes, len(start), force_newline=False)
    return ("Parameter containing:\n" if isinstance(t, torch.nn.Parameter) else "") + whole


#: Attributes that tensors of ours answer themselves.
ATTRIBUTES: dict[str, _attributes.Attribute] = {
    name: _attributes.Attribute(name, getattr(torch._C.TensorBase, name))
    for name in (
        "shape", "dtype", "device", "ndim", "is_cpu", "is_cuda", "is_meta",
        "requires_grad", "is_leaf", "grad_fn", "grad", "layout", "is_sparse", "is_nested", "is_quantized",
    )
}  # fmt: skip


class RecordedTensor(Copied, torch.Tensor, metaclass=classes.RecordedMeta):
    """A tensor whose calls are recorded: on ``remote_accelerator`` (LazyTensor) or without data (MetaTensor)."""

    _family: classes.Family  # of each class that derives from this one
    _routed = False  # has the class a __torch_function__ of the program's?

    @property
    def _handle(self) -> Any:  # of objects without slot
        return _core.get_handle(self)

    __torch_function__: Any = classmethod(_intercept.torch_function)  # type: ignore[assignment]
    __torch_dispatch__: Any = classmethod(_intercept.torch_dispatch)  # type: ignore[assignment]

    def as_subclass(self, cls: type) -> Any:  # type: ignore[override]
        """Another name of this tensor, in its graph, as an object of class ``cls``."""
        return classes.as_subclass(self, cls)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """As torch's; told also where classes have no say."""
        out = torch.Tensor.requires_grad_(self, requires_grad)
        if requires_grad:
            _core.may_require_grad(self._handle)
        return out

    # ---- metadata, without running anything (SPEC L3) ----------------------------------------------------------------
    get_device = _attributes.device_number(torch.Tensor.get_device)

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
        return _core.constants(handle)[1] if handle.sig else {}

    @property
    def metadata(self) -> TensorMetadata:
        """A view on what the engine knows about this value; built on demand."""
        return TensorMetadata(self)


for _name, _attribute in ATTRIBUTES.items():
    setattr(RecordedTensor, _name, _attribute)
for _name in (
    "dim", "size", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size",
    "storage_offset", "nelement", "ndimension", "is_conj", "is_neg", "is_inference",
):  # fmt: skip
    setattr(RecordedTensor, _name, _attributes.question(getattr(torch.Tensor, _name)))
