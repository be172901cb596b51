"""SPEC C9: what a program under ``genie run`` is told of its devices, and where libraries that choose one put it."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.base.errors import UsageError
from mindtorch.engine.execute import triggers
from mindtorch.engine.execute.machine import Machine
from mindtorch.engine.execute.triggers import Waits
from mindtorch.patch.cuda_names import cuda_is_ours
from tests.executors import using

PARALLEL = """
    import torch
    from torch import nn

    def run(device_ids=None, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)){0}
        parallel = nn.DataParallel(model, device_ids, **options)
{1}        for _ in range(2):
            parallel(torch.arange(12.0).view(3, 4)).square().sum().backward()
        print(sum(p.grad.double().sum().item() for p in model.parameters()), [b.sum().item() for b in model.buffers()])
"""


def test_C9_data_parallel_on_one_device(runs) -> None:
    asked = "        assert nn.parallel.data_parallel(model, torch.ones(3, 4){}, device_ids).shape == (3, 2)\n"
    other = "        model(torch.ones(3, 4))\n"  # torch has it for GPUs alone
    plain = PARALLEL.format("", other)
    calls = ("", "[0]", "[0], output_device=0", "['cuda:0']")
    python = runs.run(sys.executable, runs.write(plain + "\n    run()", "plain.py"))
    assert python.code == 0, python.err
    text = PARALLEL.format(".cuda()", asked.format(".cuda()")) + "".join(f"\n    run({call})" for call in calls)
    under = runs.run(*runs.GENIE, "--map", "cuda", runs.write(text))
    assert (under.code, under.out) == (0, python.out * len(calls)), under.err
    text = PARALLEL.format("", asked.format("")) + "\n    run()"
    under = runs.run(*runs.GENIE, "--executor", "pipe", runs.write(text))
    assert (under.code, under.out) == (0, python.out), under.err


def test_C9_data_parallel_of_a_model_that_the_program_puts_on_the_cpu(runs) -> None:
    """torch refuses that beside a device; python has none for a program that does not ask for CUDA."""
    text = """
        import torch
        from torch import nn
        torch.manual_seed(0)
        device = torch.device("cpu")
        model = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.arange(12.0, device=device).view(3, 4)).square().sum().backward()
            optimizer.step()
        print([p.double().sum().item() for p in model.parameters()], [b.sum().item() for b in model.buffers()])
    """
    script = runs.write(text)
    python, under = runs.run(sys.executable, script), runs.run(*runs.GENIE, "--executor", "pipe", script)
    assert python.code == 0, python.err
    assert (under.code, under.out) == (0, python.out), under.err


def test_C9_data_parallel_on_two_devices() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x = torch.arange(20.0).view(5, 4)
    expected = [model(part) for part in x.chunk(2)]
    torch.cat(expected).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with using(mindtorch.SpreadExecutor([mindtorch.LoopbackExecutor("cpu") for _ in range(2)])), cuda_is_ours():
        assert torch.cuda.device_count() == 2
        parallel = torch.nn.DataParallel(model.cuda())
        out = parallel(x)
        assert out.device == torch.device("remote_accelerator:0") and torch.equal(out.cpu(), torch.cat(expected))
        out.sum().backward()
        for p, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad.cpu(), grad)
        model.cpu()


@pytest.mark.parametrize("asked", ['"gloo"', '"nccl"', 'backend="NCCL"', '"cpu:gloo,cuda:nccl"', ""])
def test_C9_distributed_data_parallel_of_one_process(runs, asked) -> None:
    text = """
        import tempfile, torch, torch.distributed as dist
        dist.init_process_group(ASKED init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
        for options in ({}, {"device_ids": [0]}, {"device_ids": [0], "output_device": 0}):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 2).cuda()
            parallel = torch.nn.parallel.DistributedDataParallel(model, **options)
            parallel(torch.ones(3, 4).cuda()).sum().backward()
            print(model.weight.grad.tolist())
        group = dist.new_group([0], None, "nccl")
        dist.all_reduce(model.weight.grad, group=group)
        print(model.weight.grad.tolist(), dist.get_backend(group))
    """
    under = runs.run(*runs.GENIE, "--map", "cuda", runs.write(text.replace("ASKED", asked and f"{asked},")))
    assert under.code == 0, under.err
    assert under.out == f"{[[3.0] * 4] * 2}\n" * 3 + f"{[[3.0] * 4] * 2} gloo\n"


TOLD = """
    import torch
    device = torch.remote_accelerator
    free, total = device.mem_get_info()
    print(device.is_available(), device.is_initialized(), device.device_count())
    print(torch.accelerator.is_available(), torch.accelerator.device_count())
    print(device.get_device_properties().node, total == device.get_device_properties().total_memory >= free > 0)
    linear = torch.nn.Linear(4, 2)
    for x, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4)), 2, pin_memory=True):
        print(linear(x).shape, torch.ones(2, device="cpu").pin_memory().device)
