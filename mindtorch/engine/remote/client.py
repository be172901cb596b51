"""The program's side of an executor elsewhere: what stands for values, and messages about them (SPEC R1).

A value is known here by a tensor on the meta device (a **mirror**) of its dtype, sizes, strides, offset and bits, whose
storage stands for one of the worker's. Storages have numbers that are never used twice; one that dies here is freed
there with the next message, after everything else that the message asks for.

One file: calls, writes and reads must agree, request by request, on which copies and small values here are still good.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from ..._ext import lazy as _core
from ..._ext.encoder import Encoded, encode
from ..._ext.guards import Drawing
from ..._ext.strides import contiguous, extent
from ...base.errors import MaterializationError
from .. import passes
from ..execute import local, triggers
from ..execute.machine import Machine
from ..execute.values import is_awaited
from ..record.arguments import quiet, tensors_in
from . import functions
from .exchange import Post, Send, Session, again
from .failures import Outcome, error_of, put_right
from .generator_states import GeneratorStates
from .host_fallback import bytes_of, run_here
from .kept_values import KeptValues
from .mirrors import META, Mirrors, adopted, sendable, view
from .moved_values import copied_through_the_program
from .one_thread import one_thread_at_a_time
from .reads import Reads, plain_bytes
from .replies import NEW_STORAGES, check_run
from .sent_segments import SentSegments
from .shared_storages import SharedStorages
from .small_values import Known, Operands, comes_unasked
from .speculation import HARMLESS, MAKES, Speculation, described
from .uploads import Uploads
from .wire import WireError, dumps

if TYPE_CHECKING:
    from .spread import SpreadExecutor

__all__ = ["RemoteExecutor"]

_CPU = torch.device("cpu")
_UNASKED = 32  # storages whose contents come unasked with one reply


@one_thread_at_a_time
class RemoteExecutor(Session, SharedStorages):
    """Runs recordings on the `Worker` that ``send(message) -> reply`` reaches; see `exchange.Session`.

    With ``post``, operations pending after a read start while the program goes on.
    """

    #: Where it is one of several: these, which let values be here that others have.
    among: SpreadExecutor | None = None

    def __init__(self, send: Send, post: Post | None = None) -> None:
        self.device, self.place = _CPU, META
        Session.__init__(self, send, post)
        self._went_on = 0  # waits, when the program last went on while something ran
        self._known = Known()
        self._uploads = Uploads(self)
        self.kept = KeptValues(self)
        self._mirrors = Mirrors(self._died)
        SharedStorages.__init__(self)
        self._told = SentSegments(self._ask, self._uploads.room)
        self._speculation = Speculation(self)
        self._expected: set[int] = set()  # storages that will come unasked, and have not been written since
        self._small: list[int] = []  # storages that the next message may make, and that are to come unasked
        self._alive = self._mirrors.alive
        self._operands = Operands(self.adopt, self._mirrors.number_of, self._alive)
        self._states, self._swapped_in = GeneratorStates(self), set[int]()
        self._reads = Reads(self, self._mirrors, self._known, self._failures, self._arrive)

    def start(self) -> None:
        """Start the worker now (otherwise, the first message starts it), and return."""

    # ---- messages ----------------------------------------------------------------------------------------------------
    def _ask(self, *request: Any, answer: Callable[[Any], None] | None = None, nbytes: int = 64) -> None:
        if request[0] not in HARMLESS:
            self._speculation.other(request[1] if request[0] in MAKES else None)
        super()._ask(*request, answer=answer, nbytes=nbytes)

    def _wait(self) -> None:
        self._speculation.wait(self._exchange)

    def _closing(self) -> list[tuple]:
        """Requests, and who wants the answers, that go with every message."""
        found: list[tuple] = []
        self._forget_homes()
        self._mirrors.bury()
        small = [number for number in self._small if number in self._mirrors.alive][-_UNASKED:]
        self._small.clear()
        if small:
            self._expected.update(small)
            found.append((("small", small), lambda given: self._learn(small, given)))
        if self._mirrors.dead:
            found.append((("free", self._mirrors.dead[:]), None))
            self._mirrors.dead.clear()
        return found

    def _learn(self, numbers: list[int], found: list[bytes | None]) -> None:
        for number, data in zip(numbers, found, strict=True):
            if data is not None and number in self._expected and number in self._mirrors.alive:
                self._known.put(number, data)
            self._expected.discard(number)

    @property
    def waits(self) -> int:  # type: ignore[override]
        return self.stats["waits"]

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        """True after a read that has waited, or would have, when the worker has nothing to do."""
        waits, before = self.stats["waits"] + self._speculation.answered, self._went_on
        self._went_on = waits
        return self._post is not None and waits != before and not local.is_observed()

    @property
    def ahead(self) -> bool:  # type: ignore[override]
        return self._post is not None and self._lost is None and not local.is_observed()

    @property
    def early(self) -> bool:  # type: ignore[override]
        return self.among is None and self.ahead

    def begin(self) -> None:
        if not self._speculation.begun:
            self._send_on()

    def _arrive(self, number: int) -> None:
        """Wait for the contents of a storage that come unasked, if they do."""
        self._take_in_while(lambda: number in self._expected)

    def machine(self, index: int = 0) -> Machine:
        found = Machine(*self._question("machine"))
        if self._lineage is not None:
            self._lineage.may_differ()
        return found

    def finish(self) -> None:
        self._exchange(every=True)

    def sync(self) -> None:
        self._ask("sync")
        self._exchange(every=True)

    # ---- storages ----------------------------------------------------------------------------------------------------
    def address(self, value: torch.Tensor) -> int:
        return self._mirrors.address(value)

    def adopt(self, tensors: Sequence[torch.Tensor], index: int = 0) -> list[torch.Tensor]:
        return adopted(tensors, self._mirror_of, self._upload)

    def adopt_operand(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        return self._operands.of(tensor)

    def _upload(self, home: torch.UntypedStorage, tied: bool = True) -> torch.UntypedStorage:
        """A new storage with what is in memory of the program. tied: which shares it from now on."""
        number = self._mirrors.fresh()
        data = bytes_of(home)
        storage = self._mirrors.whole(len(data), number).untyped_storage()
        if self._uploads.send(number, home, data) and tied:
            self._tie(home, storage)
        return storage

    def _changed(self, number: int) -> None:
        """What is in a storage there may be other than what is known here."""
        self._expected.discard(number)
        self._died(number)

    def _died(self, number: int) -> None:
        self._reads.forget(number)
        self._known.forget(number)
        self._operands.forget(number)
        self._uploads.contents.forget(number)
        if self.among is not None:
            self.among.contents_changed(self, number)

    def write(self, value: torch.Tensor, data: bytes) -> None:
        """Replace the contents of the whole storage of a value."""
        self._write(self._mirrors.number_of(value), data)

    def _write(self, number: int, data: bytes) -> None:
        self._changed(number)
        self._uploads.write(number, data)

    def copied_storage(self, value: torch.Tensor) -> torch.Tensor:
        self._take()
        number = self._mirrors.fresh()
        source = self._mirrors.number_of(value)
        nbytes = value.untyped_storage().nbytes()
        request, missed = self._uploads.copy(number, source, nbytes)
        self._ask(*request, answer=missed)
        self._known.copy(number, source)
        return self._mirrors.whole(nbytes, number)

    def takes_directly(self, other: RemoteExecutor) -> bool:
        """Does `take_from` let the program go on, and workers exchange values themselves?"""
        return False

    def take_from(self, other: RemoteExecutor, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the whole storages of values of another executor, as bytes: through the program, at once.

        They share nothing with memory of the program. What has failed there has failed here.
        """
        return copied_through_the_program(values, other, self)

    def names_of(self, mirrors: Sequence[torch.Tensor]) -> list[bytes | None]:
        """See `KeptValues.names`, of what this executor has."""
        return self.kept.names_here(mirrors)

    # ---- recorded calls ----------------------------------------------------------------------------------------------
    def submit(self, segment: Any) -> None:
        if self._lost is not None:
            raise again(self._lost)
        self._take()
        encoded = encode(segment)
        read = self._settled(encoded)
        if encoded.written or encoded.n_own:  # else it makes views of what there is
            self._reads.are_over()
        try:
            made = self._submit(segment, encoded, read)
            if self.among is not None:
                self.among.has_run(self, encoded, made)
        except WireError:
            self._settled(encoded, whole=True)
            run_here(self, segment, encoded)
        except MaterializationError:
            raise
        except BaseException:  # a signal handler's: some of what is known here may be ahead of what has been asked for
            self._told.forget()
            self._known.clear()
            self._uploads.contents.clear()
            self._states.clear()
            raise

    def _settled(self, encoded: Encoded, whole: bool = False) -> list[torch.Tensor]:
        """Let all that a segment is given be here. Returns what it reads of each: it, or a copy, but none if whole."""
        if self.among is None:
            return [mirror for mirror, _root in encoded.given]
        return self.among.settle_given(encoded, self, whole)

    def _submit(self, segment: Any, encoded: Encoded, read: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        plan = self._told.plan(encoded)
        exact = plan.exact
        self._states.forget(plan.draws)
        self.stats["plans"] = self._told.plans
        numbers = memoryview(encoded.numbers).cast("q")
        storages: dict[int, int] = {}  # slot -> number
        for k, (mirror, (_value, root)) in enumerate(zip(read, encoded.given, strict=True)):
            numbers[k] = storages[root] = self._mirrors.number_of(mirror)
        timed = local.is_observed() and segment is not None
        settings = self._news("run")
        guess = self._speculation.take(plan, encoded.numbers, not (timed or settings))
        base = self._mirrors.fresh(encoded.n_outputs) if guess is None else guess.base
        written = [storages[root] for root in encoded.written if root in storages]
        self._forget_contents(written)
        given = list(numbers[: len(encoded.given)])
        computes = is_awaited() and self._known.computes(encoded, exact)
        if computes and all(number in self._known or number in self._expected for number in given):
            for number in given:  # their reply would come before that to the question of the read
                self._arrive(number)
        self._known.run(encoded, exact, given, written, base)
        n_small = len(self._small)
        made = self._made(encoded, base)
        views = [(slot, k, weakref.ref(made[slot])) for slot, _, k, *_ in encoded.kept[encoded.n_own :]]

        answer = partial(self._ran, encoded, base, views, timed)
        if guess is not None and guess.reply is not None:
            segment.settle(made, [(self._speculation.taken, [guess])])
            try:
                answer(guess.reply)
                self._speculation.was_right(guess)
            except WireError as error:
                self._broken(error)
            return made
        if timed:
            self._no_lineage()  # times are never the same
        request = ("run", plan.number, base, *(changes := self._told.changed_numbers(encoded)), timed)
        if guess is not None:  # it has begun: what it answered comes once more
            asked = [(self._speculation.taken, [guess]), (self._line[-1].requests, [(request, answer)])]
            segment.settle(made, asked)
            self._speculation.was_right(guess)
            return made
        if segment is None:  # another worker has run it, whose results the program has
            self._line[-1].requests += [*settings, (request, answer)]
        else:
            segment.settle(made, [(self._line[-1].requests, [*settings, (request, answer)])])
        self._told_settings(settings)
        self._grown(32 + sum(map(len, changes)))
        if timed or self.among is not None:
            self._speculation.start_anew()
        else:
            self._speculation.ran(described(plan, encoded, base, self._small[n_small:], bool(written)))
        if timed:
            self._exchange()
        return made

    def _forget_contents(self, written: list[int]) -> None:
        """Of storages that a run writes to."""
        for number in written:
            self._reads.forget(number)
            self._expected.discard(number)
            self._uploads.contents.forget(number)
            self._operands.forget(number)
            if self.among is not None:
                self.among.contents_changed(self, number)

    def _ran(self, encoded: Encoded, base: int, views: list[tuple], timed: bool, reply: tuple) -> None:
        """What a worker says of a run."""
        check_run(encoded, reply, timed, self._known_here())
        failures, corrections, times, without, lost, idle, otherwise = reply
        passes.add_elsewhere(*otherwise)
        triggers.idle += idle
        for k, time in enumerate(times):
            if time is not None:
                name, _sig, *where = encoded.origin(k)
                local.report(name, *where, *time)
        put_right(encoded, corrections)
        for k, number, kind, text in failures:
            name, _sig, module, location, _phase = encoded.origin(k)
            self._failures[number] = triggers.failed_record(name, module, location, error_of(kind, text))
            self._epochs[0] = number
        if without or lost:
            Outcome(encoded, base, views, failures, without, lost).tell(self._mirrors, self._failures)

    def _made(self, encoded: Encoded, base: int) -> dict[int, torch.Tensor]:
        """The mirrors of the outputs that stay, by slot."""
        storages = {root: mirror.untyped_storage() for mirror, root in encoded.given}
        mirrors: dict[int, torch.Tensor] = {}
        with quiet():
            for slot, root, ordinal, (dtype, sizes, strides, offset, _place), bits in encoded.kept:
                if strides is None:
                    strides = contiguous(sizes)
                if root in storages:
                    made = view(storages[root], dtype, sizes, strides, offset)
                else:
                    made = torch.empty_strided(sizes, strides, dtype=dtype, device=META)
                    if offset:
                        nbytes = extent(sizes, strides, offset) * dtype.itemsize
                        whole = torch.empty(nbytes, dtype=torch.uint8, device=META)
                        made.set_(whole.untyped_storage(), offset, sizes, strides)
                    number = base + ordinal
                    self._mirrors.number(made, number)
                    if comes_unasked(made) and number not in self._known:
                        self._small.append(number)
                    storages[slot] = made.untyped_storage()
                mirrors[slot] = _core.set_view_bits(made, bits)
        return mirrors

    # ---- calls that cannot wait --------------------------------------------------------------------------------------
    def call(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        referred: dict[int, tuple[int, torch.Tensor]] = {}
        self._take()
        try:
            name = functions.name_of(info)
            sent = tuple(sendable(a, referred) for a in args)
            named = {key: sendable(a, referred) for key, a in kwargs.items()}
            dumps((sent, named))
            given = [t for _place, t in referred.values()]
            described = [self._mirrors.describe(mirror) for mirror in given]
        except WireError:
            return self._call_here(info, args, kwargs, draws)
        self._reads.are_over()
        base = self._mirrors.fresh(NEW_STORAGES)
        for number, *_ in described:
            self._changed(number)
        self._states.forget(() if draws is None else (draws,))
        kind, *found = self._question(
            "call", base, described, name, sent, named, torch.is_grad_enabled(), -1 if draws is None else draws
        )
        if kind == "failed":
            raise again(self._failures[found[0]])
        if kind == "cannot":
            return self._call_here(info, args, kwargs, draws)
        if kind == "raised":
            raise error_of(*found)
        results, changed, raised = found
        storages = {d[0]: mirror.untyped_storage() for d, mirror in zip(described, given, strict=True)}
        with quiet():
            for k, now in changed:
                like = self._mirrors.made(now, storages)
                given[k].set_(like.untyped_storage(), like.storage_offset(), like.shape, like.stride())
                if _core.view_bits(like) != _core.view_bits(given[k]):
                    torch._C._set_conj(given[k], like.is_conj())
                    torch._C._set_neg(given[k], like.is_neg())
        if raised is not None:
            raise error_of(*raised[1:])
        return self._taken(results, given, storages)

    def _taken(self, result: tuple, given: list[torch.Tensor], storages: dict[int, Any]) -> Any:
        kind, *found = result
        if kind == "given":
            return given[found[0]]
        if kind == "value":
            return self._mirrors.made(found[0], storages)
        if kind == "plain":
            return self._reads.put_together(storages, self._tie, *found[0])
        if kind == "constant":
            return found[0]
        name, items = found
        items = [self._taken(item, given, storages) for item in items]
        if name:
            return getattr(torch.return_types, name)(items)
        return items if kind == "list" else tuple(items)

    def _call_here(self, info: Any, args: tuple, kwargs: dict[str, Any], draws: int | None) -> Any:
        """Run what has no form on the wire (a Python function, a nested tensor) in this process, on the values."""
        found = {id(t): t for t in tensors_in([*args, *kwargs.values()]) if t in self._mirrors}
        mirrors = list(found.values())
        here = dict(zip(map(id, mirrors), self._here(mirrors)))
        homes = {plain.untyped_storage()._cdata: mirror for mirror, plain in zip(mirrors, here.values())}
        before = {key: bytes_of(plain.untyped_storage()) for key, plain in zip(homes, here.values())}
        back = {id(plain): mirror for mirror, plain in zip(mirrors, here.values())}

        def swap(a: Any) -> Any:
            if isinstance(a, torch.device):
                return _CPU if a.type == "meta" else a
            plain = here.get(id(a), a)
            return plain.detach().requires_grad_() if a.requires_grad and plain is not a else plain

        args, kwargs = tree_map_only((torch.Tensor, torch.device), swap, (args, kwargs))
        with nullcontext() if draws is None else self.rng(draws):
            out = info.call(*args, **kwargs)
        for mirror, plain in zip(mirrors, here.values(), strict=True):
            key = plain.untyped_storage()._cdata
            now = bytes_of(plain.untyped_storage())
            if (plain.shape, plain.stride(), plain.storage_offset()) != (
                mirror.shape, mirror.stride(), mirror.storage_offset(),
            ):  # fmt: skip
                self._untie(plain.untyped_storage())
                (moved,) = self.adopt([plain.detach()])
                mirror.set_(moved.untyped_storage(), moved.storage_offset(), moved.shape, moved.stride())
            elif key in before and now != before[key]:
                self.write(homes[key], now)
                before[key] = now
        self._take()

        def mirrored(item: torch.Tensor) -> Any:
            if id(item) in back:
                return back[id(item)]
            if item.layout is not torch.strided or item.is_nested or item.is_quantized or item.device != _CPU:
                return item  # the last: a class of the program's around tensors that are on the device
            home = homes.get(item.untyped_storage()._cdata)
            if home is None:
                return self.adopt([item.detach()])[0]
            return view(home.untyped_storage(), item.dtype, item.shape, item.stride(), item.storage_offset())

        return tree_map_only(torch.Tensor, mirrored, out)

    # ---- reads -------------------------------------------------------------------------------------------------------
    def fetch(self, values: Sequence[torch.Tensor], whole: bool = False) -> list[torch.Tensor]:
        self._take()
        described = [self._mirrors.describe(mirror) for mirror in values]
        return self._reads.whole(described) if whole else self._reads.elements(described)

    def _bring(self, numbers: Iterable[int]) -> dict[int, torch.UntypedStorage]:
        return self._reads.storages(numbers)

    # ---- generators --------------------------------------------------------------------------------------------------
    def rng(self, index: int) -> Drawing:
        return Drawing(torch.default_generator, self._states, index, self._swapped_in)

    def generator_state(self, index: int) -> torch.Tensor:
        """State of the generator of ``remote_accelerator:index``."""
        return self._states[index]

    def set_generator_state(self, index: int, state: torch.Tensor) -> None:
        self._states.put(index, state)

    def generators(self) -> tuple[int | None, dict[int, torch.Tensor]]:
        seed, states = self._question("get_generators")
        return seed, {index: plain_bytes(state) for index, state in states}

    def set_generators(self, seed: int | None, states: dict[int, torch.Tensor]) -> None:
        if seed is not None:
            self.seed(seed)
        for index, state in states.items():
            self.set_generator_state(index, state)

    def seed(self, seed: int, besides: Sequence[int] = ()) -> None:
        if self._lost is None:  # else nobody draws any more; the workers of a DataLoader begin with it
            self._states.seed(seed, besides)
