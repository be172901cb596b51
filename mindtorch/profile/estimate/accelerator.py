"""What a program is told that asks for a GPU or an NPU while it is estimated: yes, of this name and size (SPEC C4)."""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ... import npu
from ..._ext import lazy as _core
from ...base.patching import Patch
from ...devices import mode
from ...devices.lazy_device import check_cuda, known_device, place_of
from ...devices.names import device as mindtorch_device
from ...devices.places import type_of
from ...engine.record import eager
from ...npu import memory as npu_memory
from ...npu import random as npu_random
from ...npu.api import DeviceProperties, StreamContext
from ...npu.refused import refusing
from ...patch.device_module import chosen_by
from ...patch.flex_attention import without_data
from ...patch.instead_of_cuda import generators_made_by, of_cuda
from . import compiling, data_loading, fused_attention, kernel_limits, memory_answers, side_streams, sobol
from .device_memory import Devices


def _valid(checked: torch.Tensor) -> torch.Tensor:
    """Of the arguments of a distribution: nobody but distributions asks ``torch._is_all_true``. They are valid, which
    is computed and read where they are."""
    found: torch.Tensor = torch.ops.aten._is_all_true.default(checked)
    if (handle := _core.get_handle(found)) is not None:
        _core.keep(handle, torch.ones((), dtype=torch.bool, device="cpu"))
    return found


@dataclass(frozen=True)
class Accelerator:
    """name, memory_bytes: those of one device; count: how many the program sees; capability: CUDA's compute
    capability; processors: streaming multiprocessors; kind: ``cuda``, or ``npu``: both names then mean it; others:
    bytes by name that a device holds, so far, for neither torch nor the driver."""

    name: str
    memory_bytes: int
    count: int = 1
    capability: tuple[int, int] = (9, 0)
    processors: int = 132
    kind: str = "cuda"
    others: Callable[[], dict[str, int]] = dict

    @functools.cached_property
    def devices(self) -> Devices:
        """What the program holds of them."""
        return Devices(self.memory_bytes, self.capability, self.processors, self.kind, self.count, self.others)


def _memory_listener(accelerator: Accelerator) -> side_streams.Told:
    """What notes requests to the allocator of a device."""
    return lambda device, what, number: accelerator.devices.ask(place_of(f"{accelerator.kind}:{device}"), what, number)


def _set_stream(stream: side_streams.Stream | None) -> None:
    """As torch, which makes the stream's device the current one, too, and ignores None."""
    side_streams.make_current(stream)
    if stream is not None and stream is not side_streams.main():
        set_current(stream.device.index)


def answers(accelerator: Accelerator | None) -> list[Patch]:
    """(owner, attribute, replacement) of what torch says about CUDA."""
    compiling.begin()
    data_loading.begin()
    side_streams.begin(index_of, None if accelerator is None else _memory_listener(accelerator))
    shared = [
        (torch.Tensor, "cuda", _to_cuda),
        *data_loading.patches(),
        (torch, "Generator", generators_made_by(_generator)),  # on any device, the CPU's
        (torch, "compile", _compile),
        (torch.nn.Module, "compile", _compile_module),
        (torch.Tensor, "pin_memory", _pin),
        *sobol.patches(),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),  # without a warning that there is no cuDNN here
        (torch.Tensor, "share_memory_", lambda self: self),
        (torch.Tensor, "is_shared", lambda self: True),  # nobody else has what it holds
        (torch.Tensor, "record_stream", lambda self, stream: None),
        # What they would refuse, or not, depends on values: by default, and where the program asks for it.
        (torch.distributions.Distribution, "_validate_args", False),
        (torch, "_is_all_true", _valid),
    ]
    if accelerator is None:
        return shared + _of_npus_of_programs_for_them()
    said = _said(accelerator, "cuda")
    refused = {name: refusing("torch.cuda", name, _NO_DEVICE) for name in _REFUSED}
    raw = (torch._C, "_cuda_getCurrentRawStream", lambda device: 0)  # which libraries with kernels of their own have
    return shared + [raw, *of_cuda(said | refused)] + _of_npus(accelerator) + _of_any_kind(accelerator)


