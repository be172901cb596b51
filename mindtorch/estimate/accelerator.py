"""What a program is told that asks for a GPU while it is estimated: yes, of this name and size (SPEC C4)."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .._ext import ledger
from ..lazy_device import place_of


@dataclass(frozen=True)
class Accelerator:
    """name, memory_bytes: those of one device; count: how many the program sees; capability: CUDA's compute
    capability; processors: streaming multiprocessors."""

    name: str
    memory_bytes: int
    count: int = 1
    capability: tuple[int, int] = (9, 0)
    processors: int = 132


class _Stream:
    """Stands for torch.cuda.Stream: all work is in program order."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0) if device is None else torch.device(device)
        self.priority, self.cuda_stream = priority, 0

    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return _Event() if event is None else event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class _Event:
    """Stands for torch.cuda.Event. No time passes while nothing is computed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return math.nan  # nothing was computed: unknown


def answers(accelerator: Accelerator | None) -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) of what torch says about CUDA."""
    shared = [
        (torch.Tensor, "cuda", _to_cuda),
        (torch.utils.data.DataLoader, "__init__", _loader_init),
        (torch, "Generator", _Generator),
        (torch, "compile", _compile),
        (torch.nn.Module, "compile", lambda self, *args, **kwargs: None),
        (torch.Tensor, "pin_memory", lambda self, device=None: self),
        (torch.Tensor, "record_stream", lambda self, stream: None),
        # What it would refuse, or not, depends on values.
        (torch.distributions.Distribution, "_validate_args", False),
    ]
    if accelerator is None:
        return shared
    properties = types.SimpleNamespace(
        name=accelerator.name, total_memory=accelerator.memory_bytes, major=accelerator.capability[0],
        minor=accelerator.capability[1], multi_processor_count=accelerator.processors,
        warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, is_integrated=False,
    )

    def live(device: Any = None) -> tuple[int, int]:
        return ledger.live_bytes(_place(device))

    def memory_stats(device: Any = None) -> dict[str, int]:
        now, most = live(device)
        return {"allocated_bytes.all.current": now, "allocated_bytes.all.peak": most,
                "reserved_bytes.all.current": most, "reserved_bytes.all.peak": most}

    said: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: accelerator.count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: accelerator.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_arch_list": lambda: [f"sm_{accelerator.capability[0]}{accelerator.capability[1]}"],
        "mem_get_info": lambda device=None: (accelerator.memory_bytes - live(device)[0], accelerator.memory_bytes),
        "memory_stats": memory_stats,
        "memory_allocated": lambda device=None: live(device)[0],
        "max_memory_allocated": lambda device=None: live(device)[1],
        "memory_reserved": lambda device=None: live(device)[1],
        "max_memory_reserved": lambda device=None: live(device)[1],
        "reset_peak_memory_stats": lambda device=None: ledger.reset_peak(_place(device)),
        "reset_max_memory_allocated": lambda device=None: ledger.reset_peak(_place(device)),
        "memory_summary": lambda device=None, abbreviated=False: f"{live(device)[0]} bytes allocated",
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "synchronize": lambda device=None: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device="cuda": torch.random.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": None,
        "initial_seed": torch.initial_seed,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device": _device,
        "stream": _device,
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "set_stream": lambda stream: None,
    }  # fmt: skip
    replaced = [(torch.cuda, name, value) for name, value in said.items()]
    for module in (torch.cuda.random, torch.cuda.memory):  # where torch.cuda has them from, and programs may, too
        replaced += [(module, name, said[name]) for name in said if vars(module).get(name) is getattr(torch.cuda, name)]
    return shared + replaced


@contextmanager
def _device(device: Any) -> Iterator[None]:
    yield


def _to_cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    return self.to("cuda" if device is None else device)


def _place(device: Any) -> int:
    return place_of("cuda" if device is None else device)


def _compile(model: Any = None, **options: Any) -> Any:
    """torch.compile, which has nothing to compile for here: the function as it is."""
    return model if model is not None else lambda function: function


class _AnyGenerator(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _torch_generator)


class _Generator(metaclass=_AnyGenerator):
    """Stands for torch.Generator: on any device, the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _torch_generator()


_torch_generator = torch.Generator
_torch_loader_init = torch.utils.data.DataLoader.__init__


def _loader_init(self: Any, *args: Any, **kwargs: Any) -> None:
    # Workers are other processes: what they do would be seen by nobody.
    args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
    changed = {"num_workers": 0, "pin_memory": False, "prefetch_factor": None, "persistent_workers": False,
               "multiprocessing_context": None, "timeout": 0}
    _torch_loader_init(self, *args, **{k: changed.get(k, v) for k, v in kwargs.items()})
