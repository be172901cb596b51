"""The distinct calls of an estimate: what each of them does, and the tables of how often they are there."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from mindtorch import ops
from mindtorch._ext import lazy as _core
from mindtorch._ext import ledger
from mindtorch._ext.opinfo import Op
from mindtorch.devices.lazy_device import DATALESS
from mindtorch.engine.execute import values
from mindtorch.engine.record import mixing, predict
from mindtorch.ops.op_row import FREE_TAGS
from mindtorch.profile.cost import op_time
from mindtorch.profile.cost.work import Work, work
from mindtorch.profile.estimate import communication, exchanged, known_values
from mindtorch.profile.estimate.compiling import FUSED, GRAPHED, TUNED, within_kernels
from mindtorch.profile.estimate.data_loading import BESIDE, HOSTS
from mindtorch.profile.measure.collector_callbacks import describe
from mindtorch.profile.report.forecast import Forecast
from mindtorch.profile.report.rows import LOCATION, MODULE, NS, PHASE, as_table, exact, told_phases

__all__ = ["DistinctCalls", "call_of"]


class DistinctCalls:
    """By signature, a number that `number` gives for one of the tape's: ``ops``, ``flops``, ``works``.

    collectives: the signatures of those between ranks. on_host: of those that have tensors of the CPU alone.
    """

    def __init__(self) -> None:
        self.ops: list[Op | None] = [None]
        self.flops: list[tuple[int, int] | None] = [(0, 0)]
        self.works: list[Work | None] = [None]
        self.collectives: dict[exchanged.Call, int] = {}
        self.on_host: set[int] = set()
        self._bytes = [0]  # what a measured profile calls the bytes of one call
        self._signatures: dict[int, int] = {}  # of the tape → of the recording

    def name(self, sig: int) -> str:
        """The op of a call of the tape; empty for what is none."""
        op = self.ops[self.number(sig)] if sig else None
        return "" if op is None else op.name

    def number(self, sig: int) -> int:
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
            self.collectives[call] = len(self._bytes)
        elif name is not None and name not in known_values.ran:
            op = _bookkeeping(name)
        else:
            func, args, kwargs, out = call_of(sig) if name is None else known_values.ran[name]
            op = describe(func)
            done = work(func, args, kwargs, out)
            if not op.is_free:
                flops = None if done.flops is None else (done.flops, done.macs)
            nbytes = _allocated(op, args, out, name is None and not _core.sig_is_view(sig))
            if name in known_values.on_host if name is not None else _is_on_host(sig):
                self.on_host.add(len(self._bytes))
        self.ops.append(op)
        self.flops.append(flops)
        self.works.append(done)
        self._bytes.append(nbytes)
        self._signatures[sig] = len(self._bytes) - 1
        return self._signatures[sig]

    def table(self, calls: Any, forecast: Forecast | None, how: Any = None) -> Any:
        """The table of the distinct entries of a log of calls: how often each is there, and what it takes.

        how: the calls' flags (`compiling.flags`, `data_loading.flags`), where there are times.
        """
        first = calls["sig"].astype(np.uint64) << np.uint64(32) | calls["module"]
        second = calls["location"].astype(np.uint64) << np.uint64(32) | calls["phase"]
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        other = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        new = np.flatnonzero(np.concatenate([[len(order) > 0], other]))
        numbers = np.diff(np.append(new, len(order)))
        distinct = calls[order[new]]
        sigs, which = np.unique(distinct["sig"], return_inverse=True)
        sigs = np.array([self.number(sig) for sig in sigs.tolist()], int)[which]
        columns = [sigs, distinct["module"], distinct["location"], distinct["phase"], numbers]
        ns = np.rint(self._device(calls, order, new, sigs, numbers, forecast, how) * 1e9)
        nbytes = exact(self._bytes, numbers)[sigs] * numbers
        if ns.sum() < 1 << 62 and nbytes.dtype == np.int64:
            return as_table(np.stack([*columns, ns.astype(np.int64), nbytes], 1))
        return as_table(list(zip(*(c.tolist() for c in columns), map(int, ns), map(int, nbytes), strict=True)))

    def _device(
        self, calls: Any, order: Any, new: Any, sigs: Any, numbers: Any, forecast: Forecast | None, how: Any
    ) -> Any:
        """Seconds of each row on the device. Of what was compiled, ops that stream memory and follow each other are one
        kernel: it takes as long as the longest of them."""
        if forecast is None:
            return np.zeros(len(sigs))
        costs = [forecast.cost(number) for number in range(len(self.works))]
        seconds = np.array([cost.seconds for cost in costs])
        if how is None or not how.any():
            return seconds[sigs] * numbers
        signatures = self.numbers(calls)
        each = seconds[signatures]
        for flag in np.unique(how & (FUSED | TUNED)).tolist():
            if flag & FUSED:
                mine = how & (FUSED | TUNED) == flag
                made = set(signatures[mine].tolist())
                other = [forecast.in_compiled(n, bool(flag & TUNED)) if n in made else 0.0 for n in range(len(costs))]
                each[mine] = np.array(other)[signatures[mine]]
        apart = (how & BESIDE) != 0
        if (loading := (how & HOSTS) != 0).any():
            apart |= loading & np.isin(signatures, list(self.on_host))
        each[apart] = 0.0
        streams = np.array([cost.family == "stream" for cost in costs])[signatures] & ((how & FUSED) != 0)
        there = np.flatnonzero(each > 0)  # views are no kernels
        chained, times = streams[there], each[there]
        chain = np.cumsum(~(chained & np.concatenate([[False], chained[:-1]])))
        alone = times * within_kernels(signatures[there], chain, self.works)
        longest: np.ndarray
        longest, total, whole = (np.zeros(int(chain.max(initial=0)) + 1) for _ in range(3))
        np.maximum.at(longest, chain, alone)
        np.maximum.at(whole, chain, times)
        np.add.at(total, chain, times)
        longest = np.where(longest > 0, longest, whole)  # nothing but conversions
        each[there] = times * longest[chain] / total[chain]
        return np.add.reduceat(each[order], new) if len(new) else np.zeros(0)

    def waits(
        self, rows: Any, calls: Any, forecast: Forecast | None, how: Any, reads: Any
    ) -> tuple[list[tuple[int, ...]], dict[int, float]]:
        """Rows of the time in which the device waits for the host: a phase takes the longer of the two. And what the
        host takes in all, seconds by phase.

        The rows are those of the modules and lines whose ops the host takes longer to launch than the device to run,
        each by as much. reads: which of the calls read a value of the device.
        """
        found: list[tuple[int, ...]] = []
        launched: dict[int, float] = {}
        if forecast is None or forecast.target.model is not None:
            return found, launched
        signatures, host = self.numbers(calls), np.zeros(len(calls))
        # All of a phase waits together.
        phases, busy_in = told_phases(calls["phase"] & (ledger.ENTERED - 1)), told_phases(rows[:, PHASE])
        for phase in np.unique(phases).tolist():
            for flag in (0,) if how is None else np.unique(how).tolist():
                if not flag & (GRAPHED | BESIDE):
                    mine = phases == phase if how is None else (phases == phase) & (how == flag)
                    made = set(np.unique(signatures[mine]).tolist())
                    each = [forecast.host(n, phase, bool(flag & FUSED)) if n in made else 0.0
                            for n in range(len(self.works))]  # fmt: skip
                    host[mine] = np.array(each)[signatures[mine]]
            host[reads & (phases == phase)] = op_time.read_seconds(forecast.target)
            there, busy = calls[phases == phase], rows[busy_in == phase]
            launched[phase] = float(host[phases == phase].sum())
            wait = int(launched[phase] * 1e9 - int(busy[:, NS].sum()))
            if wait > 0:
                found += _shared(wait, there, host[phases == phase], busy)
        return found, launched

    def numbers(self, calls: Any) -> Any:
        """The report's number of each."""
        own, which = np.unique(calls["sig"], return_inverse=True)
        return np.array([self.number(sig) for sig in own.tolist()], int)[which]