#: What a module for any kind of devices says.
_SAID: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_lazy_init": lambda: None,
    "init": lambda: None,
    "ipc_collect": lambda: None,
    "synchronize": lambda device=None: kernel_limits.captured() if kernel_limits.capturing() else None,
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "get_rng_state": lambda device="cuda": torch.random.get_rng_state(),
    "set_rng_state": lambda state, device="cuda": None,
    "initial_seed": torch.initial_seed,
    "seed": lambda: None,
    "seed_all": lambda: None,
    "is_bf16_supported": lambda including_emulation=True: True,
    "stream": StreamContext,
    "StreamContext": StreamContext,
    "Stream": side_streams.Stream,
    "Event": side_streams.Event,
    "current_stream": side_streams.current,
    "default_stream": side_streams.main,
    "set_stream": _set_stream,
    "make_graphed_callables": lambda callables, *args, **kwargs: callables,  # what they do is what is counted
    "can_device_access_peer": lambda device, peer: index_of(device) != index_of(peer),
    "memory_snapshot": lambda *args, **kwargs: [],
    "memory_stats_as_nested_dict": lambda device=None: {},
    "host_memory_stats": OrderedDict,
    "reset_accumulated_memory_stats": lambda device=None: None,
    "get_allocator_backend": lambda: "native",
    "is_current_stream_capturing": kernel_limits.capturing,
    "is_tf32_supported": lambda: True,
    "get_sync_debug_mode": lambda: 0,
    "set_sync_debug_mode": lambda debug_mode: None,
}


def _said(accelerator: Accelerator, kind: str) -> dict[str, Any]:
    """What ``torch.cuda``, or another module for a kind of devices, says."""
    properties = types.SimpleNamespace(
        name=accelerator.name,
        total_memory=accelerator.memory_bytes,
        major=accelerator.capability[0],
        minor=accelerator.capability[1],
        multi_processor_count=accelerator.processors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        is_integrated=False,
    )

    def of(device: Any) -> Any:
        index = _chosen if device is None else index_of(device)
        if not 0 <= index < accelerator.count:
            raise AssertionError("Invalid device id")
        return properties

    def place(device: Any) -> int:
        return place_of(kind if device is None else f"{kind}:{index_of(device)}")

    return memory_answers.answers(accelerator.devices, place) | {
        **_SAID,
        "device_count": lambda: accelerator.count,
        "current_device": current_device,
        "set_device": set_current,
        "get_device_name": lambda device=None: of(device).name,
        "get_device_properties": of,
        "get_device_capability": lambda device=None: (of(device).major, of(device).minor),
        "get_arch_list": lambda: [f"sm_{accelerator.capability[0]}{accelerator.capability[1]}"],
        "device": _Device,
        "device_of": type("device_of", (_DeviceOf,), {"kind": kind}),
        "default_generators": tuple(_generator(f"{kind}:{i}") for i in range(accelerator.count)),
    }  # fmt: skip


def _of_npus(accelerator: Accelerator) -> list[Patch]:
    """The same of torch.npu, which has nothing where the accelerator is another one."""
    theirs: Any = torch.npu  # type: ignore[attr-defined]
    if accelerator.kind != "npu":
        return [(theirs, "is_available", lambda: False), (theirs, "device_count", lambda: 0)]
    properties = DeviceProperties(accelerator.name, accelerator.memory_bytes, None, None, None)
    said = _said(accelerator, "npu") | {
        "get_device_capability": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
    }
    owners = (theirs, npu_memory, npu_random) if theirs is npu else (theirs,)
    return [(owner, name, said[name]) for owner in owners for name in said.keys() & set(dir(owner))]


def _of_npus_of_programs_for_them() -> list[Patch]:
    """The same where the program is told of no accelerator: one that imports torch_npu wants an NPU. What is asked of
    its chip is not known."""
    unknown = ("get_device_name", "get_device_properties", "mem_get_info")
    answers = {name: answer for _, name, answer in _of_npus(Accelerator("", 0, kind="npu")) if name not in unknown}
    answers |= {
        "is_available": lambda: "torch_npu" in sys.modules,
        "device_count": lambda: int("torch_npu" in sys.modules),
    }
    return [(torch.npu, name, answer) for name, answer in answers.items()]  # type: ignore[attr-defined]


