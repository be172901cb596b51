"""What a program's tensors are taken for. By default they are recorded where a device of ours is named; in an estimate
(SPEC C4) they are without data wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from .._ext import hooks as _hooks
from .._ext import intercept as _intercept


@dataclass(frozen=True)
class Mode:
    """estimate: while no device holds data, and ``cpu``, ``cuda:0`` … are places like ``meta``, what answers for the
    values (`mindtorch.profile.estimate.known_values`). None: no estimate is under way.
    cudas: how many CUDA devices the program is told there are; None: nothing was said, any index will do.
    current_cuda: which one it has chosen.
    accelerator: the type of device that an index alone means.
    default: the index of the remote_accelerator on which tensors are made that name no device, in every thread (SPEC
    C9). None: torch's own default.
    meets: `mindtorch.engine.record.plain_operands.bring_together` where plain tensors join those on a
    remote_accelerator in any call; None: two devices are two devices.
    refuses: True where a program reads a tensor on torch's own meta device, because it never named ours: reading it is
    an error, as in torch. None: reading gives uninitialized memory (SPEC M4).
    draws: the index of the remote_accelerator whose generator torch's default one is: what is drawn on the CPU comes
    from it, too. Not None where `default` is not.
    ranks: where an estimate is of one rank of many, what answers for what ranks have together
    (`mindtorch.profile.estimate.process_groups`): collectives, tensors in shards; None: torch.
    """

    estimate: Any = None
    cudas: int | None = None
    current_cuda: Callable[[], int] = int  # 0
    accelerator: str = "cuda"
    default: int | None = None
    meets: Any = None
    refuses: Callable[[], bool] | None = None
    draws: int | None = None
    ranks: Any = None


now = Mode()


def change(**changes: Any) -> None:
    """The mode is another one from here on."""
    _set(replace(now, **changes))


@contextmanager
def enter(**changes: Any) -> Iterator[None]:
    """The mode is another one for the length of a block, in every thread."""
    before = now
    _set(replace(now, **changes))
    try:
        yield
    finally:
        _set(before)


def _set(mode: Mode) -> None:
    global now
    now = mode
    _hooks.set_mode(mode)
    _intercept.set_mode(mode)
