"""An executor whose worker is an actor on a Ray cluster (SPEC R2, R4)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .._ext import lazy as _core
from ..base.errors import MaterializationError, SessionLost, UsageError
from ..base.resources import Resources
from ..engine.execute import values
from ..engine.remote.client import RemoteExecutor
from ..engine.remote.exchange import Repeat, no_memory
from ..engine.remote.lineage import Lineage, Parcel
from ..engine.remote.mirrors import view
from ..engine.remote.one_thread import one_thread_at_a_time
from ..engine.remote.pipe import StreamExecutor
from ..engine.remote.postponed_moves import SMALL
from ..engine.remote.wire import WireError, dumps, loads
from . import worker_files
from .broker_client import Link
from .ray_child import Place, RayChild

__all__ = ["RayExecutor", "executors"]

_tickets = itertools.count(1)
_DISK = 3600.0  # seconds for a worker to write or read a file
_PARCEL, _AROUND = 4 << 20, 16  # bytes of small values that go together: with so many around each, in one call
_ROOM = 120.0  # seconds without a word from the broker, which says each second that it waits


@one_thread_at_a_time
class RayExecutor(StreamExecutor):
    """An executor whose worker is an actor on the cluster that `mindtorch.connect` has started or joined, on
    ``device``: ``cpu``, or ``cuda`` for a GPU of its own. Keep a reference while you use it: its values are freed with
    it. UsageError if the cluster lacks the resources for it. lineage: bytes of messages to keep here; up to this size,
    a lost worker on a CPU is rebuilt.

    ``process``, also in ``stats``: the process id of the worker on its ``node``.
    """

    _child: RayChild
    _hands_out = False  # a reply that says that what another one gave has failed there

    def __init__(self, link: Link, device: str = "cpu", actor: RayChild | None = None, lineage: int = 0) -> None:
        self._given: weakref.WeakValueDictionary[int, _Given] = weakref.WeakValueDictionary()  # not taken yet
        child = RayChild(link, device, Place()) if actor is None else actor
        child.wait()
        if child.place.threads is not None:
            self._kept_there = frozenset({"set_num_threads"})
        super().__init__(child)
        self.stats["process"] = child.pid or 0
        if lineage and device == "cpu":  # CUDA's kernels need not give the same bits again
            self._lineage = Lineage(lineage)
            self.stats["rebuilt"] = 0

    # ---- a worker that is lost ---------------------------------------------------------------------------------------
    def _renewed(self) -> Repeat | None:
        lost = self._child
        try:
            child = RayChild(lost.link, lost._device, lost.place, heir_of=lost.number)
            child.wait()
        except (UsageError, SessionLost):
            return None
        self._child, self._send, self._post = child, child.send, child.post
        self.stats["process"] = child.pid or 0
        lost.end()

        def send(message: bytearray, parcels: Sequence[Parcel]) -> bytes | None:
            for ticket, nbytes in parcels:
                child.bring(ticket, nbytes, keep=True)
            reply = child.send(message)
            child.keep([])
            return reply

        return send

    def _again(self, error: Exception) -> bool:
        if not super()._again(error):
            return False
        self._child.put_aside_only([*self._given])  # of what it gave once more, others have taken the rest
        for giver in {parcel.giver for message in self._line for parcel in message.parcels}:
            giver._see()
        return True

    def _see(self) -> None:
        """Rebuild the worker now if it has ended, although nobody waits for a reply."""
        if self._lost is None and (why := self._child.why_ended()):
            with contextlib.suppress(SessionLost):  # which is told to those that ask this one
                self._again(ConnectionError(why))

    def _may_be_rebuilt(self) -> bool:
        return self._lineage is not None and self._lineage.complete

    def _no_lineage(self) -> None:
        if self._may_be_rebuilt():
            super()._no_lineage()
            self._child.keep_no_parcels()

    @property
    def process(self) -> int | None:
        return self._child.pid

    @property
    def node(self) -> str:
        """The beginning of Ray's id of the worker's node."""
        return self._child.node

    def takes_directly(self, other: RemoteExecutor) -> bool:
        return isinstance(other, RayExecutor) and other._child.link is self._child.link

    def take_from(self, other: RemoteExecutor, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Directly from one actor to another, not through the program, if both are in one cluster."""
        if not isinstance(other, RayExecutor) or not self.takes_directly(other):
            return super().take_from(other, values)
        parcels = [(parcel, next(_tickets)) for parcel in _parcels(values)]
        numbers = [[other._mirrors.number_of(value) for value in parcel] for parcel, _ticket in parcels]
        message = other._give([(each, ticket) for each, (_parcel, ticket) in zip(numbers, parcels, strict=True)])
        return [made for parcel, ticket in parcels for made in self._take_parcel(other, parcel, message, ticket)]

    def _take_parcel(
        self, other: RayExecutor, values: Sequence[torch.Tensor], message: Any, ticket: int
    ) -> list[torch.Tensor]:
        sizes = [value.untyped_storage().nbytes() for value in values]
        numbers = [self._mirrors.fresh() for _ in values]
        made = [self._mirrors.whole(nbytes, number) for nbytes, number in zip(sizes, numbers, strict=True)]
        parcel = other._given[ticket] = _Given(other, message, ticket, sum(sizes))
        self._line[-1].parcels.append(parcel)
        self._bring_parcel(parcel)  # it comes while the program goes on

        def answer(failed: tuple[int, int | str] | None, nbytes: int) -> None:
            if failed is not None:
                here, there = failed
                self._epochs[0] = here
                if isinstance(there, str):
                    self._failures[here] = no_memory(f"no memory for {nbytes:,} bytes on the worker: {there}")
                    return
                self._hands_out = True
                try:
                    self._failures[here] = other._failure(there)
                finally:
                    self._hands_out = False

        def answers(found: list) -> None:
            for failed, nbytes in zip(found, sizes, strict=True):
                answer(failed, nbytes)

        if len(values) == 1:
            self._ask("take", numbers[0], sizes[0], ticket, answer=functools.partial(answer, nbytes=sizes[0]))
        else:
            self._ask("unpack", numbers, sizes, ticket, answer=answers, nbytes=64 + 8 * len(numbers))
        return made

    def _bring_parcels(self, message: Any) -> None:
        for parcel in message.parcels:
            if parcel.to is not self._child:  # the one that it was to go to is lost
                self._bring_parcel(parcel)

    def _bring_parcel(self, parcel: _Given) -> None:
        giver = parcel.giver
        after = giver._number_of(parcel.message)
        keep = self._may_be_rebuilt()
        self._child.bring(parcel.ticket, parcel.nbytes, keep, giver._child, after, keep and giver._may_be_rebuilt())
        parcel.to = self._child

    def _number_of(self, message: Any) -> int:
        """Of a message that gives something, at the child that there is now; 0 if it has been answered."""
        if message not in self._line:
            return 0
        if not message.posted:  # to that child, which is new; those after it may take what is given later
            self._post_all(last=message)
        return self._child.number_of(message.encoded())

    def _give(self, parcels: Sequence[tuple[Sequence[int], int]]) -> Any:
        """Have storages put aside, each list of numbers under its ticket. The message that says so."""
        self._take()
        message = self._line[-1]
        for numbers, ticket in parcels:
            if len(numbers) == 1:
                self._ask("give", numbers[0], ticket, answer=self._not_given)
            else:
                self._ask("pack", list(numbers), ticket, answer=self._not_given, nbytes=64 + 8 * len(numbers))
        self._send_on()
        if message in self._line and not message.posted:
            self._exchange()  # the sides did not know each other yet
        return message

    def _not_given(self, failed: tuple[int, str] | None) -> None:
        if failed is not None:
            self._failures[failed[0]] = no_memory(f"no memory on the worker to give a value to another: {failed[1]}")

    def _failure(self, number: int) -> MaterializationError:
        """Which it was, once all replies have come; 0: what this one gave has not arrived."""
        if number not in self._failures and not self._hands_out:  # else the one that asks was asked by this one
            with contextlib.suppress(MaterializationError):
                self._exchange(every=True)
        return (
            self._failures.get(number)
            or self._lost
            or MaterializationError("values from another worker did not arrive")
        )

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def save(self, value: Any, path: str) -> None:
        """`torch.save` on the worker's machine, under the absolute ``path`` there; no value passes through the program.

        value: dicts, lists and tuples of tensors, numbers, strings and None, such as ``{"model": net.state_dict(),
        "optimizer": optimizer.state_dict()}``. Its tensors are on this executor's device; plain tensors are moved
        there. The path must be in a folder that was given to ``genie worker start --files``; in a cluster that the
        program started, it can be anywhere.

        Returns when the file is complete. UsageError if it cannot be written. From then on, the worker is not rebuilt
        if it is lost.
        """
        with values.lock:
            tensors: list[torch.Tensor] = []
            tree = worker_files.taken_apart(value, tensors)
            ours = [t for t in tensors if _core.get_handle(t) is not None]
            computed = iter(values.materialize(ours, "save"))
            mirrors = [next(computed) if _core.get_handle(t) is not None else self.adopt([t])[0] for t in tensors]
            if self.among is not None:
                self.among.arrive(mirrors)
            if not all(mirror in self._mirrors for mirror in mirrors):
                raise UsageError("[save] expected tensors of this worker, got one of another worker")
            described = [self._mirrors.describe(mirror) for mirror in mirrors]
            numbers = {number: place for place, number in enumerate(dict.fromkeys(row[0] for row in described))}
            tickets = [next(_tickets) for _ in numbers]
            rows = [(numbers[number], *rest) for number, *rest in described]
            told = _dumped((tree, rows, tickets), "save")
            self._no_lineage()
            after = self._number_of(
                self._give([([number], ticket) for number, ticket in zip(numbers, tickets, strict=True)])
            )
            self._of_a_file("save", told, path, after=after)

    def load(self, path: str, index: int = 0) -> Any:
        """Load what `save`, or `torch.save`, wrote into a file on the worker's machine; no value passes through the
        program. See `save` for the path. The tensors are on ``remote_accelerator:index``, each with memory of its own.

        Loads only what ``torch.load(weights_only=True)`` accepts. UsageError if the file cannot be read.
        """
        with values.lock:
            self._no_lineage()
            first = next(_tickets) << 24
            return self._arrived(self._of_a_file("load", b"", path, first=first), first, index)

    def batches(self, source: str, *args: Any, index: int = 0) -> Iterator[Any]:
        """Iterate over the batches that ``source``, ``"MODULE:FUNCTION"``, returns on the worker's machine for
        ``args``: a `DataLoader`, or another iterable of batches (dicts, lists and tuples of tensors, numbers and
        strings). They go straight to the worker; their tensors are on ``remote_accelerator:index``.

        The module must be installed there, or come with a ``runtime_env``. torch's seed there is the program's
        ``torch.initial_seed()`` at the time of the call. The next batch is made while the program computes with one.
        UsageError if anything fails there. From then on, the worker is not rebuilt if it is lost.
        """
        if not isinstance(source, str) or not re.fullmatch(r"[\w.]+:[\w.]+", source):
            raise UsageError(f"[batches] expected MODULE:FUNCTION, got {source!r}")
        with values.lock:
            self._no_lineage()
            link, actor = self._child.link, self._child.number
            told = _Memory(_dumped(args, "batches"))
            begun = link.ask("feeder", fd=told.fileno(), actor=actor, source=source, seed=torch.initial_seed())
            feeder = _answered(link, begun, "batches")["feeder"]
        return self._fed(link, actor, feeder, index)

    def _fed(self, link: Link, actor: int, feeder: int, index: int) -> Iterator[Any]:
        def asked() -> tuple[int, int, _Memory]:
            first, into = next(_tickets) << 24, _Memory()
            return link.ask("batch", fd=into.fileno(), actor=actor, feeder=feeder, first=first), first, into

        try:
            coming = asked()
            while True:
                number, first, into = coming
                with values.lock:
                    if _answered(link, number, "batches")["over"]:
                        return
                    coming = asked()  # it comes while the program works on this one
                    batch = self._arrived(into.content(), first, index)
                yield batch
        finally:
            if link.alive:
                link.ask("fed", feeder=feeder)

    def _arrived(self, described: bytes, first: int, index: int) -> Any:
        """A structure whose tensors have come to the worker as parcels from ``first`` on."""
        tree, rows = loads(described)

        def tensor(place: int) -> Any:
            dtype, sizes = rows[place]
            number, nbytes = self._mirrors.fresh(), math.prod(sizes) * dtype.itemsize
            whole = self._mirrors.whole(nbytes, number)
            self._ask("take", number, nbytes, first + place, answer=self._missed)
            strides = torch.empty(sizes, device="meta").stride()
            return _core.hold(view(whole.untyped_storage(), dtype, sizes, strides, 0), index, None, True)

        return worker_files.put_together(tree, tensor)

    def _missed(self, failed: tuple[int, int | str] | None) -> None:
        if failed is not None:
            self._failures[failed[0]] = MaterializationError("values from the worker's machine did not arrive")

    def _of_a_file(self, do: str, data: bytes, path: str, **told: int) -> bytes:
        """Descriptions go through a file in memory: they may be longer than a message of the broker's."""
        if not isinstance(path, str):
            raise UsageError(f"[{do}] path: expected a text, got {path!r}")
        link, through = self._child.link, _Memory(data)
        asked = link.ask(do, fd=through.fileno(), actor=self._child.number, path=path, **told)
        _answered(link, asked, do, f"waiting for the worker to {do} {path}")
        return through.content()

    def close(self) -> None:
        """End the worker."""
        self._child.end()


