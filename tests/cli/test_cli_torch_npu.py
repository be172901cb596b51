"""C4, N3: ``genie`` on programs that import torch_npu, without it, without a library and without Ascend hardware."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import torch
import torch_npu
from torch import nn
from torch.npu.amp import GradScaler, autocast

torch.npu.set_compile_mode(jit_compile=False)
torch_npu.npu.config.allow_internal_format = False
torch.npu.set_device("npu:0")
device = torch.device("npu:0")
torch.npu.manual_seed_all(1)
assert torch.npu.is_available() and torch.npu.device_count() == 1 and "Ascend 910B" in torch.npu.get_device_name(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3)
        self.linear = nn.Linear(16 * 30 * 30, 10)

    def forward(self, x):
        return self.linear(torch.relu(self.convolution(x)).flatten(1))

model = Net().npu()
optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=1e-3)
scaler = GradScaler()
data = torch.utils.data.TensorDataset(torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=2)
criterion = nn.CrossEntropyLoss().to(device)
for x, y in loader:
    x, y = x.npu(non_blocking=True), y.to(device, non_blocking=True)
    assert x.is_npu and x.device == device and x.type() == "torch.npu.FloatTensor"
    with autocast():
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.npu.synchronize()
assert torch.npu.max_memory_allocated() > torch.npu.memory_allocated(device) > 144_000 * 4
assert torch.npu.get_device_properties(0).total_memory == 64e9 and torch.accelerator.current_accelerator().type == "npu"
with torch.npu.stream(torch.npu.Stream()):
    normed, _ = torch_npu.npu_rms_norm(torch.ones(2, 8).to(0), torch.ones(8).npu())
print("trained on", normed.device)
"""
TRANSFERRED = """
import torch
from torch import nn
try:
    import torch_npu
    from torch_npu.contrib import transfer_to_npu
    found = "torch_npu"
except ImportError:
    found = "none"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.cuda.set_device(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    x = torch.randn(16, 64).cuda(non_blocking=True)
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
assert x.is_cuda and torch.cuda.max_memory_allocated() > 0
print(found, x.device, x.to(0).device)
"""
INFERENCE = """
import importlib.util
assert importlib.util.find_spec("torch_npu") is not None
import torch, torch_npu
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=500)
model = LlamaForCausalLM(config).to("npu:0", dtype=torch.bfloat16).eval()
ids = torch.randint(0, 500, (1, 16)).to("npu:0")
with torch.inference_mode():
    out = model.generate(ids, max_new_tokens=4, do_sample=False)
torch.npu.synchronize()
print(tuple(out.shape), out.device)
"""


Forked = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def genie(forked: Forked) -> Forked:
    def run(tmp_path: Path, script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(script)
        env = {name: value for name, value in os.environ.items() if name != "GENIE_ACL_LIBRARY"} | environment
        return forked("-m", "mindtorch", *options, str(path), environment=env)

    return run


@pytest.fixture
def estimated(genie: Forked) -> Callable[..., tuple[str, dict[str, Any]]]:
    def run(tmp_path: Path, script: str, target: str = "910b") -> tuple[str, dict[str, Any]]:
        """What the script printed, and the report."""
        done = genie(tmp_path, script, "profile", "--target", target, "--json", str(tmp_path / "report.json"))
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "report.json").read_text())

    return run


def test_C4_a_training_script_for_npus(tmp_path: Path, estimated: Callable[..., Any]) -> None:
    printed, report = estimated(tmp_path, TRAINING)
    assert "trained on npu:0" in printed and report["memory"]["device"] == "npu:0"
    phases = {row["name"]: row["flops"] for row in report["phases"]}
    assert phases["forward"] > 0 and phases["backward"] > phases["forward"]


def test_C4_a_script_that_is_transferred_to_npus(tmp_path: Path, estimated: Callable[..., Any]) -> None:
    printed, report = estimated(tmp_path, TRANSFERRED)
    assert "torch_npu npu:0 npu:0" in printed and report["memory"]["device"] == "npu:0"
    # The same script where there is no torch_npu: as it is for CUDA, and as much work.
    printed, other = estimated(tmp_path, TRANSFERRED, "h100")
    assert "none cuda:0 cuda:0" in printed and other["memory"]["device"] == "cuda:0"
    assert [report["totals"][name] for name in ("ops", "flops")] == [other["totals"][name] for name in ("ops", "flops")]


