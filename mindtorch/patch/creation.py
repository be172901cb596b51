"""Creation functions with ``device="remote_accelerator[:i]"`` (SPEC L2) or ``"meta[:i]"`` (SPEC M2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from .._ext import intercept as _intercept
from .._ext import intern as _intern
from .._ext import lazy as _core
from .._ext import ledger as _ledger
from .._ext.guards import Unseen
from ..base.errors import UnsupportedOperationError
from ..devices import mode, places
from ..devices.lazy_device import device_at, place_of
from ..engine.execute import tensors, values
from ..engine.record import arguments, eager, meta, predict, unwrapping
from . import generators, transforms

# Recorded: the executor makes the data. Everything else is made on the CPU at once and handed over.
RECORDED = (
    "empty",
    "empty_strided",
    "empty_permuted",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "arange",
    "range",
    "linspace",
    "logspace",
    "eye",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
)
FROM_DATA = ("tensor", "as_tensor", "asarray")
QUANTIZED = ("empty_quantized", "_empty_affine_quantized", "_empty_per_channel_affine_quantized")
EAGER = (
    *FROM_DATA,
    "complex",
    "from_file",
    "frombuffer",
    "sparse_coo_tensor",
    "sparse_csr_tensor",
    "sparse_csc_tensor",
    "sparse_bsr_tensor",
    "sparse_bsc_tensor",
    "sparse_compressed_tensor",
    *QUANTIZED,
)
NESTED = ("nested_tensor", "as_nested_tensor")
#: Are on the host, whatever the default device is: torch reads memory or a file there.
ON_THE_HOST = frozenset({"frombuffer", "from_file"})
#: Take no ``device=``.
WITHOUT_DEVICE = frozenset({"frombuffer", "complex"})
RANDOM = frozenset({"rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like"})
_CPU = torch.device("cpu")
log = logging.getLogger("mindtorch")
_transforming = torch._C._functorch.peek_interpreter_stack
_infos: dict[Any, Any] = {}
_OF_NUMBERS = frozenset(("tensor", *(name for name in RECORDED if not name.endswith("_like"))))
_NAMED = frozenset({"device", "dtype"})
_SINGLE = frozenset({int, float, bool})
_NUMBERS = _SINGLE | {tuple, list, torch.Size}


def _info(func: Callable[..., Any]) -> Any:
    info = _infos.get(func)
    if info is None:
        name = func.__name__
        made = _intern.OpInfo(func, f"aten::{name}", _intern.RECORD, random=name in RANDOM)
        info = _infos.setdefault(func, made)  # another thread may have been first
    return info


def plain(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What `create` gives for a function that is recorded, of numbers and sizes on a recording device, which is all
    that most calls name; None for what takes more looking. No mode of the program's is on."""
    if func.__name__ not in _OF_NUMBERS or not (_NAMED.issuperset(kwargs) and _NUMBERS.issuperset(map(type, args))):
        return None
    dtype, device = kwargs.get("dtype"), kwargs["device"]
    if type(dtype) is not torch.dtype and (dtype is not None or torch.get_default_dtype() is not torch.float32):
        return None
    if mode.now.ranks is not None or _transforming() is not None:
        return None
    tensors.in_use()
    tensors.on_device()
    index = place_of(device) if isinstance(device, str) else device.index or 0
    if func.__name__ == "tensor":
        return _of_numbers(func, args, dtype, index)
    try:
        return _intercept.record_creation(_info(func), args, {**kwargs, "device": _CPU}, index)
    except TypeError:
        return None  # `create` says why


def _of_numbers(func: Callable[..., Any], args: tuple, dtype: torch.dtype | None, index: int) -> torch.Tensor | None:
    """What ``torch.tensor`` gives for a number or a flat list of numbers; None for what else it may be given."""
    data = args[0] if len(args) == 1 else None
    if not (type(data) in _SINGLE or (isinstance(data, (tuple, list)) and _SINGLE.issuperset(map(type, data)))):
        return None
    with predict.quiet():
        made = func(data, dtype=dtype, device=values.executor().device)
    return eager.held(made, index, torch.is_grad_enabled())


