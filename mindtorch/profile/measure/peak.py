"""What the peak of a run is made of: the same table for what was measured and for what was only sized.

A storage's category is what the program said or shows that it is for (any parameter, a buffer of a module that was
called, held by `.grad`, a cache), else where it was made, and whether it outlived that stretch of the program (see
_ext/stretches.pxd).
"""

from __future__ import annotations

import copy
import importlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from mindtorch._ext import context, ledger, paths, timeline
from mindtorch._ext import lazy as _core
from mindtorch._ext.balance import LIFE as _LIFE
from mindtorch._ext.balance import Balance, HeldStorage
from mindtorch._ext.collect import Collector
from mindtorch.base import sourceline
from mindtorch.base.patching import Patches
from mindtorch.devices import mode
from mindtorch.engine.semantics import generation, modules, owners, phases
from mindtorch.profile.report import times
from mindtorch.profile.report.module_names import Names
from mindtorch.profile.report.rows import FORWARD

#: What a storage is for; its number is the mark in the logs. The first three are said while the program runs.
CATEGORIES = (
    "activations", "parameters", "buffers", "gradients", "optimizer state", "key-value cache", "temporaries",
    "inputs and other", "gathered parameters", "communication buffers",
)  # fmt: skip
ACTIVATIONS, PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER_STATE, KV_CACHE, TEMPORARIES, INPUTS_AND_OTHER = range(8)
GATHERED, EXCHANGED = 8, 9  # of one rank of several: other ranks' shards; buffers that are sent
LIFE = np.dtype(_LIFE)  # of a measured run
#: A storage; those of an estimate's log have more fields.
BLOCK = np.dtype([("nbytes", "u8"), ("module", "u4"), ("location", "u4"), ("sig", "u4"), ("phase", "u1"),
                  ("mark", "u1"), ("outlived", "u1")])  # fmt: skip
_OUTLIVED, _DIFFERENTIATED = 1, 2  # bits, as in _ext/stretches.pxd
POINTS = 400  # of a timeline
_OTHER, _BACKWARD, _OPTIMIZER, _DATA = map(context.PHASES.index, ("other", "backward", "optimizer", "data"))
_FORWARD = [*FORWARD, context.CANDIDATE, context.INFERENCE]  # whichever that was

#: What is told by `say`, of profiles that measure.
listening: list[Callable[[torch.Tensor, int], None]] = []


def say(held: Iterable[torch.Tensor], what: int) -> None:
    """The storages of these tensors are for this (`PARAMETERS` …); to whoever looks."""
    for t in (
        part for each in held for part in getattr(each, "_held", (each,))
    ):  # of sparse ones in an estimate, parts
        handle = _core.get_handle(t)
        if handle is None and mode.now.ranks is not None:  # a DTensor: what this rank has of it
            handle = _core.get_handle(getattr(t, "_local_tensor", t))
        if handle is not None:
            ledger.mark(handle, what)
        for listener in listening:
            listener(t, what)


generation.cached.append(lambda tensors: say(tensors, KV_CACHE))
Role = tuple[list[torch.Tensor], int]


def of_model(root: torch.nn.Module) -> list[Role]:
    """What a model holds, and for what."""
    parameters, buffers = owners.held(root)
    return [(list(parameters), PARAMETERS), (buffers, BUFFERS), (_gradients(parameters), GRADIENTS)]


def of_optimizer(optimizer: torch.optim.Optimizer) -> list[Role]:
    """What an optimizer holds, wherever it came from: a checkpoint's state, copies of parameters of no model."""
    parameters, state = phases.used(optimizer)
    return [(state, OPTIMIZER_STATE), (parameters, PARAMETERS), (_gradients(parameters), GRADIENTS)]


_functional_call = importlib.import_module("torch._functorch.functional_call")
_torch_stacked = _functional_call.construct_stacked_leaf