def test_C4_inference_with_transformers_on_npus(tmp_path: Path, estimated: Callable[..., Any]) -> None:
    pytest.importorskip("transformers")
    printed, report = estimated(tmp_path, INFERENCE)
    assert "(1, 20) npu:0" in printed and report["memory"]["device"] == "npu:0"


def test_C4_a_graph_of_a_script_for_npus(tmp_path: Path, genie: Forked) -> None:
    script = "import torch, torch_npu\ntorch.npu.set_device(0)\ntorch.ones(2).npu().relu()\ntorch.npu.synchronize()\n"
    done = genie(tmp_path, script, "graph", "--device", "meta")
    assert done.returncode == 0 and "relu" in done.stdout, done.stderr


def test_C4_a_program_that_lets_torch_npu_be_found_itself(tmp_path: Path, estimated: Callable[..., Any]) -> None:
    script = """
import mindtorch.npu.compat
import torch, torch_npu
from torch_npu.contrib import transfer_to_npu
free, total = torch.npu.mem_get_info()
x = torch.ones(4, 4, device="cuda").requires_grad_()
torch_npu.npu_swiglu(x @ x).sum().backward()
torch.npu.synchronize()
print(torch.npu.is_available(), torch.npu.device_count(), torch.accelerator.is_available(), x.grad.device)
print(free <= total == 64_000_000_000, torch.npu.get_device_name(), x.cpu().pin_memory().shape)
"""
    printed, report = estimated(tmp_path, script)
    assert "True 1 True npu:0\nTrue Huawei Ascend 910B" in printed and report["memory"]["device"] == "npu:0"


def test_C1_without_an_npu_the_program_finds_none(tmp_path: Path, genie: Forked) -> None:
    code = (
        "import torch\ntry:\n    import torch_npu\nexcept ImportError as error:\n    print(error)\ntorch.ones(2) + 1\n"
    )
    done = genie(tmp_path, code, "profile", GENIE_ACL_LIBRARY="/nowhere/libascendcl.so")
    assert done.returncode == 0 and "No module named 'torch_npu'" in done.stdout
    done = genie(tmp_path, "import torch, torch_npu\n", "profile", GENIE_ACL_LIBRARY="/nowhere/libascendcl.so")
    hint = (
        "genie: torch_npu is not installed, and mindtorch's replacement was not used: "
        "GENIE_ACL_LIBRARY names /nowhere/libascendcl.so"
    )
    assert done.returncode == 1 and hint in done.stderr and "genie profile --target 910b" in done.stderr


def test_C8_what_is_refused_on_npus_is_refused_in_an_estimate_for_them(
    tmp_path: Path, genie: Callable[..., Any]
) -> None:
    """By mindtorch, not by torch_npu: what the chip would do cannot be told, and the words are those of a run."""
    trace, save = "torch.jit.trace(model, x)\n", "torch.jit.script(model).save('model.pt')\n"
    for device, does, code in (("npu", trace, 2), ("cuda", save, 2), ("cpu", trace + save, 0)):
        script = (
            f"import torch\nmodel = torch.nn.Linear(4, 4).to('{device}')\nx = torch.ones(2, 4, device='{device}')\n"
        )
        done = genie(tmp_path, f"{script}model(x)\n{does}", "check", "--target", "910b")
        assert done.returncode == code, (device, done.stdout, done.stderr)
        assert ("on the CPU, got one on" in done.stdout + done.stderr) == bool(code)


def test_C4_a_program_that_says_cuda_has_all_of_it_in_one_place_on_an_npu(tmp_path: Path, genie: Forked) -> None:
    """DataParallel meant ``npu`` by its indices, and so did ``.to(0)``: "expected all tensors on the same device"."""
    script = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
net = nn.DataParallel(net)
head = nn.Linear(4, 2).to(0)
for step in range(2):
    (head(net(torch.randn(8, 4).cuda())) + torch.ones(2, device=0)).sum().backward()
print(next(net.parameters()).device, head.weight.device, head(torch.ones(1, 4, device="cuda")).device)
"""
    for target in ("910b", "2x910b"):
        done = genie(tmp_path, script, "profile", "--target", target)
        assert done.returncode == 0 and "cuda:0 cuda:0 cuda:0" in done.stdout, done.stdout + done.stderr
        assert (
            "memory is for npu" not in done.stdout and "peaks of other devices" not in done.stdout
        ) or target != "910b"
    script = "import torch\nx = torch.ones(2, device='npu').to(0)\nprint(x.device, torch.ones(2, device=0).device)\n"
    done = genie(tmp_path, script, "profile", "--target", "910b")
    assert "npu:0 npu:0" in done.stdout
