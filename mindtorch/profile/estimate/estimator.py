"""`Estimator`: what a program would do, counted while it runs without data; the same report as a measured profile's.

Ops come from the ledger (`_ext.ledger`), in program order and at the dispatch level, as a measured profile sees them.
Time is what `mindtorch.profile.cost.about` says of each distinct call; memory is what storages take from birth to
death.
"""

from __future__ import annotations

import functools
import gc
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch

from mindtorch import ops
from mindtorch._ext import context, ledger
from mindtorch._ext import lazy as _core
from mindtorch._ext.opinfo import Op
from mindtorch.base.children import ChildWatch
from mindtorch.base.clusters import Cluster
from mindtorch.base.words import counted
from mindtorch.devices.lazy_device import place_of
from mindtorch.engine import semantics
from mindtorch.engine.execute import values
from mindtorch.engine.record import predict
from mindtorch.engine.semantics import modules, phases
from mindtorch.ops.op_row import FREE_TAGS
from mindtorch.profile.cost import about
from mindtorch.profile.cost.collectives import links_of
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.cost.work import Work, work
from mindtorch.profile.estimate import communication, exchanged, known, saved
from mindtorch.profile.estimate.accelerator import Accelerator, compiled_calls
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.memory_timeline import MemoryTimeline
from mindtorch.profile.measure import peak
from mindtorch.profile.measure.collect import describe
from mindtorch.profile.measure.run import Run
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.recording import STAGES, Places, Recording, Stage
from mindtorch.profile.report.rows import CALLS, NS, PHASE, SIG, as_table, exact