def _stacked(tensors: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """torch's own, of ``torch.func.stack_module_state``: the parameters, or buffers, of several models in one."""
    made: torch.Tensor = _torch_stacked(tensors, name)
    say([made], PARAMETERS if isinstance(tensors[0], torch.nn.Parameter) else BUFFERS)
    return made


class Registered:
    """The parameters that modules are given within the block, and those that there are at a `look`: a module that is
    never called has parameters, too, and so has a program that does without modules."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[torch.Tensor]] = {}
        self._stacks = Patches(yields=True)
        self._modules = 0  # put into others within the block
        self._made: set[int] = set()  # those within the block: older ones may be another program's

    def __enter__(self) -> Registered:
        with ExitStack() as undo:
            undo.callback(self._stacks.undo)
            undo.enter_context(owners.parameters_put.told_to(self._saw))
            undo.enter_context(owners.modules_put.told_to(self._count))
            self._stacks.put([(_functional_call, "construct_stacked_leaf", _stacked)])
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _count(self, module: torch.nn.Module, name: str, submodule: Any) -> None:
        self._modules += 1

    def modules_made(self) -> int:
        """How many modules were put into others within the block, so far."""
        return self._modules

    def _saw(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        if isinstance(parameter, torch.nn.Parameter) and not is_lazy(parameter):
            self._note(parameter)
            self._made.add(id(parameter))
            say([parameter], PARAMETERS)  # now: later, `.data` may have given it another storage, or it is gone

    def _note(self, parameter: torch.Tensor) -> None:
        key = id(parameter)

        def gone(_: object) -> None:
            self._refs.pop(key, None)
            self._made.discard(key)

        self._refs[key] = weakref.ref(parameter, gone)

    def made(self) -> frozenset[int]:
        """Addresses of those that were made within the block, and are alive."""
        return frozenset(self._made)

    def look(self) -> None:
        """Take in those that are alive: it goes through all objects that there are."""
        for parameter in paths.living(torch.nn.Parameter):
            if id(parameter) not in self._refs and not is_lazy(parameter):
                self._note(parameter)

    def roles(self, made_only: bool = False) -> list[Role]:
        """Of all parameters that are alive; or of those that modules were given within the block."""
        refs = [ref for key, ref in self._refs.copy().items() if not made_only or key in self._made]
        alive = [parameter for ref in refs if (parameter := ref()) is not None]
        return [(alive, PARAMETERS), (_gradients(alive), GRADIENTS)]


def say_roles(registered: Registered) -> None:
    """What the models and optimizers hold that ran and are alive, and all parameters: again, as much of it is made in
    the first step."""
    for held, what in registered.roles():
        say(held, what)
    for roles in (*map(of_optimizer, phases.optimizers()), *(of_model(root) for root, _ in modules.roots())):
        for held, what in roles:
            say(held, what)


def _gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What `.grad` holds. Nothing where other threads differentiate: there, where a gradient was made tells of it."""
    if context.differentiates_elsewhere():
        return []
    with torch._C.DisableTorchFunction():
        grads = [parameter.grad if parameter.is_leaf else None for parameter in parameters]
    if mode.now.estimate is not None:  # C++ makes some itself, as plain tensors: asked for, they become ours
        grads = [g if g is None or _core.get_handle(g) is not None else p.grad
                 for p, g in zip(parameters, grads, strict=True)]  # fmt: skip
    return [grad for grad in grads if grad is not None]


def categories(blocks: Any, trains: bool) -> Any:
    """The category of each of `blocks`, an array with the fields of `BLOCK`; trains: there was a backward pass."""
    found = blocks["mark"].copy()
    unknown, phase, outlived = found == 0, blocks["phase"], (blocks["outlived"] & _OUTLIVED) != 0
    found[unknown & (phase == _OTHER) & (blocks["module"] == 0)] = INPUTS_AND_OTHER  # whatever it made itself
    found[unknown & (phase == _DATA)] = INPUTS_AND_OTHER
    deep = [at for at in np.unique(blocks["location"]).tolist() if (context.location(at) or ("",))[0] == copy.__file__]
    found[unknown & np.isin(blocks["location"], deep)] = INPUTS_AND_OTHER  # what it copies is no part of a graph
    unknown = found == 0
    for made_in, kept in ((_BACKWARD, GRADIENTS), (_OPTIMIZER, OPTIMIZER_STATE)):
        found[unknown & (phase == made_in)] = TEMPORARIES
        found[unknown & (phase == made_in) & outlived] = kept
    found[unknown & outlived & ((blocks["outlived"] & _DIFFERENTIATED) != 0)] = ACTIVATIONS  # of a later backward pass
    if trains:  # what is not kept for backward
        found[unknown & np.isin(phase, _FORWARD) & ~outlived] = TEMPORARIES
    return found


def by_category(kinds: Any, nbytes: Any) -> dict[str, int]:
    """Bytes of each category that has some."""
    sums = {name: int(nbytes[kinds == i].sum()) for i, name in enumerate(CATEGORIES)}
    return {name: total for name, total in sums.items() if total}


def largest(
    kinds: Any, blocks: Any, nbytes: Any, names: Names, op: Callable[[int], str], top: int = 10
) -> list[dict[str, Any]]:
    """The largest of `blocks`, those of one kind, op and line together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    named = {sig: op(sig) for sig in np.unique(blocks["sig"]).tolist()}
    places = {at: context.location(at) for at in np.unique(blocks["location"]).tolist()}
    shown: dict[Any, int] = {}  # one line may have been reached by several ways
    at_line = {at: shown.setdefault(place and place[:2], at) for at, place in places.items()}
    columns = (kinds, *(blocks[name] for name in ("sig", "module", "location")), nbytes)
    for kind, sig, module, location, size in zip(*(column.tolist() for column in columns), strict=True):
        entry = groups.setdefault((kind, named[sig], names[module], at_line[location]), [0, 0])
        entry[0] += size
        entry[1] += 1
    rows = [(size, n, CATEGORIES[kind], name, module, location)
            for (kind, name, module, location), (size, n) in groups.items()]  # fmt: skip
    rows.sort(key=lambda row: (-row[0], *row[1:]))
    return [
        {"bytes": size, "count": n, "category": kind, "op": name, "module": module, **line(location)}
        for size, n, kind, name, module, location in rows[:top]
    ]


def by_line(blocks: Any, nbytes: Any, top: int = 50) -> list[dict[str, Any]]:
    """Bytes of `blocks` by the line that made them, the most first: of `top` lines, and of the others together, whose
    row has no file and no line, as those have that no line of the program made."""
    groups: dict[int, list[int]] = {}
    for at, size in zip(blocks["location"].tolist(), nbytes.tolist(), strict=True):
        entry = groups.setdefault(at, [0, 0])
        entry[0] += size
        entry[1] += 1
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at, (size, n) in groups.items():  # a place may have been reached by several ways
        facts = line(at)
        row = found.setdefault((facts["file"], facts["line"]), {"bytes": 0, "count": 0, **facts})
        row["bytes"] += size
        row["count"] += n
    rows = sorted(found.values(), key=lambda row: (-row["bytes"], row["file"], row["line"]))
    rest = rows[top:]
    if rest:
        rows[top:] = [{"bytes": sum(row["bytes"] for row in rest), "count": sum(row["count"] for row in rest),
                       **line(0)}]  # fmt: skip
    return rows


def held(
    kinds: Any, blocks: Any, nbytes: Any, names: Names, more: Iterable[tuple[str, int, int, int]] = ()
) -> dict[str, Any]:
    """All of `blocks` by kind, module and line, which is an index into the lines beside them.

    more: (kind, path id of the module, location, bytes) of what is in none of them.
    """
    from mindtorch.profile.report.detail import Lines

    lines = Lines()
    found: dict[tuple[str, str, int], int] = {}
    columns = (kinds, blocks["module"], blocks["location"], nbytes)
    named = ((CATEGORIES[kind], *row) for kind, *row in zip(*(column.tolist() for column in columns), strict=True))
    for kind, module, location, size in (*named, *more):
        key = (kind, names[module], lines.index(location))
        found[key] = found.get(key, 0) + size
    rows = [[*key, size] for key, size in found.items()]
    return {"columns": ["category", "module", "line", "bytes"], "rows": rows, "lines": lines.facts}


def stretches(n: int) -> Any:
    """Where each of at most `POINTS` stretches of `n` positions begins."""
    return np.unique(np.linspace(0, n, min(n, POINTS) + 1).astype(int))[:-1] if n else np.zeros(0, int)


def line(location: int) -> dict[str, Any]:
    return sourceline.facts(context.location(location))


def kept_in_vain(kinds: Any, blocks: Any, nbytes: Any, at: int, found: Any) -> int:
    """Bytes of activations at the peak of a call with gradients, in phase `at`, that no backward pass found there."""
    if at not in _FORWARD:
        return 0
    kept = (blocks["outlived"] & _OUTLIVED) != 0
    return int(nbytes[(kinds == ACTIVATIONS) & np.isin(blocks["phase"], _FORWARD) & kept & ~found].sum())


class Kept:
    """Is what is there at the peak of a measured run kept for a backward pass, and does one come? Told of its marks."""

    def __init__(self, balance: Balance) -> None:
        self._balance = balance
        self._peak = self._call = False  # whether the peak was in a call with gradients, whether the last call has them
        self._births = 0  # before that call
        self._looked = 0

    def marked(self, kind: str) -> None:
        balance = self._balance
        if kind == "enter":
            self.at_peak()
            self._births, self._call = balance.births, torch.is_grad_enabled()
        elif kind == "backward" and self._looked != balance.born_by_peak:  # else this peak met one already
            self._looked = balance.born_by_peak
            balance.backward_begins()

    def at_peak(self) -> bool:
        """Whether the peak, as far as the run has come, was in a call with gradients or after it."""
        if self._balance.born_by_peak > self._births:
            self._peak = self._call
        return self._peak


class Held:
    """What was live at the peak of one stage of a measured run."""

    def __init__(self, balance: Balance, with_gradients: bool) -> None:
        found = balance.at_peak()
        self._with_gradients = with_gradients
        self.peak = balance.peak
        self.device = balance.device
        self._blocks: list[HeldStorage] | None = None if found is None else found[0]
        self._at = (0, 0, 0, 0) if found is None else found[1]

    def report(self, collector: Collector, names: Names, since: int) -> dict[str, Any] | None:
        """As `Memory.report`; since: when the stage began. None where memory was too short to keep track.

        After the run only: what a storage is for may show later than at the peak.
        """

        def op(sig: int) -> str:
            known = collector.sig_ops[sig]
            return "" if known is None else known.name

        if self._blocks is None:
            return None
        rows = [(b.nbytes, b.module, b.location, b.sig, b.phase, b.mark, b.outlived) for b in self._blocks]
        blocks, found = np.array(rows, BLOCK), np.array([b.found for b in self._blocks], bool)
        kinds, nbytes = categories(blocks, collector.backward), blocks["nbytes"].astype(np.int64)
        sig, module, location, phase = self._at
        return {
            "device": self.device,
            "peak_bytes": self.peak,
            "categories": by_category(kinds, nbytes),
            "kept_in_vain_bytes": kept_in_vain(kinds, blocks, nbytes, phase, found) if self._with_gradients else 0,
            "at": {"op": op(sig), "module": names[module], **line(location), "phase": context.phase_name(phase)},
            "largest": largest(kinds, blocks, nbytes, names, op),
            "lines": by_line(blocks, nbytes),
            "held": held(kinds, blocks, nbytes, names),
            "timeline": _over_time(collector, since),
        }


def _over_time(collector: Collector, since: int) -> dict[str, Any]:
    """After the ops that began at `since` or later: at most `POINTS` stretches of them, the position where each begins,
    and the most bytes in it; of what kinds those were, as far as there was room to remember it."""
    events = np.frombuffer(b"" if collector.dropped_events else collector.events(), times.EVENT)
    ops = np.flatnonzero((events["kind"] <= timeline.OP) & (events["start"] >= since))
    edges = stretches(len(ops))
    found: dict[str, Any] = {"positions": edges.tolist(), "bytes": []}
    if not len(ops):
        return found
    live = events["live"][ops].astype(np.int64)
    found["bytes"] = np.maximum.reduceat(live, edges).tolist()
    lives = collector.balance.lives()
    if lives is not None:
        at = ops[highest(live, edges)]
        storages = np.frombuffer(lives, LIFE)
        storages = storages[storages["where"] == collector.balance.where]
        kinds = categories(storages, collector.backward)
        found["categories"] = {
            name: _live_at(storages[kinds == i], at).tolist() for i, name in enumerate(CATEGORIES) if (kinds == i).any()
        }
    return found


def _live_at(storages: Any, events: Any) -> Any:
    """Bytes of those that were born by each of these events and died after it."""
    total = np.zeros(len(events), np.int64)
    for when, sign in (("born", 1), ("died", -1)):
        order = np.argsort(storages[when], kind="stable")
        sums = np.concatenate([[0], np.cumsum(storages["nbytes"][order].astype(np.int64))])
        total += sign * sums[np.searchsorted(storages[when][order], events, side="right")]
    return total


def highest(live: Any, edges: Any) -> Any:
    """Where each stretch that begins at one of `edges` is highest: what it is made of there sums to the whole."""
    return np.array([a + int(live[a:b].argmax()) for a, b in zip(edges, [*edges[1:], len(live)], strict=True)])
