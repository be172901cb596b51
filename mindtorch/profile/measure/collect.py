"""`Profiler`: a context manager that records what a plain torch program does, without changing what it computes.

It sees every op at the dispatch level: backward, optimizers, checkpointing, autocast and inference mode included.
Ops on lazy tensors are counted when they are recorded and timed when they run (SPEC L14).
Threads that begin while it watches are part of it. It does not see: other processes' ops (DataLoader workers), and the
insides of compiled functions and of ops written in Python, which count as one op or as time between ops. Where it can
tell, it says so in a warning.

One file: nearly all of it is one class, the stages of whose block follow each other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mindtorch._ext import context
from mindtorch._ext.collect import Collector, now_ns
from mindtorch._ext.looking import Look
from mindtorch._ext.signals import raise_soon
from mindtorch.base.children import ChildWatch
from mindtorch.base.errors import LazyTensorError
from mindtorch.base.jit_tracing import without_our_modes
from mindtorch.base.patching import Patch, Patches
from mindtorch.base.sourceline import INSTALLED, STANDARD
from mindtorch.base.threads import ThreadWatch, under
from mindtorch.engine import semantics
from mindtorch.engine.execute import local, tensors, values
from mindtorch.engine.semantics import generation, modules, owners, phases, skipped_prefixes
from mindtorch.profile.cost import calibrate, work
from mindtorch.profile.cost.call_shapes import Shaped, shaped
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.measure import peak, waiting
from mindtorch.profile.measure.collector_callbacks import ASKED, count, describe
from mindtorch.profile.measure.device_ops import DeviceOps
from mindtorch.profile.measure.imports import ImportWatch
from mindtorch.profile.measure.npu_ops import NpuOps
from mindtorch.profile.measure.observed_run import Run, between
from mindtorch.profile.measure.run_queue import RunQueue
from mindtorch.profile.measure.sampling import SamplingProfile
from mindtorch.profile.measure.started_workers import Loading
from mindtorch.profile.measure.thread_work import Threads
from mindtorch.profile.measure.watches import CompileWatch, ProfilerWatch, compiled_frames, of_reducers
from mindtorch.profile.report import times
from mindtorch.profile.report.recording import STAGES, Label, Places, Recording, Stage, furthest

log = logging.getLogger(__name__)

_active: list[Profiler] = []


def _of_triton(jit: Any) -> Iterable[Patch]:
    from mindtorch.patch.triton_kernels import counted  # few programs launch with it

    return counted(jit)


class Mode(TorchDispatchMode, Collector):
    """A collector that torch hands every op to, without a Python frame in between."""

    supports_higher_order_operators = True
    __torch_dispatch__ = Collector.dispatch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()  # the arguments went to Collector.__cinit__
        self.keep_apart(*ASKED)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a C method can't be traced anyway, and the wrapper would import Dynamo

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled functions stay compiled: a profile must measure the program as it runs


#: Profiles of several threads begin and end in turn: they share what watches the process.
_changing = threading.RLock()


class Profiler(Run):
    """Record everything that runs within the ``with`` block, in this thread and in those that begin in it.

    warmup: iterations left out of the report. An iteration is one of the training loop (see `iterations`), or a round
        of outermost module calls in no-grad or inference mode.
    steps: stop recording after this many iterations; the program goes on at full speed.
    begun_ns: when the program began, by ``time.perf_counter_ns``; what was imported since then counts as its start-up.
    max_events: ops and module calls kept for a trace, 40 bytes each; sums are never limited.
    target: where the same calls are predicted for, beside what is measured.
    shapes: note the shapes that ops are called with, other than views; it takes a microsecond per op.
    lines, hits: see `LineWatch`. The first takes a walk over all frames per op, the second slows Python down.
    whole: all that runs in the block is reported. Else what comes before the first call of a module is construction.
    """

    def __init__(
        self,
        *,
        warmup: int = 0,
        steps: int | None = None,
        begun_ns: int | None = None,
        max_events: int = 1 << 20,
        target: Target | None = None,
        shapes: bool = False,
        whole: bool = False,
        lines: bool = False,
        hits: bool = False,
    ) -> None:
        super().__init__(STAGES[0] if not whole else "warmup" if warmup else "main", target, warmup, steps, lines, hits)
        self._begun_ns, self._begun = begun_ns, 0  # of the run, of the stage
        self._began: dict[str, int] = {}  # each of them, last
        self._used, self._entered = False, 0
        look = Look(skipped_prefixes(), waiting.functions(), (phases.__file__, "_next"), STANDARD, INSTALLED)
        self.collector = Mode(describe, count, torch.Tensor, self._on_mark, max_events, None, look.look)
        look.collector = self.collector
        self.sampling, self.kept = SamplingProfile(self.collector), peak.Kept(self.collector.balance)
        self.loading = Loading()
        self._shapes = shapes
        if shapes:
            self.collector.weigh = self._look_at
        elif target is not None:
            self.collector.weigh = work.work
        self.costs = calibrate.Costs(0, 0, 0)
        self.compiled = 0  # functions
        self.torch_profiles = 0  # how often the program started torch's own profiler
        self._threads = Threads()
        self._held: dict[str, peak.Held] = {}  # by stage
        self._away, self._recording = times.Apart(), times.Apart()  # loading modules and compiling; from mark to mark
        self._queued = times.Apart()  # while no processor was free
        self._overhead = 0  # of stages that ended

    @under(_changing)
    def __enter__(self) -> Profiler:
        if self._used:
            raise RuntimeError("[Profiler] expected a new profiler, got one that was used before")
        self._used = True
        self._entered = time.perf_counter_ns()
        # What the measuring of our own cost runs is none of the profiles' within which this one is made.
        outer = [profiler for profiler in _active if profiler.collector.set_aside()]
        try:
            self.costs = calibrate.measure(Mode(describe, count, torch.Tensor, lambda *mark: None, 0))
        finally:
            for profiler in outer:
                profiler.collector.resume()
        return super().__enter__()

    def _begin(self, undo: ExitStack) -> None:
        self.npu = NpuOps(self.collector)
        self.devices = DeviceOps(self.collector)
        collector = self.collector
        collector.cost_in, collector.cost_out, collector.cost_module = self.costs
        self._frames = compiled_frames()
        undo.enter_context(between(semantics.install, semantics.uninstall))
        undo.enter_context(between(peak.listening.append, peak.listening.remove, collector.balance.mark))
        undo.callback(self._last_look)
        undo.enter_context(self.registered)
        if self._begun_ns is None:  # else the process began with this profile: it has no parameter yet
            self.registered.look()
        undo.enter_context(between(owners.watching.append, owners.watching.remove, collector.aside))
        undo.enter_context(between(modules.add_listener, modules.remove_listener, self._saw_root))
        undo.enter_context(between(phases.listeners.append, phases.listeners.remove, self._saw_optimizer))
        self._saw_what_is_there()
        undo.enter_context(between(_active.append, _active.remove, self))
        now = time.perf_counter_ns()
        begun = now if self._begun_ns is None else min(self._begun_ns + (now - self._entered), now)
        undo.enter_context(between(local.add_op_observer, local.remove_op_observer, collector.ran))
        self._recorded = values.tape.n_recorded
        self._run_queue = RunQueue()
        undo.callback(collector.stop)
        collector.start(begun)
        collector.end_import()  # torch, before this
        if self._stage != STAGES[0]:
            self._begun = self._began[self._stage] = begun
        self._compile_watch = CompileWatch(self._compiling)
        undo.callback(self._compile_watch.stop)
        self._profiler_watch = ProfilerWatch(self.devices.give_way)
        undo.callback(self._profiler_watch.stop)
        self._launches = Patches(yields=True)
        undo.callback(self._launches.undo)
        self._launches.put_when_loaded("triton.runtime.jit", _of_triton)
        self._launches.put(of_reducers(collector.balance))
        self._launches.put(without_our_modes(self._compiling))
        self._watch = undo.enter_context(ImportWatch(collector.begin_import, self._imported))
        self._watch.found["torch"] = collector.imported
        undo.enter_context(collector)
        self._child_watch = ChildWatch()
        undo.callback(collector.sampler.stop)  # after the clock: its thread ends when it next wakes, milliseconds later
        undo.callback(self._stop)
        undo.enter_context(self._child_watch)
        undo.enter_context(self.loading)
        undo.enter_context(ThreadWatch(collector, self._thread_begins, self._thread_ends))
        collector.sampler.start()
        undo.callback(self.sampling.close)
        undo.enter_context(self.lines)

    def _stop(self) -> None:
        """The program's part ends here: what is taken back then is no time of its own."""
        self.children = dict(self._child_watch.found)
        self.devices.stop()
        generation.over()  # while the collector hears of it
        self.collector.stop()
        self._queued.note(self.collector.stopped, self._run_queue.look())

    def _last_look(self) -> None:
        if self.collector.n_ops:
            self.registered.look()
        peak.say_roles(self.registered)
        self.collector.balance.close()

    @under(_changing)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.torch_profiles = self._profiler_watch.started
        self.compiled = compiled_frames() - self._frames
        self.book.refresh()
        context.forget_loss()
        if not self._announced and not self.frozen_ns:
            self.iterations.finish(self.collector.stopped)
        if self._stage == "rest" and not self.frozen_ns:
            self.frozen_ns = self._begun
        self._end_part()
        self.npu.stop()
        if self.collector.mark_error is not None:
            log.warning("profiling continues without step marks after an error: %r", self.collector.mark_error)

    def recording(self) -> Recording:
        collector, npu = self.collector, self.npu.report()
        watched = sum(ns for _, ns in self._recording)  # of which some cost a step nothing: its GPU worked meanwhile
        share = 1 - min(self.devices.hidden / watched, 1) if watched else 1
        away = [*self._away, *((at, int(ns * share)) for at, ns in self._recording)]
        since = self._reported_since()
        spans = self._spans(since)
        reached = furthest(self.stages) or ""
        held = Recording(
            mode="measured",
            device="",
            stages=self.stages,
            ops=collector.sig_ops,
            flops=collector.sig_flops,
            works=self._works(),
            names=self.names,
            parameters=self._parameters(),
            module_peaks=self.peaks,
            phase_peaks=self.phase_peaks,
            memory=None,
            marks=self.marks,
            warmup=self.warmup,
            steps=self.steps,
            announced=self._announced,
            started=collector.started,
            stopped=collector.stopped,
            frozen=self.frozen_ns,
            imported_ns=collector.imported,
            imports=self._watch.found,
            imports_within=self._watch.within,
            compiled_ns=collector.compiled,
            spans=spans,
            step_ns=() if self._loop.aside else times.steps(spans, away),  # what of it other threads took, nobody knows
            running_ns=times.running(spans, away, self._queued) if self._run_queue.known else (),
            queued=times.share(since, self.frozen_ns or collector.stopped, self._queued),
            call_ns=times.calls(collector.events(), since, self._away),
            shapes=self._shapes_seen() if self._shapes else None,
            **self._noted(),
            runs=list(collector.runs.values()),
            executor=str(values.executor().device),
            npu=npu,
            gpu=self.devices.report(reached),
            loads=collector.loads,
            threads=self._threads.of(reached),
            unseen_threads=collector.other_thread,
            children=self.children,
            loaded=self.loading.facts(),
            compiled=self.compiled,
            torch_profiles=self.torch_profiles,
            mark_error=collector.mark_error,
            interrupted=self.interrupted,
            exit_code=self.exit_code,
            target=self.target,
            log=collector,
        )
        held.device = ", ".join(_devices(self.stages[reached].places, npu))
        held.memory = self._held[reached].report(collector, self.names, self._began.get(reached, 0))
        return held

    def stage(self, name: str) -> None:
        """For a program that knows its own iterations: one of them begins, as "warmup" or as "main" (in the report), or
        what they need is made ready ("init"). Nothing is guessed from then on; `warmup` and `steps` say nothing."""
        now = now_ns()
        self._announce(now)
        if name != self._stage:
            self._end_part(self._run_pending(now))
            self._stage = name

    def _end_part(self, at: int = 0) -> None:
        """What was recorded since the last call belongs to the stage that ends here."""
        collector, balance, stage = self.collector, self.collector.balance, self._stage
        if stage not in self._held or balance.peak > self._held[stage].peak:
            self._held[stage] = peak.Held(balance, self.kept.at_peak())
        places = Places(collector.plain_ops, collector.lazy_ops, collector.lazy_runs, collector.lazy_devices)
        peaks, phase_peaks = balance.module_peaks(), [balance.phase_peak(i) for i in range(len(context.PHASES))]
        rows, overhead, most, entries, inference = collector.split(at)
        behind = self.devices.behind(overhead)
        rows, overhead = rows + behind, overhead - sum(row[5] for row in behind)
        self._overhead += overhead
        self._ends(stage)
        self._threads.stage_ends(stage, collector.first)
        self.devices.end(stage)
        labels = {name: Label(*figures) for name, figures in collector.labels.take().items()}
        waits = Counter({(waiting.FOR[what], line): ns for (what, line), ns in collector.take_waits().items()})
        known = self.stages.get(stage)
        if known is None:
            if stage == furthest([*self.stages, stage]):  # what is announced as "init" may also end the run
                self.peaks, self.phase_peaks = peaks, phase_peaks
            self.stages[stage] = Stage(rows, overhead, entries, inference, most, places, labels, waits)
            return
        if stage == max(self.stages, key=STAGES.index):  # peaks are those of the stage that is reported
            self.peaks = {path: max(peaks.get(path, 0), self.peaks.get(path, 0)) for path in {**self.peaks, **peaks}}
            self.phase_peaks = list(map(max, self.phase_peaks, phase_peaks))
        self.stages[stage] = Stage(
            known.rows + rows,
            known.overhead_ns + overhead,
            Counter(known.entries) + Counter(entries),
            Counter(known.inference) + Counter(inference),
            max(known.peak_bytes, most),
            known.places.plus(places),
            {**known.labels, **{n: known.labels[n].plus(x) if n in known.labels else x for n, x in labels.items()}},
            known.waits + waits,
        )

    def _run_pending(self, now: int) -> int:
        """Let what was recorded so far run, so that its time falls into the stage that ends; the time after that."""
        return max(self._run_recorded(now), self.devices.look() if self.devices.traced else 0)

    def _run_recorded(self, now: int) -> int:
        if values.tape.n_recorded == self._recorded:  # what was pending before the profile is none of its business
            return now
        self._recorded = values.tape.n_recorded
        try:
            values.flush("profile")
        except LazyTensorError as error:
            log.debug("the program's own read will raise: %s", error)
        except BaseException as error:  # noqa: BLE001 - the caller is compiled and can't raise: it comes right after
            raise_soon(error)
        return now_ns()

    def _on_mark(self, kind: str, now: int, which: int) -> None:
        with self._marking:
            self._recording.note(now, self._overhead + self.devices.hidden + self.collector.overhead)
            self._queued.note(now, self._run_queue.look())
            self.book.marked(kind)
            self.kept.marked(kind)
            self.devices.marked()
            if kind == "backward end":
                peak.say_roles(self.registered)
            elif kind == "op" and self._stage == "import":
                self._end_part(now)
                self._stage = "init"
            else:
                self._follow(kind, now, which)
        self.sampling.mark(kind, which)

    def _begin_stage(self, name: str, at: int) -> None:
        self._begun = self._began[name] = self._run_pending(at)
        self._end_part(self._begun)
        self._stage = name

    def _freeze(self) -> None:
        self.frozen_ns = self._begun
        self.devices.stop()
        self.collector.stop()

    def module_order(self) -> dict[int, int]:
        return self.collector.order

    def _look_at(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> Shaped:
        return shaped(args, kwargs, out, None if self.target is None else work.work(func, args, kwargs, out))

    def _works(self) -> list[Any]:
        found = self.collector.sig_works
        return [entry.work if isinstance(entry, Shaped) else entry for entry in found] if self._shapes else found

    def _shapes_seen(self) -> dict[int, Shaped]:
        ops = self.collector.sig_ops
        return {sig: entry for sig, entry in enumerate(self.collector.sig_works)
                if isinstance(entry, Shaped) and (op := ops[sig]) is not None and op.category != "view"}  # fmt: skip

    def _reported_since(self) -> int:
        """A program that calls no module has neither of these stages: all after its first op is reported."""
        began, collector = self._began, self.collector
        return began.get("main") or began.get("warmup") or collector.first_op or collector.started

    def _compiling(self, begins: bool) -> None:
        self.collector.compiling(begins)
        self._note_away()

    def _note_away(self) -> None:
        self._away.note(now_ns(), self.collector.imported + self.collector.compiled)

    def _imported(self, installed: bool) -> None:
        self.collector.end_import(installed)
        self._note_away()

    def _thread_begins(self, thread: threading.Thread) -> None:
        if self.collector.enabled:
            self._threads.begins(thread, self.collector.join())

    def _thread_ends(self) -> None:
        if self._threads.is_running():
            self.collector.leave()
            with self._marking:
                self._threads.ends(self._stage)

    def _saw_root(self, root: torch.nn.Module, path: int) -> None:
        if self._looks():
            super()._saw_root(root, path)

    def _saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._looks():
            super()._saw_optimizer(optimizer)

    def _looks(self) -> bool:
        """Not at what a profile within this one is made ready with, nor once all was seen that was asked for."""
        return self.collector.enabled or not self.collector.started

    def _hold(self, t: torch.Tensor) -> None:
        self.collector.balance.hold_tensor(t)


def _devices(places: Places, npu: dict[str, Any] | None) -> list[str]:
    """Where the program's tensors are, the device of most ops first."""
    plain = ["cuda" if torch.cuda.is_initialized() else "cpu"]
    lazy = [f"{tensors.DEVICE_TYPE}:{index}" for index in places.lazy_devices]
    if npu is not None:
        devices: list[str] = npu["devices"]
        return devices + lazy  # what is staged runs on plain tensors, too
    if not lazy or not places.plain_ops:
        return lazy or plain
    return lazy + plain if places.lazy_ops >= places.plain_ops else plain + lazy


def _in_child() -> None:
    for profiler in list(_active):
        profiler.collector.disable()


def _before_fork() -> None:
    for profiler in list(_active):
        profiler.collector.sampler.pause()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
