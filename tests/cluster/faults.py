"""Faults of each kind at random times, and what came of each: the right numbers, or one error."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import mindtorch
from mindtorch.cluster.broker_client import Link
from mindtorch.cluster.ray_executor import RayExecutor

from ..executors import using
from .blows import (
    TOKEN,
    Late,
    cluster_behind_a_link,
    fill,
    ip,
    limit,
    marked,
    nothing_left,
    outside,
    processes,
    small_disk,
    strike,
    until,
)

FIRST, SECOND = "remote_accelerator:0", "remote_accelerator:1"
STEPS = 25
MiB = 1 << 20
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
LOST = r"session lost: the worker \(process|.*values from another worker did not arrive"
BROKER = r"session lost: (one of Ray's daemons has ended, and )?the process that talks to Ray"


class WrongNumbers(AssertionError):
    """Neither the numbers of a run without faults, nor an error that may be."""


def training(first: str, second: str, losses: list[float], traffic: int = 0) -> list[torch.Tensor]:
    """A model on two devices. traffic: bytes that cross between them besides at each step."""
    torch.manual_seed(1)
    body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2)).to(first)
    head = nn.Linear(32, 2).to(second)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    torch.manual_seed(2)
    for step in range(STEPS):
        x = torch.rand(16, 8, device=first)
        loss = head(body(x).to(second)).square().mean()
        if traffic:
            loss = loss + (torch.full((traffic // 4,), float(step), device=first) * 2).to(second)[step]
        optimizer.zero_grad()
        if step % 3 == 0:
            losses.append(loss.item())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        if step % 3 == 1:
            losses.append(loss.item())
        time.sleep(0.01)  # or it is over before anything happens to it
    return [p.detach().cpu() for p in parameters]


#: What a program that is not of this process runs.
PROGRAM = f"""
from __future__ import annotations
import time, torch, mindtorch
from torch import nn
STEPS = {STEPS}
{inspect.getsource(training)}
executor = mindtorch.get_executor()
torch.ones(1, device="{FIRST}").item()
print("connected", flush=True)
losses = []
found = training("{FIRST}", "{SECOND}", losses)
print("result", [loss.hex() for loss in losses], [p.double().sum().item().hex() for p in found], flush=True)
"""


class Faults:
    """Makes one fault after the other. link: a cluster for those that do not end it. longest: seconds from the first
    operation of a program to its end, by kind."""

    def __init__(self, link: Link, stack: contextlib.ExitStack) -> None:
        self._link, self._stack = link, stack
        self._expected: dict[int, tuple[list[float], list[torch.Tensor]]] = {}
        self._network: list[str] | None = None
        self.longest: dict[str, float] = {}

    def fault(self, kind: str, seed: int) -> str:
        """What came of it, in a word or two."""
        choose = random.Random(seed)
        return str(getattr(self, f"_{kind}")(choose))

    def expected(self, traffic: int = 0) -> tuple[list[float], list[torch.Tensor]]:
        if traffic not in self._expected:
            losses: list[float] = []
            self._expected[traffic] = losses, training("cpu", "cpu", losses, traffic)
        return self._expected[traffic]

    # ---- faults of a worker ------------------------------------------------------------------------------------------
    def _worker(self, choose: random.Random) -> str:
        """One, or two with copies between them, that can be rebuilt or cannot; one fault, or two."""
        workers, faults = choose.choice((1, 2)), choose.choice((1, 1, 2))
        lineages = [choose.choice((0, 1 << 24, 1 << 24)) for _ in range(workers)]
        executors = [RayExecutor(self._link, lineage=lineage) for lineage in lineages]
        blows = [
            (choose.uniform(0, 0.9), strike, (choose.choice(executors), choose.choice(ENDS))) for _ in range(faults)
        ]
        found = self._run("worker", executors, blows, LOST)
        if found.startswith("error"):
            assert faults == 2 or not all(lineages), found
        return found

    def _memory(self, choose: random.Random) -> str:
        """A worker whose memory is limited for a while. The session goes on unless Ray ends the worker for it."""
        workers = choose.choice((1, 2))
        executors = [RayExecutor(self._link, lineage=choose.choice((0, 1 << 24))) for _ in range(workers)]
        victim = choose.choice(executors)
        begin, more = choose.uniform(0, 0.6), choose.choice((0, 1, 16, 48, 64)) * MiB
        blows = [
            (begin, limit, (victim, more)), (begin + choose.uniform(0.05, 0.5), limit, (victim, None)),
        ]  # fmt: skip

        def goes_on() -> None:
            limit(victim, None)
            if all(executor._lost is None for executor in executors):
                for place in (FIRST, SECOND)[:workers]:
                    assert (torch.ones(3, device=place) + 1).tolist() == [2, 2, 2]

        return self._run("memory", executors, blows, f"{LOST}|.*[Mm]emory", after=goes_on)

    def _delay(self, choose: random.Random) -> str:
        """Messages to the workers and replies come late and in pieces; perhaps a worker is ended besides."""
        executors = [
            RayExecutor(self._link, actor=Late(self._link, choose.randrange(1 << 20)), lineage=1 << 24)
            for _ in range(choose.choice((1, 2)))
        ]
        blows: list[Any] = []
        if choose.random() < 0.5:
            blows.append((choose.uniform(0, 2), strike, (choose.choice(executors), choose.choice(ENDS))))
        return self._run("delay", executors, blows, "no error may be")

    # ---- faults of a cluster -----------------------------------------------------------------------------------------
    def _broker(self, choose: random.Random) -> str:
        return self._of_a_cluster("broker", choose, lambda link: strike(link.broker, choose.choice(ENDS)))

    def _raylet(self, choose: random.Random) -> str:
        """Or the other daemon."""
        which, how = choose.choice(("raylet", "gcs_server")), choose.choice(ENDS[:2])

        def end(link: Link) -> None:
            for process, name in processes(link.broker):
                if name == which:
                    strike(process, how)

        return self._of_a_cluster("raylet", choose, end)

    def _of_a_cluster(self, kind: str, choose: random.Random, blow: Callable[[Link], None]) -> str:
        link = Link(None, cpus=os.cpu_count() or 1, gpus=0)
        try:
            executors = [RayExecutor(link, lineage=choose.choice((0, 1 << 24))) for _ in range(choose.choice((1, 2)))]
            found = self._run(kind, executors, [(choose.uniform(0, 0.9), blow, (link,))], f"{BROKER}|{LOST}")
        finally:
            link.close()
        nothing_left(link.broker, link._folder)
        return found

    def _disk(self, choose: random.Random) -> str:
        """The folder for the cluster's files is full; Ray's object store moves there what it has no room for."""
        with small_disk() as folder:
            link = Link(None, cpus=os.cpu_count() or 1, gpus=0)
            try:
                executors = [RayExecutor(link, lineage=256 * MiB) for _ in range(2)]
                blows = [(choose.uniform(0, 0.6), fill, (folder,))]
                traffic = choose.choice((4, 12)) * MiB
                found = self._run("disk", executors, blows, f"{BROKER}|{LOST}", traffic=traffic)
            finally:
                link.close()
            nothing_left(link.broker, link._folder)
        return found

    # ---- faults of programs and networks -----------------------------------------------------------------------------
    def _driver(self, choose: random.Random) -> str:
        """A program that has a cluster of its own, and is killed at any time, also while that starts."""
        folder = tempfile.mkdtemp(prefix="gf", dir="/tmp")
        mark = f"GF_{os.getpid()}_{choose.randrange(1 << 60)}"
        variables = outside() | {"TMPDIR": folder, mark: "1", "GENIE_EXECUTOR": "ray", "GENIE_WORKERS": "2"}
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            if choose.random() < 0.3:
                time.sleep(choose.uniform(0, 6))
                ended = "killed while it started"
            else:
                assert program.stdout.readline().startswith("connected")
                time.sleep(choose.uniform(0, 1.2))
                ended = "killed"
            program.send_signal(choose.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
            began = time.monotonic()
            if "result" in program.communicate()[0]:
                ended = "over before"
            until(lambda: not marked(mark), f"processes of a killed program: {marked(mark)}")

            def left() -> list[str]:
                return [name for name in os.listdir(folder) if not name.startswith("torchinductor")]  # torch keeps that

            until(lambda: not left(), f"files of a killed program: {left()}")
            self._took("driver", began)
            return f"nothing left, {ended}"
        finally:
            program.kill()
            program.wait()
            shutil.rmtree(folder, ignore_errors=True)

    def _loss(self, choose: random.Random) -> str:
        """What goes between the program's node and the workers' is lost, for up to two seconds each time."""
        if self._network is None:
            self._network = self._stack.enter_context(cluster_behind_a_link())
        _near, far, address = self._network
        variables = {"RAY_AUTH_TOKEN": TOKEN, "GENIE_EXECUTOR": "ray", "GENIE_ADDRESS": address, "GENIE_WORKERS": "2"}
        began = time.monotonic()
        program = subprocess.Popen(
            ["ip", "netns", "exec", far, sys.executable, "-c", PROGRAM], env=outside() | variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            first = program.stdout.readline()
            for _ in range(choose.randint(1, 4)):
                time.sleep(choose.uniform(0, 0.3))
                ip("-n", far, "link", "set", f"{far}v", "down")
                time.sleep(choose.choice((0.02, 0.1, 0.5, 2)))
                ip("-n", far, "link", "set", f"{far}v", "up")
            told, errors = program.communicate(timeout=120)
        finally:
            program.kill()
            program.wait()
        self._took("loss", began)
        losses, found = self.expected()
        right = f"result {[loss.hex() for loss in losses]} {[p.double().sum().item().hex() for p in found]}\n"
        if program.returncode:
            assert re.search(f"{BROKER}|{LOST}", errors), (first, errors[-800:])
            return "error"
        if told != right:
            raise WrongNumbers(told, right)
        return "went on"

    # ---- a run of the program ----------------------------------------------------------------------------------------
    def _run(
        self, kind: str, executors: Sequence[RayExecutor], blows: Sequence[tuple[float, Callable[..., None], tuple]],
        may_be: str, traffic: int = 0, after: Callable[[], None] = lambda: None,
    ) -> str:  # fmt: skip
        losses: list[float] = []
        expected_losses, expected = self.expected(traffic)
        timers = [threading.Timer(*blow) for blow in blows]
        try:
            with using(mindtorch.SpreadExecutor(executors)) as executor:
                for timer in timers:
                    timer.start()
                began = time.monotonic()
                try:
                    found = training(FIRST, SECOND if len(executors) == 2 else FIRST, losses, traffic)
                except mindtorch.MaterializationError as error:
                    self._took(kind, began)
                    if losses != expected_losses[: len(losses)]:
                        raise WrongNumbers(losses) from error
                    if not re.match(may_be, str(error)):
                        raise WrongNumbers(str(error)) from error
                    ended = "error, lost" if executor_lost(executors) else "error, went on"
                else:
                    self._took(kind, began)
                    if losses != expected_losses or not all(map(torch.equal, found, expected)):
                        raise WrongNumbers(losses, expected_losses)
                    over = any(timer.is_alive() for timer in timers)
                    ended = "rebuilt" if executor.stats.get("rebuilt") else "over before" if over else "went on"
                for timer in timers:
                    timer.cancel()
                    timer.join()
                forgotten(*(FIRST, SECOND)[: len(executors)])
                after()
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
            for worker in executors:
                worker.close()
            forgotten(FIRST)
        return ended

    def _took(self, kind: str, began: float) -> None:
        self.longest[kind] = max(self.longest.get(kind, 0), time.monotonic() - began)


def executor_lost(executors: Sequence[RayExecutor]) -> bool:
    return any(executor._lost is not None for executor in executors)


def forgotten(*places: str) -> None:
    """What was lost besides is told here, not to what comes next."""
    for place in places:
        for _ in range(20):
            with contextlib.suppress(mindtorch.MaterializationError):
                torch.ones(1, device=place).item()
                break
