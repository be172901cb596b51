"""NpuTensor: a torch.Tensor whose data is in the memory of an Ascend device (SPEC D5, N4, N5).

Its C++ side is a CPU tensor whose storage has a size but no host memory, so views, aliasing, autograd, version
counters and the argument checks are torch's own. The block of device memory hangs on the C++ storage: whatever shares
the storage shares the block, and the block goes when the storage does. ``.device`` is overridden on the class.

One file: tensors give their storages, which are copied through tensors.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._ext import blocks as _blocks
from .._ext import hooks as _hooks
from .._ext.guards import NoGrad
from .._ext.strides import extent
from ..base.errors import LazyTensorError, UnsupportedOperationError
from ..devices.lazy_device import npu_device
from ..engine.tensor.recorded import Copied, formatted

_base = torch._C.TensorBase
_subclass = torch.Tensor._make_subclass  # type: ignore[attr-defined]
_torch_storage = _base.untyped_storage
_torch_empty = torch.empty  # before it is hooked
_storage = torch._C._construct_storage_from_data_pointer
_CPU = torch.device("cpu")
#: Each is told of every new tensor that has memory of its own.
watchers: list[Callable[[torch.Tensor], None]] = []
_ALIGN = 16  # of spans copied to the host: the widest element


class _Meta(torch.nn.parameter._ParameterMeta):
    """Refuses to make tensors from data: torch's functions make them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise LazyTensorError(f"{cls.__name__} is made by torch functions: use device='npu' or .to('npu')")


class NpuStorage:
    """What an NPU tensor's storage says of itself. The data is reached through tensors only."""

    def __init__(self, t: NpuTensor) -> None:
        self._torch = storage_of(t)
        self._cdata = self._torch._cdata
        self.device = t.device

    @property
    def _block(self) -> Any:
        return self._torch._npu

    def nbytes(self) -> int:
        """Bytes of the whole storage."""
        return int(self._block.nbytes)

    def untyped(self) -> NpuStorage:
        return self

    def resize_(self, size: int) -> NpuStorage:
        """Give memory back, all of it or the end, and take it again: the tensors on the storage keep their sizes.

        Beyond what the storage was made with there is no more.
        """
        if not 0 <= size <= self._torch.nbytes():
            raise UnsupportedOperationError(
                f"[resize_] expected 0 to {self._torch.nbytes()} bytes, with which the storage was made, got {size}"
            )
        before, kept = self._block, min(size, self.nbytes())
        if size != before.nbytes:
            after = _blocks.allocate(before.device, size)
            if kept:
                _blocks.copy_within(after, 0, before, 0, kept)
            self._torch._npu = after
        return self

    size = __len__ = nbytes

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        """Address in device memory; 0 without memory."""
        return int(self._block.ptr)

    def get_device(self) -> int:
        return int(self._block.device)

    is_npu = True
    is_cpu = is_cuda = False

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def is_shared(self) -> bool:
        """False: not with other processes."""
        return False

    # ---- its contents, as bytes ----------------------------------------------------------------------------------
    def cpu(self) -> torch.UntypedStorage:
        """A copy in host memory."""
        host = torch.UntypedStorage(self.nbytes())
        _blocks.copy_out(self._block, 0, host.data_ptr(), self.nbytes())
        return host

    def tolist(self) -> list[int]:
        return self.cpu().tolist()

    def __getitem__(self, index: Any) -> Any:
        return self.cpu()[index]

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def __deepcopy__(self, memo: dict) -> NpuStorage:
        copies = memo.setdefault("mindtorch npu storages", {})
        if self._cdata not in copies:
            copies[self._cdata] = self.clone()
        return copies[self._cdata]

    def clone(self) -> NpuStorage:
        made = NpuStorage(empty((self.nbytes(),), (1,), torch.uint8, self.get_device()))
        return made.copy_(self)

    def copy_(self, source: Any, non_blocking: bool = False) -> NpuStorage:
        """The bytes of ``source``, on the CPU or any NPU, of the same size."""
        if source.nbytes() != self.nbytes():
            raise RuntimeError(f"[copy_] expected a storage of {self.nbytes()} bytes, got one of {source.nbytes()}")
        if isinstance(source, NpuStorage) and source.get_device() == self.get_device():
            _blocks.copy_within(self._block, 0, source._block, 0, self.nbytes())
        else:
            host = source.cpu()
            _blocks.copy_in(self._block, 0, host.data_ptr(), self.nbytes())
        return self

    def fill_(self, value: int) -> NpuStorage:
        """value: of each byte."""
        _blocks.fill(self._block, 0, value, self.nbytes())
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NpuStorage) and other._cdata == self._cdata

    def __hash__(self) -> int:
        return hash(self._cdata)

    def __repr__(self) -> str:
        return f"NpuStorage(device='{self.device}', nbytes={self.nbytes()})"


