"""The side that has the values: takes a message, does what it asks for in order, and replies (SPEC R1, R3).

A message is a list of requests, the reply a list of their answers. Storages have the numbers that the client gave them;
a tensor is a storage's number and its metadata. What could not be computed is remembered by the number of the failure,
and so is all that depends on it.

One file: every request is on the same storages and failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from ..._ext import lazy as _core
from ...base import mapped_memory
from ...base.strides import known_extent
from ...base.torch_warnings import without_what_was_said
from ..execute.ambient import mirrored, take_over
from ..execute.local import LocalExecutor
from ..execute.machine import this_machine
from ..record.arguments import is_dense, quiet
from ..record.predict import knowing_views
from . import functions, hello
from .checks import Checks
from .chosen_passes import PASSES
from .definitions import Definition
from .mirrors import view
from .plan_calls import filled_in, make_ready, results_of
from .plans import Plan
from .results import as_bytes, contents, filled, is_out_of_memory, on_device, reserved, taken_apart
from .sent_contents import digest_of
from .wire import WireError, dumps, loads

__all__ = ["Worker"]

#: Of torch's and Python's own exceptions, those that are told apart.
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, IndexError, KeyError, LookupError,
        MemoryError, NotImplementedError, OSError, OverflowError, RecursionError, RuntimeError, SystemError, TypeError,
        ValueError, ZeroDivisionError, torch.OutOfMemoryError, torch.linalg.LinAlgError,
    )
}  # fmt: skip


class Failed(NamedTuple):
    """In place of a value that could not be computed."""

    number: int


class Poisoned(Exception):
    """A value was asked for that could not be computed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Worker:
    """Keeps storages and runs requests. ``device``: ``cpu``, or a CUDA device of its process.

    parcels: contents of storages on the way from one worker to another, or the number of the failure because of which
    there are none, by ticket. Whoever has the workers takes them there. folders: where it may look for files.
    """

    def __init__(
        self, device: str = "cpu", parcels: dict[int, bytes | bytearray | int] | None = None,
        folders: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._folders = folders
        self._parcels = {} if parcels is None else parcels
        self._local = LocalExecutor(device)
        self._device = self._local.device
        self._storages: dict[int, torch.Tensor | Failed] = {}  # as bytes
        self._definitions: list[Definition] = []
        self._plans: list[Plan] = []
        self._failures = 0
        self._checks = Checks()
        self._over = False  # was a message refused? Nobody knows what another one is about then
        # Storage's address -> failure of what should have written to it, until the program has been told, and the
        # storage: it must not give its address away.
        self._overwritten: dict[int, tuple[int, Any]] = {}

    def handle(self, message: bytes | bytearray | memoryview) -> bytearray:
        """The reply to a message. WireError where that is no message; then nothing was done."""
        return dumps(self.answers(message))

    def answers(self, message: bytes | bytearray | memoryview) -> list[Any]:
        """The same before it becomes bytes."""
        if self._over:
            raise WireError("expected no message after one that was refused")
        self._over = True
        with quiet():
            found = [getattr(self, name)(*given) for name, *given in self._checks.message(loads(message))]
        self._over = False
        return found

    # ---- the other side ----------------------------------------------------------------------------------------------
    def hello(self, side: tuple) -> tuple:
        """What the client is made of. WireError unless the worker is, too. Answers with that, and the device's kind."""
        hello.check(side, "a program")
        self._checks.greeted = True
        return tuple(hello.here()), self._device.type

    def machine(self) -> tuple:
        """What `execute.machine.Machine` says of the device."""
        return tuple(this_machine(self._device))

    def settings(self, given: list[tuple[str, Any]]) -> None:
        """Torch's settings, as they are where the program runs."""
        try:
            take_over([*mirrored(cuda=True), *PASSES], given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise WireError(str(error)) from None

    # ---- storages: where there is no memory for one, it has failed: (number of the failure, why) ---------------------
    def upload(self, number: int, data: bytes) -> tuple[int, str] | None:
        """A new storage."""
        return self._made(number, lambda: on_device(data, self._device))

    def reserve(self, number: int, nbytes: int) -> tuple[int, str] | None:
        """A new storage, which is filled later."""
        return self._made(number, lambda: reserved(nbytes, self._device))

    def fill(self, number: int, begin: int, data: bytes) -> tuple[int, str] | None:
        """A part of the contents of what was reserved."""
        held = self._storages.get(number)
        if not isinstance(held, torch.Tensor):
            return None  # there was no memory for it
        return self._made(number, lambda: filled(held, begin, data))

    def _made(self, number: int, make: Callable[[], torch.Tensor]) -> tuple[int, str] | None:
        try:
            self._storages[number] = make()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._failures += 1
            self._storages[number] = Failed(self._failures)
            return self._failures, str(error)
        return None

    def file(self, number: int, path: str, offset: int, nbytes: int, digest: bytes) -> bool | tuple[int, str] | None:
        """A new storage with a part of a safetensors file, if there is one in the worker's folders (else None) and that
        is in it (else False: no storage). So it tells nobody what is in it but who knows, and nothing of other files.
        """
        found = mapped_memory.part_of(path, offset, nbytes, self._folders)
        if found is None or digest_of(found) != digest:
            self._checks.gone(number)
            return None if found is None else False
        return self.upload(number, found) or True

    def write(self, number: int, data: bytes) -> None:
        """Other contents for a storage, as many bytes as it has."""
        held = self._bytes(number)
        if held.numel() != len(data):
            raise WireError(f"expected {held.numel()} bytes for storage {number}, got {len(data)}")
        filled(held, 0, data)

    def copy(self, number: int, source: int) -> tuple[int, str] | None:
        """A new storage with the contents of another."""
        found = self._storages.get(source)
        if isinstance(found, Failed):
            self._storages[number] = found
            return None
        return self._made(number, self._bytes(source).clone)

    def give(self, number: int, ticket: int) -> None:
        """Put a storage's contents aside for another worker."""
        try:
            self._parcels[ticket] = contents(self._bytes(number))
        except Poisoned as error:
            self._parcels[ticket] = error.number

    def take(self, number: int, nbytes: int, ticket: int) -> tuple[int, int] | None:
        """A new storage of what another worker gave. (failure's number, its number there) where that has failed.

        The latter is 0 where nothing has come, or not all of it.
        """
        found = self._parcels.pop(ticket, 0)
        if isinstance(found, int) or len(found) != nbytes:
            self._failures += 1
            self._storages[number] = Failed(self._failures)
            return self._failures, found if isinstance(found, int) else 0
        missed = self.upload(number, bytes(found))
        return None if missed is None else (missed[0], 0)

    def storage(self, number: int) -> tuple:
        """A storage's contents."""
        try:
            return "bytes", contents(self._bytes(number))
        except Poisoned as error:
            return "failed", error.number

    def small(self, numbers: list[int]) -> list[bytes | None]:
        """The contents of storages, None for those that could not be computed or are not there."""
        found = [self._storages.get(number) for number in numbers]
        return [None if held is None or isinstance(held, Failed) else contents(as_bytes(held)) for held in found]

    def has(self, number: int) -> bool:
        """Is there such a storage?"""
        return number in self._storages

    def free(self, numbers: list[int]) -> None:
        """Nobody names these any more."""
        for number in numbers:
            self._storages.pop(number, None)

    def _bytes(self, number: int) -> torch.Tensor:
        found = self._storages.get(number)
        if found is None:
            raise WireError(f"expected the number of a storage, got {number}")
        if isinstance(found, Failed):
            raise Poisoned(found.number)
        if found.numel() != found.untyped_storage().nbytes():  # a call has resized it
            found = self._storages[number] = as_bytes(found)
        return found

    def _tensor(self, described: tuple) -> torch.Tensor:
        number, dtype, sizes, strides, offset, bits = described
        held = self._bytes(number)
        if (
            known_extent(sizes, strides, offset) * dtype.itemsize > held.numel()
            or min((*sizes, *strides, offset), default=0) < 0
        ):
            raise WireError(
                f"expected a tensor within the {held.numel()} bytes of storage {number}, got {described[1:]}"
            )
        return view(held.untyped_storage(), dtype, sizes, strides, offset, bits)

    # ---- recorded calls ----------------------------------------------------------------------------------------------
    def define(self, definitions: list[tuple]) -> None:
        """Calls that plans name by number from now on, in this order."""
        for given in definitions:
            made = Definition(*given)
            functions.called(made.function)  # refuses an unknown one
            self._definitions.append(made)

    def plan(self, records: list[tuple], given: list[tuple], kept: list[int]) -> None:
        """Segments that ``run`` names by number from now on, in this order; see `plans.Plan`."""
        self._plans.append(Plan(self._definitions, records, given, kept))

    def forget(self) -> None:
        """Neither definitions nor plans have a number any more."""
        self._definitions.clear()
        self._plans.clear()

    def run(self, number: int, base: int, positions: bytes, changed: bytes, timed: bool) -> tuple:
        """Run a plan with other numbers at some positions (see `plans.Plan.change`). Outputs that it keeps get
        storages, numbered from ``base`` by the output's index.

        Answers (failures, corrections, times, failed, lost, idle, otherwise): (record, number, kind of error, text);
        what came otherwise than predicted; where ``timed`` (start, end) of each record in ns, None for those that did
        not run; (output, failure's number); (record, failure's number, storage's) of what was not written; how many
        records did not run, or failed; and (calls by a shorter way, calls in place, their bytes).
        """
        plan = self._plans[number]
        plan.change(positions, changed)
        described = plan.described()
        values: list[Any] = [self._or_failed(each) for each in described]
        begun = values[:]
        n_given = len(values)
        times: list[tuple[int, int] | None] = []
        failures: list[tuple] = []
        corrections: list[tuple] = []
        without: list[tuple[int, int]] = []
        idle = 0
        overwritten = self._overwritten
        not_written: dict[int, tuple[int, int]] = {}  # of those, what was to be written here
        drawing, stack = -1, ExitStack()
        repeats = plan.fill() and not timed
        with quiet(), without_what_was_said(), stack:
            k = -1
            while (k := k + 1) < len(plan.steps):
                failed, error = None, None
                if repeats and not overwritten:
                    error, k = self._run_ready(plan, values, k)
                    if k == len(plan.steps):
                        break
                step = plan.steps[k]
                definition = step.definition
                tensors = [values[i] for i in step.inputs]
                begin = step.first
                if error is None:
                    failed = next((t.number for t in tensors if isinstance(t, Failed)), None)
                    if failed is None and overwritten:
                        failed = self._not_written(tensors)
                if failed is None and error is None:
                    if definition.random >= 0 and drawing != definition.random:
                        stack.close()
                        stack.enter_context(self._local.rng(definition.random))
                        drawing = definition.random
                    torch._C._set_grad_enabled(step.grad)
                    try:
                        started = perf_counter_ns()
                        values += results_of(step, tensors, k, corrections, self._device)
                        if timed:
                            times.append((started, perf_counter_ns()))
                    except Exception as raised:  # noqa: BLE001 - told to the client, who raises it
                        error = raised
                    else:
                        if repeats and step.as_told:
                            make_ready(plan, k, self._device)
                if error is not None:
                    self._failures += 1
                    failed = self._failures
                    failures.append((k, failed, type(error).__name__, str(error)))
                if failed is not None:
                    idle += 1
                    if timed:
                        times.append(None)
                    del values[begin:]
                    values += [Failed(failed)] * len(definition.predicted)
                    without += [(i - n_given, failed) for i in range(begin, len(values))]
                    for i in definition.writes:
                        if isinstance(tensors[i], torch.Tensor):
                            at = _address(tensors[i])
                            not_written.setdefault(at, (k, failed))
                            overwritten.setdefault(at, (failed, tensors[i].untyped_storage()))
                tensors.clear()
                for i in step.dying:
                    values[i] = None
        self._keep(plan, values, base)
        lost = self._lost(plan, base, zip(begun, described, strict=True), not_written) if not_written else []
        return failures, corrections, times, without, lost, idle, plan.ready.counted()

    def _keep(self, plan: Plan, values: Sequence[Any], base: int) -> None:
        """Outputs that the plan keeps are storages from now on."""
        for k in plan.kept:
            value = values[len(plan.given) + k]
            self._storages[base + k] = value if isinstance(value, Failed) else as_bytes(value)

    def _lost(
        self, plan: Plan, base: int, begun: Iterable[tuple[Any, tuple]], not_written: dict[int, tuple[int, int]]
    ) -> list[tuple[int, int, int]]:
        """(record, failure's number, storage's) of what was not written; 0 for a storage that nobody names."""
        numbers = {_address(t): each[0] for t, each in begun}
        numbers.update((_address(self._storages[base + k]), base + k) for k in plan.kept)
        return [(k, failed, numbers.get(at, 0)) for at, (k, failed) in not_written.items()]

    @staticmethod
    def _run_ready(plan: Plan, values: list[Any], k: int) -> tuple[Exception | None, int]:
        """Run what is ready from call ``k`` on. (what a call raised, its number or that of the first that is not)"""
        try:
            plan.ready.run(values, k, torch._C._set_grad_enabled, Failed)
        except Exception as error:  # noqa: BLE001 - told to the client, who raises it
            return error, plan.ready.at
        return None, plan.ready.at

    def seen(self, failure: int) -> None:
        """What is asked for from now on was recorded when the failures up to this one had been told."""
        for address in [address for address, (number, _) in self._overwritten.items() if number <= failure]:
            del self._overwritten[address]

    def _not_written(self, tensors: Iterable[Any]) -> int | None:
        """The failure because of which one of these is not what it should be."""
        return next((self._overwritten[a][0] for t in tensors if (a := _address(t)) in self._overwritten), None)

    def _or_failed(self, described: tuple) -> Any:
        try:
            return self._tensor(described)
        except Poisoned as error:
            return Failed(error.number)

    # ---- calls that cannot wait --------------------------------------------------------------------------------------
    def call(
        self, base: int, given: list[tuple], function: str, args: tuple, kwargs: dict[str, Any], grad: bool, random: int
    ) -> tuple:
        """Run one call now. New storages are numbered from ``base``.

        Answers ("gave", results, changed): a tensor among the results is ("value", description) or ("given", index);
        changed: (index, description) of those among ``given`` that are another storage, or other sizes, now. Or
        ("raised", kind, text), or ("failed", number) of what was given, or ("cannot", why) for results that no message
        can hold: the call is the client's to run then.
        """
        try:
            tensors = [self._tensor(described) for described in given]
        except Poisoned as error:
            return "failed", error.number
        if self._overwritten and (failed := self._not_written(tensors)) is not None:
            return "failed", failed
        known = {t.untyped_storage()._cdata: described[0] for t, described in zip(tensors, given, strict=True)}
        made = functions.called(function)
        cargs = tuple(filled_in(a, tensors, self._device) for a in args)
        ckwargs = {name: filled_in(a, tensors, self._device) for name, a in kwargs.items()}
        raised: tuple | None = None
        out = None
        with quiet() as inside:
            if any(isinstance(t, torch.Tensor) and t.requires_grad for t in (*cargs, *ckwargs.values())):
                inside.also(knowing_views())
            if random >= 0:
                inside.also(self._local.rng(random))
            torch._C._set_grad_enabled(grad)
            try:
                out = made(*cargs, **ckwargs)
            except Exception as error:  # noqa: BLE001 - told to the client, who raises it
                raised = ("raised", type(error).__name__, str(error))
        numbers = iter(range(base, base + (1 << 30)))
        same = {id(t): k for k, t in enumerate(tensors)}
        try:
            results = None if raised is not None else self._given(out, known, same, numbers)
        except WireError as error:
            return "cannot", str(error)
        changed = []
        for k, (t, described) in enumerate(zip(tensors, given, strict=True)):
            now = self._described(t, known, numbers)
            if now != described:
                changed.append((k, now))
        return raised if raised is not None and not changed else ("gave", results, changed, raised)

    def _given(self, out: Any, known: dict[int, int], same: dict[int, int], numbers: Iterator[int]) -> Any:
        if isinstance(out, torch.Tensor):
            if id(out) in same:
                return "given", same[id(out)]
            if out.layout is not torch.strided or out.is_nested or out.is_quantized:
                return "plain", taken_apart(out, known)
            return "value", self._described(out, known, numbers)
        if isinstance(out, (tuple, list)) and not isinstance(out, torch.Size):
            kind = type(out).__name__ if hasattr(out, "_fields") or type(out) not in (tuple, list) else ""
            return (
                "list" if isinstance(out, list) else "tuple",
                kind,
                [self._given(item, known, same, numbers) for item in out],
            )
        return "constant", out

    def _described(self, t: torch.Tensor, known: dict[int, int], numbers: Iterator[int]) -> tuple:
        key = t.untyped_storage()._cdata
        if key not in known:
            known[key] = next(numbers)
            self._storages[known[key]] = as_bytes(t)
            self._checks.made(known[key])
        return known[key], t.dtype, tuple(t.shape), tuple(t.stride()), t.storage_offset(), _core.view_bits(t)

    # ---- reads -------------------------------------------------------------------------------------------------------
    def fetch(self, described: tuple) -> tuple:
        """A tensor's elements: ("values", strides, bytes) of memory laid out so, or ("failed", number)."""
        try:
            t = self._tensor(described)
        except Poisoned as error:
            return "failed", error.number
        with quiet():
            plain = view(t.untyped_storage(), t.dtype, t.shape, t.stride(), t.storage_offset())  # without its bits
            if plain.numel() and not is_dense(tuple(plain.shape), plain.stride()):
                plain = plain.contiguous()
            span = view(plain.untyped_storage(), plain.dtype, (plain.numel(),), (1,), plain.storage_offset())
            return "values", tuple(plain.stride()), contents(as_bytes(span.clone()))

    # ---- generators and the rest -------------------------------------------------------------------------------------
    def get_state(self, index: int) -> bytes:
        """State of the generator of ``remote_accelerator:index``."""
        return contents(self._local.state(index))

    def set_state(self, index: int, state: bytes) -> None:
        self._local.set_state(index, torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def seed(self, seed: int, besides: list[int]) -> None:
        """Seed all generators but these."""
        self._local.seed(seed, besides)

    def get_generators(self) -> tuple[int | None, list[tuple[int, bytes]]]:
        """The seed, and the states of the generators that were used."""
        seed, states = self._local.generators()
        return seed, [(index, contents(state)) for index, state in states.items()]

    def sync(self) -> None:
        """Return when all is done."""
        self._local.sync()


def _address(t: Any) -> int:
    return t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else 0
