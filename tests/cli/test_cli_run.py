"""SPEC C9: ``genie run`` runs a program as python does, on another device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.base import hardware
from mindtorch.cli.main import cli


def refused(*args: str) -> str:
    result = CliRunner().invoke(cli, ["run", *args], prog_name="genie")
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_C9_arguments_main_and_streams_are_the_programs(runs):
    text = """
        import sys, __main__
        if __name__ == "__main__":
            print(sys.argv, __file__.endswith("script.py"), __main__.__name__, sys.path[0] != "")
            print("to stderr", file=sys.stderr)
    """
    plain, under = runs.both(text, "--device", "cpu", "-x", "--", "a b")
    assert under == plain and "['script.py', '--device', 'cpu', '-x', '--', 'a b']" in under.out


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--executor", "local"], marks=pytest.mark.whole),  # which it is without, too
        ["--executor", "pipe"],
        ["--map", "cuda"],
    ],
)
def test_C9_a_program_that_sets_no_seed_draws_other_numbers_each_time(runs, options):
    """As under python: noise that is to hide something must not be the same in every run."""
    name = runs.write("""
        import torch
        print(torch.initial_seed())
        for number in torch.rand(3).tolist():
            print(number)
        print(torch.rand(1, device="cuda" if torch.cuda.is_available() else "cpu").item())
        torch.manual_seed(3)
        print(torch.rand(1).item(), "seeded")
    """)
    # Forks all have the seed of the process that they are forks of.
    done = [begin(*runs.GENIE, *options, name) for begin in (runs.anew, runs.run)]
    assert done[0].code == done[1].code == 0
    first, second = (each.out.splitlines() for each in done)
    assert first[-1] == second[-1] == runs.run(sys.executable, name).out.splitlines()[-1]
    assert not {*first[:-1]} & {*second[:-1]}


@pytest.mark.parametrize(
    "end", ["import sys; sys.exit(3)", "raise SystemExit", "import sys; sys.exit('no data')", "raise SystemExit(True)"]
)
def test_C9_exit_codes_are_the_programs(runs, end):
    plain, under = runs.both(f"import torch\nprint(torch.ones(2).sum().item())\n{end}\n")
    assert under == plain


def test_C9_a_traceback_has_no_line_of_ours(runs):
    name = runs.write("""
        import torch

        def step(x):
            return x @ torch.ones(5, 2)

        step(torch.ones(2, 3))
    """)
    plain, under = runs.anew(sys.executable, name), runs.anew(*runs.GENIE, name)
    frames = [line for line in plain.err.splitlines() if line.startswith("  File")]
    assert plain.code == under.code == 1
    assert [line for line in under.err.splitlines() if line.startswith("  File")] == frames
    assert "mat1 and mat2 shapes cannot be multiplied" in under.err.splitlines()[-1]


def test_C9_a_module_is_run_as_python_dash_m_runs_it(runs):
    Path("pkg").mkdir()
    runs.write("", "pkg/__init__.py")
    runs.write("import sys, torch\nprint(__name__, __package__, sys.argv[1:], torch.ones(2).sum())\n", "pkg/train.py")
    line = ["-m", "pkg.train", "--lr", "1"]
    plain, under = runs.each([sys.executable, *line], [*runs.GENIE, *line])
    assert under == plain and "__main__ pkg ['--lr', '1'] tensor(2.)" in under.out


def test_C9_an_interrupt_ends_it_as_python_ends(runs):
    """By the signal: a shell's loop around it ends, too."""
    name = runs.write("""
        import atexit, time, torch
        atexit.register(print, "at last")
        print(torch.ones(1).item(), flush=True)
        time.sleep(100)
    """)
    ends = []
    for command in ([sys.executable], runs.GENIE):
        with subprocess.Popen(
            [*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs do not heed it
        ) as process:  # fmt: skip
            assert process.stdout is not None and process.stdout.readline() == "1.0\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            ends.append((*process.communicate(timeout=runs.LIMIT), process.returncode))
    plain, under = ends
    assert under == plain and under[0] == "at last\n" and under[1].endswith("KeyboardInterrupt\n")
    assert under[2] == -signal.SIGINT


def test_C9_what_is_registered_for_the_end_runs_as_the_program_did(runs):
    under = runs.same("""
        import atexit
        import torch
        weight = torch.full((2,), 3.0)
        atexit.register(lambda: print((weight + torch.ones(2)).sum()))
    """)
    assert under.out == "tensor(8.)\n"


def test_C9_wrong_requests_are_one_line(runs):
    name = runs.write("print(1)\n")
    assert "does not exist" in refused("nothing.py")
    assert "remote_accelerator" in refused("--device", "tpu:0", name)
    assert "to run on cuda, use python" in refused("--device", "cuda:0", name)
    assert "--address is for --executor ray" in refused("--address", "here", name)
    assert "is a model" in refused("script.py:build")
    assert "'tpu' is not 'cuda'" in refused("--map", "tpu", name)
    assert "nonsense" in refused("--executor", "nonsense", name)
    if hardware.has_module("ray"):
        told = refused("--executor", "ray", "--address", "127.0.0.1:9", name)
        assert "expected a Ray cluster at 127.0.0.1:9, got no answer" in told
    assert "No such option" in refused("--nope", name)


def test_C9_without_ray_nothing_is_run(runs, monkeypatch):
    from mindtorch.base import hardware

    monkeypatch.setattr(hardware, "has_module", lambda name: name != "ray")
    name = runs.write("print('ran')")
    assert refused("--executor", "ray", name) == "genie: Ray is not installed: pip install 'mindtorch-genie[ray]'\n"


def test_C9_a_run_in_this_process_leaves_torch_as_it_was(runs):
    import torch

    name = runs.write("import torch\nprint(torch.ones(2).device)\nprint(torch.ones(2, device='cuda').is_cuda)\n")
    before = dict(os.environ)
    for options in (["--map", "cuda", "--device", "remote_accelerator"], ["--device", "remote_accelerator:1"]):
        done = CliRunner().invoke(cli, ["run", *options, name], prog_name="genie")
        assert done.stdout.startswith("remote_accelerator:"), done.output
        assert done.exit_code == (0 if "--map" in options else 1)
    assert torch.ones(2).device.type == "cpu" and not torch.ones(2).is_cuda and dict(os.environ) == before
    assert torch.get_default_device() == torch.device("cpu") and torch.rand(2, device="cpu").device.type == "cpu"


def test_C9_the_default_device_is_told_by_torch_and_by_mindtorch(runs):
    name = runs.write(
        "import threading, torch, mindtorch\n"
        "def tell(): print(torch.get_default_device(), mindtorch.get_default_device(), torch.ones(1).device)\n"
        "tell(); thread = threading.Thread(target=tell); thread.start(); thread.join()\n"
        "with mindtorch.device('cpu'): tell()\n"
    )
    done = CliRunner().invoke(cli, ["run", "--device", "remote_accelerator:1", name], prog_name="genie")
    assert done.stdout == "remote_accelerator:1 remote_accelerator:1 remote_accelerator:1\n" * 2 + "cpu cpu cpu\n"
    import mindtorch

    assert str(mindtorch.get_default_device()) == "cpu"


QUICKSTART = """
    import os
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = TensorDataset(torch.rand(48, 4, 4), torch.randint(0, 4, (48,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=device == "cuda")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten()
            self.stack = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))

        def forward(self, x):
            return self.stack(self.flatten(x))

    model = Net().to(device)
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-1)
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device)
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(epoch, loss.item(), (model(x).argmax(1) == y).type(torch.float).sum().item())
    path = f"{os.getpid()}.pth"
    torch.save(model.state_dict(), path)
    again = Net().to(device)
    again.load_state_dict(torch.load(path, weights_only=True, map_location=device))
    print(again.eval()(data.tensors[0][:2].to(device)).tolist())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["local", "pipe"])
def test_C9_a_program_that_asks_for_cuda_computes_what_it_computes_on_the_cpu(runs, executor):
    counting = QUICKSTART + "\n    import sys\n    print(device, next(model.parameters()).device, file=sys.stderr)\n"
    under = runs.same(counting, options=("--map", "cuda", "--executor", executor))
    assert under.err.splitlines()[-1] == "cuda remote_accelerator:0"


def test_C9_what_is_said_of_cuda_means_remote_accelerator(runs):
    name = runs.write("""
        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.cuda.manual_seed_all(0)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
        assert "remote accelerator" in torch.cuda.get_device_name(0)
        assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "remote_accelerator"
        device = torch.device("cuda:0")
        x = torch.randn(4, 3, device=device)
        made = [x, torch.ones(2).cuda(), torch.ones(2).cuda(0), torch.ones(2).to("cuda"), torch.ones(2).to(0),
                torch.ones(1, device="cuda"), torch.zeros_like(torch.ones(1), device="cuda"),
                x.new_zeros(2, device="cuda"), nn.Linear(3, 2).cuda().weight, nn.Linear(3, 2).to(device).bias,
                nn.Linear(3, 2, device="cuda").weight]
        with torch.device("cuda"):
            made.append(torch.ones(1))
        assert all(t.is_cuda and str(t.device) == "remote_accelerator:0" for t in made)
        assert not any(t.is_cuda for t in (torch.ones(2), x.cpu(), torch.zeros_like(x, device="cpu")))
        torch.cuda.synchronize()
        torch.accelerator.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_device(device)
        used = torch.cuda.memory_allocated()
        assert used >= x.numel() * 4 and used == torch.accelerator.memory_allocated()
        held = torch.zeros(1000, device="cuda")
        assert torch.cuda.memory_allocated() == used + 4000 <= torch.cuda.max_memory_allocated()
        model = nn.Linear(3, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler()):
            for region in (torch.autocast("cuda"), torch.amp.autocast(device_type="cuda"), torch.cuda.amp.autocast()):
                with region:
                    assert torch.is_autocast_enabled("cuda")
                    out = model(x)
                    loss = out.float().square().mean()
                assert out.dtype is torch.float16 and scaler.is_enabled()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        torch.save(x, "x.pt")
        assert torch.load("x.pt", map_location="cuda").is_cuda and torch.load("x.pt", map_location=device).is_cuda
        assert torch.load("x.pt").is_cuda and torch.load("x.pt", map_location={"cuda:0": "cpu"}).device.type == "cpu"
        torch.save({"all": model, "view": x[0], "here": x.cpu()}, "model.pt")
        loaded = torch.load("model.pt", weights_only=False)
        assert torch.equal(loaded["all"](x), model(x)) and loaded["view"].is_cuda and not loaded["here"].is_cuda
        with torch.cuda.stream(torch.cuda.Stream()):
            assert (x * 2).is_cuda
        state = torch.cuda.get_rng_state()
        first = torch.rand(2, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(first, torch.rand(2, device="cuda"))
        assert torch.cuda.CUDAGraph | None  # in annotations
        draws = torch.Generator(device="cuda").manual_seed(1)
        assert isinstance(draws, torch.Generator) and str(draws.device) == "remote_accelerator:0"
        assert torch.randn(2, device="cuda", generator=draws).is_cuda and torch.Generator().device.type == "cpu"
        for refused in (torch.cuda.CUDAGraph, torch.cuda.caching_allocator_alloc, torch.cuda.utilization):
            try:
                refused()
            except RuntimeError as error:
                print(type(error).__name__, str(error).count("\\n"))
        try:
            x + torch.ones(4, 3)
        except RuntimeError as error:
            print("remote_accelerator:0 and cpu" in str(error))
    """)
    ran = runs.run(*runs.GENIE, "--map", "cuda", name)
    assert ran.code == 0, ran.err
    assert ran.out == "UnsupportedOperationError 0\n" * 3 + "True\n"


def test_C9_the_executors_cuda_and_the_programs_are_not_mixed_up(runs):
    import torch

    import mindtorch

    executor = mindtorch.LocalExecutor("cpu")
    previous = mindtorch.set_executor(executor)
    executor.device = torch.device("cuda:0")  # as it would be on a machine that has one
    try:
        assert "cannot be told from the executor's" in refused("--map", "cuda", runs.write("print(1)\n"))
    finally:
        executor.device = torch.device("cpu")
        mindtorch.set_executor(previous)


OWN = """
    import mindtorch

    class Logged(mindtorch.WrappingExecutor):
        def submit(self, segment):
            print("ran", [name for name, *_ in segment.instructions()])
            super().submit(segment)

    class Inner:
        here = mindtorch.LocalExecutor

    number = 3

    def wrong():
        return 3

    def needs(more):
        return more
"""
TRIPLE = """
    import torch
    print((torch.ones(2) * 3).tolist())
"""


def test_R1_an_executor_of_the_users_own_is_named_by_its_class(runs, monkeypatch):
    runs.write(OWN, "Logs.py")
    name = runs.write(TRIPLE)
    for given in ("Logs:Logged", " Logs:Logged "):
        ran = runs.run(*runs.GENIE, "--executor", given, name)
        assert (ran.code, ran.out) == (0, "ran ['aten::ones', 'aten::mul']\n[3.0, 3.0]\n"), ran.err
    assert runs.run(*runs.GENIE, "--executor", "Logs:Inner.here", name).out == "[3.0, 3.0]\n"
    monkeypatch.setenv("GENIE_EXECUTOR", "Logs:Logged")
    assert runs.run(*runs.GENIE, name).out.startswith("ran ")
    monkeypatch.setenv("GENIE_EXECUTOR", "LOCAL")
    assert runs.run(*runs.GENIE, name).out == "[3.0, 3.0]\n"


def test_R1_a_package_offers_its_executor_by_a_name(runs):
    runs.write(OWN, "Logs.py")
    folder = Path("logs-1.0.dist-info")
    folder.mkdir()
    folder.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: logs\nVersion: 1.0\n")
    folder.joinpath("entry_points.txt").write_text("[mindtorch.executors]\nlogged = Logs:Logged\n")
    name = runs.write(TRIPLE)
    assert runs.run(*runs.GENIE, "--executor", "logged", name).out.startswith("ran ")
    ran = runs.run(*runs.GENIE, "--executor", "other", name)
    assert ran.code == 2
    assert "--executor: expected local, loopback, pipe, ray, logged or package.module:Class, got 'other'" in ran.err


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ("tape", 2, "--executor: expected local, loopback, pipe, ray or package.module:Class, got 'tape'"),
        ("Logs:", 2, "expected local, loopback, pipe, ray or package.module:Class, got 'Logs:'"),
        ("Logs:Logged.", 2, "got 'Logs:Logged.'"),
        ("1:Logged", 2, "got '1:Logged'"),
        ("nowhere:Logged", 1, "GENIE_EXECUTOR: expected a class that can be imported, got 'nowhere:Logged'"),
        ("Logs:Missing", 1, "GENIE_EXECUTOR: expected a class that can be imported, got 'Logs:Missing'"),
        ("Logs:number", 1, "GENIE_EXECUTOR: expected Logs:number to take no arguments, got 'int' object is not"),
        ("Logs:needs", 1, "GENIE_EXECUTOR: expected Logs:needs to take no arguments, got needs() missing 1"),
        ("Logs:wrong", 1, "GENIE_EXECUTOR: expected Logs:wrong to give an Executor, got int"),
    ],
)
def test_R1_what_names_no_executor_is_one_clear_error(runs, given, code, message):
    runs.write(OWN, "Logs.py")
    ran = runs.run(*runs.GENIE, "--executor", given, runs.write(TRIPLE))
    assert ran.code == code and message in ran.err and ran.out == ""