def _shared(wait: int, calls: Any, host: Any, busy: Any) -> list[tuple[int, ...]]:
    """Rows that sum to `wait` ns, by module, line and phase. host: seconds of each of the calls; busy: the device's
    rows."""
    ahead: dict[tuple[int, ...], float] = defaultdict(float)
    made = np.stack([calls["module"], calls["location"], calls["phase"] & (ledger.ENTERED - 1)], 1)
    places, which = np.unique(made, axis=0, return_inverse=True)
    for place, seconds in zip(places.tolist(), np.bincount(which.ravel(), host).tolist(), strict=True):
        ahead[tuple(place)] += seconds * 1e9
    for *place, ns in busy[:, [MODULE, LOCATION, PHASE, NS]].tolist():
        ahead[tuple(place)] -= ns
    shares = {place: ns for place, ns in ahead.items() if ns > 0}
    whole, told, passed = sum(shares.values()), 0, 0.0
    found = []
    for place, ns in shares.items():  # by what was told so far, so that nothing is lost to rounding
        passed += ns
        until = min(round(wait * passed / whole), wait)
        found.append((0, *place, 1, until - told, 0))
        told = until
    return [row for row in found if row[NS]]


def _bookkeeping(name: str) -> Op:
    tag = ops.about(name).tag
    return Op(None, None, name, tag, False, tag in FREE_TAGS, False, False)


def _is_on_host(sig: int) -> bool:
    """Are all its tensors the CPU's?"""
    metas = [values.tape.interner.meta(m) for m in _core.input_metas(sig)]
    metas += [_core.sig_output_meta(sig, i) for i in range(_core.sig_outputs(sig))]
    return bool(metas) and all(index < 0 and str(DATALESS[-1 - index]) == "cpu" for *_, index in metas)


def call_of(sig: int) -> tuple[Any, tuple, dict[str, Any], Any]:
    """(function, args, kwargs, result) of an interned call, with torch's own meta tensors for the tensors."""
    inputs = tuple(predict.meta_like(values.tape.interner.meta(m)) for m in _core.input_metas(sig))
    args, kwargs = _core.call_template(sig, inputs, torch.device("meta"))
    outs = [predict.meta_like(_core.sig_output_meta(sig, i)) for i in range(_core.sig_outputs(sig))]
    return _core.sig_info(sig).func, args, kwargs, outs[0] if len(outs) == 1 else outs


def _bytes(made: Any) -> int:
    """Of a sparse tensor, those of its parts."""
    tensors = mixing.parts(made) or [made] if isinstance(made, torch.Tensor) else []
    return sum(t.numel() * t.element_size() for t in tensors)


def _allocated(op: Op, args: tuple, out: Any, copies: bool) -> int:
    """Bytes that one call makes anew, or writes in place: what a measured profile calls the bytes of an op. copies:
    its results are no views, whatever the schema says."""
    if op.may_copy:
        return out.numel() * out.element_size() if copies and isinstance(out, torch.Tensor) else 0
    if op.category == "view" and not ops.about(op.name).adopts:
        return 0  # of _unsafe_view the schema does not say that it makes nothing
    if op.allocates:
        made = out if isinstance(out, (list, tuple)) else [out]
        return sum(map(_bytes, made))
    if op.writes and args and isinstance(args[0], torch.Tensor):
        return _bytes(args[0])
    return 0
