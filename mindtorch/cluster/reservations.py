"""Room for a program's workers on a cluster: asked for, waited for, given back (SPEC R2). Imported by the broker."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..base.words import amounts, bytes_in_words, counted

__all__ = ["Room", "alive", "autoscales", "reserve"]

_FREED = 10.0  # seconds in which a program that has just ended gives back what it had
_SCALED = 600.0  # in which an autoscaler starts machines


class Room:
    """What was reserved: Ray's placement group, with a bundle for each worker. It is given back with the last one."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._users = 0
        self._lock = threading.Lock()

    def strategy(self, part: int) -> Any:
        """For the actor that is to have a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, part)

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        give_back(self._group)


def give_back(group: Any) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # the cluster has ended, and all that was reserved there
        ray.util.remove_placement_group(group)


def reserve(
    workers: int, bundle: Mapping[str, float], placement: str | None, node: str | None, labels: Mapping[str, str],
    name: str, wait: float | None, tell: Callable[[str], None],
) -> Room:  # fmt: skip
    """Room for so many workers. TimeoutError, which says what is missing, if there is none after ``wait`` seconds; if
    None, at once where none of the machines is large enough and no more can come. ``tell`` gets what is waited for.
    """
    import ray

    chosen = dict(labels)
    if node is not None:
        chosen["ray.io/node-id"] = _ids(node)
    what = f"room for {counted(workers, 'worker')}, each with {amounts(bundle)}"
    if labels or node:
        what += f", on {node or ''}{' with ' if node and labels else ''}{_said(labels)}".rstrip()
    if placement is not None:
        what += f" ({placement})"
    if wait is None and not autoscales() and not node and not labels and not _could_be(workers, bundle, placement):
        raise TimeoutError(f"expected {what}; the cluster has {_machines()}")
    limit = (_SCALED if autoscales() else _FREED) if wait is None else wait
    group = ray.util.placement_group(
        [dict(bundle)] * workers, (placement or "pack").upper(), name=name,
        bundle_label_selector=[chosen] * workers if chosen else None,
    )  # fmt: skip
    began = time.monotonic()
    try:
        while not group.wait(1):
            waited = time.monotonic() - began
            if waited >= limit:
                raise TimeoutError(
                    f"expected {what} within {limit:g} s; free there: {_free()}; genie worker list shows who uses the "
                    "rest, and --wait waits for room"
                )
            tell(f"waiting {waited:.0f} s for {what}; free now: {_free()}")
    except BaseException:
        give_back(group)
        raise
    return Room(group)


def _said(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def alive() -> list[dict[str, Any]]:
    """The cluster's machines, as Ray has them, by address."""
    import ray

    found = [node for node in ray.nodes() if node["Alive"]]
    return sorted(found, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


def _ids(node: str) -> str:
    """Ray's ids of the machines that a name, an address or the beginning of an id means, as a selector of labels."""
    nodes = alive()
    named = [
        each["NodeID"] for each in nodes
        if node in (each["NodeManagerHostname"], each["NodeManagerAddress"], each["NodeName"])
        or (len(node) >= 4 and each["NodeID"].startswith(node))
    ]  # fmt: skip
    if not named:
        there = ", ".join(f"{each['NodeManagerHostname']} ({each['NodeID'][:8]})" for each in nodes)
        raise ConnectionError(f"node: expected one of the cluster's machines, {there}; got {node!r}")
    return f"in({','.join(named)})"


def _of_interest(has: Mapping[str, float]) -> dict[str, float]:
    """Without what Ray has for itself, in the order in which it is read."""
    kept = {key: value for key, value in has.items() if not key.startswith(("node:", "object_store", "accelerator_"))}
    kept = {key: value for key, value in kept.items() if "_group_" not in key and key != "memory"}
    return {"CPU": kept.pop("CPU", 0), "GPU": kept.pop("GPU", 0), **kept}


def _machines() -> str:
    return "; ".join(
        f"{node['NodeManagerHostname']} ({node['NodeID'][:8]}): {amounts(_of_interest(node['Resources']))}, "
        f"{bytes_in_words(int(node['Resources'].get('memory', 0)))} of memory"
        for node in alive()
    )


def _free() -> str:
    import ray

    free = ray.available_resources()
    return f"{amounts(_of_interest(free))}, {bytes_in_words(int(free.get('memory', 0)))} of memory"


def _could_be(workers: int, bundle: Mapping[str, float], placement: str | None) -> bool:
    """Would so many fit on the machines that there are, if nobody else used them?"""
    fit = [min(int(node["Resources"].get(key, 0) / value + 1e-6) for key, value in bundle.items()) for node in alive()]
    if placement == "strict_spread":
        return sum(1 for each in fit if each) >= workers
    return (max(fit) if placement == "strict_pack" else sum(fit)) >= workers


def autoscales() -> bool:
    """Does the cluster start machines when some are missing? Ray's monitor names the kinds of those it can start; a
    cluster without an autoscaler has one, too, for which each machine is a kind of its own. Unknown, so False, through
    Ray's client.
    """
    from ray._private.client_mode_hook import client_mode_should_convert
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get

    if client_mode_should_convert():
        return False
    if is_autoscaler_v2(fetch_from_server=True):
        return True
    told = _internal_kv_get("__autoscaling_status")
    report = (json.loads(told).get("autoscaler_report") or {}) if told else {}
    kinds = [*(report.get("node_type_mapping") or {}).values(), *(report.get("active_nodes") or {})]
    return any(not re.fullmatch(r"node_[0-9a-f]{40,}", kind) for kind in kinds)
