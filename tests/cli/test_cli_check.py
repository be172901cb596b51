"""C4: ``genie check``: exit code 0 where an accelerator takes a program, 1 where it does not, and the line."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

BAD = """
import torch
from torch import nn

def step(model, x):
    return model(x)

try:
    torch.ones(3).cuda() + torch.ones(3)
except RuntimeError:
    print("caught")
step(nn.Linear(8, 2).cuda(), torch.ones(3, 8))
"""
GOOD = """
import sys
import torch
from torch import nn
device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
best = float("inf")
for _ in range(2):
    x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if loss.item() < best:
        torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt"))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["check", *args], prog_name="genie")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gc.collect()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize("args", [["--target", "h100", "bad.py"], ["bad.py", "--target", "h100"]])
def test_C4_what_is_refused_is_listed_with_its_line(here: Path, args: list[str]) -> None:
    result = genie(*args)
    assert result.exit_code == 1
    assert f"bad.py:{BAD.splitlines().index('    return model(x)') + 1}: NVIDIA H100" in result.output
    assert "    return model(x)\n" in result.output and "cuda:0 and cpu" in result.output
    assert "caught" in result.output and "Traceback" not in result.output


def test_C4_a_thread_that_nobody_waits_for_changes_nothing_of_what_is_said(here: Path) -> None:
    """tqdm starts one. An error used to be shown twice then: as Python shows it, and in the list."""
    start = "import threading\nthreading.Thread(target=threading.Event().wait, args=(20,), daemon=True).start()\n"
    (here / "bad.py").write_text(start + BAD)
    result = genie("--target", "h100", "bad.py")
    assert result.exit_code == 1 and "cuda:0 and cpu" in result.output and "Traceback" not in result.output


def test_C4_what_is_taken_is_said_to_be(here: Path) -> None:
    result = genie("--target", "h100", "good.py")
    assert result.exit_code == 0 and "runs and fits on" in result.output
    result = genie("--target", "h100", "good.py", "3")
    assert result.exit_code == 0 and "exit code 3" in result.output
    assert not (here / "best.pt").exists()


@pytest.mark.parametrize(
    ("end", "words"),
    [("sys.exit(2)", "ended with exit code 2 and ran no torch"), ("", "the program ended and ran no torch")],
)
def test_C4_of_a_program_that_ran_nothing_nothing_is_said(here: Path, end: str, words: str) -> None:
    """A word too many on its command line: "runs and fits on"."""
    (here / "words.py").write_text(f"import sys\n{end}\n")
    result = genie("--target", "h100", "words.py", "--nonesuch")
    assert result.exit_code == 2 and "cannot tell" in result.output and words in result.output
    assert "runs and fits on" not in result.output


def test_C4_what_does_not_fit_is_refused(here: Path) -> None:
    (here / "large.py").write_text("import torch\nx = torch.empty(2**40, device='cuda')\n")
    result = genie("--target", "l4", "--json", "large.py")
    [row] = json.loads(result.stdout)["refused"]
    assert result.exit_code == 1
    assert (row["kind"], row["error"], row["line"]) == ("does not fit", "OutOfMemoryError", 2)


def test_C4_what_an_estimate_cannot_tell_is_no_refusal(here: Path) -> None:
    (here / "odd.py").write_text(
        "import torch\ntorch.ones(2**25, device='cuda').tolist() or torch.randn(2**25).tolist()\n"
    )
    result = genie("--target", "h100", "odd.py")
    assert result.exit_code == 2 and "an estimate cannot tell" in result.output


@pytest.mark.parametrize(
    "program",
    [
        "best, x = None, torch.randn(9, device='cuda').mean().item()\nif x > 1:\n    best = 1\nbest.bit_length()\n",
        "print(1 / torch.randn(9, device='cuda').argmax().item())\n",
        "assert torch.rand(5, device='cuda').sum().item() > 1\n",
        "if not torch.rand(5, device='cuda').sum() > 1:\n    raise RuntimeError('never')\n",
        "x = torch.rand(5, device='cuda')\nif len(x[x > 2]):\n    raise RuntimeError('never')\n",
    ],
)
def test_C4_what_followed_from_an_assumption_is_no_refusal(here: Path, program: str) -> None:
    (here / "odd.py").write_text("import torch\n" + program)
    result = genie("--target", "h100", "odd.py")
    assert result.exit_code == 2 and "an estimate cannot tell" in result.output
    assert "odd.py:" in result.output and "--assume" in result.output


def test_C4_a_refusal_after_an_assumption_is_one(here: Path) -> None:
    (here / "bad.py").write_text(
        "import torch\nprint(torch.randn(9).cuda().sum().item())\ntorch.ones(2).cuda() + torch.ones(2)\n"
    )
    assert genie("--target", "h100", "bad.py").exit_code == 1


def test_C4_what_the_card_holds_beside_tensors_has_to_fit(here: Path) -> None:
    """The context of the driver at least: 24 GB that a program can fill are none."""
    (here / "full.py").write_text(
        "import torch\nx = torch.empty(int(23.3 * 2**30), dtype=torch.uint8, device='cuda')\n"
    )
    result = genie("--target", "rtx4090", "full.py")
    assert result.exit_code == 1 and "full.py:2" in result.output and "does not have the memory" in result.output
    (here / "split.py").write_text(
        "import torch\nx = [torch.empty(size, dtype=torch.uint8, device='cuda') for size in [11_000_001] * 2250]\n"
    )
    result = genie("--target", "rtx4090", "split.py")
    assert result.exit_code == 1 and "on the card" in result.output, result.output


