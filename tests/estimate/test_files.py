"""C4: weights are never read. A checkpoint's tensors come without data, and the file's pages stay on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.estimate.accelerator import Accelerator
from mindtorch.estimate.session import estimating

GPU = Accelerator("Test GPU", 10**9)
N = 8_000_000  # 32 MB: far more than what else may be touched


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    model = nn.Linear(N, 1)
    torch.save({"model": model.state_dict(), "list": [torch.ones(3)], "step": 7}, folder / "model.pt")
    torch.save(model.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(torch.ones(2), folder / "warm.pt")
    with estimating(GPU):  # what is imported for the first one does not count below
        nn.Linear(2, 1)(torch.load(folder / "warm.pt"))
    return folder


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("device", [None, "cpu", "cuda", torch.device("cuda", 0)])
def test_C4_torch_load_reads_no_weights(weights: Path, device: Any) -> None:
    before = resident()
    with estimating(GPU):
        loaded = torch.load(weights / "model.pt", map_location=device)
        model = nn.Linear(N, 1)
        model.load_state_dict(loaded["model"])
        found = loaded["model"]["weight"]
        assert isinstance(found, mindtorch.MetaTensor) and found.shape == (1, N)
        assert found.device.type == ("cpu" if device is None else torch.device(device).type)
        assert loaded["step"] == 7 and isinstance(loaded["list"][0], mindtorch.MetaTensor)
    assert resident() - before < 16 * 2**20


def test_C4_torch_load_of_the_old_format(weights: Path) -> None:
    with estimating(GPU):
        assert torch.load(weights / "old.pt")["weight"].shape == (1, N)
    assert type(torch.load(weights / "old.pt")["weight"]) is torch.Tensor


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_C4_safetensors_reads_no_weights(weights: Path, device: str) -> None:
    from safetensors import torch as files

    before = resident()
    with estimating(GPU):
        loaded = files.load_file(weights / "model.safetensors", device=device)
        assert isinstance(loaded["weight"], mindtorch.MetaTensor) and loaded["weight"].device.type == device
        with files.safe_open(str(weights / "model.safetensors"), "pt", device=device) as opened:
            assert set(opened.keys()) == {"weight", "bias"}
            part = opened.get_slice("weight")
            assert part.get_shape() == [1, N] and part[:, :5].shape == (1, 5)
    assert resident() - before < 16 * 2**20
    assert type(files.load_file(weights / "model.safetensors")["bias"]) is torch.Tensor


def test_C4_nothing_is_written(tmp_path: Path) -> None:
    import numpy

    safetensors = pytest.importorskip("safetensors.torch")
    good = {"weight": torch.arange(3.0)}
    torch.save(good, tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    with estimating(GPU):
        from mindtorch.estimate import files

        model = nn.Linear(2, 2)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        safetensors.save_file(model.state_dict(), tmp_path / "new.safetensors")
        numpy.save(tmp_path / "array.npy", model(torch.zeros(1, 2)).detach().numpy())
        names = [Path(name).name for name in files.unwritten]
    assert names == ["model.pt", "new.safetensors", "array.npy"]
    assert (tmp_path / "model.pt").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    torch.save(good, tmp_path / "again.pt")
    assert torch.load(tmp_path / "again.pt")["weight"].tolist() == [0, 1, 2]
