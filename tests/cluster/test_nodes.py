"""C9: genie worker: a machine of a cluster that programs of others use."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

Forked = Callable[..., "subprocess.CompletedProcess[str]"]
GENIE = [sys.executable, "-m", "mindtorch"]


def free_port() -> int:
    """Below those that Ray gives to its processes, and others than in another process of pytest's."""
    first = 6500 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    for port in range(first, first + 100):
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


@pytest.fixture
def genie(forked: Forked) -> Forked:
    """The command, of which variables beginning with GENIE_ or RAY_ are only those that are given."""

    def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
        return forked("-m", "mindtorch", *args, environment=variables | environment)

    return run


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The command, the cluster's address, and its token."""
    port = free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
    process = subprocess.Popen(
        [*GENIE, "worker", "start", "--port", str(port), "--cpus", "2"],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs do not heed it
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "--executor ray" in line:
            break
    token = re.search(r"RAY_AUTH_TOKEN=(\w{64})", said)
    assert token is not None, said
    yield process, f"127.0.0.1:{port}", token[1]
    if process.poll() is None:
        process.terminate()
    process.wait(30)


Worker = tuple[subprocess.Popen[str], str, str]


@pytest.fixture(scope="module")
def stranger(worker: Worker) -> Iterator[subprocess.Popen[str]]:
    """Asks with another token. Ray tries for 20 seconds, so it begins with the first test."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
    process = subprocess.Popen(
        [*GENIE, "worker", "list", "--address", worker[1]], env=variables | {"RAY_AUTH_TOKEN": "0" * 64},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("stranger")
def test_C9_what_a_cluster_has_is_listed(worker: Worker, genie: Forked) -> None:
    _process, address, token = worker
    shown = genie("worker", "list", "--address", address, RAY_AUTH_TOKEN=token)
    assert shown.returncode == 0 and re.match(r"127\.0\.0\.1 .*2 CPU\(s\), 0 GPU\(s\), \d.*memory\n$", shown.stdout)
    told = json.loads(genie("worker", "list", "--json", RAY_AUTH_TOKEN=token, GENIE_ADDRESS=address).stdout)
    (node,) = told["nodes"]
    assert (node["address"], node["cpus"], node["gpus"]) == ("127.0.0.1", 2, 0) and node["memory"] > 1 << 28
    devices = genie(
        "devices", "remote_accelerator", "--json", RAY_AUTH_TOKEN=token, GENIE_ADDRESS=address, GENIE_EXECUTOR="ray"
    )
    (device,) = json.loads(devices.stdout)["devices"]
    assert device["available"] and device["details"]["nodes"] == [node]


def test_C9_a_program_runs_on_it_with_two_devices(worker: Worker, tmp_path: object, genie: Forked) -> None:
    _process, address, token = worker
    script = os.path.join(str(tmp_path), "two.py")
    with open(script, "w") as file:
        file.write(
            "import torch, os, mindtorch\n"
            "a, b = torch.ones(3), torch.ones(3, device='remote_accelerator:1')\n"
            "print((a.to(b.device) + b).tolist(), a.device)\n"
            "print(len({*mindtorch.get_executor().stats['process']} - {os.getpid()}))\n"
        )
    run = genie(
        "run", "--executor", "ray", "--address", address, "--workers", "2", script, RAY_AUTH_TOKEN=token
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "[2.0, 2.0, 2.0] remote_accelerator:0\n2\n"), run.stderr


def test_C9_what_cannot_be_started_is_one_line(worker: Worker, genie: Forked) -> None:
    _process, address, _token = worker
    taken = genie("worker", "start", "--port", address.partition(":")[2])
    assert taken.returncode == 2 and "free port" in taken.stderr
    tokenless = genie("worker", "start", "--join", address)
    assert tokenless.returncode == 2 and "RAY_AUTH_TOKEN" in tokenless.stderr
    nobody = genie("worker", "list", "--address", "127.0.0.1:1")
    assert nobody.returncode == 2 and "got no answer" in nobody.stderr


def test_C9_a_machine_is_started_and_listed_without_torch() -> None:
    """Which takes longer to load than all the rest."""
    for command in (["start", "--port", "1024", "--join", "127.0.0.1:1"], ["list", "--address", "127.0.0.1:1"]):
        line = [sys.executable, "-X", "importtime", *GENIE[1:], "worker", *command]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
        done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=60)
        loaded = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines() if "|" in text}
        assert done.returncode == 2 and "mindtorch.cluster.nodes" in loaded and "torch" not in loaded, done.stderr[
            -500:
        ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_C9_sigterm_and_sigkill_end_all_that_it_has_started(number: int, code: int) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GENIE_", "RAY_"))}
    process = subprocess.Popen(
        [*GENIE, "worker", "start", "--port", str(free_port()), "--cpus", "1"],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None and "ready" in process.stdout.readline()
    children = _session(process.pid)
    assert len(children) >= 3, "Ray's daemons"
    process.send_signal(number)
    assert process.wait(30) == code
    end = time.monotonic() + 20
    while time.monotonic() < end and any(os.path.exists(f"/proc/{child}") for child in children):
        time.sleep(0.1)
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]


def test_R3_nobody_without_the_token_is_let_in(stranger: subprocess.Popen[str]) -> None:
    _told, error = stranger.communicate(timeout=100)
    told = [line for line in error.strip().splitlines() if not line.startswith("genie: waiting for Ray")]
    assert stranger.returncode == 2 and len(told) == 1, error


def test_C9_ctrl_c_ends_it_and_all_that_it_has_started(worker: Worker) -> None:
    process, address, _token = worker
    children = _session(process.pid)
    assert len(children) >= 3, "Ray's daemons"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    end = time.monotonic() + 10
    while time.monotonic() < end and any(os.path.exists(f"/proc/{child}") for child in children):
        time.sleep(0.1)
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]
    with socket.socket() as trying:
        assert trying.connect_ex(("127.0.0.1", int(address.partition(":")[2]))) != 0


def _session(parent: int) -> list[int]:
    """The processes of the session that a process's child has begun."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(fields[3]))
    return [int(n) for n in os.listdir("/proc") if n.isdigit() and _of(int(n)) in found]


def _of(process: int) -> int:
    try:
        return os.getsid(process)
    except OSError:
        return -1
