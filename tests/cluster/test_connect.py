"""R2, R3, R4: a cluster of one's own, or one that is there, from its start to its end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.cluster import addresses, private_cluster
from mindtorch.cluster import broker_client as links
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..remote.test_pipe import gone, is_there
from .blows import outside

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
LAZY = "remote_accelerator:0"
InPython = Callable[..., "subprocess.CompletedProcess[str]"]


def members(broker: int) -> list[int]:
    """The processes of a cluster that was started: the broker's session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == broker and is_there(int(name)):
                found.append(int(name))
        except ProcessLookupError:
            pass
    return found


def command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def all_gone(processes: list[int]) -> bool:
    return all(gone(process) for process in processes)


def folder_of(processes: list[int]) -> Path:
    (raylet,) = (command(process) for process in processes if "/raylet " in command(process))
    found = re.search(r"--temp_dir=(\S+)/r", raylet) or re.search(r"=(\S+?)/r/session", raylet)
    assert found is not None, raylet
    return Path(found[1])


# ---- what is refused -------------------------------------------------------------------------------------------------
def test_R2_what_needs_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links.hardware, "has_module", lambda name: False)
    with pytest.raises(mindtorch.UsageError, match=r"pip install 'mindtorch-genie\[ray\]'"):
        mindtorch.connect()


def test_R2_importing_mindtorch_does_not_import_ray(after_torch: InPython) -> None:
    assert after_torch("import sys, mindtorch; mindtorch.connect; print('ray' in sys.modules)").stdout == "False\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"device": "tpu"}, "device: expected 'cpu' or 'cuda', got 'tpu'"),
        ({"workers": 0}, "workers: expected a number from 1 to 128, got 0"),
        ({"address": "nowhere"}, "address: expected local, auto, .* got 'nowhere'"),
        ({"address": "http://a:1"}, "address: expected local, auto, .* got 'http://a:1'"),
        ({"address": "127.0.0.1:99999"}, "expected a Ray cluster at 127.0.0.1:99999, got no answer"),
    ],
)
def test_R2_what_is_no_cluster_is_refused(given: dict[str, object], expected: str) -> None:
    with pytest.raises(mindtorch.UsageError, match=rf"^\[connect\] {expected}"):
        mindtorch.connect(**given)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_R2_gpus_that_are_not_there_are_asked_for_in_vain() -> None:
    with pytest.raises(mindtorch.UsageError, match="expected 3 GPUs, one for each worker; the cluster has 0"):
        mindtorch.connect("local", workers=3, device="cuda")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_R4_a_cluster_that_is_gone_is_told_at_once(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"  # nobody listens
        (tmp_path / "current").write_text(address + "\n")
        monkeypatch.setattr(addresses, "_AUTO", str(tmp_path / "current"))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        began = time.monotonic()
        for each in (address, "auto"):
            with pytest.raises(mindtorch.UsageError, match=f"expected a Ray cluster at {address}, got no answer"):
                mindtorch.connect(each)
        assert time.monotonic() - began < 30


def test_R4_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_AUTO", "/nonexistent/file")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(mindtorch.UsageError, match="found none: start one with genie worker start or ray start"):
        mindtorch.connect("auto")


def test_R4_a_server_that_is_no_cluster_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_OPEN", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(mindtorch.UsageError, match=rf"\[connect\] .*Ray at {address}.*"):
            mindtorch.connect(address)


def test_R2_rays_client_is_asked_for_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            mindtorch.UsageError, match=rf"{address} needs Ray's client, .* pip install 'ray\[client\]'"
        ):
            mindtorch.connect(address)