RANKS = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(8, 2).to(device))
model(torch.ones(4, 8, device=device)).sum().backward()
if rank == 3:
    model(torch.ones(4, 8))
"""


def test_C4_ranks_are_checked(here: Path, forked: Callable[..., Any]) -> None:
    (here / "ranks.py").write_text(RANKS)
    result = genie("--target", "4xh100", "ranks.py")
    assert result.exit_code == 0 and "rank 0 of 4; peak " in result.output
    # torch forks no process that has run a backward pass
    done = forked("-m", "mindtorch", "check", "--target", "4xh100", "--rank", "all", "--json", "ranks.py")
    told = json.loads(done.stdout)
    assert (done.returncode, told["rank"]) == (1, 3) and told["refused"][0]["line"] == 11
    assert genie("ranks.py", "--target", "4xh100").exit_code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--target", "h100", "--rank", "1"], "several accelerators"),
        (["--target", "2xh100", "--rank", "2"], "expected 0 to 1"),
        (["--target", "0xh100"], "expected 1 to"),
    ],
)
def test_C4_ranks_that_are_not_there_are_told(here: Path, args: list[str], words: str) -> None:
    (here / "ranks.py").write_text(RANKS)
    result = genie(*args, "ranks.py")
    assert result.exit_code == 2 and words in result.output + result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "mixtral", "vit"])
@pytest.mark.parametrize("train", [[], ["--train"]], ids=["forward", "train"])
def test_C4_no_false_alarm_over_models(here: Path, name: str, train: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
             "num_key_value_heads": 2}  # fmt: skip
    sizes = {"gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4}, "t5": {"d_model": 32, "num_layers": 2, "d_kv": 8}}
    config = transformers.AutoConfig.for_model(name, **sizes.get(name, small))
    kinds = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "gpt2": "GPT2LMHeadModel",
             "vit": "ViTForImageClassification"}  # fmt: skip
    config.architectures = [kinds.get(name, f"{name.capitalize()}ForCausalLM")]
    (here / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": config.architectures}))
    result = genie("--target", "h100", *train, "config.json")
    assert result.exit_code == 0, result.output


ALONE = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def work(rank, size):
    dist.init_process_group({arguments})
    model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[0])
    model(torch.ones(2, 4).cuda()).sum().backward()
    total = torch.ones(3).cuda()
    dist.all_reduce(total)
    dist.barrier()
    print("ranks:", dist.get_world_size(), dist.get_backend(), dist.is_nccl_available())
    dist.destroy_process_group()

{start}
"""
TORCHRUNS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}


@pytest.mark.parametrize("target", ["h100", "1xh100"])
@pytest.mark.parametrize(
    ("arguments", "start", "variables"),
    [
        ("'nccl'", "work(0, 1)", TORCHRUNS),
        ("backend='nccl', device_id=torch.device('cuda', 0)", "work(0, 1)", TORCHRUNS),
        ("'nccl', init_method='tcp://127.0.0.1:29512', rank=rank, world_size=size", "work(0, 1)", {}),
        ("'nccl', init_method='tcp://127.0.0.1:29512?rank=0&world_size=1'", "work(0, 1)", {}),
        ("'nccl', rank=0, world_size=1", "os.environ.update(MASTER_ADDR='x', MASTER_PORT='29512'); work(0, 1)", {}),
        ("'nccl', store=dist.HashStore(), rank=0, world_size=1", "work(0, 1)", {}),
        (
            "'nccl', init_method='tcp://127.0.0.1:29512', rank=rank, world_size=size",
            "n = torch.cuda.device_count(); torch.multiprocessing.spawn(work, args=(n,), nprocs=n)",
            {},
        ),
    ],
)
def test_C10_a_process_group_of_one_rank_needs_no_cluster(
    here: Path, monkeypatch: pytest.MonkeyPatch, target: str, arguments: str, start: str, variables: dict[str, str]
) -> None:
    for name in TORCHRUNS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (here / "alone.py").write_text(ALONE.format(arguments=arguments, start=start))
    result = genie("--target", target, "alone.py")
    assert result.exit_code == 0 and "ranks: 1 nccl True" in result.output, result.output


def test_C10_a_group_of_several_wants_several(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (TORCHRUNS | {"WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    (here / "many.py").write_text(ALONE.format(arguments="'nccl'", start="work(0, 4)"))
    result = genie("--target", "h100", "many.py")
    assert result.exit_code == 2 and "--target 4x" in result.output
    monkeypatch.delenv("RANK")
    result = genie("--target", "h100", "many.py")
    assert result.exit_code == 1 and "environment variable RANK expected" in result.output


def test_C4_what_a_distribution_would_refuse_depends_on_values(here: Path) -> None:
    """Pyro switches validation on: "Expected parameter loc … to satisfy the constraint Real()", called our error."""
    (here / "drawn.py").write_text(
        "import torch\nfrom torch import distributions as d\nd.Distribution.set_default_validate_args(True)\n"
        "x = torch.randn(300, device='cuda')\nprint(d.Normal(x, x.exp()).log_prob(x).sum().item())\n"
        "print(d.Dirichlet(torch.ones(8) / 8, validate_args=True).sample().shape)\n"
        "print(d.Bernoulli(logits=x).log_prob((x > 0).float()).shape)\n"
    )
    result = genie("--target", "l4", "drawn.py")
    assert result.exit_code == 0 and "torch.Size([8])" in result.output, result.output
