"""R1: a worker in a child process: when it begins and ends, and what is told when it is gone."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
import torch

import mindtorch
from mindtorch.engine.remote import hello
from mindtorch.engine.remote import pipe as pipes
from mindtorch.engine.remote.pipe import PipeExecutor
from mindtorch.engine.remote.wire import dumps

LAZY = "remote_accelerator:0"
InPython = Callable[..., "subprocess.CompletedProcess[str]"]


def is_there(process: int) -> bool:
    """Is it running, or waiting to be looked after?"""
    try:
        with open(f"/proc/{process}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False


def gone(process: int) -> bool:
    for _ in range(600):
        if not is_there(process):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.usefixtures("fresh_workers")
def test_R1_the_child_begins_when_it_is_needed_and_ends_with_the_executor() -> None:
    executor = PipeExecutor()
    previous = mindtorch.set_executor(executor)
    try:
        x = torch.ones(3, device=LAZY) + 1
        assert executor.process is None
        assert x.tolist() == [2.0] * 3
        process = executor.process
        assert process is not None and is_there(process)
    finally:
        mindtorch.set_executor(previous)
    assert x.tolist() == [2.0] * 3
    del executor
    gc.collect()
    assert gone(process)


@pytest.mark.sample(2)
@pytest.mark.parametrize("last", ["", "raise ValueError", "os._exit(0)"])
def test_R1_the_child_ends_with_the_program(last: str, after_a_step: InPython) -> None:
    code = f"""
        import os, signal, torch, mindtorch
        from mindtorch.engine.execute import values
        print((torch.ones(2, device="remote_accelerator:0") * 3).tolist())
        print(values.executor().process, flush=True)
        {last}
    """
    done = after_a_step(code, fails="raise" in last, GENIE_EXECUTOR="pipe")
    values, process = done.stdout.split("\n")[:2]
    assert values == "[3.0, 3.0]" and gone(int(process))


def test_R1_the_child_ends_in_the_middle_of_a_computation(after_a_step: InPython) -> None:
    code = """
        import os, signal, threading, torch, mindtorch
        from mindtorch.engine.execute import values
        x = torch.ones(1, device="remote_accelerator:0")
        x.item()
        print(values.executor().process, flush=True)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        a = torch.rand(1500, 1500, device="remote_accelerator:0")
        for _ in range(5000):
            a = a @ a
        a.sum().item()
    """
    assert gone(int(after_a_step(code, fails=True, GENIE_EXECUTOR="pipe").stdout))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV], ids=lambda s: s.name)
def test_R4_a_worker_that_is_gone_is_told_of_and_nothing_hangs(number: signal.Signals, pipe: PipeExecutor) -> None:
    held = torch.ones(100, device=LAZY) * 2  # more than comes unasked
    assert held.sum().item() == 200.0
    assert pipe.process is not None
    os.kill(pipe.process, number)
    pending = held + 1
    how = "gave no usable reply: it was stopped" if number == signal.SIGSTOP else f"was ended by {number.name}"
    for _ in range(2):
        lost = rf"session lost: the worker \(process {pipe.process}\) {how}"
        with pytest.raises(mindtorch.MaterializationError, match=lost):
            pending.tolist()
        with pytest.raises(mindtorch.MaterializationError, match="session lost"):
            torch.ones(3).to(LAZY)
    mindtorch.set_executor(None)  # what is not there cannot come along; what has nothing to do with it can go on
    for t in (held, pending):
        with pytest.raises(mindtorch.MaterializationError, match="session lost"):
            t.tolist()
    assert (torch.ones(2, device=LAZY) + 1).tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("fresh_workers")
def test_R4_a_worker_that_sends_rubbish_is_ended(pipe: PipeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    code = pipes._BEGIN.partition("from mindtorch")[0] + "os.write(fd, b'Hello, how are you today?'); sys.stdin.read()"
    monkeypatch.setattr(pipes, "_BEGIN", code)
    with pytest.raises(
        mindtorch.MaterializationError, match=r"session lost: .* expected a message, got the bytes 48 65"
    ):
        (torch.ones(3, device=LAZY) * 2).tolist()
    assert pipe.process is not None and gone(pipe.process)


@pytest.mark.usefixtures("fresh_workers")
def test_R4_a_worker_that_does_not_begin_says_why(
    pipe: PipeExecutor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipes, "_BEGIN", "raise SystemExit('no room')")
    with pytest.raises(mindtorch.MaterializationError, match=r"session lost: the worker .* ended with exit code 1"):
        (torch.ones(3, device=LAZY) * 2).tolist()
    assert "no room" in capfd.readouterr().err


def test_R4_what_the_worker_refuses_is_told_and_ends_the_session(pipe: PipeExecutor) -> None:
    x = torch.ones(3, device=LAZY) * 2
    assert x.tolist() == [2.0] * 3
    with pytest.raises(mindtorch.MaterializationError, match=r"the worker refused a message: WireError: .*got 99999"):
        pipe._question("storage", 99999)
    with pytest.raises(mindtorch.MaterializationError, match="session lost"):
        x[2].item()


def test_R3_sides_that_differ_part_at_once(pipe: PipeExecutor) -> None:
    other = hello.this_side()._replace(torch="1.0", byteorder="big")
    pipe._hello.requests[0] = (("hello", tuple(other)), pipe._greeted)  # type: ignore[union-attr]
    with pytest.raises(mindtorch.MaterializationError) as failure:
        (torch.ones(3, device=LAZY) * 2).tolist()
    text = str(failure.value)
    assert "torch 1.0 (commit " in text and "big-endian" in text and f"torch {torch.__version__} (commit " in text
    with pytest.raises(mindtorch.MaterializationError, match="expected the hello of a program, got 'x'"):
        other_pipe = PipeExecutor()
        other_pipe._hello.requests[0] = (("hello", "x"), None)  # type: ignore[union-attr]
        other_pipe.sync()


def test_R3_a_reply_that_is_none_is_refused(pipe: PipeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "_send", lambda message: dumps([1, 2, 3, 4]))
    with pytest.raises(mindtorch.MaterializationError, match="session lost: expected 1 answers, got"):
        pipe.sync()


def test_R1_a_fork_leaves_the_pipe_alone(after_a_step: InPython) -> None:
    code = """
        import os, torch, mindtorch
        from torch.utils.data import DataLoader
        x = torch.arange(100.0, device="remote_accelerator:0") * 2
        assert x[3].item() == 6.0
        process = os.fork()
        if not process:
            try:
                x[7].item()
            except mindtorch.MaterializationError as error:
                assert "session lost" in str(error) and "spawn" in str(error), error
                raise SystemExit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
        for batch in DataLoader(list(range(8)), batch_size=4, num_workers=2):
            x[:4] += batch.to("remote_accelerator:0")
        print(x[:4].tolist())
    """
    assert after_a_step(code, GENIE_EXECUTOR="pipe").stdout == "[4.0, 8.0, 12.0, 16.0]\n"


def test_R1_a_fork_before_the_first_use_has_a_worker_of_its_own(after_a_step: InPython) -> None:
    code = """
        import os, sys, torch, mindtorch
        from mindtorch.engine.execute import values
        values.executor()
        process = os.fork()
        print((torch.ones(2, device="remote_accelerator:0") * 3).tolist())
        sys.stdout.flush()
        if process:
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    """
    assert after_a_step(code, GENIE_EXECUTOR="pipe").stdout == "[3.0, 3.0]\n" * 2


@pytest.mark.usefixtures("fresh_workers")
def test_R1_what_the_child_prints_is_no_reply(pipe: PipeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_BEGIN", pipes._BEGIN.replace("from mind", "print('x', flush=True); from mind"))
    assert (torch.ones(3, device=LAZY) * 2).tolist() == [2.0] * 3


def test_R1_a_large_message_each_way(pipe: PipeExecutor) -> None:
    x = torch.arange(5_000_000)
    assert torch.equal((x.to(LAZY) + 1).cpu(), x + 1)
