"""Where memory goes over a program that was only sized: peak, what it is made of, and how it got there.

Bytes live over program order are those that torch's allocator would hand out, storages counted once however many
tensors view them. What kernels take for themselves while they run is counted where the op table has a rule for it: on
the CPU, of convolutions, products and recurrent layers. Other devices' workspaces are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindtorch._ext import context, ledger
from mindtorch._ext import lazy as _core
from mindtorch.devices.lazy_device import DATALESS
from mindtorch.profile.estimate import scratch
from mindtorch.profile.measure import peak
from mindtorch.profile.measure.peak import CATEGORIES
from mindtorch.profile.report.module_names import Names
from mindtorch.profile.report.rows import told_phases

WITH_GRADIENTS = "enter with gradients"  # a mark, of a call in which they are kept
_CALLS = ("enter", WITH_GRADIENTS)
SCRATCH = "scratch"  # no storage of the program's: what a kernel takes while it runs
_BLOCK, _CALL = np.dtype(ledger.BLOCK), np.dtype(ledger.CALL)


class MemoryTimeline:
    """The two logs of a ledger, read.

    calls: the log of calls, as a structured array. live: bytes live at each of its positions, of the device that the
    program works on (the accelerator, if it uses one; what stays on the host is not counted then), of storages alone,
    as a measured profile counts. scratch: what the call there takes beside. all_blocks: the log of storages.
    marks: (kind, position) of what the ledger's handler was told, "enter" with gradients as `WITH_GRADIENTS`.
    """

    def __init__(self, calls: bytes, blocks: bytes, marks: Sequence[tuple[str, int]]) -> None:
        self.calls, self._marks = np.frombuffer(calls, _CALL), marks
        found = self.all_blocks = np.frombuffer(blocks, _BLOCK)
        kinds = np.array([str(device) for device in DATALESS])[-1 - found["place"].astype(int)]
        self.device = _main_device(kinds, found["nbytes"])
        self.others: dict[str, int] = {}  # label → most bytes live there
        for label in (*(str(k) for k in np.unique(kinds) if k != self.device), self.device):
            self.blocks = found[kinds == label]
            grain = ledger.GRAIN.get(label.partition(":")[0], 1)
            self.nbytes = (self.blocks["nbytes"].astype(np.int64) + grain - 1) // grain * grain
            n = len(self.calls)
            self.born = np.minimum(self.blocks["born"], n).astype(np.int64)
            self.died = np.minimum(self.blocks["died"], n).astype(np.int64)
            self.live = self._over_time(np.ones(len(self.blocks), bool))
            if label != self.device:
                self.others[label] = self.peak()
        self.scratch = np.zeros(len(self.live), np.int64)
        if self.device == "cpu":
            self.scratch[1:] = scratch.over(self.calls["sig"])  # the n-th call runs at n + 1
        self.categories = peak.categories(self.blocks, any(kind == "backward" for kind, _ in marks))
        entered = self.calls["module"][(self.calls["phase"] & ledger.ENTERED) != 0]
        called, first = np.unique(entered, return_index=True)
        self.order = dict(zip(called.tolist(), first.tolist(), strict=True))
        self.names = Names(self.order)

    def _over_time(self, chosen: Any) -> Any:
        """Bytes live while the n-th call runs, n from 0: what it makes is there already, what it uses still."""
        change = np.zeros(len(self.calls) + 2, np.int64)
        np.add.at(change, self.born[chosen], self.nbytes[chosen])
        np.subtract.at(change, self.died[chosen] + 1, self.nbytes[chosen])
        return np.cumsum(change)[:-1]

    def peak(self, first: int = 0, last: int | None = None) -> int:
        """Most bytes live within these positions."""
        part = self.live[first:] if last is None else self.live[first : last + 1]
        return int(part.max(initial=0))

    def peaks_by(self, field: str, stretches: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Most bytes live at positions of each value of ``calls[field]``, within these stretches of positions.

        Phases are those that a report tells.
        """
        keys = np.concatenate([self.calls[field][first:last] for first, last in stretches])
        live = np.concatenate([self.live[first + 1 : last + 1] for first, last in stretches])
        values, which = np.unique(told_phases(keys & 0xFF) if field == "phase" else keys, return_inverse=True)
        most = np.zeros(len(values), np.int64)
        np.maximum.at(most, which, live)
        return {int(v): int(m) for v, m in zip(values, most, strict=True)}

    def report(self, capacity: int | None = None, card: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the report says about memory: the peak by category, where it is, its largest parts, the way there.

        card: what the device holds for it (`DeviceMemory.report`), where that is known; then it decides what fits.
        """
        held = self.live + self.scratch
        at = int(held.argmax()) if len(held) else 0
        there = (self.born <= at) & (at <= self.died)
        kinds, nbytes = self.categories[there], self.nbytes[there]
        most = int(held[at]) if len(held) else 0
        by_category = peak.by_category(kinds, nbytes)
        if len(held) and self.scratch[at]:
            by_category[SCRATCH] = int(self.scratch[at])
        facts: dict[str, Any] = {
            "device": self.device,
            "other_devices": self.others,
            "peak_bytes": most,
            "categories": by_category,
            "kept_in_vain_bytes": self._kept_in_vain(at, there),
            "at": self._where(at),
            "largest": peak.largest(kinds, self.blocks[there], nbytes, self.names, op_name),
            "lines": peak.by_line(self.blocks[there], nbytes),
            "held": self._held(at, there),
            "timeline": self._timeline(held),
        }
        if card is not None:
            facts |= card
        elif capacity is not None:
            facts["capacity_bytes"] = capacity
            facts["fits"] = most <= capacity
            facts["spare_bytes"] = capacity - most
            facts["devices"] = max(1, -(-most // capacity))
        return facts

    def _held(self, at: int, there: Any) -> dict[str, Any]:
        """By kind, module and line; scratch memory is of the call that is running."""
        scratch = []
        if len(self.scratch) and self.scratch[at]:
            call = self._call(at)
            scratch = [(SCRATCH, int(call["module"]), int(call["location"]), int(self.scratch[at]))]
        return peak.held(self.categories[there], self.blocks[there], self.nbytes[there], self.names, scratch)

    def _kept_in_vain(self, at: int, there: Any) -> int:
        """See `peak.kept_in_vain`."""
        before = [kind for kind, position in self._marks if kind in _CALLS and position < at]
        if not len(self.calls) or not before or before[-1] != WITH_GRADIENTS:
            return 0
        backward = min((position for kind, position in self._marks if kind == "backward" and position >= at),
                       default=len(self.calls) + 1)  # fmt: skip
        phase = int(self._call(at)["phase"]) & 0xFF
        found = self.died[there] > backward
        return peak.kept_in_vain(self.categories[there], self.blocks[there], self.nbytes[there], phase, found)

    def _call(self, position: int) -> Any:
        """That which is running."""
        return self.calls[max(position - 1, 0)]

    def _where(self, position: int) -> dict[str, Any]:
        if not len(self.calls):
            return {}
        call = self._call(position)
        return {"position": position, "op": op_name(int(call["sig"])),
                "module": self.names[int(call["module"])], **peak.line(int(call["location"])),
                "phase": context.phase_name(int(call["phase"]) & 0xFF)}  # fmt: skip

    def _timeline(self, held: Any) -> dict[str, Any]:
        """At most `POINTS` stretches of program order: the position where each begins, and the most bytes in it."""
        n = len(held)
        edges = peak.stretches(n)
        rows: dict[str, Any] = {"positions": edges.tolist(), "bytes": []}
        if not n:
            return rows
        rows["bytes"] = np.maximum.reduceat(held, edges).tolist()
        at = peak.highest(held, edges)
        rows["categories"] = {
            name: self._over_time(self.categories == i)[at].tolist()
            for i, name in enumerate(CATEGORIES) if (self.categories == i).any()
        }  # fmt: skip
        if self.scratch.any():
            rows["categories"][SCRATCH] = self.scratch[at].tolist()
        return rows


def _main_device(kinds: Any, nbytes: Any) -> str:
    """The accelerator of most bytes, if there is one; else the CPU, else meta."""
    sums = {str(kind): int(nbytes[kinds == kind].sum()) for kind in np.unique(kinds)}
    accelerators = {kind: total for kind, total in sums.items() if kind not in ("cpu", "meta")}
    return max(accelerators or sums or {"cpu": 0}, key=(accelerators or sums or {"cpu": 0}).__getitem__)


def op_name(sig: int) -> str:
    """The op of a call in the log; empty for what is none."""
    if not sig:
        return ""
    named = ledger.named(sig)
    return str(_core.sig_info(sig).name if named is None else named.partition(" ")[0])


def module_calls(calls: Any) -> tuple[dict[int, int], dict[int, int]]:
    """{path id of a module: how often it was called}, and the same without gradients, in no step of a generation."""
    entered = calls[(calls["phase"] & ledger.ENTERED) != 0]
    inference = np.isin(entered["phase"] & (ledger.ENTERED - 1), (context.CANDIDATE, context.INFERENCE))
    counted = (np.unique(of["module"], return_counts=True) for of in (entered, entered[inference]))
    entries, without = (dict(zip(modules.tolist(), times.tolist(), strict=True)) for modules, times in counted)
    return entries, without
