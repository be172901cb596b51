"""One device of the program's over several workers, where one has not enough memory for it (SPEC R5).

The program knows ``remote_accelerator:0``. As long as what it does there fits, the first worker has all of it. The
first segment that does not makes a plan (`cuts`), by which the records of a module go to its worker; the rest follows
from where values are (`division`). What is recorded stays the same, and so do the bits.

One file: a segment is placed, divided, submitted part by part and copied by what the executor knows of all workers.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..._ext import context as _context
from ..._ext import divided as _divided
from ...base.errors import UsageError
from .. import passes
from ..execute import around_segments, machine
from ..record.arguments import quiet
from . import growth
from .client import RemoteExecutor
from .cuts import plans
from .division import Division, Part
from .mirrors import view
from .one_thread import one_thread_at_a_time
from .pending_uploads import PendingUploads
from .pricing import ALL_ON_ONE, Plan, Work, divided_as, on_one
from .reads import plain_bytes
from .repeated import Repeatable
from .replicas import Copies
from .run_time import Costs, usual
from .slices import Slice, shift, slices
from .spread import SpreadExecutor, _on
from .storage_homes import of_storages
from .upcoming import upcoming

if TYPE_CHECKING:
    from ..._ext.encoder import Encoded

__all__ = ["PlacingExecutor", "Plan", "has_planned", "tell"]

log = logging.getLogger("mindtorch.remote")

_LITTLE = 64 << 20  # bytes that any worker has room for: nobody asks
_TRIED, _SMALL = 1 << 20, 1 << 10  # bytes that are moved to see how long that takes
_TIMES = 5  # as often
_GROWN = 1 + growth.GRADIENT + growth.MOST  # times its size that a parameter may come to need
_BACKWARD = _context.PHASES.index("backward")


_listener: Callable[[list[Plan]], None] | None = None
_only = False  # are plans all that is wanted?
_told = {True: False, False: False}  # by whether modules have workers in them


def tell(
    listener: Callable[[list[Plan]], None] | None, only: bool = False
) -> tuple[Callable[[list[Plan]], None] | None, bool]:
    """Let a listener have the plans that are thought of, the best one first, before that is used. only: the first
    values of a module that the program asks for end it with SystemExit instead. Returns what was so before."""
    global _listener, _only
    before = _listener, _only
    _listener, _only = listener, only
    _told.update({True: False, False: False})
    return before


def has_planned(modules: bool = False) -> bool:
    """Has the listener had any? modules: any of modules, and not only of what runs outside of them."""
    return _told[True] or (_told[False] and not modules)


def _tell(found: list[Plan]) -> None:
    _told[bool(found[0].workers)] = True
    if _listener is not None:
        _listener(found)
    elif found[0].excess:
        log.warning("the workers have %d bytes less than the program needs", found[0].excess)


@one_thread_at_a_time
class PlacingExecutor(SpreadExecutor):
    """``remote_accelerator:i`` is ``executors[i]``, and what does not fit on the first one is divided among all.

    limit: bytes of values that each worker may have; None: the free memory that it reports.
    """

    lists_apart = True

    def __init__(self, executors: Sequence[RemoteExecutor], limit: int | None = None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise UsageError(f"[PlacingExecutor] expected a limit of 0 bytes or more, or None, got {limit!r}")
        super().__init__(executors)
        self._waiting = PendingUploads()
        self._copies = Copies(self.executors)
        self._holders = (*self.executors, self._waiting)
        self._limits = None if limit is None else [limit] * len(self.executors)
        self._costs: Costs | None = None
        self._machines: list[machine.Machine] | None = None
        self._workers: dict[str, int] | None = None  # by module path; None: all is on the first one
        self._ids: dict[int, int] = {}  # the same by module id
        self._ahead: set[int] = set()  # of those with a worker, that have not run
        self._divided_values = False  # is a plan told of what runs outside of modules?
        self._backward: set[int] = set()  # ids of modules that had a backward pass
        self._stepped: set[int] = set()  # and then a step of an optimizer: what they grow by is there
        self._generator = 0  # the worker that has the generator of remote_accelerator:0
        self._part: Part | None = None  # that is submitted now
        self.moves: Counter[tuple[int, int]] = Counter()  # bytes that moved or were copied, by worker from and to
        self.joined = 0  # exchanges in which they did
        self.spared: Counter[int] = Counter()  # bytes that workers computed for themselves, and others, too, by worker
        self._ran: tuple[Encoded, dict[int, torch.Tensor]] | None = None  # of that part, and its results by slot

    # ---- memory ------------------------------------------------------------------------------------------------------
    def limits(self) -> list[int]:
        """Bytes of values that each worker may have."""
        if self._limits is None:
            self._start()
            found = [executor.machine() for executor in self.executors]
            nodes = Counter(each.node for each in found if each.kind == "cpu")  # which share its memory
            self._limits = [
                each.free // nodes.get(each.node, 1) + self._held(executor)
                for each, executor in zip(found, self.executors, strict=True)
            ]
        return self._limits

    def _start(self) -> None:
        """Let all workers begin together."""
        for executor in self.executors:
            executor.start()

    def _held(self, executor: RemoteExecutor) -> int:
        # What has died counts until somebody looks: what waited holds memory here, and that what it was uploaded to.
        self._waiting._mirrors.bury()
        for each in self.executors:  # copies end with what they are copies of
            each._forget_homes()
            each._mirrors.bury()
        executor._mirrors.bury()
        return executor._mirrors.nbytes

    def _fits(self, segment: Any) -> bool:
        """Has the first worker room for it, whatever dies when?"""
        most = self._held(self.executors[0]) + self._waiting.nbytes + _divided.nbytes(segment)
        if self._limits is None and most * _GROWN <= _LITTLE:
            return True
        return most * _GROWN <= self.limits()[0]

    # ---- recorded calls ----------------------------------------------------------------------------------------------
    def _parts(self, segment: Any) -> Iterable[tuple[int, Any]]:
        if self._workers is None and not _only and self._fits(segment):
            return super()._parts(segment)
        return self._divided(segment)

    def _divided(self, segment: Any) -> Iterator[tuple[int, Any]]:
        records, begins, stays, counting, named = _divided.facts(segment, passes.repeatable())
        records, begins, stays = of_storages(records, begins, stays)
        for index in {record[3] for record in records}:
            self._at(index)  # or say that there is none
        work = self._work(records, begins, stays, counting)
        comes, there = upcoming(records, self._workers or ())
        planned = work
        if comes:
            planned = self._work(*of_storages([*records, *comes], {**there, **begins}, stays), counting)
        unused = self._waiting.nbytes - sum(
            planned.nbytes[slot] for slot in planned.nbytes.keys() - planned.homes.keys()
        )
        fits = self._workers is None and on_one(planned).memory[0] + unused <= work.limits[0]
        if named and (_only or not fits):
            costs = usual(self._link())
            planned.repeatable = work.repeatable = Repeatable(named, costs.message, costs.byte, self._alike())
        if _only and any(work.paths.values()):
            self._only_plan(planned, segment, fits)
        if fits:
            yield from super()._parts(segment)
            return
        self._plan(planned, segment)
        work.coming = planned.coming or not self._ahead.isdisjoint(work.paths)
        self._ahead.difference_update(work.paths)
        self._ahead.update(record[0] for record in comes)
        try:
            for part in self._division(work, begins).parts:
                self.joined += len(part.sources)
                if part.again is not None:
                    self._run_again(part)
                    continue
                self._part, self._ran = part, None
                yield part.worker, segment.part(part.positions)
        finally:
            self._part = self._ran = None

    def has_run(self, there: RemoteExecutor, encoded: Encoded, made: dict[int, torch.Tensor]) -> None:
        self._ran = encoded, made

    def _run_again(self, part: Part) -> None:
        """Let another worker run the part that has just run, too. It has copies of the results then."""
        if self._ran is None:  # a cache knew the results, or this process has computed them: they cross as others do
            return
        encoded, made = self._ran
        there = self.executors[part.worker]
        given = [mirror for mirror, _root in encoded.given]
        wholes = self._brought([m for m in given if m not in there._mirrors], there)
        there._take()
        there._reads.are_over()
        read = [m if m in there._mirrors else _on(wholes[m.untyped_storage()._cdata], m) for m in given]
        results = there._submit(None, encoded, read)
        for slot, *_ in encoded.kept[: encoded.n_own]:
            self._copies.add(made[slot], self.owner(made[slot]), part.worker, results[slot])
            self.spared[part.worker] += made[slot].untyped_storage().nbytes()
        passes.add_again(len(encoded))

    def _alike(self) -> list[Hashable]:
        """The same for workers that compute the same bits."""
        self._machines = self._machines or self._found_machines()
        return [(each.kind, each.name, each.processors, each.threads) for each in self._machines]

    def _only_plan(self, work: Work, segment: Any, fits: bool) -> NoReturn:
        """Tell what would be done, and end the program. fits: all of it stays on the first worker."""
        work.coming = True
        self._time(work, segment)
        found = self._plans(work, {})
        _tell(sorted(found, key=lambda plan: plan.name != ALL_ON_ONE) if fits else found)
        raise SystemExit(0)

    def _division(self, work: Work, begins: dict[int, torch.Tensor]) -> Division:
        """Into parts, with copies of what several workers read as far as there is memory for them."""
        division, _needs = divided_as(work, self._ids)
        if division.copying:
            return division
        named = [(self.owner(begins[slot]), begins[slot]) for slot in work.copies]
        freed = self._copies.let_go({(owner, owner._mirrors.number_of(mirror)) for owner, mirror in named})
        if any(freed):
            held = [before - nbytes for before, nbytes in zip(work.held, freed, strict=True)]
            division, _needs = divided_as(replace(work, held=held), self._ids)
        if not division.copying:
            for owner, mirror in named:
                self._copies.end(mirror, owner)
        return division

    def _work(self, records: list, begins: dict[int, torch.Tensor], stays: set[int], counting: Collection[int]) -> Work:
        homes: dict[int, int] = {}
        nbytes: dict[int, int] = {}
        copies: dict[int, list[int]] = {}
        held = [self._held(executor) for executor in self.executors]
        for slot, mirror in begins.items():
            nbytes[slot] = mirror.untyped_storage().nbytes()
            for k, executor in enumerate(self.executors):
                if mirror in executor._mirrors:
                    homes[slot] = k
                    held[k] -= nbytes[slot]
                    if there := [*self._copies.of(mirror, executor)]:
                        copies[slot] = there
                        for other in there:
                            held[other] -= nbytes[slot]
        paths = {module: _context.module_path(module) or "" for module in {record[0] for record in records} if module}
        grows: dict[int, int] = {}
        phases = {_context.PHASES[record[1]] for record in records if record[1] < len(_context.PHASES)}
        self._backward.update(record[0] for record in records if record[1] == _BACKWARD)
        if "optimizer" in phases:
            self._stepped |= self._backward
        work = Work(records, paths, homes, nbytes, grows, stays, self._generator, self.limits(), held, copies=copies)
        counting = {*counting, *[s for s, t in begins.items() if not (t.is_floating_point() or t.is_complex())]}
        grows.update(self._growing(work, growth.of_phases(phases), counting))
        return work

    def _growing(self, work: Work, times: tuple[int, int], counting: set[int]) -> dict[int, int]:
        """Bytes that storages come to need besides, for gradients and states, so many times their sizes."""
        gradients, states = times
        slots: dict[int, None] = {}
        for module, _phase, _draws, _device, grad, takes, *_ in work.records if gradients or states else ():
            if grad and module and module not in self._stepped:
                slots.update(dict.fromkeys(slot for slot in takes if slot in work.given and slot not in counting))
        frozen = growth.frozen() if slots else ()
        known = growth.states() if slots and states else {}
        return {
            slot: work.sizes[slot] * (gradients + (known.get(slot, states) if states else 0))
            for slot in slots
            if slot not in frozen
        }

    def _plan(self, work: Work, segment: Any) -> None:
        """Let all modules of the segment have a worker."""
        workers = self._workers = self._workers or {}
        work.coming = any(path and path not in workers for path in work.paths.values())
        if work.coming:
            self._time(work, segment)
            found = self._plans(work, {path: workers[path] for path in work.paths.values() if path in workers})
            _tell(found)
            workers.update(found[0].workers)
        elif not workers and not self._divided_values:  # no module has run yet
            self._time(work, segment)
            found = self._plans(work, {})
            self._divided_values = found[0].name != ALL_ON_ONE or found[0].excess > 0
            if self._divided_values:
                _tell(found)
        self._ids.update((module, workers[path]) for module, path in work.paths.items() if path)

    def _plans(self, work: Work, known: dict[str, int]) -> list[Plan]:
        costs = self._link()
        return plans(work, costs, known, usual(costs))

    def _time(self, work: Work, segment: Any) -> None:
        """Say how long the records take on each worker, if that is known."""
        if machine.timing is None:
            return
        self._machines = self._machines or self._found_machines()
        with quiet():
            calls = _divided.calls(segment)
            work.computing = machine.timing(calls, self._machines, on_one(work).memory[0])
        if work.computing is not None:
            work.computing = work.computing.longer(len(work.records) - len(calls))

    def _found_machines(self) -> list[machine.Machine]:
        self._start()
        return [
            found if "set_num_threads" in each._kept_there else found._replace(threads=torch.get_num_threads())
            for each in self.executors
            for found in (each.machine(),)
        ]

    def _link(self) -> Costs:
        """What moves cost here, as some show that nobody needs otherwise: the least of several."""
        if self._costs is None:
            self._start()
            giver, taker = self.executors[-2:] if len(self.executors) > 1 else self.executors * 2
            small, large = (min(_moving(giver, taker, nbytes) for _ in range(_TIMES)) for nbytes in (_SMALL, _TRIED))
            self._costs = Costs(small, max(large - small, 0.0) / _TRIED, taker.takes_directly(giver))
        return self._costs

    def settle_given(self, encoded: Encoded, there: RemoteExecutor, whole: bool = False) -> list[torch.Tensor]:
        """What the part writes moves; of what it only reads, it gets a copy, if `division` has not said otherwise."""
        part, now = self._part, self.executors.index(there)
        if part is None or whole:
            return super().settle_given(encoded, there)
        given = [mirror for mirror, _root in encoded.given]
        roots = [root for _mirror, root in encoded.given]
        state: list[bytes] = []
        before = self._generator if part.draws else now
        if before != now:  # with what else is wanted from there
            self.executors[before]._ask("get_state", 0, answer=state.append)
        elsewhere = {m.untyped_storage()._cdata: m for m in given if m not in there._mirrors}
        alone = part.moving.union(encoded.written)
        there_now = {key: m for key, m in elsewhere.items() if m not in self._waiting._mirrors}
        sliced, wholes = self._sliced(encoded, there_now, there, alone)
        wholes.update(self._brought([m for key, m in there_now.items() if key not in sliced], there))
        moving = {m.untyped_storage()._cdata for m, root in zip(given, roots, strict=True) if root in alone}
        moving |= elsewhere.keys() - wholes.keys()
        self._settle([m for m in given if m.untyped_storage()._cdata in moving], there)
        if before != now:
            if not state:
                self.executors[before]._exchange()
            there.set_generator_state(0, plain_bytes(state[0]))
            self._generator = now
        shift(encoded, sliced)

        def read(mirror: torch.Tensor) -> torch.Tensor:
            key = mirror.untyped_storage()._cdata
            return sliced[key].of(wholes[key], mirror) if key in sliced else _on(wholes[key], mirror)

        return [m if m in there._mirrors else read(m) for m in given]

    def _sliced(
        self, encoded: Encoded, values: dict[int, torch.Tensor], there: RemoteExecutor, alone: Collection[int]
    ) -> tuple[dict[int, Slice], dict[int, torch.Tensor]]:
        """Of what a part reads a little of: that, and copies there of it, by storage. They last as long as the part."""
        if self._part is None or self._part.shared or around_segments.keeper is not None:
            return {}, {}  # what other workers run, too, or a cache names, is as it was recorded
        worker = self.executors.index(there)
        owners: dict[Any, dict[int, Slice]] = {}
        for key, found in slices(encoded, values.keys(), alone).items():
            owner = self.owner(values[key])
            if worker not in self._copies.of(values[key], owner):
                owners.setdefault(owner, {})[key] = found
        copies: dict[int, torch.Tensor] = {}
        for owner, parts in owners.items():
            mirrors = [found.part for found in parts.values()]
            self.moves[self.executors.index(owner), worker] += sum(mirror.numel() for mirror in mirrors)
            copies.update(zip(parts, there.adopt(owner.fetch(mirrors)), strict=True))
        return {key: found for parts in owners.values() for key, found in parts.items()}, copies

    def contents_changed(self, there: RemoteExecutor, number: int) -> None:
        self._copies.end_of(there, number)

    def _brought(self, values: Sequence[torch.Tensor], there: RemoteExecutor) -> dict[int, torch.Tensor]:
        """Copies there of the storages of these, by what those are. What has none yet crosses, in one message each."""
        worker = self.executors.index(there)
        found: dict[int, torch.Tensor] = {}
        owners: dict[Any, list[torch.Tensor]] = {}
        for value in values:
            owner = self.owner(value)
            copy = self._copies.of(value, owner).get(worker)
            if copy is None:
                owners.setdefault(owner, []).append(value)
            else:
                found[value.untyped_storage()._cdata] = copy
        for owner, missing in owners.items():
            nbytes = sum(value.untyped_storage().nbytes() for value in missing)
            self.moves[self.executors.index(owner), worker] += nbytes
            for value, whole in zip(missing, there.take_from(owner, missing), strict=True):
                self._copies.add(value, owner, worker, whole)
                found[value.untyped_storage()._cdata] = whole
        return found

    def _wholes(self, values: Sequence[torch.Tensor], owner: Any, there: RemoteExecutor) -> list[torch.Tensor]:
        if owner is self._waiting:
            stored = [there._upload(t.untyped_storage()) for t in self._waiting.fetch(values)]
            return [view(each, torch.uint8, (each.nbytes(),), (1,), 0) for each in stored]
        found = self._brought(values, there)
        return [found[value.untyped_storage()._cdata] for value in values]

    def _copy(self, value: torch.Tensor, there: RemoteExecutor) -> torch.Tensor:
        if self.owner(value) is self._waiting:
            copied = self._waiting.copied_storage(value)
            return _on(there.adopt(self._waiting.fetch([copied]))[0], value)
        return super()._copy(value, there)

    def gather(self, values: Sequence[torch.Tensor], written: Sequence[torch.Tensor], draws: int | None) -> None:
        moving = [t for t in values if t.is_meta and (self._workers is not None or t in self._waiting._mirrors)]
        there = self._where_called(moving, written, draws)
        self._settle(moving, there)

    # ---- values ------------------------------------------------------------------------------------------------------
    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        if index:
            return super().adopt(tensors, index)
        made = []
        for t in tensors:
            there = next((e for e in self.executors if e._mirror_of(t.untyped_storage()) is not None), self._waiting)
            made += there.adopt([t])
        return made

    # ---- generators --------------------------------------------------------------------------------------------------
    def drawing(self, index: int) -> RemoteExecutor:
        return self._at(index or self._generator)

    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        seed, states = super().generators()
        first = self.drawing(0).generators()[1]
        return seed, {**states, **{k: state for k, state in first.items() if k == 0}}


def _moving(giver: RemoteExecutor, taker: RemoteExecutor, nbytes: int) -> float:
    """Seconds in which so many bytes that the program does not have move from one to the other."""
    with quiet():
        values = giver.adopt([plain_bytes(os.urandom(nbytes))])
    giver.sync()
    taker.sync()
    giver._changed(giver._mirrors.number_of(values[0]))  # else the program knows what it has sent
    began = time.perf_counter()
    moved = taker.take_from(giver, values)
    taker.sync()
    del moved
    return time.perf_counter() - began