class TypedNpuStorage(torch.TypedStorage):
    """The same in elements, as ``Tensor.storage()`` has it: torch's class, which computes with tensors on it."""

    def __new__(cls, *args: Any) -> TypedNpuStorage:
        return object.__new__(cls)

    def __init__(self, untyped: NpuStorage, dtype: torch.dtype) -> None:
        self.dtype, self._untyped_storage = dtype, untyped  # type: ignore[assignment]

    def _new_wrapped_storage(self, untyped: Any) -> Any:
        if isinstance(untyped, NpuStorage):
            return TypedNpuStorage(untyped, self.dtype)
        return torch.TypedStorage(wrap_storage=untyped, dtype=self.dtype, _internal=True)

    def __reduce__(self) -> Any:  # a saved one loads as a plain one, as an NPU tensor does
        return self._new_wrapped_storage(self._untyped_storage.cpu()).__reduce__()


class NpuTensor(Copied, torch.Tensor, metaclass=_Meta):
    """A tensor on ``npu:i``, made by ``device="npu:i"`` and ``.to("npu:i")``; calls run on the current stream there."""

    @property
    def device(self) -> Any:  # type: ignore[override]
        return npu_device(block_of(self).device)

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_npu(self) -> bool:
        return True

    def get_device(self) -> int:
        return int(block_of(self).device)

    # ---- reads -------------------------------------------------------------------------------------------------------
    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return self.detach().cpu().numpy(force=True)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return formatted(self, self.detach().cpu())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(repr(self), spec)

    def __dlpack__(self, **options: Any) -> Any:
        from .dlpack import export  # imports this module

        return export(self, **options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        from .dlpack import device_of

        return device_of(self)

    def data_ptr(self) -> int:
        """Address of the first element in device memory."""
        block = block_of(self)
        return int(block.ptr) + self.storage_offset() * self.element_size() if block.ptr else 0

    def untyped_storage(self) -> Any:
        return NpuStorage(self)

    def _typed_storage(self) -> Any:
        return TypedNpuStorage(NpuStorage(self), self.dtype)

    def storage(self) -> Any:
        torch.storage._warn_typed_storage_removal(stacklevel=2)
        return self._typed_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A saved NPU tensor loads as a plain one, as a lazy one does.
        plain = _saved(self).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        return plain.__reduce_ex__(protocol)

    def _copied(self, memo: dict) -> Any:
        """A copy of the tensor and of all its storage, one per memo, as torch's deepcopy makes."""
        with torch._C.DisableTorchFunction(), NoGrad():
            storage = _torch_storage(self)
            key = ("mindtorch npu storage", storage._cdata)
            if key not in memo:
                block = storage._npu
                memo[key] = empty((storage.nbytes(),), (1,), torch.uint8, block.device)
                NpuStorage(memo[key]).resize_(block.nbytes)
                _blocks.copy_within(block_of(memo[key]), 0, block, 0, block.nbytes)
            return view_of(memo[key], self.shape, self.stride(), self.storage_offset(), self.dtype, view_bits(self))


def storage_of(t: torch.Tensor) -> Any:
    """The C++ storage of an NPU tensor: its size, its identity (``_cdata``), and in ``_npu`` its block."""
    with torch._C.DisableTorchFunction():
        return _torch_storage(t)


def block_of(t: torch.Tensor) -> Any:
    """The block of device memory behind an NPU tensor (`mindtorch._ext.blocks.Block`)."""
    return storage_of(t)._npu


def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, index: int) -> NpuTensor:
    """A tensor of these sizes and strides in fresh, uninitialized memory of ``npu:index``."""
    block = _blocks.allocate(index, extent(tuple(size), tuple(stride), 0) * dtype.itemsize)
    made = of_block(block, size, stride, 0, dtype)
    for watcher in watchers:
        watcher(made)
    return made