def create(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The tensor of ours that ``func(*args, **kwargs)`` makes; ``kwargs["device"]`` is ours, or the data is."""
    try:
        made = _create(func, args, kwargs)
        return unwrapping.lifted(made) if kwargs.get("out") is None else made
    except TypeError:
        _refused_by_torch(func, args, kwargs)
        raise


def _refused_by_torch(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise torch's own TypeError of a call that it would not take as the program has it."""
    given = {**kwargs, "device": torch.device("meta")} if "device" in kwargs else kwargs
    try:
        with predict.quiet():
            func(*args, **given)
    except TypeError as error:
        words = str(error)
    except Exception as error:  # noqa: BLE001 - not of the arguments' types: what was raised before stands
        log.debug("%s: torch rejects its arguments: %r", func.__name__, error)
        return
    else:
        return
    raise TypeError(words)


def _create(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    tensors.in_use()
    args, kwargs = arguments.with_dtypes(args, kwargs)
    if mode.now.ranks is not None and (made := mode.now.ranks.create(func, args, kwargs)) is not NotImplemented:
        return made
    device = kwargs.get("device")
    if device is not None and func.__name__ in WITHOUT_DEVICE:
        _refused_by_torch(func, args, kwargs)
    if device is None:  # while estimating, every call comes here
        if func.__name__ == "normal" and any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
            return func(*args, **kwargs)  # of means or deviations that are where they are: it takes no device
        device = _default_device(func, args)
        kwargs = {**kwargs, "device": device}
    if places.where(device) is not places.RECORDED and (
        func.__name__ in FROM_DATA or unwrapping.hides((*args, None)[0])
    ):
        elsewhere = _elsewhere(func, args, kwargs, device)
        if elsewhere is not None:
            return elsewhere
    if func.__name__ in QUANTIZED and mode.now.estimate is not None:
        raise UnsupportedOperationError(
            f"[{func.__name__}] expected a program without quantized tensors, whose sizes an estimate cannot know: "
            "leave the model as it is, or measure it"
        )
    if func.__name__ in NESTED:
        made = func(*args, **{**kwargs, "device": _CPU})  # stays torch's own, as sparse and quantized tensors do
        return eager.labelled(made, place_of(kwargs["device"]))
    kwargs = dict(kwargs)
    index = place_of(kwargs.pop("device"))
    if func.__name__ == "complex":
        return func(*args, **kwargs)  # takes no device: it is where its parts are
    if index >= 0:
        tensors.on_device()
    if (made := _of_tensors_there(func, args, kwargs, index)) is not NotImplemented:
        return made
    requires_grad = kwargs.pop("requires_grad", False)
    if kwargs.pop("pin_memory", False) and mode.now.estimate is None:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    out = None
    layout = kwargs.get("layout")
    if func.__name__ in RECORDED and layout in (None, torch.strided) and kwargs.get("generator") is None:
        plain_dtype = torch.get_default_dtype()
        if "dtype" not in kwargs and plain_dtype is not torch.float32:
            # The default dtype is read now, as eager does, not when the segment runs.
            with torch._C.DisableTorchFunction():
                kwargs["dtype"] = func(*args, device="meta", **kwargs).dtype
        out = _intercept.record_creation(_info(func), args, {**kwargs, "device": _CPU}, index)
    if out is None:
        out = _eager(func, args, kwargs, index)
    return out.requires_grad_() if requires_grad else out


def _of_tensors_there(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    """What an op on tensors of the device gives, where the call is one; else NotImplemented."""
    target = kwargs.get("out")
    if target is not None:
        sparse = getattr(target, "_index", None)  # of patch.sparse, which imports more than most programs need
        if (sparse if _core.get_handle(target) is None else _core.device_index(target)) != index:
            raise RuntimeError(f"[{func.__name__}] expected out= on {device_at(index)}, got {target.device}")
        return func(*args, **kwargs)  # writes there: an op on a lazy tensor like any other
    if _transforming() is not None:
        if args and index >= 0 and unwrapping.index_inside(args[0]) == index and _core.get_handle(args[0]) is None:
            return func(*args, **kwargs)  # is there already: to C++ that is the CPU
        if func.__name__ in RANDOM:
            return transforms.draw(func, args, kwargs, index)
    if func.__name__.endswith("_like") and args and _core.get_handle(args[0]) is not None:
        like = args[0]
        if _core.device_index(like) != index:
            like = meta.relocate(like.detach(), device_at(index))
        return func(like, *args[1:], **kwargs)
    if index < 0:
        return NotImplemented
    eager.check_generator(kwargs.get("generator"))
    parts = list(arguments.tensors_in([*args, *kwargs.values()])) if func.__name__.startswith("sparse_") else ()
    if not any(_core.get_handle(t) is not None and _core.device_index(t) == index for t in parts):
        return NotImplemented
    args = tuple(_moved(a, index) for a in args)
    kwargs = {name: _moved(a, index) for name, a in kwargs.items()}
    if func.__name__ == "sparse_coo_tensor":
        args, kwargs = with_size(args, kwargs)
    return func(*args, **kwargs)  # of what is there already: it shares their memory


def _moved(a: Any, index: int) -> Any:
    """A tensor on device ``index``: itself where it is there already."""
    return a.to(device_at(index)) if isinstance(a, torch.Tensor) else a


def _elsewhere(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], device: Any) -> Any:
    """What is made on another device from a tensor of ours, which C++ takes to be on the CPU already."""
    hidden = unwrapping.hides(args[0])
    if not places.where(device).has_data:
        return func(*args, **kwargs) if hidden else None
    source = args[0]
    if func.__name__ in FROM_DATA:
        source = (source.detach() if func.__name__ == "tensor" else source).to(device)
    elif func.__name__.endswith("_like"):
        source = torch.empty_like(source).to(device)
    return func(source, *args[1:], **kwargs)


def _default_device(func: Callable[..., Any], args: tuple) -> Any:
    if func.__name__ in ON_THE_HOST:
        return _CPU
    takes_its = func.__name__.endswith("_like") or func.__name__ in ("as_tensor", "asarray", "complex")
    if takes_its and args and isinstance(args[0], torch.Tensor):
        return args[0].device
    for active in reversed(_get_current_function_mode_stack()):
        if isinstance(active, DeviceContext):  # `with torch.device(...)`, or set_default_device
            return active.device
    return _CPU


def _eager(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    if func.__name__ in RECORDED:
        eager.note_fallback(f"aten::{func.__name__}")
    lazy = next((a for a in args if _core.get_handle(a) is not None), None)
    if lazy is not None and func.__name__ in FROM_DATA:
        if func.__name__ == "tensor":
            say_of_a_copy(func)
        dtype = kwargs.get("dtype") or lazy.dtype
        same = lazy.dtype is dtype and _core.device_index(lazy) == index
        if same and func.__name__ != "tensor" and not kwargs.get("copy"):
            return lazy
        source = lazy if func.__name__ == "as_tensor" else lazy.detach()  # the others cut the graph
        return source.to(device_at(index), dtype=dtype, copy=True)
    if index < 0 and func.__name__ in ON_THE_HOST:
        return meta.as_meta(_on_the_host(func, args, kwargs, index), index)
    if index < 0 and mode.now.estimate is not None:
        known = mode.now.estimate.create(func, args, kwargs, index, func.__name__ in FROM_DATA)
        if known is not None:
            return known
    sparse = func.__name__.startswith("sparse_")  # the only ones of these that gradients go through
    if index >= 0:

        def plain(a: Any) -> Any:
            if _core.get_handle(a) is None:
                return a
            return a.cpu() if sparse else tensors._copy_out(a.detach(), func.__name__)

        args = tuple(map(plain, args))
        kwargs = {key: plain(a) for key, a in kwargs.items()}
    with predict.quiet(grad=sparse):
        there = generators.where_it_draws(kwargs.get("generator")) if index >= 0 else torch.device("meta")
        made = func(*args, device=there, **kwargs)
        if index < 0:
            if func.__name__ == "tensor":
                _ledger.note("aten::lift_fresh")
            return meta.as_meta(made.detach(), index)
    if made.layout is not torch.strided or made.is_quantized:
        return eager.labelled(made, index)  # stays torch's own, as what ops on such tensors give
    with Unseen():
        return tensors.from_plain(made.detach(), index)


def say_of_a_copy(func: Callable[[torch.Tensor], Any]) -> None:
    """Have torch's own function warn of what it is given a tensor for, as it does of one of its own."""
    with predict.quiet():
        func(torch.empty(0, device=_CPU))


def _on_the_host(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], index: int) -> torch.Tensor:
    """What ``torch.frombuffer`` or ``torch.from_file`` gives: the memory is there, or the file."""
    kind = device_at(index).type
    if kind not in ("cpu", "meta"):
        raise NotImplementedError(
            f"Could not run 'aten::{func.__name__}' with arguments from the '{kind.upper()}' backend."
        )
    with predict.quiet():
        made: torch.Tensor = func(*args, **kwargs)
        return made.detach()


def with_size(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments of ``torch.sparse_coo_tensor`` with the size and no wish for checks: torch would read the indices
    for both in C++. They stay on the device, where the sparse tensor shares their memory."""
    given = dict(zip(("indices", "values", "size"), args)) | kwargs
    indices, values, size = (given.get(name) for name in ("indices", "values", "size"))
    check, coalesced = given.get("check_invariants"), given.get("is_coalesced")
    check = torch.sparse.check_sparse_tensor_invariants.is_enabled() if check is None else check
    if _core.get_handle(indices) is None or (size is not None and not check):
        return args, kwargs
    at, sized = tensors.to_plain(indices, _CPU, "sparse"), () if size is None else (size,)
    with predict.quiet():
        shape = values.shape if isinstance(values, torch.Tensor) else torch.tensor(values, device=_CPU).shape
        values = torch.empty(shape, device=_CPU)  # of which nothing is read
        made = torch.sparse_coo_tensor(  # type: ignore[call-overload]
            at, values, *sized, device=_CPU, check_invariants=check, is_coalesced=coalesced
        )
    return args[:2], {**kwargs, "size": made.shape, "check_invariants": False}


def manual_seed_all(seed: int) -> None:
    """torch.manual_seed reached the devices: draws recorded before keep the old stream, later ones use the new."""
    pending = values.tape.generators() if values.tape.n_pending else []
    for index in pending:
        manual_seed(seed, index)
    values.executor().seed(int(seed), pending)


def manual_seed(seed: int, index: int) -> None:
    """Seed the generator of one device, in program order."""
    info = _infos.get("seed")
    if info is None:
        made = _intern.OpInfo(
            "genie::manual_seed", "genie::manual_seed", _intern.RECORD, call=_seed_default, random=True
        )
        info = _infos.setdefault("seed", made)
    signed = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)  # a record holds 64 bits; torch takes -1 for 2 ** 64 - 1
    _intercept.record_creation(info, (signed,), None, index)


def _seed_default(seed: int) -> None:
    # Runs inside a segment, while the lazy device's generator is swapped in.
    device = values.executor().device
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
