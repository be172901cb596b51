"""R4: whatever ends, stops or is missing, there are the right numbers or one error, and nothing is left behind.

``pytest tests/cluster/test_faults.py --faults 1000`` is the whole; a fault takes some four seconds.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import mindtorch
from mindtorch.cluster import nodes, private_cluster
from mindtorch.cluster.broker_client import Link

from .blows import processes, until
from .faults import FIRST, Faults

#: How often there is one of a kind among twenty, in this order.
SHARES = {"worker": 8, "memory": 3, "delay": 3, "broker": 1, "raylet": 1, "driver": 2, "disk": 1, "loss": 1}


def kinds() -> list[str]:
    """One of each, then the others."""
    more = [kind for kind, share in SHARES.items() for _ in range(share - 1)]
    return [*SHARES, *more]


def test_R4_faults_at_any_time_give_the_right_numbers_or_one_error(
    link: Link, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    order = kinds()
    only = pytestconfig.getoption("--fault-kind")
    first, many = pytestconfig.getoption("--first-fault"), pytestconfig.getoption("--faults")
    ends: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        faults = Faults(link, stack)
        for seed in range(first, first + many):
            kind = order[seed % len(order)] if not only else only[seed % len(only)]
            try:
                ended = faults.fault(kind, seed)
            except (OSError, subprocess.CalledProcessError) as error:
                if kind not in ("disk", "loss"):
                    raise
                ended = f"cannot be made here: {error}"
            except Exception as error:
                print(f"fault {seed}: {kind}: {error!r}")
                raise
            ends[f"{kind}: {ended}"] += 1
            if many > 50:
                with capsys.disabled():
                    print(seed, kind, ended, flush=True)
    print(dict(sorted(ends.items())), {kind: round(seconds, 1) for kind, seconds in faults.longest.items()})


@pytest.mark.whole
def test_R2_connecting_and_disconnecting_leaves_nothing_behind(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a cluster that is there, and every tenth time to a new one: processes, files, shared memory, Ray's objects."""
    many = pytestconfig.getoption("--connects")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with nodes.started(port=port, cpus=2) as node:
        monkeypatch.setenv("RAY_AUTH_TOKEN", node.token)

        def once(address: str) -> None:
            mindtorch.connect(address, workers=1, device="cpu")
            assert (torch.arange(300_000.0).to(FIRST) * 2)[-1].item() == 599_998
            mindtorch.disconnect()

        once(node.address)
        before = now = what_is_there(node.process.pid, node.address)
        for number in range(1, many + 1):
            once("local" if number % 10 == 0 else node.address)

        def nothing_more() -> bool:
            nonlocal now
            now = what_is_there(node.process.pid, node.address)
            return all(a <= b for a, b in zip(now, before, strict=True))

        until(nothing_more, f"more than {before}: {now}")
        if many > 50:
            with capsys.disabled():
                print(many, "connections:", before, now)


class There(NamedTuple):
    """What there is of a cluster and a program."""

    processes: int  # of the cluster
    children: int  # of this process
    files: int  # this process's open ones
    folders: int  # in the folder for temporary files
    segments: int  # of shared memory
    taken: int  # CPUs, and bytes of Ray's object store
    groups: int  # of resources that somebody has reserved
    actors: int


def what_is_there(session: int, address: str) -> There:
    said = subprocess.run(
        [sys.executable, "-c", _OBJECTS, address], check=True, capture_output=True, text=True,
        env=private_cluster.joining(dict(os.environ), address),
    ).stdout  # fmt: skip
    return There(
        len(processes(session)),
        len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        len(os.listdir("/proc/self/fd")),
        len([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("genie-")]),
        len(os.listdir("/dev/shm")),
        *map(int, said.split()),
    )


_OBJECTS = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="CRITICAL", log_to_driver=False)
total, free = ray.cluster_resources(), ray.available_resources()
taken = {name: total[name] - free.get(name, 0) for name in ("CPU", "object_store_memory")}
groups = [each for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]
print(int(sum(taken.values())), len(groups), len(ray.util.list_named_actors(all_namespaces=True)))
"""
