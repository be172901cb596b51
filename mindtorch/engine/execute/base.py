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

    What stands for a value here is a plain torch.Tensor with its dtype, sizes, strides, offset and bits; two share
    storage where the values do. In this process it may be the value itself; elsewhere it is a tensor on the meta
    device, whose storage's death says that nobody can name the memory there any more.
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

    #: May each tensor of a list be somewhere else? Calls on lists are recorded for one tensor after the other then.
    lists_apart: bool = False

    @abstractmethod
    def submit(self, segment: Any) -> None:
        """Run ``segment`` (a ``mindtorch._ext.replay.Segment``) in program order.

        Afterwards its slots have what stands for their values. Raises MaterializationError.
        """

    @abstractmethod
    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        """The values as plain tensors on ``device``. Callers must not write to them.

        whole: on their whole storages, which they share as the values do.
        """

    @abstractmethod
    def address(self, value: torch.Tensor) -> int:
        """Where a value's first element is: the same for what shares it, another for what is elsewhere."""

    @abstractmethod
    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        """Values whose memory is that of plain tensors on ``device`` from now on, which share storage as those do.

        index: of the remote_accelerator that will use them. Callers neither write to what they gave nor keep it.
        """

    @abstractmethod
    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        """Run a call now, on what stands for values, and give what stands for its results.

        info: the OpInfo; draws: the index whose generator it draws from. What cannot be a value (a sparse or nested
        tensor) is torch's own, on ``device``. Whatever torch raises is raised. Where the call changed sizes, strides or
        storage of an argument, so is what stands for it. The caller sees to torch's modes.
        """

    @abstractmethod
    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of the whole storage of a value, as bytes."""

    def machine(self, index: int = 0) -> Machine:
        """What ``remote_accelerator:index`` is: a name, the machine's, and the memory there now."""
        return this_machine(self.device)

    def move(self, value: torch.Tensor, index: int) -> torch.Tensor:
        """The value for ``remote_accelerator:index``. It has memory of its own, which nobody will use any more."""
        return value

    def home(self, memory: torch.UntypedStorage) -> int:
        """The address of the storage on which values on this memory of the process's are known."""
        return memory._cdata

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:  # noqa: B027
        """Let memory that was adopted be what it is where values are: something in this process may look at it now.

        What writes to it from now on has written to the values.
        """

    def begin(self) -> None:  # noqa: B027
        """Let what was submitted begin, and return. Only asked for where ``overlaps`` or ``ahead``."""

    @abstractmethod
    def finish(self) -> None:
        """Return when what was submitted has been run. Raises MaterializationError for what failed in it."""

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
        """Seed the generators of all indices but ``besides``, those that are used later for the first time included."""

    @abstractmethod
    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        """(the seed that generators start from, None where none was given; the states of those that were used)."""

    @abstractmethod
    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        """Be what another executor's ``generators()`` told. States of another kind of device are left out."""