def of_block(block: Any, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> NpuTensor:
    """A tensor on ``block`` with a storage of its own: no other tensor of the block shares its version."""
    _learn_calls()
    with torch._C.DisableTorchFunction():
        storage = _storage(0, _CPU, block.nbytes)
        plain = _torch_empty(0, dtype=dtype, device=_CPU)
        _base.set_(plain, storage, offset, tuple(size), tuple(stride))
        if not plain.is_inference():
            torch._C._autograd._unsafe_set_version_counter((plain,), (0,))  # set_ counted as a write
        torch._C._set_throw_on_mutable_data_ptr(plain)  # what reaches a CPU kernel after all: an error, no crash
        storage._npu = block
    return _subclass(NpuTensor, plain)


@functools.cache
def _learn_calls() -> None:
    """Load what NpuTensor does when it is called with: a program without NPUs needs no kernel."""
    from . import torch_function  # noqa: F401  (imports this module, and gives the class its interception)


def exposed(t: NpuTensor) -> torch.Tensor:
    """What torch takes for a CPU tensor, with the device's address in place of a host's: for DLPack, never to be read.

    It keeps the memory.
    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        block = _torch_storage(t)._npu
        storage = _storage(block.ptr, _CPU, block.nbytes)
        storage._npu = block
        return _base.set_(_torch_empty(0, dtype=t.dtype), storage, t.storage_offset(), t.shape, t.stride())


def of_this_mode(t: torch.Tensor) -> torch.Tensor:
    """A fresh tensor, made while torch's modes were off, as the mode that is on makes it; or ``t``."""
    if not torch.is_inference_mode_enabled() or t.is_inference():
        return t
    with torch._C.DisableTorchFunction():
        plain = _torch_empty(0, dtype=t.dtype, device=_CPU)
        _base.set_(plain, _torch_storage(t), t.storage_offset(), t.shape, t.stride())
        if not is_npu(t):
            return plain
        torch._C._set_throw_on_mutable_data_ptr(plain)
    return _subclass(NpuTensor, plain)


def as_npu(out: torch.Tensor) -> NpuTensor:
    """A tensor of C++ on an NPU tensor's storage, or an NPU tensor, as another NpuTensor."""
    with torch._C._DisableTorchDispatch():
        return _subclass(NpuTensor, out)


def view_of(
    t: NpuTensor, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype, bits: int = 0
) -> NpuTensor:
    """A tensor of other sizes, strides, dtype and lazy bits (see `view_bits`) on the storage of ``t``."""
    aten = torch.ops.aten
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), NoGrad():
        out: Any = t
        if t.dtype is not dtype:
            whole = _torch_storage(t).nbytes()
            flat = aten.as_strided.default(t, (whole // t.element_size(),), (1,), 0)
            out = aten.view.dtype(flat, dtype)
        out = aten.as_strided.default(out, tuple(size), tuple(stride), offset)
        if bits & 1 and not out.is_conj():
            out = aten._conj.default(out)
        if bits & 2 and not out.is_neg():
            out = aten._neg_view.default(out)
    return as_npu(out)


def view_bits(t: torch.Tensor) -> int:
    """1: lazily conjugated, 2: lazily negated, as torch's views of complex tensors are."""
    return int(t.is_conj()) | int(t.is_neg()) << 1


def _saved(t: NpuTensor) -> torch.Tensor:
    """``t`` on a host copy of its whole storage: one copy for all that are saved together, which share it as here."""
    with torch._C.DisableTorchFunction():
        storage = _torch_storage(t)
        version, made = getattr(storage, "_npu_saved", (None, None))
        host = made() if version == t._version and made is not None else None
        if host is None:
            has_memory(t)
            host = torch.UntypedStorage(storage._npu.nbytes)
            _blocks.copy_out(storage._npu, 0, host.data_ptr(), host.nbytes())
            storage._npu_saved = (t._version, weakref.ref(host))  # the pickler keeps it until all is saved
    return on_host(t, host, 0)


def on_host(t: NpuTensor, storage: torch.UntypedStorage, first: int) -> torch.Tensor:
    """The CPU tensor that looks like ``t`` on a host copy of its storage, or of what begins at byte ``first`` of it."""
    with torch._C.DisableTorchFunction():
        offset = t.storage_offset() - (first // t.element_size() if t.numel() else 0)
        host = _base.set_(_torch_empty(0, dtype=t.dtype), storage, offset, t.shape, t.stride())
        if t.is_conj():
            torch._C._set_conj(host, True)
        if t.is_neg():
            torch._C._set_neg(host, True)
    return host


def restride(t: NpuTensor, size: Sequence[int], stride: Sequence[int], offset: int, nbytes: int = 0) -> None:
    """Give ``t`` other sizes and strides; more memory too, with the old contents, where its storage is too small for
    them or for ``nbytes``.

    Unlike torch's ``resize_`` on the CPU, other tensors on the storage then keep the old one.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        length = max(extent(tuple(size), tuple(stride), offset), nbytes // t.element_size())
        old = _torch_storage(t)._npu
        if length * t.element_size() > old.nbytes:
            grown = empty((length,), (1,), t.dtype, old.device)
            _blocks.copy_within(block_of(grown), 0, old, 0, old.nbytes)
            torch.ops.aten.set_.source_Tensor(t, grown)
        torch.ops.aten.as_strided_.default(t, tuple(size), tuple(stride), offset)


def span(t: torch.Tensor) -> tuple[int, int]:
    """(first byte, bytes) of the storage that a tensor's elements lie in; the first is a multiple of 16."""
    if t.numel() == 0:
        return 0, 0
    itemsize = t.element_size()
    first = t.storage_offset() * itemsize
    first -= first % _ALIGN
    return first, extent(t.shape, t.stride(), t.storage_offset()) * itemsize - first


_hooks.take_base(NpuTensor)


def is_npu(t: object) -> bool:
    """Is this one of our NPU tensors?"""
    return isinstance(t, NpuTensor)


def has_memory(t: torch.Tensor) -> None:
    """Refuse a tensor from under which memory was taken (`NpuStorage.resize_`)."""
    storage = storage_of(t)
    if storage._npu.nbytes == storage.nbytes():
        return
    first, length = span(t)
    if first + length > storage._npu.nbytes:
        raise RuntimeError(
            f"expected a storage of {first + length} bytes or more, which the tensor lies in, got one that was resized "
            f"to {storage._npu.nbytes}"
        )
