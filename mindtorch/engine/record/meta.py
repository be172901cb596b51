"""MetaTensor: sizes, dtype, strides and device of a tensor that never has data (SPEC M1-M5).

Made by ``mindtorch.zeros(..., device="meta")`` and its like, and by every op on such tensors. Torch's own meta tensors
(``torch.zeros(..., device="meta")``) stay torch's own, and become one of these where they meet one.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..._ext import lazy as _core
from ..._ext import ledger as _ledger
from ..._ext.guards import NoGrad, Unseen
from ..._ext.strides import extent
from ...base import sourceline
from ...base.errors import NoDataError
from ...devices import mode
from ...devices.lazy_device import device_at, known_device, place_of
from ...devices.places import RECORDED, where
from ..tensor import classes
from ..tensor.recorded import RecordedTensor
from .arguments import to_call

#: The operator that reads one value.
SCALAR = "aten::_local_scalar_dense"
_SCALARS = frozenset({"item", "bool", "int", "float", "complex", "__index__"})


def value_of(t: Any, what: str) -> torch.Tensor:
    """A plain tensor with the value of ``t``, known or assumed, in an estimate; elsewhere an error."""
    if mode.now.estimate is None:
        refuse(what)
    if what in _SCALARS:
        _ledger.note(SCALAR)
    value: torch.Tensor = mode.now.estimate.read(t, what)
    return value


def refuse(what: str) -> NoReturn:
    """Raise the error of everything that would need the data, with the program's line."""
    raise NoDataError(f"[{what}] meta tensor has no data{sourceline.here()}; .to(device) gives it uninitialized memory")


def address(t: Any, of_storage: bool = False) -> int:
    """In an estimate, a made-up address: as torch's, the same for what shares memory, 0 for what has none.

    Elsewhere an error. Nothing is there, and no address of the program's own is that large.
    """
    if mode.now.estimate is None:
        refuse("data_ptr")
    start = (_core.root_slot(t._handle) + (1 << 18)) << 44  # 16 TiB each
    if of_storage:
        return start
    return start + t.storage_offset() * t.dtype.itemsize if t.numel() else 0


#: Slots whose storages an estimated program has resized. Where one of them has no memory in the ledger, it is empty.
_emptied: set[int] = set()


