"""Checkpoints while estimating: of those read, names, shapes and dtypes, weights stay on the disk; none is written.

What `torch.save` and safetensors were given is remembered instead: reading the same file, or buffer, gives it back.
What was pickled is without data, too.
"""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import importlib.util
import io
import os
import pickle
import types
import zipfile
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ..._ext import lazy as _core
from ..._ext.standin import holders
from ...base.patching import Patch, existing
from ...devices import mode
from ...devices.lazy_device import device_at, place_of
from ...engine.record.meta import MetaTensor, as_meta
from ...engine.record.predict import MOST_KNOWN
from ...patch.files import FRAMEWORKS, OpenedFile
from . import known_values, saved_objects, transfers
from .private_files import actual


def patches() -> list[Patch]:
    """Of what reads and writes files."""
    found: list[Patch] = [(torch, "load", _load), (torch, "save", _save)]
    found.append((MetaTensor, "__reduce_ex__", _pickle))
    if importlib.util.find_spec("safetensors") is not None:
        writer = importlib.import_module("safetensors.torch")  # first: it takes `safe_open` by name
        original = importlib.import_module("safetensors").safe_open
        found += holders({original: _opener(original)}, (__name__,))
        # Whatever name a program has for `save_file`, it ends here; what reads the elements of a tensor, too.
        standing = {
            "serialize_file": _save_file, "serialize": _as_bytes, "_tobytes": _no_bytes,
            "load": functools.partial(_from_bytes, writer.load),
        }  # fmt: skip
        found += existing(writer, standing)
    return found


class _Sizes(NamedTuple):
    """A tensor that was saved: it takes no memory of the estimated program's."""

    like: torch.Tensor
    place: int
    requires_grad: bool
    parameter: bool
    value: torch.Tensor | None  # where it is known
    storage: int  # equal for those of one file that share their memory


class _Saved(NamedTuple):
    """What torch.save was given, as it was then: the program may change it, or let go of it.

    pickled: with the numbers of what is in `apart` in its place: `_Sizes`, or what is kept as it is.
    tensorless: the file that torch would write without the tensors: loading it shows what torch refuses.
    """

    pickled: bytes
    apart: list[Any]
    tensorless: bytes


def _save(obj: Any, f: Any, pickle_module: Any = pickle, pickle_protocol: int = 2, *args: Any, **kwargs: Any) -> None:
    pickled, tensorless, numbers, transferred = io.BytesIO(), io.BytesIO(), dict[int, int](), set[int]()
    apart: list[Any] = []
    alive: list[Any] = []  # or another object could have the address of one that is in `numbers`

    def number(value: Any) -> int | None:
        if not isinstance(value, (torch.Tensor, *_STORAGES)) or _is_of_others(value):
            return None
        if id(value) not in numbers:
            numbers[id(value)] = len(apart)
            apart.append(_sizes_of(value, transferred) if isinstance(value, torch.Tensor) else value)
            alive.append(value)
        return numbers[id(value)]

    pickler = _asking(pickle_module.Pickler, "persistent_id")(pickled, protocol=pickle_protocol)
    pickler.ask = number
    pickler.dump(obj)
    if not any(isinstance(value, _STORAGES) for value in alive):  # torch takes these for what a tensor has
        _torch_save(obj, tensorless, _tensorless)
    saved_objects.remember(f, _Saved(pickled.getvalue(), apart, tensorless.getvalue()))


@functools.cache
def _asking(kind: Any, name: str) -> Any:
    """The class, whose method of that name is the instance's `ask`: a class of each call's own would live on."""
    return type(kind.__name__, (kind,), {name: lambda self, value: self.ask(value)})


_STORAGES = (torch.UntypedStorage, torch.TypedStorage)


def _is_of_others(value: Any) -> bool:
    """A tensor that is made of others, or has no shape yet: it is pickled as torch pickles it."""
    return isinstance(value, torch.Tensor) and (value.layout is not torch.strided or is_lazy(value))


