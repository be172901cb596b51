"""The process that speaks with Ray for a program: it starts or joins a cluster, and passes messages on (SPEC R2, R4).

Ray in the program's own process would end that with its daemons, lose what signal handlers raise, take SIGTERM away,
and break when the program forks. Here none of it matters: the program has a socket to a child, as with `pipe`. It ends
with the program, however that ends, and takes with it what it has started.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import warnings
from typing import Any

from . import private_cluster, reservations
from . import sessions as tables
from .actor import Actor, machine
from .actor_line import Line
from .ray_errors import DAEMON, last_line, refused

__all__ = ["main"]


def main(control: int) -> None:
    """Do what the program asks for over a socket, until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_quiet()
    broker = Broker(socket.socket(fileno=control))
    try:
        broker.serve()
    finally:
        broker.end()


def _keep_quiet() -> None:
    """What Python writes goes to the program's standard error; what Ray's C++ code writes to that, nowhere."""
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


class Broker:
    """Requests are JSON with a number; so are replies, which have the request's."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._folder: str | None = None  # of a cluster that was started
        self._runtime: dict[str, Any] = {}
        self._path: list[str] | None = None
        self._ending = threading.Event()
        self._lines: dict[int, Line] = {}  # by the number of the request that began them
        self._rooms: dict[int, reservations.Room] = {}  # the same
        self._feeders: dict[int, Any] = {}
        self._names: collections.Counter[str] = collections.Counter()

    def serve(self) -> None:
        while True:
            data, fds, _flags, _address = socket.recv_fds(self._control, 1 << 20, 1)
            if not data:
                return
            request = json.loads(data)
            name = request.pop("do")
            if name == "open":  # here: the processes that are started end with the thread that did
                self._do(name, request, fds)
            else:
                threading.Thread(target=self._do, args=(name, request, fds), daemon=True).start()

    def _do(self, name: str, request: dict[str, Any], fds: list[int]) -> None:
        number = request.pop("number")
        try:
            if name in ("actor", "reserve", "feeder"):
                request["number"] = number
            reply = getattr(self, f"_{name}")(*fds, **request)
        except BaseException as error:  # noqa: BLE001 - Ray raises SystemExit, too; all of it is told to the program
            reply = {"error": refused(error)}
        self._tell(number, reply)

    def _tell(self, number: int, reply: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):  # the program has ended meanwhile
            self._control.send(json.dumps({"number": number, **reply}).encode())

    def _open(
        self, address: str | None, folder: str | None, cpus: int, gpus: int, memory: int, path: list[str],
        environment: dict[str, Any] | None, who: dict[str, str],
    ) -> dict[str, Any]:  # fmt: skip
        if folder is not None:
            private_cluster.make(folder)
            self._folder = folder
            self._guard(folder)
        open_ = threading.Event()
        threading.Thread(target=self._leave_with_the_program, args=(open_,), daemon=True).start()
        try:
            return self._opened(address, folder, cpus, gpus, memory, path, environment, who)
        finally:
            open_.set()

    def _leave_with_the_program(self, open_: threading.Event) -> None:
        """End if the program does before Ray has started, which takes seconds: nobody reads the socket until then."""
        poll = select.poll()
        poll.register(self._control, select.POLLHUP)
        while not open_.is_set():
            if poll.poll(200) and not open_.is_set():
                os._exit(1)

    def _guard(self, folder: str) -> None:
        """Have a process that removes the folder when this one has ended, however it does."""
        ended, self._goes_on = os.pipe()  # no other process has the second: they are started without
        if os.fork():
            os.close(ended)
            return
        try:
            for first, last in ((3, ended), (ended + 1, os.sysconf("SC_OPEN_MAX"))):
                os.closerange(first, last)
            os.read(ended, 1)
            private_cluster.clear(folder, os.getsid(0))
        finally:
            os._exit(0)

    def _opened(
        self, address: str | None, folder: str | None, cpus: int, gpus: int, memory: int, path: list[str],
        environment: dict[str, Any] | None, who: dict[str, str],
    ) -> dict[str, Any]:  # fmt: skip
        import ray
        import ray._private.node as node
        import ray._private.utils as utils
        import ray._private.worker as worker

        # What Ray tells of other processes' ends is not for the program, which is told once, in our words.
        worker.listen_error_messages = lambda *args: None
        if address is None:
            private_cluster.without_services(node.Node)
        quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
        if who and not _by_client(address):  # what Ray's dashboard and `genie worker list` say of it
            quiet["job_config"] = ray.job_config.JobConfig(metadata=who)
            utils.get_entrypoint_name = lambda: who["job_name"]
        if environment:
            quiet["runtime_env"] = environment
        if address is None:
            ray.init(
                address="local", num_cpus=cpus, num_gpus=gpus, object_store_memory=memory, include_dashboard=False,
                _temp_dir=os.path.join(folder or "", "r"), **private_cluster.store(folder or "", memory), **quiet,
            )  # fmt: skip
        else:
            ray.init(address=address, **quiet)
        if folder is not None:
            threading.Thread(target=self._watch, daemon=True).start()
        variables = {**(environment or {}).get("env_vars", {}), "GENIE_AUTO_ENABLE": "0"}
        if folder is not None:
            self._path = path
            variables["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [variables.get("PYTHONPATH")])])
        self._runtime = {"env_vars": variables}
        return {
            "nodes": [_described(each) for each in reservations.alive()],
            "autoscales": address is not None and reservations.autoscales(),
        }  # fmt: skip

    def _watch(self) -> None:
        """End when one of the daemons has: Ray itself tries to reach it for up to a minute."""
        import ray._private.worker as worker

        while not self._ending.wait(1):
            if worker._global_node is not None and worker._global_node.dead_processes():
                self.end(DAEMON)

    def _reserve(self, number: int, name: str, **asked: Any) -> dict[str, Any]:
        def tell(text: str) -> None:
            self._tell(number, {"progress": text})

        self._rooms[number] = reservations.reserve(**asked, name=self._new_name(name), tell=tell)
        return {}

    def _new_name(self, name: str) -> str:
        """Ray refuses one that it has already, also of what is just ending."""
        with self._lock:
            self._names[name] += 1
            again = self._names[name]
        return name if again == 1 else f"{name} ({again})"

    def _sessions(self) -> dict[str, Any]:
        import ray
        from ray._private.client_mode_hook import client_mode_should_convert

        if client_mode_should_convert():  # Ray's tables are for those that are in the cluster
            asked = ray.remote(tables.sessions).options(num_cpus=0, max_retries=0, runtime_env=self._runtime)
            return {"sessions": ray.get(asked.remote(), timeout=20)}
        return {"sessions": tables.sessions()}

    def _actor(
        self, fd: int, number: int, device: str, seconds: float, room: int | None, part: int,
        bundle: dict[str, float] | None, name: str | None, threads: int | None, heir_of: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        import ray

        cuda = device.startswith("cuda")
        if bundle is None:  # in a cluster of our own there is nobody to share the CPUs with
            bundle = {"GPU": 1} if cuda else {"CPU": 0 if self._folder else 1}
        given = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU", "memory")}
        its = None if room is None else self._rooms[room]
        remote: Any = ray.remote(Actor)
        made = remote.options(
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), memory=bundle.get("memory"), resources=given,
            scheduling_strategy=None if its is None else its.strategy(part),
            name=None if name is None else self._new_name(name),
            max_restarts=0, max_task_retries=0, enable_task_events=False, runtime_env=self._runtime,
        ).remote()  # fmt: skip
        begun = made.begin.remote("cuda:0" if cuda else device, self._path, threads)
        try:
            process, node, there = ray.get(begun, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            ray.kill(made)
            if its is not None or self._folder:
                raise TimeoutError(
                    f"there is room for the worker, but it did not start within {seconds:g} s: its machine is busy, "
                    "or is setting up a runtime_env"
                ) from None
            free = ", ".join(f"{k} {v:g}" for k, v in ray.available_resources().items() if k in ("CPU", "GPU"))
            what = "a GPU" if cuda else "a CPU"
            raise TimeoutError(
                f"expected {what} for a worker within {seconds:g} s; free there: {free or 'neither CPU nor GPU'}"
            ) from None
        except ray.exceptions.ActorDiedError as error:
            raise ConnectionError(f"the worker ended while it was starting: {last_line(str(error))}") from None
        if its is not None:
            its.enter()
        line = Line(fd, made, process, node, there == machine() != "", self._runtime, self._lines, its)
        if heir_of is not None:
            line.inherit(self._lines[heir_of])
        self._lines[number] = line
        line.start()
        return {"process": process, "node": node[:8]}

    def _why_ended(self, actor: int) -> dict[str, Any]:
        return {"why": self._lines[actor].why_ended()}

    def _save(self, fd: int, actor: int, after: int, path: str) -> dict[str, Any]:
        """Have a checkpoint written of what the actor has put aside by a message. ``fd``: of what describes it."""
        with open(fd, "rb") as file:
            return {"failed": self._lines[actor].save(after, path, file.read())}

    def _load(self, fd: int, actor: int, path: str, first: int) -> dict[str, Any]:
        """Have a checkpoint read. ``fd``: of the file in memory that gets the description."""
        found = self._lines[actor].load(path, first)
        with open(fd, "wb") as file:
            if isinstance(found, str):
                return {"failed": found}
            file.write(found)
        return {"failed": ""}

    def _feeder(self, fd: int, number: int, actor: int, source: str, seed: int) -> dict[str, Any]:
        """Begin to load data beside an actor. ``fd``: of the function's arguments."""
        with open(fd, "rb") as file:
            made, failed = self._lines[actor].feeder(self._path, source, file.read(), seed)
        self._feeders[number] = made
        if failed:
            self._fed(number)
        return {"failed": failed, "feeder": number}

    def _batch(self, fd: int, actor: int, feeder: int, first: int) -> dict[str, Any]:
        """Have the next batch go to the actor. ``fd``: of the file in memory that gets the description."""
        found = self._lines[actor].feed(self._feeders[feeder], first)
        with open(fd, "wb") as file:
            if isinstance(found, bytes):
                file.write(found)
        return {"failed": found if isinstance(found, str) else "", "over": found is None}

    def _fed(self, feeder: int) -> dict[str, Any]:
        """Nobody wants more of it."""
        import ray

        ray.kill(self._feeders.pop(feeder))
        return {}

    def end(self, code: int = 0) -> None:
        """Nobody is there any more, or it is of no use."""
        self._ending.set()
        threading.excepthook = lambda _args: None  # calls of Ray that this ends raise, and nobody listens
        closing = threading.Timer(10, os._exit, (1,))  # Ray's own threads may wait for what is gone
        closing.daemon = True
        closing.start()
        try:
            if not code:
                import ray

                ray.shutdown()
        finally:
            os._exit(code)


def _by_client(address: str | None) -> bool:
    """From a machine that is none of the cluster's? Ray then takes no settings for the job."""
    return address is not None and address.startswith("ray://")


def _described(node: dict[str, Any]) -> dict[str, Any]:
    """One of ``ray.nodes()`` as the program hears of it."""
    has = node["Resources"]
    kinds = [name.partition(":")[2] for name in has if name.startswith("accelerator_type:")]
    return {
        "address": node["NodeManagerAddress"],
        "name": node["NodeManagerHostname"],
        "id": node["NodeID"][:8],
        "cpus": int(has.get("CPU", 0)),
        "gpus": int(has.get("GPU", 0)),
        "accelerator": kinds[0] if kinds else None,
        "memory": int(has.get("memory", 0)),
    }
