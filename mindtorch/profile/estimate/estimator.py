"""`Estimator`: what a program would do, counted while it runs without data; the same report as a measured profile's.

Ops come from the ledger (`_ext.ledger`), in program order and at the dispatch level, as a measured profile sees them.
Time is what `mindtorch.profile.cost.op_time` says of each distinct call; memory is what storages take from birth to
death.

One file: what is noted while the program runs, and what is made of it afterwards, are the same dozen fields.
"""

from __future__ import annotations

import functools
import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from mindtorch import ops
from mindtorch._ext import context, ledger
from mindtorch._ext import lazy as _core
from mindtorch.base.children import ChildWatch
from mindtorch.base.clusters import Cluster
from mindtorch.base.file_names import short_names
from mindtorch.base.import_hooks import without_collecting
from mindtorch.base.words import counted
from mindtorch.devices.lazy_device import place_of
from mindtorch.engine import semantics
from mindtorch.engine.execute import values
from mindtorch.engine.semantics import generation, modules, owners, phases
from mindtorch.profile.cost import op_time
from mindtorch.profile.cost.collectives import links_of
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.estimate import (
    communication,
    compiling,
    data_loading,
    deciding,
    draws,
    exchanged,
    known_values,
    nccl_memory,
    out_of_memory,
    private_files,
    process_groups,
    scratch,
    transfers,
    waiting_loops,
)
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.distinct_calls import DistinctCalls
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.host_time import HostTime, reading, reads_of
from mindtorch.profile.estimate.memory_timeline import WITH_GRADIENTS, MemoryTimeline, module_calls
from mindtorch.profile.estimate.on_host import OnHost
from mindtorch.profile.estimate.sampled_calls import SamplingEstimate
from mindtorch.profile.measure import peak
from mindtorch.profile.measure.iterations import from_end_to_end
from mindtorch.profile.measure.observed_run import Run, between
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.recording import STAGES, Places, Recording, Repeated, Stage, furthest, of_the_loop
from mindtorch.profile.report.rows import CALLS, PHASE, SIG, as_table, grouped, told_as

#: How unknown values decide sizes, and in which operations.
_SIZED = {
    "unknown masks keep all rows": {"index", "masked_select", "nonzero"},
    "unknown elements made sparse are not 0": {name.removeprefix("aten::") for name in deciding.TO_SPARSE},
    "unknown elements are all equal, so that one is unique": {"unique_dim", "unique_consecutive", "_unique2"},
    "unknown counts have the value of --assume": {"bincount", "repeat_interleave"},
}
_MUCH = 1 << 20  # bytes


