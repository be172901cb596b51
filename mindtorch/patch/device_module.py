"""``torch.remote_accelerator``: what torch and programs ask of a device's module (SPEC L1), after ``torch.cuda``.

What the device does not have, or does not tell, is in ``REFUSED``: an error that says so, at the call.

One file: it is one table of names, after torch.cuda's.
"""

from __future__ import annotations

import os
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from ..base.errors import UnsupportedOperationError
from ..engine.execute import tensors, values
from ..engine.record.predict import quiet
from ..npu.api import StreamContext
from . import creation

__all__ = ["NOT_APPLICABLE", "REFUSED", "DeviceModule", "Event", "Stream", "chosen_by", "of_generator"]
_current = threading.local()  # .index: what `with torch.remote_accelerator.device(i):` chose


def chosen_by(current: Callable[[], int], choose: Callable[[int], None], index_of: Callable[[Any], int]) -> type:
    """The class ``torch.cuda.device``: within the block, a device is the current one. None, below 0: no change."""

    class device:
        def __init__(self, device: Any) -> None:
            self.idx = -1 if device is None else index_of(device)
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = current()
            if self.idx >= 0:
                choose(self.idx)

        def __exit__(self, *error: object) -> None:
            choose(self.prev_idx)

    return device


class DeviceModule(types.ModuleType):
    """``torch.remote_accelerator``: what torch asks of a device module. Available to torch.accelerator only where the
    user has said which executor is to run recordings: else pinning, streams and default-device choices must stay as
    they are without us."""

    def is_available(self) -> bool:
        return values.asked_for()

    def is_initialized(self) -> bool:
        return values.asked_for()  # by itself, when it is first used

    def device_count(self) -> int:
        """How many torch.accelerator could use: the executor's."""
        return values.executor().count if self.is_available() else 0

    def current_device(self) -> int:
        return _now()

    def __getattr__(self, name: str) -> Any:
        why = REFUSED.get(name)
        if why is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

        def refuse(*args: Any, **kwargs: Any) -> Any:
            if name in _COUNTED:
                if values.executor().device.type == "cuda":
                    return getattr(torch.cuda, name)()
                if name.startswith("reset_"):
                    return None
            raise UnsupportedOperationError(f"[{self.__name__}.{name}] {why}")

        return refuse

    def init(self) -> None:
        """Nothing is to be done before the first use."""

    ipc_collect = init

    def set_device(self, device: Any) -> None:
        """Which device the functions here mean when they are not told, in this thread."""
        _choose(self._index(device))

    def get_device_name(self, device: Any = None) -> str:
        """What computes, and where: a worker's machine by its name."""
        index, executor = self._index(device), values.executor()
        if executor.place.type != "meta":
            return f"remote accelerator {index}, run on {executor.device}"
        machine = executor.machine(index)
        return f"remote accelerator {index}, run on {machine.name} of {machine.node}"

    def get_device_properties(self, device: Any = None) -> Any:
        """Name, node and memory of what recordings run on."""
        machine = values.executor().machine(self._index(device))
        return types.SimpleNamespace(
            name=self.get_device_name(device),
            node=machine.node,
            total_memory=machine.total,
            major=0,
            minor=0,
            multi_processor_count=machine.processors,
        )

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """(0, 0): nothing that is chosen by CUDA's compute capability applies."""
        return 0, 0

    def get_arch_list(self) -> list[str]:
        return []

    def get_gencode_flags(self) -> str:
        return ""

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """True: all of them are run by one executor."""
        return True

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        device = values.executor().device
        return device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation)

    def is_tf32_supported(self) -> bool:
        return values.executor().device.type == "cuda" and torch.cuda.is_tf32_supported()

    # ---- random numbers ----------------------------------------------------------------------------------------------
    def initial_seed(self) -> int:
        """The seed of the current device's generator."""
        index = self.current_device()
        return int(of_generator(index, "initial_seed", "initial_seed"))

    def seed(self) -> None:
        """Seed the current device's generator with a number that nobody chose."""
        creation.manual_seed(int.from_bytes(os.urandom(7), "little"), self.current_device())

    def seed_all(self) -> None:
        creation.manual_seed_all(int.from_bytes(os.urandom(7), "little"))

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The states of the generators that have been used, and of all before them."""
        return [self.get_rng_state(index) for index in range(self._devices())]

    def set_rng_state_all(self, new_states: Any) -> None:
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def _devices(self) -> int:
        return max([0, self.current_device(), *values.tape.generators()]) + 1

    # ---- memory ------------------------------------------------------------------------------------------------------
    def empty_cache(self) -> None:
        if values.executor().device.type == "cuda":
            torch.cuda.empty_cache()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes of the memory that recordings run in: the worker's, this machine's, a CUDA device's."""
        machine = values.executor().machine(self._index(device))
        return machine.free, machine.total

    # ---- streams: calls are recorded in program order, so there is one on each device --------------------------------
    def current_stream(self, device: Any = None) -> Stream:
        return Stream(self._index(device))

    default_stream = current_stream

    def set_stream(self, stream: Any) -> None:
        """Nothing: there is one."""

    def stream(self, stream: Any) -> StreamContext:
        """``with stream(s):`` calls are recorded as always."""
        return StreamContext(stream)

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, debug_mode: Any) -> None:
        if debug_mode not in (0, "default"):
            raise UnsupportedOperationError(
                "[set_sync_debug_mode] expected 0: mindtorch.stats()['triggers'] shows which calls wait for values"
            )

    def is_current_stream_capturing(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Nothing here: mindtorch's own torch.manual_seed does it, also where another backend owns the slot."""

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator; torch.manual_seed seeds those of all."""
        creation.manual_seed(seed, self.current_device())

    def _is_in_bad_fork(self) -> bool:
        return False

    _initialized = True  # torch.utils.checkpoint then keeps the generator's state for the recomputation

    def _index(self, device: Any) -> int:
        return self.current_device() if device is None else _index_of(device)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """State of a device's generator; runs its pending draws, since they come before."""
        index = self._index(device)
        return of_generator(index, "get_state", "get_rng_state")  # type: ignore[no-any-return]

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        index = self._index(device)
        of_generator(index, "set_state", "set_rng_state", state)

    def synchronize(self, device: Any = None) -> None:
        values.flush("synchronize")
        values.executor().sync()


_DEVICE_TYPE = int(torch.autograd.DeviceType.PrivateUse1)  # the slot's number, as torch's own streams have it


class Stream:
    """The order in which a device's calls are recorded: the program's own."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        index = device if isinstance(device, int) else 0 if device is None else tensors.index_of(device)
        self.device = tensors.torch_device(index)
        self.device_index = index
        self.device_type = _DEVICE_TYPE
        self.priority = priority
        self.stream_id = 0

    def synchronize(self) -> None:
        """Compute everything that was recorded and can be seen."""
        values.flush("synchronize")
        values.executor().sync()

    def is_capturing(self) -> bool:
        """Never: there are no graphs to capture calls in."""
        return False

    def query(self) -> bool:
        """True when nothing is left to compute."""
        return not values.tape.n_pending

    def wait_stream(self, stream: Any) -> None:
        """Nothing: what was recorded before comes before."""

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing: there is one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device_index == self.device_index

    def __hash__(self) -> int:
        return hash((Stream, self.device_index))


class Event:
    """A place in the program; ``synchronize`` computes what was recorded and can be seen."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise UnsupportedOperationError("[Event] expected interprocess=False: recordings belong to their process")
        self._timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Remember this place. With ``enable_timing``, what comes before is computed first: times are of work done."""
        if self._timing:
            Stream().synchronize()
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events."""
        if not (self._timing and end_event._timing) or self._at is None or end_event._at is None:
            raise RuntimeError("[elapsed_time] expected two recorded events that were made with enable_timing=True")
        return (end_event._at - self._at) * 1e3

    def synchronize(self) -> None:
        Stream().synchronize()

    def query(self) -> bool:
        """True when nothing is left to compute."""
        return self._at is None or not values.tape.n_pending

    def wait(self, stream: Any = None) -> None:
        """Nothing: what was recorded before comes before."""


def _now() -> int:
    return getattr(_current, "index", 0)


def _choose(index: int) -> None:
    _current.index = index


def _index_of(device: Any) -> int:
    return device if isinstance(device, int) else tensors.index_of(device)


_Chosen = chosen_by(_now, _choose, _index_of)


class _DeviceOf(_Chosen):  # type: ignore[misc, valid-type]
    """The device that ``obj`` is on, if it is one of these, for the block."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if isinstance(obj, tensors.LazyTensor) else None)


DeviceModule.Stream = Stream  # type: ignore[attr-defined]
DeviceModule.Event = Event  # type: ignore[attr-defined]
DeviceModule.StreamContext = StreamContext  # type: ignore[attr-defined]
DeviceModule.device = _Chosen  # type: ignore[attr-defined]
DeviceModule.device_of = _DeviceOf  # type: ignore[attr-defined]


#: Names of torch.cuda that this device has not, and why.
REFUSED = {
    name: reason
    for reason, names in {
        "expected recordings that run on CUDA, got the CPU, where torch counts no memory: see genie profile": """
            memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
            max_memory_cached memory_stats memory_stats_as_nested_dict memory_summary memory_snapshot memory_usage
            device_memory_used reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached
            reset_accumulated_memory_stats host_memory_stats host_memory_stats_as_nested_dict
            reset_accumulated_host_memory_stats reset_peak_host_memory_stats
        """,
        "this device records by itself and has no CUDA graphs": """
            CUDAGraph graph graph_pool_handle make_graphed_callables export_dot export_graph_data
        """,
        "memory is the executor's: torch's allocators on the CPU or CUDA hand it out": """
            caching_allocator_alloc caching_allocator_delete caching_allocator_enable caching_allocator_disabled
            change_current_allocator CUDAPluggableAllocator MemPool use_mem_pool get_allocator_backend
            get_per_process_memory_fraction set_per_process_memory_fraction
        """,
        "there is no driver of this device's own to ask": """
            clock_rate power_draw temperature utilization list_gpu_processes cudart check_error current_blas_handle
            current_solver_handle ExternalStream get_stream_from_external GreenContext
        """,
    }.items()
    for name in names.split()
}
_COUNTED = frozenset(name for name in REFUSED if "memory" in name and "fraction" not in name)
#: Of torch.cuda's public names, those that this device has no use for.
NOT_APPLICABLE = frozenset(
    [
        # Old tensor types: torch.Tensor with a dtype takes their place.
        *(
            f"{kind}{what}"
            for what in ("Storage", "Tensor")
            for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
        ),
        *("ComplexDoubleStorage", "ComplexFloatStorage"),
        # CUDA's own errors, libraries, builds and tools.
        *("CudaError", "DeferredCudaCallError", "cudaStatus", "has_half", "has_magma", "jiterator", "nccl", "nvtx"),
        *("profiler", "sparse", "tunable"),
        # Submodules whose functions are here, or that do not apply; autocast is torch.autocast's.
        *("amp", "graph_annotations", "graphs", "memory", "random", "streams"),
        # One torch.Generator per device: torch.remote_accelerator.get_rng_state() and manual_seed() stand for it.
        "default_generators",
    ]
)


def of_generator(index: int, method: str, reason: str, *args: Any) -> Any:
    """What a method of the generator of device `index` gives; the device's pending draws come before, for `reason`."""
    values.materialize([], reason, generator=index)
    with values.lock, values.executor().rng(index), quiet():
        return getattr(_generator(), method)(*args)


def _generator() -> torch.Generator:
    device = values.executor().device
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
