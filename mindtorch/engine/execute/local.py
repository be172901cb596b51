"""In-process executor: replays a segment with torch itself, on the CPU or a local CUDA device.

The value store is the tape's own slots, so nothing is copied in or out. Views, in-place ops and random draws need no
special care: the replay happens in program order on real, aliased storage, below autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ..._ext import lazy as _core
from ..._ext.guards import Drawing
from ..._ext.strides import contiguous
from ...base.errors import MaterializationError, UsageError
from ...base.torch_warnings import without_what_was_said
from .. import passes
from ..record.predict import quiet
from . import cuda, triggers
from .base import Executor
from .values import tape

OpObserver = Callable[[str, int, int, int, int, int], None]
_observers: list[OpObserver] = []
_op_observer: Callable[[int, int, int], None] | None = None  # all of them, as an executor calls it; None without any


def add_op_observer(observer: OpObserver) -> None:
    """Profiling hook (SPEC L14): observer(op name, module id, phase id, location id, start ns, end ns) per op run.

    The ids are those of the moment of recording (`mindtorch._ext.context`), the times those of the run.
    """
    global _op_observer
    _observers.append(observer)
    _op_observer = _report


def remove_op_observer(observer: OpObserver) -> None:
    """The last one that was added and is equal goes."""
    global _op_observer
    at = len(_observers) - 1 - _observers[::-1].index(observer)
    del _observers[at]
    if not _observers:
        _op_observer = None


def _report(seq: int, start: int, end: int) -> None:
    sig, module, location, phase, _ins, _outs = tape.describe(seq)
    report(_core.sig_info(sig).name, module, phase, location, start, end)


def is_observed() -> bool:
    """Does anybody want to know of each op?"""
    return bool(_observers)


def report(name: str, module: int, phase: int, location: int, start: int, end: int) -> None:
    """Tell all observers of an op that has run."""
    for observer in tuple(_observers):
        observer(name, module, phase, location, start, end)


class LocalExecutor(Executor):
    """Runs segments in this process on ``device`` (``cpu`` or ``cuda[:i]``)."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise UsageError(f"in-process executor: expected a cpu or cuda device, got {device}")
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise UsageError(f"in-process executor: {device} asked for, but torch sees no CUDA device")
            if self.device.index is None:
                self.device = torch.device("cuda", torch.cuda.current_device())
            cuda.register()
        self.place = self.device
        self._states = _States(self.device)
        self._swapped_in: set[int] = set()
        self._optimizer = passes.optimizer_on(self.device)

    @property
    def states(self) -> dict[int, torch.Tensor]:
        """States of the generators by index; new ones start from the seed."""
        return self._states

    # ---- random numbers ----------------------------------------------------------------------------------------------
    def _default_generator(self) -> torch.Generator:
        if self.device.type == "cuda":
            return torch.cuda.default_generators[self.device.index or 0]
        return torch.default_generator

    def rng(self, index: int) -> Drawing:
        """Swap the lazy device's generator state in for torch's default one, and back. Calls for one index nest."""
        return Drawing(self._default_generator(), self._states, index, self._swapped_in)

    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        for index in besides:
            self._states[index]  # which begins with the old seed, if it was not used yet
        self._states.seed = seed
        self._states.keep(besides)

    def state(self, index: int) -> torch.Tensor:
        """State of the generator of ``remote_accelerator:index``."""
        return self._states[index]

    def set_state(self, index: int, state: torch.Tensor) -> None:
        self._states[index] = state

    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        return self._states.seed, dict(self._states)

    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        self._states.seed = seed
        size = torch.Generator(self.device).get_state().numel()
        taken = {index: state.clone() for index, state in states.items() if state.numel() == size}
        self._states.update(taken)
        self._states.keep(taken)

    # ---- segments and values -----------------------------------------------------------------------------------------
    def submit(self, segment: Any) -> None:
        with quiet(), without_what_was_said():
            segment.run(
                self.device,
                _verify,
                _failure,
                torch._C._set_grad_enabled,
                self._default_generator(),
                self._states,
                _op_observer,
                self._optimizer.in_use(),
                passes.may_overwrite(),
                passes.native_maker() if self.device.type == "cpu" else None,
            )

    def settle(
        self,
        segment: Any,
        values: dict[int, torch.Tensor],
        writes: list[tuple[torch.Tensor, torch.Tensor]],
        states: dict[int, torch.Tensor],
    ) -> None:
        """Let a segment be over that is not run: ``values`` by slot; of ``writes``, the first ones get the numbers of
        the second; states of generators by index.
        """
        with quiet():
            segment.settle(values, None, writes, self._states, states)

    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        return list(values)

    def address(self, value: torch.Tensor) -> int:
        return value.data_ptr()

    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        return list(tensors)

    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        if draws is None:
            return info.call(*args, **kwargs)
        with self.rng(draws):
            return info.call(*args, **kwargs)

    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        whole = value.untyped_storage().clone()
        return torch.empty(0, dtype=torch.uint8, device=value.device).set_(whole)  # type: ignore[call-overload]

    def finish(self) -> None:
        """Nothing: whatever is submitted has been run by then."""

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _States(dict[int, torch.Tensor]):
    """Generator states by device index; an index that is new starts from the seed, as all do."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        super().__init__()
        self.device, self.seed = device, seed

    def __missing__(self, index: int) -> torch.Tensor:
        fresh = torch.Generator(self.device)
        if self.seed is not None:
            fresh.manual_seed(self.seed)
        self[index] = fresh.get_state()
        return self[index]

    def keep(self, indices: Collection[int]) -> None:
        """Forget all others. The dictionary stays the same: a block that is open draws from it. Nothing is taken out
        that is to stay: a signal handler may raise at any point.
        """
        for index in [index for index in self if index not in indices]:
            del self[index]


def _verify(sig: int, out: int, value: Any) -> torch.Tensor:
    """Compare the first result of a call with what was predicted when it was recorded."""
    dtype, size, stride, offset, _device = _core.sig_output_meta(sig, out)
    info = _core.sig_info(sig)
    passes.ask(info)
    name = info.name
    if value is None and 0 in size:
        return torch.empty(size, dtype=dtype, device="cpu")  # what the kernel leaves out is predicted to be empty
    if cuda.its_own(name, out, value):
        return value
    if not isinstance(value, torch.Tensor) or value.dtype is not dtype or value.shape != size:
        got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise MaterializationError(f"[{name}] predicted {dtype} {tuple(size)}, the kernel gave {got}")
    if _core.canonical(value.shape, value.stride()) == stride and value.storage_offset() == offset:
        return value
    if _core.sig_is_view(sig):
        raise MaterializationError(f"[{name}] predicted a view with strides {stride}, the kernel gave {value.stride()}")
    # The program has already been told these strides: keep them for this value, predict right from now on.
    promised = contiguous(size) if stride is None else stride
    _core.correct_output(sig, out, value)
    kept = torch.empty_strided(size, promised, dtype=dtype, device=value.device)
    return kept.copy_(value)


def _failure(seq: int, error: Exception) -> Exception:
    return triggers.kept_failure(tape, seq, error)
