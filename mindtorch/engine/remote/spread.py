"""Several accelerators: what is recorded on ``remote_accelerator:i`` runs where the i-th executor does (SPEC R2)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from ..._ext import lazy as _core
from ...base.errors import MaterializationError, UsageError
from ..execute import around_segments
from ..execute.base import Executor
from ..execute.machine import Machine
from ..record.arguments import tensors_in
from .client import RemoteExecutor
from .mirrors import META, view
from .moved_values import received
from .one_thread import one_thread_at_a_time
from .postponed_moves import SMALL, PostponedMoves

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded

__all__ = ["SpreadExecutor"]

_APART = 44  # bits of the addresses of one executor
_WORTH_SENDING = 8  # records: a worker begins with so many while the program goes on, when it moves what they give


@one_thread_at_a_time
class SpreadExecutor(Executor):
    """``remote_accelerator:i`` is ``executors[i]``. UsageError unless they are `RemoteExecutor` objects that all
    differ.

    `RemoteExecutor.take_from` copies from one to another.
    """

    def __init__(self, executors: Sequence[RemoteExecutor]) -> None:
        found = list(executors)
        for executor in found:
            if not isinstance(executor, RemoteExecutor):
                raise UsageError(f"[SpreadExecutor] expected RemoteExecutors, got {executor!r:.80}")
        if not found or len({id(executor) for executor in found}) < len(found):
            raise UsageError(f"[SpreadExecutor] expected executors that differ, got {len(found)} of them")
        self.executors = tuple(found)
        self._holders: tuple[Any, ...] = self.executors  # of values
        self.device, self.place, self.count = found[0].device, META, len(found)
        self._postponed = PostponedMoves()
        self._last = dict.fromkeys(found, 0)  # how many records each was given last
        for executor in found:
            executor.among = self

    @property
    def stats(self) -> dict[str, Any]:
        """The counts of all executors, summed up, without their process ids."""
        all_ = [executor.stats for executor in self.executors]
        return {
            name: [each[name] for each in all_] if name == "process" else sum(each.get(name, 0) for each in all_)
            for name in dict.fromkeys(name for each in all_ for name in each)
        }

    def _at(self, index: int) -> RemoteExecutor:
        if not 0 <= index < len(self.executors):
            raise UsageError(
                f"expected a remote_accelerator in 0..{len(self.executors) - 1}, one for each worker, got {index}"
            )
        return self.executors[index]

    def machine(self, index: int = 0) -> Machine:
        return self._at(index).machine()

    def owner(self, mirror: torch.Tensor) -> Any:
        """Who has the value."""
        for holder in self._holders:
            if mirror in holder._mirrors:
                return holder
        raise MaterializationError("the value belongs to another executor")

    # ---- recorded calls ----------------------------------------------------------------------------------------------
    def submit(self, segment: Any) -> None:
        keeper = around_segments.keeper
        for index, part in self._parts(segment):
            there = self._at(index)
            self._last[there] = len(part)
            run = there.submit if keeper is None else functools.partial(keeper.submit, there)
            try:
                run(part)
            except MaterializationError as error:
                error.lost_write = error.lost_write or part.lost_write
                raise
            finally:
                part.close()

    def _parts(self, segment: Any) -> Iterable[tuple[int, Any]]:
        """(index of an executor, a part of the segment), in the order in which they run."""
        return segment.parts()

    def settle_given(self, encoded: Encoded, there: RemoteExecutor, whole: bool = False) -> list[torch.Tensor]:
        """Let ``there`` have all that a segment begins with: it is going to run there. Returns what it reads of each.
        whole: that is each value itself, and no copy."""
        given = [mirror for mirror, _root in encoded.given]
        self._settle(given, there)
        return given

    def has_run(self, there: RemoteExecutor, encoded: Encoded, made: dict[int, torch.Tensor]) -> None:
        """``there`` was told to run a segment; made: what stands for its results, by slot."""

    def contents_changed(self, there: RemoteExecutor, number: int) -> None:
        """A storage that ``there`` has is no more, or may have other contents."""

    def settle_written(self, encoded: Encoded, there: RemoteExecutor) -> None:
        """Let ``there`` have what a segment writes to of what it begins with: it is not run, its values are there."""
        roots = set(encoded.written)
        written = {mirror.untyped_storage()._cdata for mirror, root in encoded.given if root in roots}
        self._settle([mirror for mirror, _root in encoded.given if mirror.untyped_storage()._cdata in written], there)

    def _settle(self, mirrors: Sequence[torch.Tensor], there: RemoteExecutor) -> None:
        """Let ``there`` have the storages of these from now on: the same mirrors stand for what is there then."""
        moving: dict[int, torch.Tensor] = {}  # by storage
        for mirror in mirrors:
            if mirror not in there._mirrors:
                moving.setdefault(mirror.untyped_storage()._cdata, mirror)
        if not moving:
            return
        owners: dict[Any, list[torch.Tensor]] = {}
        for mirror in moving.values():
            owners.setdefault(self.owner(mirror), []).append(mirror)
        for mirror, goal in self._postponed.all():  # what comes from the same executors comes along
            if goal is there and mirror.untyped_storage()._cdata not in moving:
                owner = self.owner(mirror)
                if owner in owners:
                    owners[owner].append(mirror)
        for owner, values in owners.items():
            for value, whole in zip(values, self._wholes(values, owner, there), strict=True):
                received(value, owner, whole, there)
                self._postponed.end(value)

    def _wholes(self, values: Sequence[torch.Tensor], owner: Any, there: RemoteExecutor) -> list[torch.Tensor]:
        """Copies there of the storages of these, for each one of its own."""
        return there.take_from(owner, values)

    @property
    def waits(self) -> int:  # type: ignore[override]
        return sum(executor.waits for executor in self.executors)

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return any([executor.overlaps for executor in self.executors])  # noqa: C419 - each is to be asked

    @property
    def ahead(self) -> bool:  # type: ignore[override]
        return all(executor.ahead for executor in self.executors)

    def begin(self) -> None:
        self._each("begin")

    def finish(self) -> None:
        self._each("begin", "finish")  # all of them work while the first is waited for

    def sync(self) -> None:
        self._each("begin", "sync")

    def _each(self, *names: str) -> None:
        """Let all do this, and then that, and raise the first failure then."""
        failed: MaterializationError | None = None
        for name in names:
            for executor in self.executors:
                try:
                    getattr(executor, name)()
                except MaterializationError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    # ---- calls that cannot wait --------------------------------------------------------------------------------------
    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        given = [t for t in tensors_in([*args, *kwargs.values()]) if t.is_meta]
        named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        written = [t for t in tensors_in([named[w] for w in info.writes if w in named]) if t.is_meta]
        there = self._where_called(given, written, draws)
        self.arrive(given)
        # What is elsewhere: as copies, which die with the call.
        now = {id(a): self._copy(a, there) for a in given if a not in there._mirrors}

        def swap(a: torch.Tensor) -> torch.Tensor:
            return now[id(a)].requires_grad_(a.requires_grad) if id(a) in now else a

        args, kwargs = tree_map_only(torch.Tensor, swap, (args, kwargs))
        return there.call(info, args, kwargs, draws)

    def _where_called(
        self, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor], draws: int | None
    ) -> RemoteExecutor:
        if draws is not None:
            return self.drawing(draws)
        owners = map(self.owner, (*written, *given))
        return next((owner for owner in owners if owner in self.executors), self.executors[0])

    def drawing(self, index: int) -> RemoteExecutor:
        """What has the generator of ``remote_accelerator:index``."""
        return self._at(index)

    def _copy(self, value: torch.Tensor, there: RemoteExecutor) -> torch.Tensor:
        """The same value on a copy of its storage there."""
        return _on(there.take_from(self.owner(value), [value])[0], value)

    def move(self, value: torch.Tensor, index: int) -> torch.Tensor:
        there = self._at(index)
        if value in there._mirrors:
            return value
        if value.untyped_storage().nbytes() > SMALL:
            return self._copy(value, there)
        owner = self.owner(value)
        if self._postponed.add(value, there):
            self.arrive([mirror for mirror, _goal in self._postponed.all()])
        elif self._last[owner] >= _WORTH_SENDING and owner.ahead:
            owner.begin()
        return value

    def arrive(self, values: Sequence[torch.Tensor]) -> None:
        """Let those of these that are to be on another executor be there now."""
        goals: dict[RemoteExecutor, list[torch.Tensor]] = {}
        for value in values:
            if value.is_meta and (goal := self._postponed.goal(value)) is not None:
                goals.setdefault(goal, []).append(value)
        for goal, coming in goals.items():
            self._settle(coming, goal)

    # ---- values ------------------------------------------------------------------------------------------------------
    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        places: dict[Any, list[int]] = {}
        for k, value in enumerate(values):
            places.setdefault(self.owner(value), []).append(k)
        found: dict[int, torch.Tensor] = {}
        for executor, at in places.items():
            found.update(zip(at, executor.fetch([values[k] for k in at], whole), strict=True))
        return [found[k] for k in range(len(values))]

    def address(self, value: torch.Tensor) -> int:
        self.arrive([value])
        owner = self.owner(value)
        found = owner.address(value)
        return found and (self._holders.index(owner) << _APART) + found

    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        return self._at(index).adopt(tensors)

    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        self.arrive([value])
        return self.owner(value).copied_storage(value)

    def home(self, memory: torch.UntypedStorage) -> int:
        return next((e.home(memory) for e in self._holders if e._mirror_of(memory) is not None), memory._cdata)

    def bring(self, memory: Sequence[torch.UntypedStorage]) -> None:
        for holder in self._holders:
            holder.bring([plain for plain in memory if holder._mirror_of(plain) is not None])

    # ---- generators --------------------------------------------------------------------------------------------------
    def rng(self, index: int) -> AbstractContextManager[None]:
        return self.drawing(index).rng(index)

    def generator_state(self, index: int) -> torch.Tensor:
        """State of the generator of ``remote_accelerator:index``."""
        return self.drawing(index).generator_state(index)

    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        for executor in self.executors:
            executor.seed(seed, besides)

    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        found = [executor.generators() for executor in self.executors]
        return found[0][0], {k: states[k] for k, (_seed, states) in enumerate(found) if k in states}

    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        for index, executor in enumerate(self.executors):
            executor.set_generators(seed, {k: state for k, state in states.items() if k == index})


def _on(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value like this one on another storage."""
    bits = _core.view_bits(like)
    return view(whole.untyped_storage(), like.dtype, like.shape, like.stride(), like.storage_offset(), bits)