class Estimator(Run):
    """Note everything that runs in this thread within the ``with`` block; nothing of it is computed.

    target: whose speed and memory the program is held against, and what it is told about CUDA; None: there is no
        CUDA device, and no times are predicted.
    devices: how many such devices the program is told there are.
    assume: what a value is taken for that nobody knows, where the program decides on it.
    cluster: which rank of how many the program is; None: a process on its own.
    warmup, steps: as `Profiler`'s.
    """

    def __init__(
        self,
        *,
        target: Target | None = None,
        devices: int = 1,
        warmup: int = 0,
        steps: int | None = None,
        assume: float = 0.0,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__("init", target, warmup, steps)
        self.assume, self.cluster = assume, cluster
        gpu = target is not None and target.key != "cpu"
        self._accelerator = None
        if target is not None and gpu:
            self._accelerator = Accelerator(
                target.name, int(target.memory_bytes), devices, target.capability, target.processors, target.device
            )
        self.memory: MemoryTimeline | None = None
        self._card: dict[str, Any] | None = None  # what the target holds for it
        self._place = 0  # the ledger's number of that device
        self._precision: about.Precision | None = None  # what the program allows of float32
        self._forecast: Forecast | None = None
        self._bytes = [0]  # by signature: what a measured profile calls the bytes of one call
        self._ops: list[Op | None] = [None]  # by signature, as the next two
        self._flops: list[tuple[int, int] | None] = [(0, 0)]
        self._works: list[Work | None] = [None]
        self._started = self._stopped = 0
        self._mark_error: BaseException | None = None
        self._signatures: dict[int, int] = {}  # of the tape → of the recording
        self._begun = 0  # where in the ledger the stage did
        self._stretches: dict[str, list[tuple[int, int]]] = {}  # stage → positions in the ledger, from and until
        self._marks: list[tuple[str, int]] = []
        self._assumed: list[dict[str, Any]] = []
        self._unwritten: list[str] = []
        self._compiled = 0  # calls of torch.compile
        self._timed: list[communication.Timed] = []  # collectives
        self._numbers: dict[exchanged.Call, int] = {}  # of distinct ones: their signatures
        self._stack = ExitStack()

    # ---- the block

    def __enter__(self) -> Estimator:
        stack = self._stack
        if not gc.get_freeze_count():
            gc.freeze()  # looking for garbage among a million objects of imported modules takes longer than many a run
            stack.callback(gc.unfreeze)
        stack.enter_context(estimating(self._accelerator, self.assume, self.cluster))
        self.children = stack.enter_context(ChildWatch()).found
        semantics.install()
        stack.callback(semantics.uninstall)
        modules.add_listener(self._saw_root)
        stack.callback(modules.remove_listener, self._saw_root)
        self._started = time.perf_counter_ns()
        ledger.open(values.tape, self._on_mark)
        stack.callback(self._close)
        phases.add_listener(self._saw_optimizer)
        stack.callback(phases.remove_listener, self._saw_optimizer)
        for root, path in modules.roots():
            self._saw_root(root, path)
        for optimizer in phases.optimizers():
            self._saw_optimizer(optimizer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupted = self.interrupted or (kind is not None and issubclass(kind, KeyboardInterrupt))
        self._stack.close()

    def _close(self) -> None:
        """Read the ledger while the calls that it names are still known."""
        self._stopped = time.perf_counter_ns()
        self.book.refresh()
        peak.say_roles()
        self._assumed = known.assumed()
        self._unwritten = list(saved.unwritten)
        self._compiled = compiled_calls()
        self._precision = about.precision()
        calls, blocks = ledger.close()
        self._mark_error = ledger.failure()
        found = self.memory = MemoryTimeline(calls, blocks, self._marks)
        if self._on_accelerator():
            assert self._accelerator is not None
            self._place = place_of(found.device)
            self._card = self._accelerator.devices.of(self._place, (calls, blocks)).report()
        if not self._announced and not self.frozen_ns:
            self.iterations.finish(len(found.calls))
        if self._stage == "rest":
            self._freeze()
        self._end_stage(len(found.calls), "rest")
        if self.cluster is not None:
            self._communicate(found, self.cluster)
        collects = gc.isenabled()
        gc.disable()  # many small tuples, no garbage
        try:
            self._forecast = self._predict(found)
            for stage in STAGES:  # the peaks that remain are those of the furthest: it is the one reported
                if stage in self._stretches and stage != "rest":
                    self._sum_up(found, stage)
        finally:
            if collects:
                gc.enable()

    def _predict(self, found: MemoryTimeline) -> Forecast | None:
        """The times of all distinct calls."""
        if self.target is None:
            return None
        for sig in np.unique(found.calls["sig"]).tolist():
            if sig:
                self._signature(sig)
        return Forecast(self.target, self._works, 0, self._precision, estimated=True, compiled=self._fused)

    def _on_accelerator(self) -> bool:
        """Whether what the program holds is the target's memory, not the host's."""
        assert self.memory is not None
        return self._accelerator is not None and self.memory.device.partition(":")[0] == self._accelerator.kind

    def memory_snapshot(self) -> dict[str, Any] | None:
        """What torch's memory viewer shows; None where the program holds nothing of an accelerator's. Of a run that has
        ended."""
        if not self._on_accelerator():
            return None
        from mindtorch.profile.estimate.memory_snapshot import Snapshot

        assert self.memory is not None and self._accelerator is not None
        return Snapshot(self.memory, self._accelerator.devices, self._place).facts()

    # ---- while it runs

    def stage(self, name: str) -> None:
        """For a program that knows its own iterations: see `Profiler.stage`."""
        self._announce(ledger.position())
        self._end_stage(ledger.position(), name)

    def _on_mark(self, kind: str, at: int, which: int) -> None:
        self._marks.append((kind, at))
        if kind == "backward end":
            peak.say_roles()
        elif not self._announced:
            self._follow(kind, at, which)

    def _begin_stage(self, name: str, at: int) -> None:
        self._end_stage(at, name)

    def _freeze(self) -> None:
        if not self.frozen_ns:
            self.frozen_ns = time.perf_counter_ns()
            ledger.stop()

    def module_order(self) -> dict[int, int]:
        return {} if self.memory is None else self.memory.order

    def _end_stage(self, at: int, following: str) -> None:
        self._stretches.setdefault(self._stage, []).append((self._begun, at))
        self._stage, self._begun = following, at

    def _hold(self, t: torch.Tensor) -> None:
        handle = _core.get_handle(t)
        if handle is not None:
            ledger.hold(handle)

    # ---- afterwards

    def _sum_up(self, found: MemoryTimeline, stage: str) -> None:
        stretches = self._stretches[stage]
        calls = np.concatenate([found.calls[first:last] for first, last in stretches])
        entered = calls[(calls["phase"] & ledger.ENTERED) != 0]["module"]
        entries = {int(m): int(n) for m, n in zip(*np.unique(entered, return_counts=True), strict=True)}
        rows = self._rows(calls[calls["sig"] != 0])
        made = int(rows[:, CALLS].sum())
        if waits := self._waits(rows):
            rows = as_table([*map(tuple, rows.tolist()), *waits])
        peak_bytes = max(found.peak(first, last) for first, last in stretches)
        self.stages[stage] = Stage(rows, 0, entries, peak_bytes, Places(made))
        self.peaks = found.peaks_by("module", stretches)
        by_phase = found.peaks_by("phase", stretches)
        self.phase_peaks = [by_phase.get(i, 0) for i in range(len(context.PHASES))]

    def _communicate(self, found: MemoryTimeline, cluster: Cluster) -> None:
        """When collectives run beside the computation; what they keep it waiting is their time in the tables."""
        sigs, which = np.unique(found.calls["sig"], return_inverse=True)
        numbers = [0 if sig == 0 else self._signature(sig) for sig in sigs.tolist()]
        forecast = self._predict(found)
        times = [0.0 if forecast is None else forecast.cost(number).seconds for number in range(len(self._works))]
        computed = communication.before_each(np.array(times)[numbers][which])
        links = None if self.target is None else links_of(self.target.key, cluster.interconnect)
        self._timed = communication.simulate(
            exchanged.calls, exchanged.events, computed,
            functools.cache(lambda call: communication.seconds_of(call, links, cluster)),
        )  # fmt: skip
        mine = self._of_reached(self._timed)
        # By distinct call, those of the stage that is reported: the times in its tables sum to theirs.
        exposed_of = communication.mean_exposed(self._timed) | communication.mean_exposed(mine)
        for call, exposed in exposed_of.items():
            if number := self._numbers.get(call):
                self._works[number] = communication.waited(call, exposed)

    def _of_reached(self, timed: list[communication.Timed]) -> list[communication.Timed]:
        """Those of the stage that the report is about."""
        stretches = self._stretches.get(next(s for s in reversed(STAGES[:-1]) if s in self._stretches), [])
        return [t for t in timed if any(first <= t.position < last for first, last in stretches)]

    def _cluster_facts(self) -> dict[str, Any] | None:
        if self.cluster is None:
            return None
        links = None if self.target is None else links_of(self.target.key, self.cluster.interconnect)
        return communication.facts(self._of_reached(self._timed), self.cluster, links)

    def _rows(self, calls: Any) -> Any:
        """The table of the distinct entries of a log of calls: how often each is there, and what it takes."""
        first = calls["sig"].astype(np.uint64) << np.uint64(32) | calls["module"]
        second = calls["location"].astype(np.uint64) << np.uint64(32) | calls["phase"]
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        other = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        new = np.flatnonzero(np.concatenate([[len(order) > 0], other]))
        numbers = np.diff(np.append(new, len(order)))
        distinct = calls[order[new]]
        sigs, which = np.unique(distinct["sig"], return_inverse=True)
        sigs = np.array([self._signature(sig) for sig in sigs.tolist()], int)[which]
        columns = [sigs, distinct["module"], distinct["location"], distinct["phase"], numbers]
        ns = np.rint(self._device(calls, order, new, sigs, numbers) * 1e9)
        nbytes = exact(self._bytes, numbers)[sigs] * numbers
        if ns.sum() < 1 << 62 and nbytes.dtype == np.int64:
            return as_table(np.stack([*columns, ns.astype(np.int64), nbytes], 1))
        return as_table(list(zip(*(c.tolist() for c in columns), map(int, ns), map(int, nbytes), strict=True)))

    @property
    def _fused(self) -> bool:
        return self._compiled > 0 and self.target is not None and self.target.model is None

    def _device(self, calls: Any, order: Any, new: Any, sigs: Any, numbers: Any) -> Any:
        """Seconds of each row on the device. Of a compiled program, ops that stream memory and follow each other in
        forward or backward are one kernel: it takes as long as the longest of them."""
        forecast = self._forecast
        if forecast is None:
            return np.zeros(len(sigs))
        costs = [forecast.cost(number) for number in range(len(self._works))]
        seconds = np.array([cost.seconds for cost in costs])
        if not self._fused or not len(calls):
            return seconds[sigs] * numbers
        own, which = np.unique(calls["sig"], return_inverse=True)
        signatures = np.array([self._signature(sig) for sig in own.tolist()], int)[which]
        each = seconds[signatures]
        streams = np.array([cost.family == "stream" for cost in costs])[signatures]
        streams &= (calls["phase"] & (ledger.ENTERED - 1)) != context.PHASES.index("optimizer")
        there = np.flatnonzero(each > 0)  # views are no kernels
        chained, times = streams[there], each[there]
        chain = np.cumsum(~(chained & np.concatenate([[False], chained[:-1]])))
        longest = np.zeros(int(chain.max(initial=0)) + 1)
        np.maximum.at(longest, chain, times)
        total = np.zeros_like(longest)
        np.add.at(total, chain, times)
        each[there] = times * longest[chain] / total[chain]
        return np.add.reduceat(each[order], new) if len(new) else np.zeros(0)

    def _waits(self, rows: Any) -> list[tuple[int, ...]]:
        """Rows of the time in which the device waits for the host: a phase takes the longer of the two."""
        forecast = self._forecast
        if forecast is None or forecast.target.model is not None:
            return []
        found: list[tuple[int, ...]] = []
        for phase in np.unique(rows[:, PHASE]).tolist():
            mine = rows[rows[:, PHASE] == phase]
            host = sum(calls * forecast.host(sig, phase) for sig, calls in mine[:, [SIG, CALLS]].tolist())
            wait = int(host * 1e9 - int(mine[:, NS].sum()))
            if wait > 0:
                found.append((0, 0, 0, int(phase), 1, wait, 0))
        return found

    def _signature(self, sig: int) -> int:
        """The report's number for a call of the tape; its FLOPs and its work are worked out the first time."""
        number = self._signatures.get(sig)
        if number is not None:
            return number
        name = ledger.named(sig)
        flops: tuple[int, int] | None = (0, 0)
        done: Work | None = None
        nbytes = 0
        if name is not None and (call := exchanged.call_named(name)) is not None:
            op = _bookkeeping(communication.op_name(call))
            self._numbers[call] = len(self._bytes)
        elif name is not None and name not in known.ran:
            op = _bookkeeping(name)
        else:
            func, args, kwargs, out = call_of(sig) if name is None else known.ran[name]
            op = describe(func)
            done = work(func, args, kwargs, out)
            if not op.is_free:
                flops = None if done.flops is None else (done.flops, done.macs)
            nbytes = _allocated(op, args, out)
        self._ops.append(op)
        self._flops.append(flops)
        self._works.append(done)
        self._bytes.append(nbytes)
        self._signatures[sig] = len(self._bytes) - 1
        return self._signatures[sig]

    def recording(self) -> Recording:
        memory, target = self.memory, self.target
        assert memory is not None, "after the block"
        return Recording(
            mode="estimate",
            device=memory.device if target is None else target.name,
            stages=self.stages,
            ops=self._ops,
            flops=self._flops,
            works=self._works,
            names=self.names,
            parameters=self._parameters(),
            module_peaks=self.peaks,
            phase_peaks=self.phase_peaks,
            memory=memory.report(None if target is None else int(target.memory_bytes), self._card),  # of all stages
            memory_snapshot=self.memory_snapshot,
            marks=self.marks,
            warmup=self.warmup,
            steps=self.steps,
            announced=self._announced,
            started=self._started,
            stopped=self._stopped,
            frozen=self.frozen_ns,
            children=self.children,
            mark_error=self._mark_error,
            interrupted=self.interrupted,
            exit_code=self.exit_code,
            target=target,
            precision=self._precision,
            fused=self._fused,
            assumed=self._assumed,
            notes=self._warnings(),
            cluster=self._cluster_facts(),
        )

    def _warnings(self) -> list[str]:
        found = []
        sized = [row for row in self._assumed if ops.about(f"aten::{row['op']}").sizes_from_values]
        if sized:
            lines = ", ".join(f"{row['file'].rpartition('/')[2]}:{row['line']}" for row in sized[:5])
            found.append(
                f"unknown values decided how much there is to do ({lines}): work may be missing; --assume 1 "
                "takes the most, instead of the least"
            )
        if self._compiled:
            found.append(
                f"torch.compile ({counted(self._compiled, 'call')}): FLOPs, bytes and memory are counted op by op, "
                "though it moves fewer bytes and holds less (flex_attention: no scores)"
                + ("; the time is that of fused kernels, of the whole program" if self._fused else "")
            )
        if self._unwritten:
            found.append(f"not written, as there is nothing to put into them: {', '.join(self._unwritten[:5])}")
        assert self.memory is not None
        others = {label: peak for label, peak in self.memory.others.items() if label not in ("cpu", "meta")}
        if others:
            peaks = ", ".join(f"{label} {peak} bytes" for label, peak in others.items())
            found.append(f"memory is that of {self.memory.device}; other devices hold at most: {peaks}")
        return found


def _bookkeeping(name: str) -> Op:
    tag = ops.about(name).tag
    return Op(None, None, name, tag, False, tag in FREE_TAGS, False, False)


def call_of(sig: int) -> tuple[Any, tuple, dict[str, Any], Any]:
    """(function, args, kwargs, result) of an interned call, with torch's own meta tensors for the tensors."""
    inputs = tuple(predict.meta_like(values.tape.interner.meta(m)) for m in _core.input_metas(sig))
    args, kwargs = _core.call_template(sig, inputs, torch.device("meta"))
    outs = [predict.meta_like(_core.sig_output_meta(sig, i)) for i in range(_core.sig_outputs(sig))]
    return _core.sig_info(sig).func, args, kwargs, outs[0] if len(outs) == 1 else outs


def _allocated(op: Op, args: tuple, out: Any) -> int:
    """Bytes that one call makes anew, or writes in place: what a measured profile calls the bytes of an op."""
    if op.category == "view" and not ops.about(op.name).adopts:
        return 0  # of _unsafe_view the schema does not say that it makes nothing
    if op.allocates:
        made = out if isinstance(out, (list, tuple)) else [out]
        return sum(t.numel() * t.element_size() for t in made if isinstance(t, torch.Tensor))
    if op.writes and args and isinstance(args[0], torch.Tensor):
        return args[0].nbytes
    return 0
