"""The executor interface (SPEC R1): where values are, and everything that is done with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from .machine import Machine, this_machine


class Executor(ABC):
    """Keeps the values of lazy tensors and runs what was recorded on them.

    A plain torch.Tensor represents each value, with its dtype, sizes, strides and offset; two of them share storage if
    their values do. In this process, the tensor may be the value itself. For a remote executor, it is a tensor on the
    meta device; when its storage is freed, nothing refers to the remote memory any more.
    """

    #: Where plain tensors that take part in the program's calls are put: the CPU, or a CUDA device of this process.
    device: torch.device
    #: The device of what stands for values.
    place: torch.device
    #: How many devices there are: remote_accelerator:0 to count - 1 are apart. What has one lets all indices be it.
    count: int = 1
    #: May what is pending begin now, while the program goes on? Asked after a read.
    overlaps: bool = False
    #: May it begin at the end of an optimizer's step, too? More than one such piece may be under way then.
    ahead: bool = False
    #: And at the end of a backward pass, where the program has looked at its loss before that?
    early: bool = False

    #: Messages so far that the program has waited for, where there are messages.
    waits: int = 0

    #: May each tensor of a list be somewhere else? Calls on lists are recorded for one tensor after the other then.
    lists_apart: bool = False

    @abstractmethod
    def submit(self, segment: Any) -> None:
        """Run ``segment`` (a ``mindtorch._ext.replay.Segment``) in program order.

        Afterwards its slots have the tensors that represent their values. Raises MaterializationError.
        """

    @abstractmethod
    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        """The values as plain tensors on ``device``. Callers must not write to them.

        whole: on their whole storages, which they share as the values do.
        """

    @abstractmethod
    def address(self, value: torch.Tensor) -> int:
        """Address of a value's first element: equal for values that share it, else different."""

    @abstractmethod
    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        """Take over plain tensors on ``device`` as values; the values share storage as the tensors do.

        index: index of the remote_accelerator that will use them. Callers must not write to the tensors afterwards, nor
        keep them.
        """

    def adopt_operand(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        """`adopt` one that calls will only read: another of the same bits may be the same value."""
        return self.adopt([tensor], index)[0]

    def gather(  # noqa: B027
        self, values: Sequence[torch.Tensor], written: Sequence[torch.Tensor], draws: int | None
    ) -> None:
        """Have the values of a call that is to come where it will run; ``written``: those that it writes to.

        draws: as in `call`. The same tensors represent the values: what a call does to a tensor's storage and layout
        must happen to the one that represents the value.
        """

    @abstractmethod
    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        """Run a call now, on tensors that represent values, and return those of its results.

        info: the OpInfo; draws: the index whose generator it draws from. A result that cannot be a value (a sparse or
        nested tensor) is torch's own, on ``device``. Raises whatever torch raises. If the call changed sizes, strides
        or storage of an argument, its tensor changes, too. The caller handles torch's modes.
        """

    @abstractmethod
    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of the whole storage of a value, as bytes."""

    def machine(self, index: int = 0) -> Machine:
        """A description of ``remote_accelerator:index``: its name, its machine, and the memory there now."""
        return this_machine(self.device)

    def move(self, value: torch.Tensor, index: int) -> torch.Tensor:
        """The value for ``remote_accelerator:index``. Nothing else uses its memory any more."""
        return value

    def home(self, memory: torch.UntypedStorage) -> int:
        """Address of the storage that represents values on this memory of the process."""
        return memory._cdata

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:  # noqa: B027
        """Update adopted memory to the current values, because something in this process may read it now.

        Later writes to it are writes to the values.
        """

    def begin(self) -> None:  # noqa: B027
        """Start what was submitted, and return. Only called if ``overlaps`` or ``ahead``."""

    @abstractmethod
    def finish(self) -> None:
        """Return when what was submitted has run. Raises MaterializationError if something in it failed."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all submitted work is done."""

    @abstractmethod
    def rng(self, index: int) -> AbstractContextManager[None]:
        """While active, torch's default generator on ``device`` is that of ``remote_accelerator:index``.

        Every index has a generator of its own; as in CUDA, they all start from the same seed.
        """

    @abstractmethod
    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        """Seed the generators of all indices except ``besides``, including those first used later."""

    @abstractmethod
    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        """The seed that generators start from (None if none was set), and the states of the generators that were
        used.
        """

    @abstractmethod
    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        """Take over what another executor's ``generators()`` returned, except states of another kind of device."""
