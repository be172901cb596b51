"""Values of one executor that another gets: as a copy through the program, or so that they are its own (SPEC R2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...base.errors import MaterializationError
from .exchange import again
from .mirrors import view
from .pending_uploads import PendingUploads

if TYPE_CHECKING:
    from .client import RemoteExecutor

__all__ = ["copied_through_the_program", "received"]


def copied_through_the_program(
    values: Sequence[torch.Tensor], other: RemoteExecutor, there: RemoteExecutor
) -> list[torch.Tensor]:
    """See `RemoteExecutor.take_from`: one message to the other executor, and one exchange that waits for it."""
    other._take()
    numbers = [other._mirrors.number_of(value) for value in values]
    failed: dict[int, MaterializationError] = {}
    found = other._reads.storages(dict.fromkeys(numbers), failed)
    made = []
    for number, value in zip(numbers, values, strict=True):
        if number in failed:
            made.append(_failed_like(value, failed[number], there))
        else:
            storage = there._upload(found[number], tied=False)
            made.append(view(storage, torch.uint8, (storage.nbytes(),), (1,), 0))
    return made


def _failed_like(value: torch.Tensor, failure: MaterializationError, there: RemoteExecutor) -> torch.Tensor:
    """What has failed elsewhere, as bytes: a storage that the worker takes from nobody."""
    nbytes, number = value.untyped_storage().nbytes(), there._mirrors.fresh()

    def answer(failed: tuple[int, int]) -> None:
        there._epochs[0] = failed[0]
        there._failures[failed[0]] = again(failure)

    there._ask("take", number, nbytes, 0, answer=answer)
    return there._mirrors.whole(nbytes, number)


def received(
    value: torch.Tensor, owner: RemoteExecutor | PendingUploads, whole: torch.Tensor, there: RemoteExecutor
) -> None:
    """What stands for a value of ``owner`` stands from now on, with all that shares its storage, for ``whole``: a copy
    of that storage, which ``there`` has and nothing else names."""
    mirror = value.untyped_storage()
    if not isinstance(owner, PendingUploads):
        there.kept.name_as(whole, owner.kept, value)
        owner.hand_over(mirror, there, mirror)
    there.hand_over(whole.untyped_storage(), there, mirror)  # what waited is shared by where it was uploaded from
    owner._mirrors.hand_over(value, there._mirrors, whole)
