"""R2: a cluster that starts machines when some are missing is asked for them, and waited for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.cluster import nodes
from mindtorch.cluster.broker_client import Link

from .test_nodes import free_port

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
_LISTS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Ray's own stand-in for a cloud: its machines are processes here. One CPU at first, up to two more machines."""
    for name in [name for name in os.environ if name.startswith(("GENIE_", "RAY_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "RAY_AUTH_TOKEN": "d" * 64, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    port = free_port()
    kinds = {"ray.head.default": ({"CPU": 1}, 0), "larger": ({"CPU": 2, "object_store_memory": 10**8}, 2)}
    config = {
        "cluster_name": "c", "max_workers": 2, "auth": {"ssh_user": "nobody"}, "docker": {}, "file_mounts": {},
        "provider": {
            "type": "fake_multinode", "gcs_address": f"127.0.0.2:{port}", "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default", "upscaling_speed": 1.0, "idle_timeout_minutes": 5,
        "available_node_types": {
            kind: {"resources": has, "node_config": {}, "min_workers": 0, "max_workers": most}
            for kind, (has, most) in kinds.items()
        },
        **{f"{name}_commands": [] for name in _LISTS},
        "cluster_synced_files": [], "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": [],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with nodes.started("127.0.0.2", port, cpus=1, gpus=0, more=[f"--autoscaling-config={tmp_path}/config.json"]) as one:
        for _ in range(30):  # its autoscaler takes some seconds to say that it is there
            link = Link(one.address, 0, 0)
            link.close()
            if link.autoscales:
                break
            time.sleep(0.5)
        yield one.address


def test_R2_machines_that_an_autoscaler_starts_are_waited_for(growing: str) -> None:
    executor = mindtorch.connect(growing, workers=2, device="cpu", resources="cpus=2")
    try:
        tensors = [torch.ones(2, device=f"remote_accelerator:{i}") for i in range(2)]
        assert [(x + 1).tolist() for x in tensors] == [[2, 2], [2, 2]]
        assert len(nodes.nodes(growing)) == 3
        assert executor.count == 2
    finally:
        mindtorch.disconnect()
    # GPUs: none of its machines has one, which only the autoscaler knows.
    with pytest.raises(mindtorch.UsageError, match=r"each with 1 GPU within 2 s; free there: 5 CPU, 0 GPU"):
        mindtorch.connect(growing, device="cuda", wait=2)
