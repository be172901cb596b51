"""What was seen of a run, by measuring or by estimating: all that a report or a trace is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mindtorch._ext import location
from mindtorch._ext.opinfo import Op
from mindtorch.profile.report.module_names import Names
from mindtorch.profile.report.rows import LOCATION, Row, as_table

if TYPE_CHECKING:
    from mindtorch.profile.cost.call_shapes import Shaped
    from mindtorch.profile.cost.op_time import Precision
    from mindtorch.profile.cost.targets import Target
    from mindtorch.profile.cost.work import Work
    from mindtorch.profile.measure.sampling import Sample
    from mindtorch.profile.report.device_work import DeviceWork

#: Stages of a run; the furthest one reached, "rest" apart, is what the report is about.
STAGES = ("import", "init", "warmup", "main", "rest")


#: Of what is waited for, what a finding on data tells of: of a measured run all time between ops of the phase "data".
LOADER, WORKERS = "a DataLoader", "a DataLoader's workers"


def furthest(stages: Iterable[str]) -> str | None:
    """The one of these that a report is about: a run that called no module, or ended early, has not all of them."""
    return max((stage for stage in stages if stage != STAGES[-1]), key=STAGES.index, default=None)


def of_the_loop(
    locations: Mapping[str, Any], announced: bool, loads: Mapping[int, int] | None = None
) -> tuple[str, Any]:
    """(the stage in which the loop begins, lines whose ops in "init" are its first batch's).

    What a line does before the first call of a model, and does again later, is the loop's; so is what makes the batch
    that one of its lines waits for. locations: of the ops of each stage; announced: whether the program has said where
    its stages begin; loads: lines where batches were made -> the line that waited.
    """
    loop = [name for name in ("warmup", "main") if name in locations]
    lines: list[int] = []
    if loop and not announced:
        found = {name: np.unique(of).tolist() for name, of in locations.items()}
        pairs = (loads or {}).items()
        # A call that another line leads to later is the same call, though its chain is another one.
        ids = sorted({id for of in (*found.values(), *pairs) for id in of if id})
        place = {id: location.call_of(id) for id in ids}
        again = {place[id] for name in loop for id in found[name] if id}
        waited = {place[line]: place[waits] for line, waits in pairs if line and waits}
        waiting = {waited[line] for line in again if line in waited}
        again |= {line for line, waits in waited.items() if waits in waiting}
        lines = [id for id in ids if place[id] in again]
    return "warmup" if "warmup" in locations else "main", np.array(lines, int)


class Places(NamedTuple):
    """Where the ops of a stage were: on plain tensors, or recorded on lazy ones (of which devices), and their runs."""

    plain_ops: int = 0
    lazy_ops: int = 0
    lazy_runs: int = 0
    device_bits: int = 0

    @property
    def lazy_devices(self) -> list[int]:
        return [index for index in range(64) if self.device_bits >> index & 1]

    def plus(self, more: Places) -> Places:
        return Places(
            self.plain_ops + more.plain_ops,
            self.lazy_ops + more.lazy_ops,
            self.lazy_runs + more.lazy_runs,
            self.device_bits | more.device_bits,
        )


class Label(NamedTuple):
    """A stretch that the program or torch gives a name: how often, and nanoseconds in all, at least and at most."""

    calls: int
    ns: int
    least: int
    most: int

    def plus(self, more: Label) -> Label:
        least, most = min(self.least, more.least), max(self.most, more.most)
        return Label(self.calls + more.calls, self.ns + more.ns, least, most)


@dataclass(repr=False, eq=False)  # whose making takes a third of the time
class Stage:
    """One of `STAGES`. Of a measured run, times and bytes are as recorded; of an estimate, as predicted."""

    rows: Any  # as `rows.as_table` takes them
    overhead_ns: int  # spent recording, and in no row
    entries: dict[int, int]  # path id of a module -> how often it was called
    inference: dict[int, int]  # of these, without gradients, in no step of a generation
    peak_bytes: int  # the most bytes live
    places: Places
    labels: dict[str, Label] = field(default_factory=dict)
    # ns of its rows between ops, by what was waited for, and the line
    waits: Counter[tuple[str, int]] = field(default_factory=Counter)
    # of an estimate: how often its iterations waited for a value of the device, by location
    reads: Counter[int] = field(default_factory=Counter)
    # of an estimate: what the host takes to launch its calls, seconds by phase
    launched: Mapping[int, float] = field(default_factory=dict)
    repeated: Repeated | None = None  # of an estimate


class Repeated(NamedTuple):
    """Iterations from the end of one to the end of another: nothing before the first, or after the last, is in it."""

    steps: int
    rows: list[Row]  # by signature and phase
    launched: Mapping[int, float]


class Parameters(NamedTuple):
    """Elements of distinct parameters: all, those that get a gradient, and both by path id of the module that has them.

    models: name, parameters and bytes of each, the largest first.
    """

    total: int
    trainable: int
    own: dict[int, int]
    own_trainable: dict[int, int]
    models: list[dict[str, object]]


class ThreadWork(NamedTuple):
    """What threads of one kind did: how many they were, their ops, and the time within ops."""

    threads: int
    ops: int
    ns: int


class Log(Protocol):
    """Single events, as far as there was room for them."""

    dropped_events: int

    def events(self) -> bytes:
        """All of them, as `_ext.timeline.EVENT` has it for numpy."""

    def event_count(self) -> int: ...

    def event(self, index: int) -> tuple[int, ...]:
        """kind (see `times`), start and length in ns, sig, module, location, phase, live bytes, number of the thread;
        of a label, the index of its name for the sig."""

    @property
    def labels(self) -> Any:
        """`.names`: the labels' names."""


class Loaded(NamedTuple):
    """What DataLoaders did: iterators made of them, and those with workers; whether one of them started workers again,
    whether another one did for the same dataset; the part of waiting for workers that they took to start and to end."""

    iterators: int
    started: int
    again: bool
    anew: bool
    starting: float


@dataclass(repr=False, eq=False)
class Recording:
    """Everything by stage, by signature (a distinct call: its number is a row's first column), by path id of a module.

    Times of day are nanoseconds on one clock; 0 where something did not happen.
    """

    mode: str  # "measured" or "estimate"
    device: str
    stages: Mapping[str, Stage]
    ops: Sequence[Op | None]  # by signature; None is the time between ops
    flops: Sequence[tuple[int, int] | None]  # by signature: (FLOPs, multiply-adds) of a call, None without a formula
    works: Sequence[Work | None]  # by signature, where there is a target
    names: Names
    parameters: Parameters
    module_peaks: Mapping[int, int]
    phase_peaks: Sequence[int]
    memory: dict[str, Any] | None  # what the peak is made of
    marks: Sequence[int]  # ends of iterations, in the run's own measure
    warmup: int  # iterations left out
    steps: int | None  # asked for
    announced: bool  # whether the program said itself what an iteration is
    started: int
    stopped: int
    frozen: int  # when nothing more was recorded, as asked
    imported_ns: int = 0
    imports: Mapping[str, int] = field(default_factory=dict)  # ns by package, what it imported included
    imports_within: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by it and what was being loaded then
    compiled_ns: int = 0
    spans: Sequence[tuple[int, int]] = ()  # start and end of the iterations reported
    step_ns: Sequence[int] = ()  # of the same, the program's own time
    running_ns: Sequence[int] = ()  # the same, less what the program waited for a processor; none where nobody knows
    queued: float = 0.0  # the share of the time reported in which no processor was free
    call_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)  # of the module's calls, recording included
    shapes: Mapping[int, Shaped] | None = None  # by signature, where asked for
    chains: bool = False  # locations of rows know the lines that led there
    samples: Sequence[Sample] = ()  # graphs of some calls of the models
    # Classes of those that stepped, or are there, and whether torch's fused kernels take their parameters.
    optimizers: Mapping[type, bool] = field(default_factory=dict)
    # By stage, how many steps of each optimizer began; optimizers are numbers, as in `samples`.
    stepped: Mapping[str, Counter[int]] = field(default_factory=dict)
    differentiates_twice: bool = False  # some backward pass had a graph of its own
    loops_aside: int = 0  # threads that trained at the same time as the one whose iterations are counted
    handed_on: int = 0  # ops of a class of tensors with a `__torch_function__`, about
    loaded: Loaded | None = None  # of a measured run
    generated: Callable[[str], dict[str, Any] | None] = lambda stage: None  # of a stage: see `generation.Generated`
    # By stage, how often each line (file, number, function) was reached; 0: it ran already when the stage began. Empty:
    # another trace function was in the way.
    hits: Mapping[str, Counter[tuple[str, int, str]]] | None = None
    runs: Sequence[Any] = ()  # of what was recorded on lazy tensors: signatures recorded, ran and unseen, and how often
    executor: str = ""  # where that ran
    loads: Mapping[int, int] = field(default_factory=dict)  # of a measured run: see `of_the_loop`
    npu: dict[str, Any] | None = None
    gpu: DeviceWork | None = None  # of the stage reported, where a measured run used one
    threads: Sequence[tuple[str, ThreadWork]] = ()
    unseen_threads: bool = False
    children: Mapping[str, int] = field(default_factory=dict)  # processes that may have run torch
    compiled: int = 0  # functions
    torch_profiles: int = 0  # how often the program started torch's own profiler
    mark_error: BaseException | None = None
    interrupted: bool = False
    exit_code: int = 0
    target: Target | None = None
    precision: Precision | None = None  # what the program allows of float32
    fused: frozenset[int] = frozenset()  # of an estimate: calls that are there in what was compiled
    on_host: frozenset[int] = frozenset()  # of an estimate for an accelerator: calls on tensors of the CPU
    assumed: Sequence[dict[str, Any]] = ()
    left_alone: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of an estimate: `private_files.left_alone`
    notes: Sequence[str] = ()  # further warnings
    host: dict[str, Any] | None = None  # of an estimate: the program's own time on this machine
    cluster: dict[str, Any] | None = None  # of a rank of several: which one, and its collectives
    log: Log | None = None
    memory_snapshot: Callable[[], dict[str, Any] | None] | None = None  # for torch's memory viewer; of an estimate

    @property
    def reached(self) -> str:
        """The stage reported."""
        found = furthest(self.stages)
        assert found is not None, "a run has one"
        return found

    @property
    def steps_taken(self) -> Counter[int]:
        """By optimizer, in the stage reported."""
        return self.stepped.get(self.reached, Counter())

    def op_name(self, sig: int) -> str:
        """Of a signature; empty for the time between ops."""
        op = self.ops[sig]
        return "" if op is None else op.name


def first_batch(seen: Recording, tables: Mapping[str, Any]) -> tuple[str, Any]:
    """`of_the_loop`, of a run; tables: rows by stage."""
    locations = {name: table[:, LOCATION] for name, table in tables.items()}
    return of_the_loop(locations, seen.announced, seen.loads)


def stage_tables(seen: Recording) -> tuple[dict[str, Any], dict[str, Counter[tuple[str, int]]]]:
    """Of each stage, the table of rows, and ns of waiting by (what for, location).

    The loop's first batch, which a script makes before its first call of a model, is with the loop.
    """
    tables = {name: as_table(stage.rows) for name, stage in seen.stages.items()}
    waits: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in tables}
    first, moved = first_batch(seen, tables)
    if "init" in tables and len(moved):
        again = np.isin(tables["init"][:, LOCATION], moved)
        tables[first] = np.concatenate([tables["init"][again], tables[first]])
        tables["init"] = tables["init"][~again]
    for name, stage in seen.stages.items():
        for (what, line), ns in stage.waits.items():
            waits[first if name == "init" and line in moved else name][what, line] += ns
    return tables, waits
