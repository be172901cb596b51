"""The side that has the values: takes a message, does what it asks for in order, and replies (SPEC R1, R3).

A message is a list of requests, the reply a list of their answers. Storages have the numbers that the client gave them;
a tensor is a storage's number and its metadata. What could not be computed is remembered by the number of the failure,
and so is all that depends on it.

One file: each request that computes must leave failures, generators and the numbers of plans as the others expect them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any

import torch

from ..._ext import lazy as _core
from ...base.torch_warnings import Caught, as_from_python, listen, without_what_was_said
from ..execute.ambient import mirrored, take_over
from ..execute.local import LocalExecutor
from ..execute.machine import this_machine
from ..record.arguments import is_dense, quiet
from ..record.predict import knowing_views
from . import functions, hello
from .chosen_passes import PASSES
from .definitions import Definition
from .held_storages import Failed, HeldStorages, Poisoned
from .mirrors import view
from .plan_calls import filled_in, make_ready, results_of
from .plans import Plan
from .results import as_bytes, taken_apart, whole_bytes
from .set_aside import OUT_OF_MEMORY, SetAside, is_out_of_memory, kind_of, unwritten
from .wire import WireError, dumps, loads

__all__ = ["Worker"]


class Worker(HeldStorages):
    """Keeps storages and runs requests. ``device``: ``cpu``, or a CUDA device of its process.

    parcels: contents of storages on the way from one worker to another, or the number of the failure because of which
    there are none, by ticket. Whoever has the workers takes them there. folders: where it may look for files. memory:
    what is set aside for messages.
    """

    def __init__(
        self, device: str = "cpu", parcels: dict[int, bytes | bytearray | int] | None = None,
        folders: Sequence[str] = (), memory: SetAside | None = None,
    ) -> None:  # fmt: skip
        self._local = LocalExecutor(device)
        super().__init__(self._local.device, parcels, folders, memory)
        self._before: dict[int, dict[int, torch.Tensor]] = {}  # states of generators, by the base of what ran ahead
        self._ahead: dict[int, tuple[int, bytes, tuple]] = {}  # its plan, numbers and answer, by the same
        self._asserts = self._device.type != "cpu"  # do its kernels end the process where a value is wrong?
        self._definitions: list[Definition] = []
        self._plans: list[Plan] = []
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
        self._memory.release()
        with quiet():
            found = [self._answer(name, given) for name, *given in self._checks.message(loads(message))]
        self._over = False
        self._memory.short()
        return found

    def _answer(self, name: str, given: list[Any]) -> Any:
        if name not in _HOLDING:
            self._memory.release()
        try:
            return getattr(self, name)(*given)
        except (MemoryError, RuntimeError) as error:
            self._memory.release()
            without = _WITHOUT_MEMORY.get(name)
            if without is None or not is_out_of_memory(error):
                raise
            return without(self, str(error) or "out of memory", *given)

    # ---- the other side ----------------------------------------------------------------------------------------------
    def hello(self, side: tuple) -> tuple:
        """What the client is made of. WireError unless the worker is, too. Answers with that, and the device's kind."""
        hello.check(side, "a program")
        self._checks.greeted = True
        return tuple(hello.this_side()), self._device.type

    def machine(self) -> tuple:
        """What `execute.machine.Machine` says of the device."""
        return tuple(this_machine(self._device))

    def settings(self, given: list[tuple[str, Any]]) -> None:
        """Torch's settings, as they are where the program runs."""
        try:
            take_over([*mirrored(cuda=True), *PASSES], given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise WireError(str(error)) from None

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
        records did not run, or failed; and (calls by a shorter way, calls in place, their bytes,
        calls without Python). What has run ahead with these numbers does not run again.
        """
        ahead = self._ahead.pop(base, None)
        if ahead is None:
            self._nothing_is_ahead()
            return self._ran(number, base, positions, changed, timed)
        del self._before[base]
        plan = self._plans[number]
        plan.change(positions, changed)
        if ahead[:2] == (number, plan.numbers()) and not timed:
            return ahead[2]
        return self._ran(number, base, b"", b"", timed)

    def _nothing_is_ahead(self) -> None:
        self._before.clear()
        self._ahead.clear()

    def speculate(self, number: int, base: int, positions: bytes, changed: bytes) -> tuple | None:
        """`run` what the program is likely to ask for next. None where it cannot be run, which is no error, or where it
        warns: the program is to be warned only of what it does.
        """
        listen()
        draws = {step.definition.random for step in self._plans[number].steps} - {-1}
        self._before[base] = {index: self._local.state(index).clone() for index in draws}
        refused = base in self._checks.refused
        self._checks.refused.discard(base)
        try:
            if not refused and self._may_be_wrong(number):
                with Caught() as caught:
                    answer = as_from_python(lambda: self._ran(number, base, positions, changed, False))
                warned = bool(caught.messages)
                caught.drop()
                if not (warned or answer[0]):
                    self._ahead[base] = number, self._plans[number].numbers(), answer
                return None if warned and not answer[0] else answer
        except (WireError, Warning):  # what it is given was not computed as told; or warnings are errors here
            pass
        self._has_not_run("", number, base, positions, changed)
        return None

    def _may_be_wrong(self, number: int) -> bool:
        """Does a plan that is given wrong values fail by itself, at worst? A GPU's process is lost where its kernels
        are given an index out of range, as by the steps of a loop that come after its end.
        """
        steps = self._plans[number].steps
        return not (self._asserts and any(_LOOKING.search(step.definition.function) for step in steps))

    def _has_not_run(self, _why: str, number: int, _base: int, positions: bytes, changed: bytes) -> None:
        """It has not run. The plan has its numbers nevertheless: the next ones are told as what differs from them."""
        self._plans[number].change(positions, changed)
        self._plans[number].did_not_run()

    def undo(self, base: int) -> None:
        """Let generators be as they were before this was run ahead, if it was, and what came after it."""
        for later, states in reversed(self._before.items()):
            if later >= base:
                for index, state in states.items():
                    self._local.set_state(index, state)
        self._nothing_is_ahead()

    def _ran(self, number: int, base: int, positions: bytes, changed: bytes, timed: bool) -> tuple:
        plan = self._plans[number]
        plan.change(positions, changed)
        described = plan.described()
        short = self._memory.short()
        values: list[Any] = [self._or_failed(each) for each in described]
        begun = values[:]
        times: list[tuple[int, int] | None] = []
        failures: list[tuple] = []
        corrections: list[tuple] = []
        without: list[tuple[int, int]] = []
        idle = 0
        not_written: dict[int, tuple[int, int]] = {}  # of the overwritten storages, what was to be written here
        drawing, stack = -1, ExitStack()
        repeats = plan.fill() and not timed and short is None
        with quiet(), without_what_was_said(), stack:
            k = -1
            while (k := k + 1) < len(plan.steps):
                failed, error = None, None
                if repeats and not self._overwritten:
                    error, k = self._run_ready(plan, values, k)
                    if k == len(plan.steps):
                        break
                step = plan.steps[k]
                definition = step.definition
                tensors = [values[i] for i in step.inputs]
                if error is None:
                    failed = self._failed_before(tensors)
                    error = short if failed is None else None
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
                    failed = self._number_failure(k, error, failures)
                if failed is not None:
                    idle += 1
                    if timed:
                        times.append(None)
                    values[step.first :] = [Failed(failed)] * len(definition.predicted)
                    without += [(i - len(begun), failed) for i in range(step.first, len(values))]
                    self._leave_unwritten([tensors[i] for i in definition.writes], not_written, k, failed)
                tensors.clear()
                for i in step.dying:
                    values[i] = None
        self._keep(plan, values, base)
        lost = self._lost(plan, base, zip(begun, described, strict=True), not_written) if not_written else []
        return failures, corrections, times, without, lost, idle, plan.ready.counted()

    def _number_failure(self, step: int, error: Exception, failures: list[tuple]) -> int:
        self._failures += 1
        failures.append((step, self._failures, kind_of(error), str(error)))
        return self._failures

    def _failed_before(self, tensors: list[Any]) -> int | None:
        """The number of the failure for which one of a step's inputs is not there, or does not hold what it should."""
        failed = next((t.number for t in tensors if isinstance(t, Failed)), None)
        return self._not_written(tensors) if failed is None and self._overwritten else failed

    def _leave_unwritten(
        self, targets: list[Any], not_written: dict[int, tuple[int, int]], k: int, failed: int
    ) -> None:
        """Note what step ``k`` should have written to, and did not."""
        for target in targets:
            if isinstance(target, torch.Tensor):
                at = _address(target)
                not_written.setdefault(at, (k, failed))
                self._overwritten.setdefault(at, (failed, target.untyped_storage()))

    def _run_without_memory(
        self, why: str, number: int, base: int, positions: bytes, changed: bytes, timed: bool
    ) -> tuple:
        """What `run` answers where there is no memory for it: that nothing of the plan was computed or written."""
        self._has_not_run(why, number, base, positions, changed)
        plan = self._plans[number]
        self._failures += 1
        failed, n = self._failures, len(plan.steps)
        outputs = sum(len(step.definition.predicted) for step in plan.steps)
        for k in plan.kept:
            self._storages[base + k] = Failed(failed)
        lost, described = [], plan.described()
        for i, k in unwritten(plan).items():
            held = self._storages[described[i][0]]
            if isinstance(held, torch.Tensor):
                self._overwritten.setdefault(_address(held), (failed, held.untyped_storage()))
                lost.append((k, failed, described[i][0]))
        times = [None] * n if timed else []
        without = [(k, failed) for k in range(outputs)]
        return [(0, failed, OUT_OF_MEMORY, why)], [], times, without, lost, n, plan.ready.counted()

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

        Answers ("gave", results, changed, raised): a tensor among the results is ("value", description) or ("given",
        index); changed: (index, description) of those among ``given`` that are another storage, or other sizes, now;
        raised: None, or ("raised", kind, text), which is all of the answer where there is no memory for the call. Or
        ("failed", number) of what was given, or ("cannot", why) for results that no message can hold: the call is the
        client's to run then.
        """
        try:
            tensors = [self._tensor(described) for described in given]
        except Poisoned as error:
            return "failed", error.number
        if self._overwritten and (failed := self._not_written(tensors)) is not None:
            return "failed", failed
        self._memory.hold()
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
                raised = ("raised", kind_of(error), str(error))
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
        return "gave", results, changed, raised

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
                plain = plain.clone()  # laid out as every copy that keeps the format
            span = view(plain.untyped_storage(), plain.dtype, (plain.numel(),), (1,), plain.storage_offset())
            return "values", tuple(plain.stride()), whole_bytes(as_bytes(span.clone()))

    # ---- generators and the rest -------------------------------------------------------------------------------------
    def get_state(self, index: int) -> bytes:
        """State of the generator of ``remote_accelerator:index``."""
        return whole_bytes(self._local.state(index))

    def set_state(self, index: int, state: bytes) -> None:
        self._local.set_state(index, torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def seed(self, seed: int, besides: list[int]) -> None:
        """Seed all generators but these."""
        self._local.seed(seed, besides)

    def get_generators(self) -> tuple[int | None, list[tuple[int, bytes]]]:
        """The seed, and the states of the generators that were used."""
        seed, states = self._local.generators()
        return seed, [(index, whole_bytes(state)) for index, state in states.items()]

    def sync(self) -> None:
        """Return when all is done."""
        self._local.sync()


#: Functions whose kernels look at values on a GPU, and end what its process does there where they are wrong.
_LOOKING = re.compile(
    r"assert|bernoulli|bincount|binomial|cross_entropy|ctc_loss|embedding|gather|getitem|histogram|index|interleave"
    r"|margin_loss|multinomial|nll|one_hot|poisson|put|scatter|segment|setitem|take|unpool"
)
#: Requests that make values, or take next to no memory; all others may take what is set aside.
_HOLDING = frozenset("call copy fill free give pack reserve run seen small speculate take unpack upload".split())
#: What a request is answered with where there is no memory for it, given why. Others must not fail.
_WITHOUT_MEMORY: dict[str, Callable[..., Any]] = {
    "call": lambda _worker, why, *_given: ("raised", OUT_OF_MEMORY, why),
    "digest": lambda _worker, _why, numbers: [None] * len(numbers),
    "fetch": lambda _worker, why, _described: ("memory", why),
    "run": Worker._run_without_memory,
    "small": lambda _worker, _why, numbers: [None] * len(numbers),
    "speculate": Worker._has_not_run,
    "storage": lambda _worker, why, _number: ("memory", why),
}


def _address(t: Any) -> int:
    return t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else 0