def _sizes_of(value: torch.Tensor, transferred: set[int]) -> _Sizes | torch.Tensor:
    handle = _core.get_handle(value)
    if handle is None and type(value) is torch.Tensor and not value.is_meta and value.numel() <= MOST_KNOWN:
        return value.detach().clone()  # the state of a generator
    transfers.saves(value, transferred)
    storage = value.untyped_storage()
    address = storage.data_ptr() or storage._cdata  # of torch's own meta tensors
    with torch._C.DisableTorchFunctionSubclass():
        whole = torch.empty(storage.nbytes() // value.element_size(), dtype=value.dtype, device="meta")
        like = whole.as_strided(value.shape, value.stride(), value.storage_offset())
    parameter = isinstance(value, torch.nn.Parameter)
    kept = None if handle is None else _core.kept(handle)
    kept = kept.clone() if kept is not None and kept.is_contiguous() else None
    return _Sizes(like, place_of(value.device), value.requires_grad, parameter, kept, address)


def _sizes_by_name(tensors: Any, metadata: Any) -> _SavedTensors:
    """safetensors: by name, a dtype and a shape, in a dictionary or as attributes."""
    sizes = {}
    for name, spec in tensors.items():
        dtype, shape = (spec["dtype"], spec["shape"]) if isinstance(spec, dict) else (spec.dtype, spec.shape)
        sizes[name] = (_dtype_of(dtype), tuple(shape))
    return _SavedTensors(sizes, metadata)


def _save_file(tensors: Any, filename: Any, metadata: Any = None, **kwargs: Any) -> None:
    saved_objects.remember(filename, _sizes_by_name(tensors, metadata))


def _as_bytes(tensors: Any, metadata: Any = None, **kwargs: Any) -> bytes:
    return saved_objects.written_as(_sizes_by_name(tensors, metadata))


def _from_bytes(original: Any, data: bytes) -> Any:
    known_tensors = saved_objects.found(memoryview(data))
    if not isinstance(known_tensors, _SavedTensors):
        return original(data)
    return _SavedFile(known_tensors, "cpu").get_tensors()


def _no_bytes(*args: Any) -> bytes:
    return b""


class _SavedTensors(NamedTuple):
    """What was saved with safetensors."""

    sizes: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    metadata: dict[str, str] | None


def _dtype_of(name: str) -> torch.dtype:
    """By torch's name, or by the one that a file has for it."""
    types = importlib.import_module("safetensors.torch")._TYPES
    found = types.get(name) or getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


class _SavedFile:
    """Stands for `safe_open` of a file that was not written."""

    def __init__(self, saved_tensors: _SavedTensors, device: Any) -> None:
        self._sizes, self._metadata = saved_tensors
        self._place = place_of(torch.device(device), anywhere=True)

    def __enter__(self) -> _SavedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self._sizes)

    def offset_keys(self) -> list[str]:
        return list(self._sizes)

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        dtype, shape = self._sizes[name]
        with torch._C.DisableTorchFunction():
            like = torch.empty(shape, dtype=dtype, device="meta")
        return as_meta(like, self._place)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._sizes}

    def get_slice(self, name: str) -> _SavedSlice:
        return _SavedSlice(self, name, *self._sizes[name])