"""


@pytest.mark.parametrize("executor", ["local", "loopback", "pipe"])
def test_C9_the_device_module_follows_the_executor_that_was_asked_for(runs, executor: str) -> None:
    under = runs.run(*runs.GENIE, "--executor", executor, runs.write(TOLD))
    lines = under.out.splitlines()
    assert under.code == 0 and under.err == "", under.err
    assert lines[:3] == ["True True 1", "True 1", f"{platform.node()} True"]
    assert lines[3:] == ["torch.Size([2, 2]) cpu"] * 2


def test_L1_without_an_executor_that_was_asked_for_there_is_no_accelerator(runs) -> None:
    text = """
        import mindtorch, torch
        device = torch.remote_accelerator
        torch.ones(2, device="remote_accelerator:0").sum().item()
        print(device.is_available(), device.is_initialized(), device.device_count())
        print(torch.accelerator.is_available(), torch.accelerator.device_count())
    """
    under = runs.run(sys.executable, runs.write(text))
    assert (under.code, under.out) == (0, "False False 0\nFalse 0\n"), under.err


def test_R2_each_worker_is_asked_what_it_is(monkeypatch) -> None:
    here, far = mindtorch.LoopbackExecutor("cpu"), mindtorch.LoopbackExecutor("cpu")
    monkeypatch.setattr(far, "machine", lambda index=0: Machine("a chip", "far", "cuda", 1, 2, 3))
    module = torch.remote_accelerator  # type: ignore[attr-defined]
    with using(mindtorch.SpreadExecutor([here, far])):
        assert (module.is_available(), module.device_count()) == (True, 2)
        assert module.get_device_name(1) == "remote accelerator 1, run on a chip of far"
        assert module.mem_get_info(1) == (1, 2) and module.get_device_properties(1).multi_processor_count == 3
        assert module.get_device_properties(0).node == platform.node()
        with pytest.raises(UsageError, match=r"expected a remote_accelerator in 0\.\.1"):
            module.get_device_name(2)


@pytest.mark.sample(2)  # an executor makes no difference: nothing is asked of it
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        ((), 3),
        (("--map", "cuda"), 0),
        (("--map", "cuda"), 3),
        (("--executor", "pipe"), 3),
        (("--executor", "pipe"), 0),
    ],
)
def test_C9_parameters_that_were_never_on_the_device_are_told(runs, options: tuple[str, ...], code: int) -> None:
    text = f"""
        import sys, torch
        model = torch.nn.Linear(4, 2, device="cpu")
        print(model.weight.device.type)
        if len(sys.argv) > 1:
            model.to("remote_accelerator")
        sys.exit({code})
    """
    here, moved = (runs.run(*runs.GENIE, *options, runs.write(text), *args) for args in ((), ("move",)))
    assert here.code == moved.code == code and here.out == moved.out == "cpu\n"
    assert here.err.count("\n") == 1 and "none of the program's parameters was ever on" in here.err
    assert ("--map cuda is for programs that ask for CUDA" in here.err) == ("cuda" not in options)
    assert ("the program did not move them to CUDA" in here.err) == ("cuda" in options)
    assert moved.err == ""


def test_C9_a_program_without_parameters_is_told_nothing(runs) -> None:
    assert runs.same("import torch; print(torch.ones(2).sum().item())").err == ""


ACCELERATE = """
    import torch

    class PartialState:
        @property
        def default_device(self):
            return torch.device("cpu")
"""
ARGUMENTS = """
    import functools, torch

    class TrainingArguments:
        use_cpu = False

        @functools.cached_property
        def _setup_devices(self):
            return torch.device("cpu")
