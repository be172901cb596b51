"""Who uses a cluster: the programs that have workers there, or wait for them (SPEC C9). Imported by the broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["sessions"]


def sessions() -> list[dict[str, Any]]:
    """Each program that `mindtorch.connect` has put on this cluster and that has not ended, oldest first: ``user``,
    ``program``, ``host`` and ``process`` as it says itself; ``started``: seconds since 1970; ``workers``, each with
    ``name``, ``node``, ``address``, ``process``, ``resources`` and ``started``; ``waits_for``: of each worker for which
    there is no room yet, what it asks for.
    """
    import ray.core.generated.gcs_pb2
    from ray._private.state import state

    gcs_pb2: Any = ray.core.generated.gcs_pb2
    # Ray's public functions leave out what is asked for here, or need its dashboard.
    accessor = state._connect_and_get_accessor()
    jobs = map(gcs_pb2.JobTableData.FromString, accessor.get_job_table(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True
    ))  # fmt: skip
    found = {
        job.job_id: {
            **{name: job.config.metadata[name] for name in ("user", "program", "host")},
            "process": int(job.config.metadata["process"]),
            "started": job.start_time / 1000,
            "workers": [],
            "waits_for": [],
        }
        for job in jobs
        if not job.is_dead and "mindtorch" in job.config.metadata
    }  # fmt: skip
    for data in accessor.get_actor_table(None, "ALIVE"):
        actor = gcs_pb2.ActorTableData.FromString(data)
        if actor.job_id in found:
            found[actor.job_id]["workers"].append(_worker(actor))
    for each in found.values():
        each["workers"].sort(key=lambda worker: worker["name"])
    for data in accessor.get_placement_group_table():
        group = gcs_pb2.PlacementGroupTableData.FromString(data)
        if group.creator_job_id in found and group.state == gcs_pb2.PlacementGroupTableData.PENDING:
            found[group.creator_job_id]["waits_for"] += [dict(each.unit_resources) for each in group.bundles]
    return sorted(found.values(), key=lambda each: each["started"])


def _reserved(required: Mapping[str, float]) -> dict[str, float]:
    """Ray's names of what is taken from room that was reserved: ``CPU_group_<its id>``, and one with the part."""
    plain: dict[str, float] = {}
    for name, amount in sorted(required.items()):
        own = re.sub(r"_group_(\d+_)?[0-9a-f]{32,}$", "", name)
        if own != "bundle":
            plain[own] = amount
    return plain


def _worker(actor: Any) -> dict[str, Any]:
    return {
        "name": actor.name,
        "node": actor.address.node_id.hex()[:8],
        "address": actor.address.ip_address,
        "process": actor.pid,
        "resources": _reserved(actor.required_resources),
        "started": actor.start_time / 1000,
    }