class _SavedSlice:
    def __init__(self, file: _SavedFile, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._file, self._name, self._dtype, self._shape = file, name, dtype, shape

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        types = importlib.import_module("safetensors.torch")._TYPES
        return next(name for name, dtype in types.items() if dtype is self._dtype)

    def __getitem__(self, at: Any) -> Any:
        return self._file.get_tensor(self._name)[at]


# ---- pickles of the program's own ------------------------------------------------------------------------------------
_reduce = MetaTensor.__reduce_ex__


def _pickle(self: MetaTensor, protocol: Any) -> Any:
    function, args, *rest = _reduce(self, protocol)
    handle = _core.get_handle(self)
    value = None if handle is None else _core.kept(handle)
    with torch._C.DisableTorchFunction():
        numbers = None if value is None else value.tolist()
    return _again, (str(self.device), numbers, function, args, os.getpid()), *rest


def _again(device: str, numbers: Any, function: Any, args: tuple, process: int) -> Any:
    """What was pickled: where it was, with the value that it had; torch's own meta tensor once the estimate is over.

    In a process that the program spawned, which computes: on the CPU, zeros where the value is unknown. Without data,
    the process would fail, and the program wait for it for good.
    """
    plain = function(*args)
    if mode.now.estimate is None:
        return plain if os.getpid() == process else _with_data(plain, numbers)
    place = place_of(device)
    if numbers is not None:
        with torch._C.DisableTorchFunction():
            value = torch.tensor(numbers, dtype=plain.dtype, device="cpu").view(plain.shape)
        return known_values.adopt(value, place, computed=True)
    made = as_meta(plain.detach(), place)
    return torch.nn.Parameter(made, plain.requires_grad) if isinstance(plain, torch.nn.Parameter) else made


def _with_data(plain: torch.Tensor, numbers: Any) -> torch.Tensor:
    zeros = torch.zeros(plain.shape, dtype=plain.dtype)  # takes no memory before it is written
    made = zeros if numbers is None else torch.tensor(numbers, dtype=plain.dtype).view(plain.shape)
    if isinstance(plain, torch.nn.Parameter):
        return torch.nn.Parameter(made, plain.requires_grad)
    return made.requires_grad_(plain.requires_grad)


# ---- reading ---------------------------------------------------------------------------------------------------------
_torch_load, _torch_save = torch.load, torch.save


@functools.wraps(_torch_load)
def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    if mode.now.estimate is None:  # torch.export reads files outside the estimate
        return _torch_load(f, map_location, *args, **kwargs)
    found = saved_objects.found(f)
    if isinstance(found, _Saved):
        return _loaded(found, map_location, *args, **kwargs)
    name = getattr(f, "name", None)
    if isinstance(name, str) and getattr(f, "mode", "") == "rb" and os.path.isfile(name) and not f.tell():
        f = name  # the file from its start
    f = actual(f)
    # Mapped into memory, a file's weights are never read.
    mapped = isinstance(f, (str, os.PathLike)) and kwargs.get("mmap") is None and zipfile.is_zipfile(f)
    with torch._C.DisableTorchFunction():
        loaded = _torch_load(f, "cpu", *args, **{**kwargs, "mmap": True} if mapped else kwargs)
    device = map_location if isinstance(map_location, (str, torch.device)) else "cpu"
    return without_data(loaded, place_of(device))


def _loaded(found: _Saved, map_location: Any, pickle_module: Any = None, *, weights_only: bool | None = None,
            mmap: bool | None = None, **pickle_load_args: Any) -> Any:  # fmt: skip
    """Raises what torch does: by default it loads tensors, numbers and containers of them, and other objects only of
    classes that the program allows.
    """
    if weights_only is not False and pickle_module is None and found.tensorless:
        _torch_load(io.BytesIO(found.tensorless))
    made: dict[int, Any] = {}
    storages: dict[tuple[int, int], Any] = {}  # the tensors that are whole ones, by storage and place

    def load(number: int) -> Any:
        if number not in made:
            made[number] = _made_from(found.apart[number], map_location, storages)
        return made[number]

    kind = _asking((pickle_module or pickle).Unpickler, "persistent_load")
    unpickler = kind(io.BytesIO(found.pickled), **pickle_load_args)
    unpickler.ask = load
    return unpickler.load()


class _Tensorless(pickle.Pickler):
    """Writes a container for each tensor, also within other objects: torch loads both."""

    def reducer_override(self, value: Any) -> Any:
        return (collections.OrderedDict, ()) if isinstance(value, torch.Tensor) else NotImplemented


_tensorless = types.ModuleType("pickle")  # as torch.save takes picklers
_tensorless.Pickler = _Tensorless  # type: ignore[attr-defined]


def _place_for(map_location: Any, stored: int) -> int:
    """Where it puts what was saved from a place; functions put it on the CPU, as most programs' do."""
    if isinstance(map_location, dict):
        map_location = map_location.get(str(device_at(stored)))
    if map_location is None:
        return stored
    return place_of(map_location if isinstance(map_location, (str, torch.device)) else "cpu", anywhere=True)


def _made_from(stored: Any, map_location: Any, storages: dict[tuple[int, int], Any]) -> Any:
    if type(stored) is not _Sizes:
        return copy.deepcopy(stored)
    place = _place_for(map_location, stored.place)
    if stored.value is not None:
        made = known_values.adopt(stored.value, place, computed=True)
    else:
        key = stored.storage, place
        if key not in storages:  # as much as the file has of it, though it may be of a part
            with torch._C.DisableTorchFunctionSubclass():
                size = stored.like.untyped_storage().nbytes() // stored.like.element_size()
                storages[key] = as_meta(torch.empty(size, dtype=stored.like.dtype, device="meta"), place)
        made = _core.hold(stored.like, place, storages[key], torch.is_grad_enabled())
    if stored.parameter:
        return torch.nn.Parameter(made, stored.requires_grad)
    return made.requires_grad_(stored.requires_grad)


def without_data(value: Any, place: int | None = None) -> Any:
    """The tensors in dictionaries, lists and tuples as tensors without data; whatever else there is, as it is.
    place: of all of them; None: each is where it was."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        made = as_meta(value.detach(), place_of(value.device) if place is None else place)
        if type(value) is torch.nn.Parameter:
            return torch.nn.Parameter(made, value.requires_grad)
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        for key in value:
            value[key] = without_data(value[key], place)
        return value
    if type(value) in (list, tuple):
        return type(value)(without_data(item, place) for item in value)
    return value


def _opener(original: Any) -> Any:
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        # Whoever imports this one while it stands in keeps it: afterwards it is the original.
        if mode.now.estimate is None or framework not in FRAMEWORKS:
            return original(actual(filename), framework, device=device, **options)
        if isinstance(saved_tensors := saved_objects.found(filename), _SavedTensors):
            return _SavedFile(saved_tensors, device)
        return OpenedFile(original(actual(filename), framework, device="cpu", **options), device)

    return safe_open