"""


def test_C9_libraries_that_choose_a_device_by_name_find_the_default_one(runs) -> None:
    for package, module, text in (("accelerate", "state", ACCELERATE), ("transformers", "training_args", ARGUMENTS)):
        Path(package).mkdir()
        Path(package, "__init__.py").touch()
        runs.write(text, f"{package}/{module}.py")
    text = """
        from accelerate.state import PartialState
        from transformers.training_args import TrainingArguments
        print(PartialState().default_device, TrainingArguments()._setup_devices)
        TrainingArguments.use_cpu = True
        print(TrainingArguments()._setup_devices)
    """
    plain, under = runs.both(text)
    assert plain.out == "cpu cpu\ncpu\n" and under.out == "remote_accelerator:0 remote_accelerator:0\ncpu\n", under.err


READS = """
    import torch
    x = torch.zeros(())
    for _ in range({}):
        x = x + 1
        y = x.item()
    print(y)
"""


def test_C9_a_program_that_only_waits_for_values_is_told_where(runs, whole) -> None:
    """An actor and critic took 15 times as long as under python, and nothing said why."""
    few = [(("--executor", "pipe"), 20)] if whole else []  # how many are few: below
    slow, *others = (
        runs.run(*runs.GENIE, *options, runs.write(READS.format(times)))
        for options, times in ((("--executor", "pipe"), 1200), ((), 1200), *few)
    )
    assert slow.out == "1200.0\n" and not any(ran.err for ran in others)
    assert slow.err.count("\n") == 1 and slow.err.startswith("genie run: 1,200 reads of values took ")
    assert ", 1,200 of them at script.py:6 (" in slow.err and "on average for 1 operation; fewer" in slow.err


EXPLAINED = """
    import torch
    x = torch.zeros(100)
    for k in range(6):
        loss, norm = x.cos().sum(), x.sin().sum()
        print(loss.item(), end=" ")
        if torch.isnan(loss):
            print(norm.item())
        x += 1  # a step that writes is not run ahead
    print(norm.item())
"""


def test_C9_the_lines_that_wait_are_listed(runs) -> None:
    plain = runs.run(sys.executable, runs.write(EXPLAINED))
    ran = runs.run(*runs.GENIE, "--executor", "pipe", "--explain", runs.write(EXPLAINED))
    said, head, *rows = ran.err.splitlines()
    assert ran.out == plain.out and ran.code == 0
    assert re.fullmatch(r"genie run: 13 reads of values took \S+ \S+ of \S+ \S+ and waited for the replies to 7 "
                        r"messages; by line:", said)  # fmt: skip
    assert head.split() == ["reads", "messages", "time", "a", "message", "line"]
    by_line = {row.split()[-1]: row.split()[:2] for row in rows}
    assert by_line == {"script.py:6": ["6", "6"], "script.py:7": ["6", "0"], "script.py:10": ["1", "1"]}


def test_C9_the_longest_waits_come_first_and_the_rest_is_summed_up() -> None:
    from mindtorch.cli.waits_table import lines

    rows = [Waits(("/a/train.py", n), 10, n % 2, 0.25) for n in range(1, 23)] + [Waits(None, 1, 1, 0.5)]
    said, _, *listed = lines(rows, 60.0)
    assert said.startswith("genie run: 221 reads of values took 6.00 s of 60.0 s and waited for the replies to 12 mes")
    assert len(listed) == 21 and listed[0].split() == ["10", "1", "250", "ms", "250", "ms", "train.py:1"]
    assert listed[1].split() == ["10", "0", "250", "ms", "-", "train.py:2"]
    assert listed[-1].split() == ["21", "2", "1.00", "s", "3", "other", "lines"]
    assert lines([], 1.0) == ["genie run: the program never waited: it read no value that another process computed"]


@pytest.mark.parametrize(("executor", "reads", "seconds", "told"), [
    ("pipe", 1000, 19.0, True), ("ray", 1000, 19.0, True), ("pipe", 999, 19.0, False), ("pipe", 1000, 21.0, False),
    ("loopback", 1000, 19.0, False),
])  # fmt: skip
def test_C9_waiting_is_told_where_it_is_most_of_the_run(
    monkeypatch, capsys, executor: str, reads: int, seconds: float, told: bool
) -> None:
    from mindtorch.cli.run import _say_what_it_waited_for

    monkeypatch.setenv("GENIE_EXECUTOR", executor)
    monkeypatch.setattr(triggers, "waits", lambda: [Waits(None, reads - 1, 9, 8.0), Waits(("/a/b.py", 3), 1, 1, 2.0)])
    _say_what_it_waited_for(seconds)
    said = capsys.readouterr().err
    assert (
        said.startswith("genie run: 1,000 reads of values took 10.0 s of 19.0 s, 999 of them at unknown lines") == told
    )
    assert bool(said) == told