class MetaStorage:
    """The storage of a meta tensor: `nbytes` of memory that is never allocated."""

    def __init__(self, t: torch.Tensor) -> None:
        self.shape = t.shape
        self.dtype = t.dtype
        self.device = t.device
        self._extent = extent(t.shape, t.stride(), t.storage_offset())
        self._address = None if mode.now.estimate is None else address(t, of_storage=True)
        self._handle = t._handle

    @property
    def _cdata(self) -> int:
        """Which storage it is: torch's own have one object each, which these do not."""
        return int(_core.root_slot(self._handle))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetaStorage) and self._cdata == other._cdata

    def __hash__(self) -> int:
        return hash(self._cdata)

    def nbytes(self) -> int:
        """In an estimate, the bytes of the storage; otherwise the bytes from its start to the tensor's last element."""
        held = 0 if mode.now.estimate is None else _ledger.held_bytes(self._handle)
        if not held and _emptied and _core.root_slot(self._handle) in _emptied:
            return 0
        return held or self._extent * self.dtype.itemsize

    def resize_(self, nbytes: int, /) -> MetaStorage:
        """Resize the storage in an estimate; otherwise there is no memory to resize."""
        if mode.now.estimate is None:
            refuse("storage.resize_")
        if nbytes != self.nbytes():
            _emptied.add(_core.root_slot(self._handle))
            _ledger.resize(self._handle, int(nbytes))
        return self

    _resize_ = resize_

    def _data_ptr(self) -> int:
        return self.data_ptr()

    def _size(self) -> int:
        return self.nbytes() // self.dtype.itemsize

    def size(self) -> int:
        """As `nbytes`, the length of torch's untyped storages."""
        return self.nbytes()

    __len__ = size

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        """In an estimate a made-up address, see `address`; elsewhere an error."""
        return refuse("data_ptr") if self._address is None else self._address

    def tolist(self) -> Any:
        refuse("tolist")

    def __getitem__(self, index: Any) -> Any:
        refuse("storage[]")

    def to(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse("storage.to")

    def cpu(self) -> NoReturn:
        refuse("storage.cpu")

    def cuda(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse("storage.cuda")

    def clone(self) -> MetaStorage:
        return self

    def __repr__(self) -> str:
        what = f"shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}'"
        return f"MetaStorage({what}, nbytes={self.nbytes()})"


class TypedMetaStorage(MetaStorage):
    """The same in elements, as ``Tensor.storage()`` has it. In an estimate, its values are read as the tensor's are."""

    def __init__(self, t: torch.Tensor) -> None:
        super().__init__(t)
        self._tensor = t.detach()

    def size(self) -> int:
        return self._size()

    __len__ = size

    def resize_(self, elements: int, /) -> TypedMetaStorage:
        super().resize_(elements * self.dtype.itemsize)
        return self

    _resize_ = resize_

    def element_size(self) -> int:
        return self.dtype.itemsize

    def tolist(self) -> Any:
        return self._values("tolist")

    def __getitem__(self, index: Any) -> Any:
        return self._values("storage[]")[index]

    def _values(self, what: str) -> Any:
        if mode.now.estimate is None:
            refuse(what)
        return value_of(self._tensor.as_strided((self._size(),), (1,), 0), what).tolist()


class MetaTensor(RecordedTensor):
    """A tensor on ``meta[:i]``: the shape of every op's result is known, and nothing is computed or allocated."""

    def get_device(self) -> int:
        return -1 if self.device.index is None else self.device.index

    @property
    def materialized(self) -> bool:
        """Never: there is nothing to compute from."""
        return False

    def materialize(self) -> NoReturn:
        refuse("materialize")

    def item(self) -> Any:
        return value_of(self, "item").item()

    def tolist(self) -> Any:
        return value_of(self, "tolist").tolist()

    def type(self, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        if mode.now.estimate is None or not (dtype is None or isinstance(dtype, (str, type))):
            return super().type(dtype, non_blocking, **kwargs)
        if dtype is None:
            name: str = super().type()
            return name if self.is_cpu else f"torch.{self.device.type}.{name.rpartition('.')[2]}"
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        if not name.startswith("torch."):
            return super().type(dtype, non_blocking, **kwargs)  # which refuses it
        kind, _, last = name.removeprefix("torch.").rpartition(".")
        made = super().type(f"torch.{last}")
        return made.to(kind or "cpu") if (kind or "cpu") != self.device.type else made

    def numpy(self, *, force: bool = False) -> Any:
        if mode.now.estimate is not None and not force and not (self.is_cpu or self.is_meta):
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        # torch refuses tensors that require grad, in its own words
        return value_of(self, "numpy").detach().requires_grad_(self.requires_grad).numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        return bool(value_of(self, "bool"))

    def __int__(self) -> int:
        return int(value_of(self, "int"))

    def __float__(self) -> float:
        return float(value_of(self, "float"))

    def __complex__(self) -> complex:
        return complex(value_of(self, "complex"))

    def __index__(self) -> int:
        return value_of(self, "__index__").__index__()  # not aten's index

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse("dlpack")

    def __dlpack_device__(self) -> NoReturn:
        refuse("dlpack")

    def data_ptr(self) -> int:
        return address(self)

    def untyped_storage(self) -> Any:
        return MetaStorage(self)

    def new(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Torch's old constructor: ``new()``, ``new(sizes)``, ``new(data)``, ``new(tensor)``."""
        device, kind = kwargs.pop("device", None), self.device.type
        device = self.device if device is None else torch.device(device)
        if device.type != kind:
            raise RuntimeError(f"legacy constructor expects device type: {kind} but device type: {device} was passed")
        given = (*args, *kwargs.values())
        first = given[0] if len(given) == 1 else None
        if isinstance(first, torch.Tensor):
            if (first.device.type, first.dtype) != (kind, self.dtype):
                raise TypeError(f"expected a tensor of {self.type()} (got {first.type()})")
            return torch.ops.aten.alias(first)
        with Unseen():
            like = torch.empty(0, dtype=self.dtype, device="meta").new(*args, **kwargs)  # refuses in torch's words
            sizes = first is None or isinstance(first, (int, torch.Size)) or "size" in kwargs
            data = None if sizes else torch.empty(0, dtype=self.dtype, device="cpu").new(*args, **kwargs)
        place, estimate = place_of(device, anywhere=True), mode.now.estimate
        if data is None:
            make = self.new_empty if estimate is None else torch.empty  # which makes torch's own on meta
            return make(like.shape, dtype=self.dtype, device=device)
        return as_meta(data, place) if estimate is None else estimate.adopt(data, place, computed=True)

    def storage(self) -> Any:
        return TypedMetaStorage(self)

    _typed_storage = storage

    def __format__(self, spec: str) -> str:
        if mode.now.estimate is not None and self.dim() == 0:
            return format(self.item(), spec)
        return object.__format__(repr(self), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        contents = "..." if mode.now.estimate is None else mode.now.estimate.contents(self)
        parts = [f"device='{self.device}'", f"size={tuple(self.shape)}", f"dtype={self.dtype}"]
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        text = f"tensor({contents}, {', '.join(parts)})"
        return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Saved as torch's own meta tensor, so that it loads without us.
        with torch._C.DisableTorchFunction():
            plain: torch.Tensor = torch.empty_strided(
                self.shape, self.stride(), dtype=self.dtype, device=self.device if self.is_meta else "meta"
            )
        return classes.as_saved(self, plain).__reduce_ex__(protocol)

    # ---- other devices (SPEC M4) -------------------------------------------------------------------------------------
    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:  # type: ignore[override]
        return self.to("cpu", memory_format=memory_format)

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def _as_dtype(self, dtype: torch.dtype) -> Any:
        return super().to(dtype)

    def to(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """As torch's ``to``; on a device that has memory, the result is uninitialized memory of this shape, strides and
        requires_grad.
        """
        if len(args) == 1 and not kwargs and type(args[0]) is torch.dtype:
            return self._as_dtype(args[0])
        target, options = to_call(args, kwargs)
        if isinstance(target, int) and mode.now.estimate is None:
            target = torch.device(target)
        changed = super().to(**options) if options else self
        if target is None or (not where(target).has_data and place_of(target) == _core.device_index(self)):
            return changed
        if mode.now.refuses is not None and mode.now.estimate is None and where(target).has_data and mode.now.refuses():
            raise NoDataError("Cannot copy out of meta tensor; no data!")
        if mode.now.estimate is not None and not options.get("non_blocking"):
            mode.now.estimate.waits(self)
        return relocate(changed, target)


def relocate(t: Any, device: Any) -> Any:
    """Memory on ``device`` for meta tensor ``t``: same shape, strides, dtype and requires_grad, no values.

    In an estimate nothing gets memory: a tensor without data on any device, with the values if they are known.
    """
    if mode.now.estimate is not None and _core.device_index(t) < 0:
        return mode.now.estimate.move(t, device)
    with NoGrad():
        place = where(device)
        there = "meta" if not place.has_data else device if place is RECORDED else known_device(device)
        made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=there)
        if not place.has_data:
            made = _core.hold(made, place_of(device), None, True)
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(made, t.requires_grad)
    return made.requires_grad_(t.requires_grad)


class MetaParameter(MetaTensor, torch.nn.Parameter):
    """A parameter without data."""


_FastMetaTensor: Any = classes.family(MetaTensor, MetaParameter)


def as_meta(t: torch.Tensor, place: int) -> Any:
    """A MetaTensor that says of itself what is known of any tensor ``t``."""
    if mode.now.estimate is not None:
        if t.dim():  # else a kernel gets the number with its arguments
            mode.now.estimate.moves(t, place)
        return mode.now.estimate.adopt(t, place)
    return _core.hold(t, place, None, torch.is_grad_enabled() and not t.requires_grad)  # autograd may track t itself


__all__ = ["SCALAR", "MetaStorage", "MetaTensor", "as_meta", "device_at", "refuse", "relocate", "value_of"]