# ---- of its own ------------------------------------------------------------------------------------------------------
def listening(processes: list[int]) -> dict[tuple[int, str], str]:
    """(process, local address) of the TCP sockets on which they wait for connections."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                raw = bytes.fromhex(fields[1].partition(":")[0])
                ordered = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                family = socket.AF_INET if name == "tcp" else socket.AF_INET6
                sockets[f"socket:[{fields[9]}]"] = socket.inet_ntop(family, ordered)
    found = {}
    for process in processes:
        for fd in os.listdir(f"/proc/{process}/fd"):
            try:
                target = os.readlink(f"/proc/{process}/fd/{fd}")
            except FileNotFoundError:
                continue
            if target in sockets:
                found[process, target] = sockets[target]
    return found


def test_R3_a_cluster_of_its_own_is_only_for_this_user_and_machine(link: Link, shared_actor: RayExecutor) -> None:
    processes = members(link.broker)
    found = listening(processes)
    assert len(found) >= 4  # the lists were read
    assert set(found.values()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    folder = folder_of(processes)
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.getuid()
    variables = Path(f"/proc/{link.broker}/environ").read_bytes().split(b"\0")
    (token,) = (v.partition(b"=")[2] for v in variables if v.startswith(b"RAY_AUTH_TOKEN="))
    assert len(token) == 64
    assert not any(v.startswith(b"GENIE_") for v in variables)
    assert not [each for each in map(command, processes) if "dashboard.py" in each]


def test_R3_who_has_no_token_is_not_let_in(link: Link, shared_actor: RayExecutor) -> None:
    code = "import sys, ray; ray.init(sys.argv[1]); print('let in', file=sys.stderr)"
    variables = {
        **os.environ,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0" * 64,
    }
    command = [sys.executable, "-c", code, address_of(link)]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "Unauthenticated" in line or "let in" in line)
        process.kill()
    assert "InvalidAuthToken" in said


def address_of(link: Link) -> str:
    for process in members(link.broker):
        found = re.search(r"--gcs-address=(\S+)", command(process))
        if found:
            return found[1]
    raise AssertionError("no process of the cluster tells its address")


def test_R2_one_that_runs_is_joined_and_left_as_it_was(
    link: Link, shared_actor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = dict(
        v.split(b"=", 1) for v in Path(f"/proc/{link.broker}/environ").read_bytes().split(b"\0") if b"=" in v
    )
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, variables[name.encode()].decode())
    before = mindtorch.get_executor()
    x = torch.arange(4.0, device=LAZY) * 2
    with pytest.raises(mindtorch.UsageError, match="expected 1 GPUs, one for each worker; the cluster has 0"):
        mindtorch.connect(address_of(link), device="cuda")  # which leaves nothing connected
    executor = mindtorch.connect(address_of(link), workers=2, device="cpu")
    try:
        assert x.tolist() == [0, 2, 4, 6]
        processes = executor.stats["process"]  # type: ignore[attr-defined]
        assert len({*processes, shared_actor.process}) == 3 and all(map(is_there, processes))
        with pytest.raises(mindtorch.UsageError, match="already connected"):
            mindtorch.connect()
        y = x + 1
        there = y.to("remote_accelerator:1") * 2
        assert there.tolist() == [2, 6, 10, 14]
    finally:
        mindtorch.disconnect()
    assert y.tolist() == [1, 3, 5, 7] and (there + 1).tolist() == [3, 7, 11, 15]
    assert mindtorch.get_executor() is before
    assert all_gone(processes)
    assert is_there(shared_actor.stats["process"])
    mindtorch.disconnect()  # nothing to do


# ---- programs --------------------------------------------------------------------------------------------------------
def test_R2_modules_of_the_programs_folder_are_none_of_rays(tmp_path: Path) -> None:
    for name in ("torch", "numpy", "ray", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not for you')")
    code = """
        import sys
        here = sys.path.pop(0)
        import torch, mindtorch
        mindtorch.connect()
        print((torch.ones(2, device="remote_accelerator:0") + 1).tolist())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("[2.0, 2.0]\n", "")


@pytest.fixture
def no_folder_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a place of its own: another process of pytest's may have clusters, too."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield
        for _ in range(200):
            if not list(Path(folder).glob("genie-*")):
                return
            time.sleep(0.05)
        raise AssertionError("a folder was left behind")


