"""R2, R4, C9: several programs on one cluster of two machines: what each reserves, waits for, and is listed with."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.cluster import nodes, ray_child, ray_executor
from mindtorch.cluster.broker_client import Link
from mindtorch.engine.remote import progress

from ..remote.test_pipe import gone
from .test_nodes import free_port

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
LAZY = "remote_accelerator:0"
TOKEN = "c" * 64
Connect = Callable[..., mindtorch.Executor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In which its workers may save checkpoints."""
    return str(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def cluster(folder: str) -> Iterator[str]:
    """Two machines' worth of one: Linux has all of 127.0.0.0/8. Two CPUs on the first, a CPU, a GPU and a tpu on the
    second, as Ray counts them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GENIE_", "RAY_"))]:
            patch.delenv(name)
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        port = free_port()
        with (
            nodes.started("127.0.0.2", port, cpus=2, gpus=0, files=[folder], more=["--labels=zone=a"]) as first,
            nodes.started(
                "127.0.0.3", join=first.address, cpus=1, gpus=1, more=["--labels=zone=b", '--resources={"tpu": 1}']
            ),
        ):
            yield first.address


@pytest.fixture
def join(cluster: str) -> Iterator[Connect]:
    def connected(**given: Any) -> mindtorch.Executor:
        return mindtorch.connect(cluster, device="cpu", **given)

    yield connected
    mindtorch.disconnect()


def works(index: int = 0) -> bool:
    return (torch.ones(2, device=f"remote_accelerator:{index}") + 1).tolist() == [2, 2]


def addresses(cluster: str) -> dict[str, str]:
    """Of each machine, by Ray's id."""
    return {node["id"]: node["address"] for node in nodes.nodes(cluster)}


def room(link: Link, bundle: dict[str, float], wait: float | None = None, workers: int = 1) -> None:
    number = link.ask(
        "reserve", workers=workers, bundle=bundle, placement=None, node=None, labels={}, name="r", wait=wait
    )  # fmt: skip
    link.answer(number, 60)


# ---- what is reserved, and where -------------------------------------------------------------------------------------
def test_R2_workers_are_where_they_were_asked_for_and_listed(
    cluster: str, join: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    executor = join(workers=2, resources="placement=strict_spread,memory=100MB")
    assert works(0) and works(1)
    assert executor.limits() == [100_000_000] * 2  # type: ignore[attr-defined]
    found, (session,) = nodes.nodes_and_sessions(cluster)
    assert {node["address"] for node in found} == {"127.0.0.2", "127.0.0.3"}
    assert (session["program"], session["process"], session["waits_for"]) == ("train.py", os.getpid(), [])
    workers = session["workers"]
    assert [worker["name"].split(" ", 1)[1] for worker in workers] == [
        f"train.py remote_accelerator:{i}" for i in range(2)
    ]
    assert {worker["address"] for worker in workers} == {"127.0.0.2", "127.0.0.3"}
    assert [worker["process"] for worker in workers] == executor.stats["process"]  # type: ignore[attr-defined]
    assert all(worker["resources"] == {"CPU": 1, "memory": 100_000_000} for worker in workers)
    assert 0 < session["started"] <= min(worker["started"] for worker in workers)
    with pytest.raises(
        mindtorch.UsageError, match=r"^\[save\] expected tensors of this worker, got one of another worker"
    ):
        executor.executors[1].save([torch.ones(2, device=LAZY)], "/x.pt")  # type: ignore[attr-defined]
    mindtorch.disconnect()
    assert nodes.nodes_and_sessions(cluster)[1] == []


@pytest.mark.parametrize("asked", ["node=127.0.0.3", "labels.zone=b", "custom.tpu=0.5"])
def test_R2_a_machine_by_its_address_its_label_or_what_it_has(asked: str, cluster: str, join: Connect) -> None:
    executor = join(resources=asked)
    assert works() and addresses(cluster)[executor.node] == "127.0.0.3"  # type: ignore[attr-defined]


def test_R2_a_worker_has_as_many_threads_as_it_reserved_cpus(join: Connect) -> None:
    before = torch.get_num_threads()
    executor = join(resources={"cpus": 2})
    try:
        x = torch.rand(1_000_003)
        torch.set_num_threads(2)
        expected = x.sum().item()
        torch.set_num_threads(1)
        assert x.to(LAZY).sum().item() == expected
        assert "set_num_threads" not in dict(executor._ambient)  # type: ignore[attr-defined]
    finally:
        torch.set_num_threads(before)


def test_R2_a_worker_has_its_runtime_env(tmp_path: Path, join: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("")
    (tmp_path / "env.json").write_text('{"working_dir": "code", "env_vars": {"MINE": "here"}}')
    monkeypatch.chdir(tmp_path)
    executor = join(resources="runtime_env=env.json,name=mine")
    process = executor.process  # type: ignore[attr-defined]
    assert b"MINE=here" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    assert os.path.exists(f"/proc/{process}/cwd/mine.py") and works()


def test_R2_a_runtime_env_that_ray_refuses_is_one_sentence(join: Connect, tmp_path: Path) -> None:
    with pytest.raises(mindtorch.UsageError, match=r"^\[connect\] Ray at .*: ValueError: .*none.*[^\n]*$"):
        join(resources={"runtime_env": {"working_dir": str(tmp_path / "none")}})


def test_R2_halves_of_a_gpu(cluster: str) -> None:
    link = Link(cluster, 0, 0)
    try:
        room(link, {"GPU": 0.5})
        room(link, {"GPU": 0.5})
        with pytest.raises(mindtorch.UsageError, match=r"each with 0.5 GPU within 0 s; free there: 3 CPU, 0 GPU"):
            room(link, {"GPU": 0.5}, wait=0)
    finally:
        link.close()


def test_R4_a_lost_worker_is_rebuilt_where_it_had_room(cluster: str, join: Connect) -> None:
    executor = join(resources="node=127.0.0.3,cpus=1")
    x = torch.arange(4.0, device=LAZY) + 1
    assert x.tolist() == [1, 2, 3, 4]
    os.kill(executor.stats["process"], signal.SIGKILL)  # type: ignore[attr-defined]
    assert (x * 2).tolist() == [2, 4, 6, 8] and executor.stats["rebuilt"] == 1  # type: ignore[attr-defined]
    ((worker,),) = (session["workers"] for session in nodes.nodes_and_sessions(cluster)[1])
    assert worker["address"] == "127.0.0.3" and worker["name"].endswith("remote_accelerator:0 (2)")


def test_R3_a_cluster_that_was_joined_saves_in_its_folders_only(join: Connect, folder: str, tmp_path: Path) -> None:
    executor: Any = join(resources="node=127.0.0.2")
    x = torch.arange(3.0, device=LAZY)
    executor.save({"x": x}, f"{folder}/x.pt")
    assert torch.load(f"{folder}/x.pt")["x"].tolist() == executor.load(f"{folder}/x.pt")["x"].tolist() == [0, 1, 2]
    with pytest.raises(mindtorch.UsageError, match=rf"one of the worker's folders \({folder}\), got "):
        executor.save({"x": x}, str(tmp_path / "x.pt"))
    assert not os.listdir(tmp_path)


# ---- waiting ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"resources": "cpus=3"}, r"expected room for 1 worker, each with 3 CPU; the cluster has .*: 2 CPU, .*: 1 CPU"),
        ({"workers": 3, "resources": "placement=strict_spread"}, r"expected room for 3 workers, .* \(strict_spread\);"),
        ({"resources": "custom.fpga=1"}, r"expected room for 1 worker, each with 1 fpga; the cluster has .* 1 tpu"),
        ({"resources": "node=elsewhere"}, r"node: expected one of the cluster's machines, .*; got 'elsewhere'"),
        ({"resources": "cpus=2,labels.zone=b", "wait": 1}, r"expected room for .* on zone=b within 1 s; free there: 3"),
        ({"resources": "memory=5TiB", "wait": 0}, r".* each with 1 CPU, 5120.00 GiB of memory within 0 s;"),
    ],
)
def test_R2_no_room_is_told_with_what_there_is(given: dict[str, Any], told: str, join: Connect) -> None:
    with pytest.raises(mindtorch.UsageError, match=rf"^\[connect\] Ray at [\d.:]+: {told}"):
        join(**given)


@pytest.mark.parametrize("wait", [-1, True, "long"])
def test_R2_what_is_no_time_to_wait_is_refused(wait: object, join: Connect) -> None:
    with pytest.raises(mindtorch.UsageError, match=r"wait: expected a number of seconds, got"):
        join(wait=wait)


def test_R2_a_worker_that_is_slow_to_start_is_no_cluster_without_room(
    join: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_child, "_BEGINS", 0.05)
    with pytest.raises(mindtorch.UsageError, match=r"there is room for the worker, but it did not start within 0.05 s"):
        join()


def test_R2_room_is_waited_for_and_this_is_shown(
    cluster: str, join: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Link(cluster, 0, 0)
    room(other, {"CPU": 2})
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    listed: list[Any] = []

    def look() -> None:
        listed.extend(nodes.nodes_and_sessions(cluster)[1])
        other.close()

    looking = threading.Timer(3, look)
    looking.start()
    join(wait=math.inf, resources="cpus=2,name=patient")
    looking.join()
    assert works()
    shown = capsys.readouterr().err
    assert "s for room for 1 worker, each with 2 CPU; free now: 1 CPU, 1 GPU" in shown
    assert shown.endswith("\x1b[K")  # and it is cleared
    ((program, waits, workers),) = [(each["program"], each["waits_for"], each["workers"]) for each in listed]
    assert (program, waits, workers) == ("patient", [{"CPU": 2}], [])


def test_R2_room_is_given_back_with_its_last_worker(cluster: str) -> None:
    """Whether or not the program goes on."""
    link = Link(cluster, 0, 0)
    try:
        made = ray_executor.executors(link, "cpu", 2, 0, mindtorch.Resources(cpus=1), None, "mine")
        for executor in made:
            process = executor.stats["process"]
            executor.close()
            assert gone(process)
        room(link, {"CPU": 1}, workers=3, wait=20)
    finally:
        link.close()


# ---- several programs ------------------------------------------------------------------------------------------------
def test_C9_two_programs_have_workers_of_their_own_and_are_listed(cluster: str, tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(
        "import sys, torch\n"
        "x = torch.arange(4.0) * float(sys.argv[1])\n"
        "print(x.tolist(), flush=True)\n"
        "sys.stdin.read()\n"
        "print((x + 1).tolist())\n"
    )
    environment = dict(os.environ, RAY_AUTH_TOKEN=TOKEN, GENIE_EXECUTOR_DEVICE="cpu")
    genie = [sys.executable, "-m", "mindtorch"]
    programs = [
        subprocess.Popen(
            [*genie, "run", "--executor", "ray", "--address", cluster, "--resources", f"name=p{i}", script, str(i)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in (1, 2)
    ]  # fmt: skip
    try:
        for i, program in enumerate(programs, 1):
            assert program.stdout is not None
            assert json.loads(program.stdout.readline()) == [0, i, 2 * i, 3 * i]
        listing = [*genie, "worker", "list", "--address", cluster]
        shown = subprocess.run(listing, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
        told = json.loads(
            subprocess.run(
                [*listing, "--json"], env=environment, capture_output=True, text=True, timeout=60, check=True
            ).stdout
        )
        sessions = {session["program"]: session for session in told["sessions"]}
        assert {name: each["process"] for name, each in sessions.items()} == {
            "p1": programs[0].pid,
            "p2": programs[1].pid,
        }
        workers = [worker for each in sessions.values() for worker in each["workers"]]
        assert len({worker["process"] for worker in workers}) == 2
        for name, session in sessions.items():
            assert f": {name}, process {session['process']} on " in shown
            (worker,) = session["workers"]
            assert f"({worker['node']}), process {worker['process']}, since " in shown
        assert shown.count("  1 CPU on ") == 2
        for i, program in enumerate(programs, 1):
            told, error = program.communicate(timeout=60)
            assert json.loads(told) == [1, i + 1, 2 * i + 1, 3 * i + 1] and not error
    finally:
        for program in programs:
            program.kill()
            program.wait()