def _of_any_kind(accelerator: Accelerator) -> list[Patch]:
    """The same of torch.accelerator, whose functions would ask C++."""
    kind = accelerator.kind
    said = _said(accelerator, kind)
    dtypes = {t for t in list(vars(torch).values()) if isinstance(t, torch.dtype)}
    memory: dict[str, Any] = {name: said[name] for name in (
        "empty_cache", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
        "memory_stats", "reset_accumulated_memory_stats", "reset_peak_memory_stats",
    )}  # fmt: skip
    memory |= {"get_memory_info": said["mem_get_info"], "empty_host_cache": lambda: None}
    others: dict[str, Any] = {
        "current_accelerator": lambda check_available=False: known_device(kind),
        "current_device_index": current_device,
        "current_device_idx": current_device,
        "set_device_index": set_current,
        "set_device_idx": set_current,
        "device_index": _Device,
        "get_device_capability": lambda device=None: {"supported_dtypes": dtypes},
        "Graph": refusing("torch.cuda", "Graph", _NO_DEVICE),
        # Functions of their own: Dynamo keeps what it does for each function, once.
        **{
            name: functools.partial(said[name])
            for name in ("current_stream", "device_count", "is_available", "set_stream", "synchronize")
        },
    }
    return [
        *((torch.accelerator, name, answer) for name, answer in (memory | others).items()),
        *((torch.accelerator.memory, name, answer) for name, answer in memory.items()),
        (torch._C, "_get_accelerator", lambda check=None: known_device(kind)),
        (torch._C, "_accelerator_getAccelerator", lambda: known_device(kind)),
        (torch, "Stream", side_streams.Stream),
        (torch, "Event", side_streams.Event),
    ]


_NO_DEVICE = "an estimate has no CUDA device that could do this"
#: Of torch.cuda: what needs the device itself, or would hide work from the estimate.
_REFUSED = (
    "ExternalStream", "GreenContext", "get_stream_from_external", "MemPool",
    "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator", "caching_allocator_alloc",
    "caching_allocator_delete", "current_blas_handle", "current_solver_handle", "cudart", "temperature", "power_draw",
    "clock_rate", "utilization", "memory_usage", "device_memory_used", "list_gpu_processes",
)  # fmt: skip


_chosen = 0  # the device that `torch.cuda.set_device` or `with torch.cuda.device(...)` chose


def current_device() -> int:
    """The index of the device that ``cuda`` means now."""
    return _chosen


def set_current(device: Any) -> None:
    """From now on ``cuda`` means this one. As torch, which ignores negative numbers and None."""
    global _chosen
    index = index_of(device)
    if index >= 0:
        _chosen = check_cuda(index, mode.now.accelerator)


def index_of(device: Any) -> int:
    """The index that is meant; -1 for none."""
    if device is None or isinstance(device, int):
        return -1 if device is None else device
    index = mindtorch_device(device).index
    return _chosen if index is None else index


_Device = chosen_by(current_device, set_current, index_of)


class _DeviceOf(_Device):  # type: ignore[misc, valid-type]
    kind: str

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == self.kind else None)


def _to_cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    return self.to("cuda" if device is None else device)


def _compile(model: Any = None, **options: Any) -> Any:
    """torch.compile, which has nothing to compile for here: the function as it is, and a note of it."""
    if model is None:
        return functools.partial(_compile, **options)
    if getattr(model, "__name__", "") == "_flex_attention_hop_wrapper":
        return _flex  # flex_attention itself, which would have this compiled
    return compiling.compiled(model, options)


def _compile_module(self: Any, *args: Any, **options: Any) -> None:
    compiling.compiled(self, options)


class _Generator(torch.Generator):
    """Says that it is on an accelerator; the numbers are the CPU's."""

    _device: Any = None

    @property
    def device(self) -> Any:  # type: ignore[override]
        return self._device


def _generator(device: Any) -> torch.Generator:
    kind = type_of(device) or mode.now.accelerator
    if kind in ("cpu", "meta"):
        return _torch_generator()
    made = _Generator()
    made._device = known_device(f"{kind}:{max(index_of(device), 0)}")
    eager.generators[made._cdata] = made  # type: ignore[attr-defined]
    return made


def _pin(self: Any, device: Any = None) -> Any:
    if self.device.type not in ("cpu", "meta"):
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    return self


def _flex(query: Any, *args: Any) -> Any:
    return (fused_attention.flex if query.is_cuda else without_data)(query, *args)


_torch_generator = torch.Generator