def test_R4_what_a_killed_program_had_is_gone_in_seconds(after_a_step: InPython, no_folder_stays: None) -> None:
    """In the middle of a computation, and after a fork."""
    code = """
        import os, signal, sys, threading, torch, mindtorch
        from mindtorch.cluster import connect
        def mine(*_): pass
        signal.signal(signal.SIGTERM, mine)
        x = torch.arange(100.0, device="remote_accelerator:0") * 2
        assert x[3].item() == 6.0
        executor = mindtorch.get_executor()
        assert isinstance(executor, mindtorch.RayExecutor)
        process = os.fork()
        if not process:
            try:
                x[7].item()
            except mindtorch.MaterializationError as error:
                assert "session lost" in str(error) and "spawn" in str(error), error
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
        assert signal.getsignal(signal.SIGTERM) is mine and "ray" not in sys.modules
        print(x[4].item(), executor.process, connect._link.broker, flush=True)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        a = torch.rand(1500, 1500, device="remote_accelerator:0")
        for _ in range(5000):
            a = a @ a
        a.sum().item()
    """
    done = after_a_step(code, fails=True, GENIE_EXECUTOR="ray")
    value, process, broker = done.stdout.split()
    assert value == "8.0" and done.stderr == ""
    assert all_gone([int(process), int(broker), *members(int(broker))])


def test_R4_a_cluster_that_falls_apart_is_told_of(after_a_step: InPython, no_folder_stays: None) -> None:
    code = """
        import os, re, signal, time, torch, mindtorch
        from mindtorch.cluster import connect
        mindtorch.connect()
        x = torch.ones(100, device="remote_accelerator:0") * 2
        x.sum().item()
        broker = connect._link.broker
        print(broker, flush=True)
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(name)) == broker and os.readlink(f"/proc/{name}/exe").endswith("/raylet"):
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                pass
        end = time.monotonic() + 60
        for _ in range(2):
            try:
                while time.monotonic() < end:
                    (x + 1).tolist()
            except mindtorch.MaterializationError as error:
                print(error)
        mindtorch.connect(workers=2)  # the one that is gone need not be disconnected
        print((torch.ones(2, device="remote_accelerator:1") + 1).tolist())
        print(connect._link.broker)
        os.kill(connect._link.broker, signal.SIGSTOP)
        try:
            (torch.ones(2, device="remote_accelerator:0") + 1).tolist()
        except mindtorch.MaterializationError as error:
            print(error)
        mindtorch.disconnect()
        print((torch.ones(2, device="remote_accelerator:0") + 1).tolist())
    """
    done = after_a_step(code)
    broker, first, second, after, other, third, here = done.stdout.splitlines()
    assert third.startswith(f"session lost: the process that talks to Ray ({other}) was ended by SIGKILL: it had"), (
        third
    )
    assert here == "[2.0, 2.0]" and all_gone([int(other), *members(int(other))])
    assert first == second and first.startswith("session lost: one of Ray's daemons has ended, and the process"), first
    assert after == "[2.0, 2.0]" and done.stderr == ""
    assert all_gone([int(broker), *members(int(broker))])


def test_R3_a_private_folder_leaves_room_for_the_names_of_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = private_cluster.private_folder()
    assert len(f"{folder}/r/session_2026-11-23_07-19-56_489851_4194304/sockets/plasma_store") < 107
    assert not os.path.exists(folder), "it is made by whoever removes it"


KILLED = """
import os, signal, sys
from mindtorch.cluster import broker_client
broker_client.Link.ask = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
broker_client.Link(None, cpus=1, gpus=0)
"""


def test_R4_a_program_that_is_killed_before_its_cluster_begins_leaves_no_folder() -> None:
    folder = tempfile.mkdtemp(prefix="gf", dir="/tmp")
    try:
        done = subprocess.run([sys.executable, "-c", KILLED], env={**outside(), "TMPDIR": folder}, timeout=60)
        assert done.returncode == -signal.SIGKILL and os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)


def test_R4_signals_of_the_terminal_are_for_the_program(link: Link) -> None:
    assert os.getsid(link.broker) == link.broker != os.getsid(0)
    with open(f"/proc/{link.broker}/status") as file:
        ignored = int(re.search(r"SigIgn:\s*(\w+)", file.read())[1], 16)  # type: ignore[index]
    assert ignored >> (signal.SIGINT - 1) & 1


def test_C8_a_folder_that_is_called_ray_is_not_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps its files in /tmp/ray, so a script in /tmp has one beside it."""
    from mindtorch.cluster.broker_client import check_ray

    (tmp_path / "ray").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(mindtorch.UsageError, match="Ray is not installed"):
        check_ray()
