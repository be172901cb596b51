"""R2: checkpoints that a worker writes and reads on its own machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cluster import worker_files
from mindtorch.cluster.ray_executor import RayExecutor

pytest.importorskip("ray", reason="Ray is not installed: pip install 'mindtorch-genie[ray]'")
LAZY = "remote_accelerator:0"


def training(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)).to(device)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    torch.manual_seed(2)
    loss = net(torch.randn(8, 300).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_R2_a_checkpoint_is_written_and_read_there(ray_executor: RayExecutor, tmp_path: Path) -> None:
    path = str(tmp_path / "step.pt")
    net, optimizer = training(LAZY)
    step(net, optimizer, LAZY)
    down = ray_executor.stats["bytes_down"]
    ray_executor.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, path)
    other, its = training(LAZY)
    up = ray_executor.stats["bytes_up"]
    found = ray_executor.load(path)
    assert ray_executor.stats["bytes_down"] - down < 50_000 and ray_executor.stats["bytes_up"] - up < 50_000
    other.load_state_dict(found["net"])
    its.load_state_dict(found["optimizer"])
    assert found["step"] == 1
    expected = [step(net, optimizer, LAZY) for _ in range(2)]
    assert [step(other, its, LAZY) for _ in range(2)] == expected
    plain, plainly = training("cpu")  # and torch reads it
    read = torch.load(path)
    plain.load_state_dict(read["net"])
    plainly.load_state_dict(read["optimizer"])
    assert [step(plain, plainly, "cpu") for _ in range(2)] == expected
    assert os.listdir(tmp_path) == ["step.pt"]


def test_R2_views_and_plain_tensors_are_written_as_torch_does(ray_executor: RayExecutor, tmp_path: Path) -> None:
    path = str(tmp_path / "views.pt")
    x = torch.arange(12.0, device=LAZY)
    z = torch.view_as_complex(x.clone().view(6, 2)).conj()
    ray_executor.save([x, x[2:6].view(2, 2).t(), (z, torch.ones(2)), {1: x[:0], "b": x.bool()}], path)
    whole, part, (conjugate, plain), rest = torch.load(path)
    assert whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
    assert torch.equal(whole, x.cpu()) and torch.equal(part, x.cpu()[2:6].view(2, 2).t())
    assert torch.equal(conjugate, z.cpu()) and plain.tolist() == [1, 1]
    assert rest[1].shape == (0,) and torch.equal(rest["b"], x.cpu().bool())
    again = ray_executor.load(path)
    assert torch.equal(again[1].cpu(), part) and torch.equal(again[2][0].cpu(), conjugate)
    assert again[0].add_(1)[2].item() == 3 and again[1][0, 0].item() == 2  # each has memory of its own


def test_R2_what_cannot_be_written_or_read_is_one_sentence(ray_executor: RayExecutor, tmp_path: Path) -> None:
    x = torch.ones(3, device=LAZY)
    for path, told in (
        ("step.pt", "expected a full path in one of the worker's folders"),
        ("/nowhere/a.pt", "nowhere"),
    ):
        with pytest.raises(mindtorch.UsageError, match=rf"^\[save\] .*{told}"):
            ray_executor.save({"x": x}, path)
    with pytest.raises(mindtorch.UsageError, match=r"^\[load\] .*No such file"):
        ray_executor.load(str(tmp_path / "none.pt"))
    torch.save({"f": step}, tmp_path / "code.pt")
    with pytest.raises(mindtorch.UsageError, match=r"^\[load\] "):
        ray_executor.load(str(tmp_path / "code.pt"))
    with pytest.raises(mindtorch.UsageError, match=r"^\[save\] expected numbers, strings, tensors .*, got function"):
        ray_executor.save({"f": step}, str(tmp_path / "code.pt"))
    assert (x + 1).tolist() == [2] * 3  # and the session goes on


def test_R3_files_are_in_the_workers_folders(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "out").symlink_to(tmp_path)
    folders = [str(tmp_path / "given")]
    assert worker_files._check(f"{tmp_path}/given/a.pt", folders) == f"{tmp_path}/given/a.pt"
    for path in ("given/a.pt", f"{tmp_path}/a.pt", f"{tmp_path}/given/../a.pt", f"{tmp_path}/given/out/a.pt",
                 f"{tmp_path}/given2/a.pt"):  # fmt: skip
        with pytest.raises(OSError, match="expected a full path in one of the worker's folders"):
            worker_files._check(path, folders)
    with pytest.raises(OSError, match=r"\(none: genie worker start --files adds one\)"):
        worker_files._check("/a.pt", [])