class Estimator(Run):
    """Note everything that runs in this thread within the ``with`` block; nothing of it is computed.

    target: whose speed and memory the program is held against, and what it is told about CUDA; None: there is no
        CUDA device, and no times are predicted.
    devices: how many such devices the program is told there are.
    assume: the value assumed for tensor elements the estimate cannot know; None: 0, False, and 1e-12 for floats.
    balanced: whether choices among unknown scores pick all candidates equally often: tokens their experts.
    oom: ``raise``: raise torch.OutOfMemoryError at the line where the program does not fit; ``report``: report it.
    cluster: which rank of how many the program is; None: a process on its own.
    warmup, steps, lines, hits: as `Profiler`'s.
    """

    def __init__(
        self,
        *,
        target: Target | None = None,
        devices: int = 1,
        warmup: int = 0,
        steps: int | None = None,
        assume: float | None = None,
        cluster: Cluster | None = None,
        balanced: bool = False,
        oom: str = "report",
        **noting: bool,
    ) -> None:
        super().__init__("init", target, warmup, steps, **noting)
        self.sampling = self._samples = SamplingEstimate()
        self.assume, self.cluster, self.balanced, self.oom = assume, cluster, balanced, oom
        gpu = target is not None and target.key != "cpu"
        self._accelerator = None
        if target is not None and gpu:
            self._accelerator = Accelerator(
                target.name, int(target.memory_bytes), devices, target.capability, target.processors, target.device,
                dict if cluster is None else functools.partial(nccl_memory.held, target, cluster),
            )  # fmt: skip
        self.memory: MemoryTimeline | None = None
        self._card: dict[str, Any] | None = None  # what the target holds for it
        self._place = 0  # the ledger's number of that device
        self._precision: op_time.Precision | None = None  # what the program allows of float32
        self._forecast: Forecast | None = None
        self._calls = DistinctCalls()
        self._started = self._stopped = 0
        self._mark_error: BaseException | None = None
        self._begun = 0  # where in the ledger the stage did
        self._stretches: dict[str, list[tuple[int, int]]] = {}  # stage → positions in the ledger, from and until
        self._ops_at: dict[str, Any] = {}  # stage → positions of its ops, see `_find_ops`
        self._marks: list[tuple[str, int]] = []
        self._assumed: list[dict[str, Any]] = []
        self._waited: list[str] = []  # what is said of loops that unknown values end
        self._recurrent: set[str] = set()  # which kinds of such layers models have on the accelerator
        self._left_alone: dict[str, list[str]] = {}
        self._compiled = 0  # calls of torch.compile
        self._fused: frozenset[int] = frozenset()  # numbers of calls that are there in what was compiled
        self._apart: frozenset[int] = frozenset()  # numbers of calls on the CPU, beside those on the accelerator
        self._how: Any = None  # of each entry of the log: see `compiling.flags`, `data_loading.flags`
        self._beside: Counter[int] = Counter()  # calls in workers of DataLoaders, of the stage reported, by number
        self._differ = False  # random integers from those of a run
        self._on_host = OnHost(gpu)
        self._host_time, self._runs = HostTime(), False
        self._timed: list[communication.Timed] = []  # collectives of the stage that is reported

    # ---- the block

    def _begin(self, undo: ExitStack) -> None:
        if not gc.get_freeze_count():
            undo.callback(gc.unfreeze)
            gc.freeze()  # looking for garbage among a million objects of imported modules takes longer than many a run
        undo.enter_context(estimating(self._accelerator, self.assume, self.cluster, self.balanced))
        self.children = undo.enter_context(ChildWatch()).found
        undo.enter_context(between(semantics.install, semantics.uninstall))
        undo.enter_context(self.registered)
        for listener in (self._saw_root, compiling.saw_root):
            undo.enter_context(between(modules.add_listener, modules.remove_listener, listener))
        self._started = time.perf_counter_ns()
        undo.callback(ledger.close)
        ledger.open(values.tape, self._on_mark, scratch.SHRINKING)
        undo.callback(lambda: self._close() if self._runs else None)
        if self.oom == "raise" and self._accelerator is not None:
            out_of_memory.limit(self._accelerator)
        undo.enter_context(self._host_time)
        data_loading.on_fetch(self._host_time.loads)
        undo.enter_context(self.lines)
        undo.enter_context(between(phases.listeners.append, phases.listeners.remove, self._saw_optimizer))
        self._saw_what_is_there()
        self._runs = True

    def _close(self) -> None:
        """Read the ledger while the calls that it names are still known."""
        self._stopped = time.perf_counter_ns()
        with without_collecting():
            self.sampling.close()
        self.book.refresh()
        generation.over()
        context.forget_loss()
        self.registered.look()
        peak.say_roles(self.registered)
        self._assumed, self._differ, self._waited = known_values.assumed(), draws.differ(), list(waiting_loops.said())
        self._left_alone = private_files.left_alone()
        self._compiled = compiling.number()
        self._precision = op_time.precision()
        calls, blocks = ledger.close()
        self._mark_error = ledger.failure()
        found = self.memory = MemoryTimeline(calls, blocks, self._marks)
        if self.target is not None:
            self._how = data_loading.flags(found.calls)
            if self._accelerator is None:  # the program's own thread is the target
                self._how &= data_loading.BESIDE
            if self.target.model is None:
                self._how |= compiling.flags(found.calls)
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
        with without_collecting():
            self._forecast = self._predict(found)
            reads, self._ops_at = reading(found.calls), self._find_ops(found.calls)
            for stage in STAGES:  # the peaks that remain are those of the furthest: it is the one reported
                if stage in self._stretches and stage != "rest":
                    self._sum_up(found, stage, reads)
            self._samples.name(calls, self._calls.name)

    def _predict(self, found: MemoryTimeline) -> Forecast | None:
        """The times of all distinct calls."""
        if self.target is None:
            return None
        for sig in np.unique(found.calls["sig"]).tolist():
            if sig:
                self._calls.number(sig)
        if self._how is not None:
            fused = np.unique(found.calls["sig"][(self._how & compiling.FUSED) != 0]).tolist()
            self._fused = frozenset(self._calls.number(sig) for sig in fused if sig)
        self._apart = frozenset(self._calls.on_host) if self._on_accelerator() else frozenset()
        return Forecast(
            self.target, self._calls.works, 0, self._precision,
            estimated=True, fused=self._fused, on_host=self._apart,
        )  # fmt: skip

    def _on_accelerator(self) -> bool:
        """Whether what the program holds is the target's memory, not the host's."""
        assert self.memory is not None
        kind = self.memory.device.partition(":")[0]
        return self._accelerator is not None and kind in ("cuda", self._accelerator.kind)  # "cuda" means an NPU, too

    def _capacity(self) -> int | None:
        """Bytes that what the program holds has to fit into; None: nobody knows, as it is on the target's host."""
        assert self.memory is not None
        if self.target is None or (self._accelerator is not None and self.memory.device == "cpu"):
            return None
        return int(self.target.memory_bytes)

    def memory_snapshot(self) -> dict[str, Any] | None:
        """After the run, what torch's memory viewer shows; None where the program holds nothing of an accelerator's."""
        if not self._on_accelerator():
            return None
        from mindtorch.profile.estimate.memory_snapshot import Snapshot

        assert self.memory is not None and self._accelerator is not None
        return Snapshot(self.memory, self._accelerator.devices, self._place).facts()

    # ---- while it runs

    def _saw_root(self, root: torch.nn.Module, path: int) -> None:
        with self._marking:
            super()._saw_root(root, path)
            self._on_host.saw(root, path)
            layers = (each for each in owners.modules(root) if isinstance(each, torch.nn.RNNBase))
            self._recurrent.update(each.mode for each in layers if any(p.is_cuda for p in owners.held(each)[0]))

    def stage(self, name: str) -> None:
        """For a program that knows its own iterations: see `Profiler.stage`."""
        self._announce(ledger.position())
        self._end_stage(ledger.position(), name)

    def _on_mark(self, kind: str, at: int, which: int) -> None:
        with self._marking:
            self._marks.append((WITH_GRADIENTS if kind == "enter" and torch.is_grad_enabled() else kind, at))
            if kind == "enter":
                self._on_host.called(which)
            self.book.marked(kind)
            peak.say_roles(self.registered) if kind == "backward end" else self._follow(kind, at, which)
        self.sampling.mark(kind, which)

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
        self._host_time.ends(self._stage)
        self._ends(self._stage)
        self._stage, self._begun = following, at

    def _hold(self, t: torch.Tensor) -> None:
        handle = _core.get_handle(t)
        if handle is not None:
            ledger.hold(handle)

    # ---- afterwards

    def _find_ops(self, calls: Any) -> dict[str, Any]:
        """Positions of the ops of each stage. The loop's first batch is with the loop, as in the report: what the host
        takes to launch it is of the same phase as what the device then waits for."""
        at = {stage: np.concatenate([np.arange(*stretch) for stretch in found])
              for stage, found in self._stretches.items()}  # fmt: skip
        at = {stage: found[calls["sig"][found] != 0] for stage, found in at.items()}
        first, moved = of_the_loop({stage: calls["location"][found] for stage, found in at.items()}, self._announced)
        if "init" in at and len(moved):
            again = np.isin(calls["location"][at["init"]], moved)
            at[first], at["init"] = np.concatenate([at["init"][again], at[first]]), at["init"][~again]
        return at

    def _sum_up(self, found: MemoryTimeline, stage: str, reads: Any) -> None:
        stretches, at = self._stretches[stage], self._ops_at[stage]
        calls = np.concatenate([found.calls[first:last] for first, last in stretches])
        entries = module_calls(calls)
        rows, launched = self._times(found, at, reads)
        if self._how is not None:
            in_workers = self._calls.numbers(found.calls[at][(self._how[at] & data_loading.BESIDE) != 0])
            self._beside = Counter(in_workers.tolist())
        count, since, until = from_end_to_end(self.marks, stretches)
        repeated = None
        if count and self._forecast:
            table, launching = self._times(found, at[(at >= since) & (at < until)], reads)
            repeated = Repeated(count, grouped(told_as(table), SIG, PHASE), launching)
        peak_bytes = max(found.peak(first, last) for first, last in stretches)
        by_line = reads_of(self.marks, self.iterations.began, stretches)
        self.stages[stage] = Stage(
            rows, 0, *entries, peak_bytes, Places(len(at)), reads=by_line, launched=launched, repeated=repeated
        )
        self.peaks = found.peaks_by("module", stretches)
        by_phase = found.peaks_by("phase", stretches)
        self.phase_peaks = [by_phase.get(i, 0) for i in range(len(context.PHASES))]

    def _times(self, found: MemoryTimeline, at: Any, reads: Any) -> tuple[Any, Mapping[int, float]]:
        """The table of the calls at these positions, with the waits of the device; what the host takes, by phase."""
        calls, how = found.calls[at], None if self._how is None else self._how[at]
        rows = self._calls.table(calls, self._forecast, how)
        idle, launched = self._calls.waits(rows, calls, self._forecast, how, reads[at])
        return as_table([*map(tuple, rows.tolist()), *idle]) if idle else rows, launched

    def _communicate(self, found: MemoryTimeline, cluster: Cluster) -> None:
        """When collectives run beside the computation; what they keep it waiting is their time in the tables."""
        sigs, which = np.unique(found.calls["sig"], return_inverse=True)
        numbers = [0 if sig == 0 else self._calls.number(sig) for sig in sigs.tolist()]
        forecast = self._predict(found)
        times = [0.0 if forecast is None else forecast.cost(number).seconds for number in range(len(self._calls.works))]
        seconds = np.array(times)[numbers][which]
        if self._how is not None:
            seconds[(self._how & data_loading.BESIDE) != 0] = 0.0
        computed = communication.before_each(seconds)
        links = None if self.target is None else links_of(self.target.key, cluster.interconnect)
        timed = communication.simulate(
            exchanged.calls, exchanged.events, computed,
            functools.cache(lambda call: communication.seconds_of(call, links, cluster)),
        )  # fmt: skip
        self._timed = communication.of_reached(timed, found.calls, self._stretches, self._announced)
        # By distinct call, those of the stage that is reported: the times in its tables sum to theirs.
        exposed_of = communication.mean_exposed(timed) | communication.mean_exposed(self._timed)
        for call, exposed in exposed_of.items():
            if number := self._calls.collectives.get(call):
                self._calls.works[number] = communication.waited(call, exposed)

    def _cluster_facts(self) -> dict[str, Any] | None:
        if self.cluster is None:
            return None
        links = None if self.target is None else links_of(self.target.key, self.cluster.interconnect)
        return communication.facts(self._timed, self.cluster, links, process_groups.grouped())

    def recording(self) -> Recording:
        memory, target = self.memory, self.target
        assert memory is not None, "after the block"
        held = Recording(
            mode="estimate",
            device=memory.device if target is None else target.name,
            stages=self.stages,
            ops=self._calls.ops,
            flops=self._calls.flops,
            works=self._calls.works,
            names=self.names,
            parameters=self._parameters(),
            module_peaks=self.peaks,
            phase_peaks=self.phase_peaks,
            memory=memory.report(self._capacity(), self._card),  # of all stages
            memory_snapshot=self.memory_snapshot,
            marks=self.marks,
            **self._noted(),
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
            on_host=self._apart,
            assumed=self._assumed,
            left_alone=self._left_alone,
            notes=self._warnings(),
            cluster=self._cluster_facts(),
        )
        held.host = self._host_time.facts(held.reached)
        return held

    def _calls_on_host(self) -> int:
        """Of the stage reported, beside those on the accelerator and those of workers; where they move so much that it
        may matter."""
        reached = furthest(self.stages)
        calls = moved = 0
        beside = self._beside.copy()
        for row in as_table(self.stages[reached].rows).tolist() if reached is not None and self._apart else ():
            if row[SIG] in self._apart and (work := self._calls.works[row[SIG]]) is not None and work.bytes:
                made = row[CALLS] - min(row[CALLS], beside[row[SIG]])
                beside[row[SIG]] -= row[CALLS] - made
                calls, moved = calls + made, moved + made * work.bytes
        return calls if moved >= _MUCH else 0

    def _transferred(self) -> str | None:
        """What is said of copies between host and device in the stage reported."""
        if self.memory is None or self.target is None:
            return None
        moved = communication.of_reached(transfers.made, self.memory.calls, self._stretches, self._announced)
        return transfers.said(moved, self.target)

    def _recurrent_notes(self) -> Iterator[str]:
        if self._accelerator is None or self._accelerator.kind != "cuda" or not self._recurrent:
            return
        ops_there = (op for number, op in enumerate(self._calls.ops) if number not in self._calls.on_host)
        if whole := any(op is not None and op.name == "aten::mkldnn_rnn_layer" for op in ops_there):
            yield (
                "each layer and direction of an LSTM is estimated as one op, which keeps its gates and cell states "
                "for the backward pass; what else cuDNN keeps is unknown"
            )
        if self._recurrent - {"LSTM"} or not whole:
            yield (
                f"{'other ' * whole}recurrent layers are estimated step by step, as torch computes them without cuDNN; "
                "with cuDNN, a layer is one call, which launches fewer kernels"
            )

    def _warnings(self) -> list[str]:
        found = []
        names = short_names(row["file"] for row in self._assumed)
        sized = [row for row in self._assumed if ops.about(f"aten::{row['op']}").sizes_from_values]
        if sized:
            lines = ", ".join(f"{names[row['file']]}:{row['line']}" for row in sized[:5])
            kept = [row for row in sized if row["value"] is not False or row["last"] is not False]
            how = [words for words, kinds in _SIZED.items() if any(row["op"] in kinds for row in kept)]
            if any(row["value"] is False or row["last"] is False for row in sized):
                how.append("unknown integers are all the same number")
            found.append(f"unknown values decided the amount of work ({lines}): {', '.join(how)}")
        for solver in sorted({row["solver"] for row in self._assumed} - {""}):
            lines = ", ".join(f"{names[row['file']]}:{row['line']}" for row in self._assumed if row["solver"] == solver)
            found.append(f"{solver} got assumed values ({lines}): how often it calls the program in a run is unknown")
        found.extend(self._waited)
        if self._compiled:
            found.append(
                f"torch.compile ({counted(self._compiled, 'call')}): FLOPs, bytes and memory are counted op by op, "
                "though compiled code moves fewer bytes and holds less (flex_attention: no scores)"
                + ("; the times of compiled code are those of fused kernels" if self._fused else "")
            )
        if self._differ:
            found.append(
                "the program drew more random numbers from a CPU generator than an estimate draws: integers drawn "
                "afterwards differ from those of a run"
            )
        if calls := self._calls_on_host():
            found.append(
                f"{counted(calls, 'op')} {'computes' if calls == 1 else 'compute'} on CPU tensors: counted, but no "
                "time includes their work on the CPU"
            )
        if beside := self._beside.total():
            found.append(
                f"{counted(beside, 'op')} of data loading {'runs' if beside == 1 else 'run'} in a DataLoader's workers "
                f"({data_loading.workers()}), in parallel with the model: counted, but no time includes them"
            )
        if self._accelerator is not None and (note := self._transferred()):
            found.append(note)
        found.extend(self._recurrent_notes())
        if any(issubclass(kind, torch.optim.LBFGS) for kind in self.optimizers):
            found.append(
                "the estimate counts all iterations of LBFGS (max_iter); in a run, it stops when it has converged"
            )
        assert self.memory is not None
        somewhere = self._on_accelerator() or not len(self.memory.all_blocks)
        if self._accelerator is not None and (note := self._on_host.note(somewhere)):
            found.append(note)
        others = {label: peak for label, peak in self.memory.others.items() if label not in ("cpu", "meta")}
        if others:
            peaks = ", ".join(f"{label} {peak} bytes" for label, peak in others.items())
            found.append(f"memory is for {self.memory.device}; peaks of other devices: {peaks}")
        return found