def executors(
    link: Link, device: str, workers: int, lineage: int, resources: Resources, wait: float | None, name: str
) -> list[RayExecutor]:
    """So many, whose workers begin together, once there is room for all of them."""
    bundle = resources.bundle(device, link.address is None)
    room = None
    if bundle is not None:
        room = link.ask(
            "reserve", workers=workers, bundle=bundle, placement=resources.placement, node=resources.node,
            labels=resources.labels, name=name, wait=wait,
        )  # fmt: skip
        link.answer(room, _ROOM, "waiting for room on the cluster")
    places = [Place(bundle, room, i, f"{name} remote_accelerator:{i}", resources.threads) for i in range(workers)]
    actors = [RayChild(link, device, place) for place in places]
    return [RayExecutor(link, device, actor, lineage) for actor in actors]


def _parcels(values: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """In which values go from one worker to another, in order: small ones together, as each parcel takes calls of
    actors."""
    found: list[list[torch.Tensor]] = []
    room = 0
    for value in values:
        nbytes = value.untyped_storage().nbytes()
        if nbytes > SMALL:
            found.append([value])
            room = 0
            continue
        room -= nbytes + _AROUND
        if room < 0:
            found.append([])
            room = _PARCEL - nbytes - _AROUND
        found[-1].append(value)
    return found


def _dumped(value: Any, do: str) -> bytes:
    try:
        return bytes(dumps(value))
    except WireError as error:
        raise UsageError(f"[{do}] {error}") from None


class _Memory:
    """A file in memory, for what may be longer than a message to the broker."""

    def __init__(self, data: bytes = b"") -> None:
        self._file = open(os.memfd_create("genie"), "w+b")  # noqa: SIM115 - it is closed when nobody has it
        self._file.write(data)
        self._file.flush()
        self._file.seek(0)

    def fileno(self) -> int:
        return self._file.fileno()

    def content(self) -> bytes:
        self._file.seek(0)
        return self._file.read()


def _answered(link: Link, number: int, do: str, what: str = "") -> dict[str, Any]:
    """UsageError for what failed on the worker's machine."""
    answer = link.answer(number, _DISK, what)
    if answer["failed"]:
        raise UsageError(f"[{do}] {answer['failed']}")
    return answer


class _Given:
    """What one worker gives with a message, and another takes."""

    def __init__(self, giver: RayExecutor, message: Any, ticket: int, nbytes: int) -> None:
        self.giver, self.message, self.ticket, self.nbytes = giver, message, ticket, nbytes
        self.to: RayChild | None = None  # that it was told to be brought to
