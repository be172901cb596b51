"""C4: weights are never read. A checkpoint's tensors come without data, and the file's pages stay on the disk."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import private_files
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

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


def test_C4_a_storage_has_its_size_where_no_log_is_open(after_torch) -> None:
    """In the first estimate of a process that keeps no log, asking for the size of a storage crashed the process."""
    code = """
import torch, mindtorch
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
with estimating(Accelerator("Test GPU", 10**9)):
    print(torch.nn.Linear(2, 2).weight.untyped_storage().nbytes())
"""
    assert after_torch(code).stdout == "16\n"


def test_C4_weights_are_not_written(tmp_path: Path) -> None:
    import numpy

    safetensors = pytest.importorskip("safetensors.torch")
    good = {"weight": torch.arange(3.0)}
    torch.save(good, tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    with estimating(GPU):
        model = nn.Linear(2, 2)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        safetensors.save_file(model.state_dict(), tmp_path / "new.safetensors")
        numpy.save(tmp_path / "array.npy", model(torch.zeros(1, 2)).detach().numpy())
        assert numpy.load(tmp_path / "array.npy").shape == (1, 2)
        names = [Path(name).name for name in private_files.left_alone()["not_written"]]
    assert names == ["array.npy", "model.pt", "new.safetensors"]
    assert (tmp_path / "model.pt").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    torch.save(good, tmp_path / "again.pt")
    assert torch.load(tmp_path / "again.pt")["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["path", "file", "buffer"])
def test_C4_what_was_saved_is_loaded(tmp_path: Path, where: str) -> None:
    """Though nothing was written: without its memory being counted, and as it was when it was saved."""
    buffer = io.BytesIO()
    with Estimator(target=targets.find("h100")), contextlib.ExitStack() as stack:
        to: Any = tmp_path / "model.pt"
        if where == "file":
            to = stack.enter_context(open(to, "wb", buffering=0))
        model = nn.Linear(3, 2, device="cuda")
        state: dict[str, Any] = {"model": model.state_dict(), "step": 1, "seen": [1]}
        state["again"] = state["model"]["weight"]
        before = torch.cuda.memory_allocated()
        torch.save(state, buffer if where == "buffer" else to)
        state["step"] = 2
        state["seen"].append(2)
        assert torch.cuda.memory_allocated() == before
        buffer.seek(0)
        source = buffer if where == "buffer" else str(tmp_path / "model.pt")
        loaded = torch.load(source)
        assert loaded["step"] == 1 and loaded["seen"] == [1] and type(loaded["model"]) is type(state["model"])
        assert loaded["again"] is loaded["model"]["weight"]
        buffer.seek(0)  # torch has read it to its end
        assert loaded["again"].device.type == "cuda" and torch.load(source, "cpu")["again"].device.type == "cpu"
        model.load_state_dict(loaded["model"])
        assert torch.cuda.memory_allocated() > before
        end = buffer.tell()
        torch.save(model.weight, buffer)
        buffer.seek(end)
        assert isinstance(torch.load(buffer), nn.Parameter)
    with pytest.raises((OSError, EOFError, RuntimeError, pickle.UnpicklingError)):
        torch.load(source)


def test_C4_addresses_tell_what_shares_memory() -> None:
    """As programs that save want to know; outside an estimate there are none (M1)."""
    with estimating(GPU):
        x, y = torch.zeros(4, 3), torch.zeros(4, 3)
        assert x.data_ptr() == x.view(12).data_ptr() == x.detach().data_ptr() == nn.Parameter(x).data_ptr()
        assert x[1].data_ptr() - x.data_ptr() == 12
        assert x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() == x.data_ptr() != y.data_ptr()
        assert torch.zeros(0).data_ptr() == 0
        kept = x.untyped_storage()
    with pytest.raises(mindtorch.NoDataError):
        mindtorch.zeros(2, device="meta").data_ptr()
    assert kept.nbytes() == 48


def test_C4_whatever_name_a_program_has_for_it_safetensors_writes_no_file(tmp_path: Path) -> None:
    torch_files = pytest.importorskip("safetensors.torch")
    under_another_name = {"saves": torch_files.save_file, "saves_model": torch_files.save_model}  # from before
    with estimating(GPU):
        tensors = {"w": torch.zeros(4, 3), "b": torch.zeros(3, device="cuda")}
        under_another_name["saves"](tensors, str(tmp_path / "a.safetensors"), {"format": "pt"})
        under_another_name["saves_model"](nn.Linear(3, 2), str(tmp_path / "b.safetensors"))
        assert torch_files.load(torch_files.save(tensors))["w"].shape == (4, 3)
        assert torch_files.load_file(tmp_path / "a.safetensors")["b"].shape == (3,)
    assert not list(tmp_path.iterdir())
    torch_files.save_file({"w": torch.ones(2)}, tmp_path / "c.safetensors")
    assert torch_files.load_file(tmp_path / "c.safetensors")["w"].tolist() == [1, 1]


def test_C4_a_transformers_model_is_saved_in_an_estimate(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with estimating(GPU):
        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=10, n_positions=8)
        model = transformers.GPT2LMHeadModel(config)  # with weights that two modules share
        model.save_pretrained(tmp_path)
        states = torch.cuda.random.get_rng_state(), torch.cuda.random.get_rng_state_all()
    assert states[0].dtype is torch.uint8 and len(states[1]) == 1
    assert not list(tmp_path.glob("*.safetensors"))


def test_C4_a_transformers_model_comes_back(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "models" / "saved"
    with Estimator(target=targets.find("h100")):
        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=10, n_positions=8)
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).cuda()
        for shards in ("5GB", "1KB"):
            model.save_pretrained(folder, max_shard_size=shards)
            again = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype="auto")
            facts = [{k: (v.shape, v.dtype) for k, v in m.state_dict().items()} for m in (model, again)]
            assert facts[0] == facts[1] and again.cuda()(torch.zeros(1, 4, dtype=torch.int64).cuda()).logits.is_cuda
    assert not list(tmp_path.iterdir())


def test_C4_a_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    row = {"input_ids": torch.arange(4), "labels": torch.arange(4)}

    def train(steps: int, **options: Any) -> int:
        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=10, n_positions=8)
        args = transformers.TrainingArguments(
            str(tmp_path / "out"), max_steps=steps, save_steps=2, save_total_limit=1, report_to=[], use_cpu=True,
            disable_tqdm=True)  # fmt: skip
        trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=[row] * 4)
        trainer.train(**options)
        return int(trainer.state.global_step)

    with Estimator(target=targets.find("h100")) as estimator:
        assert train(4) == 4 and train(6, resume_from_checkpoint=True) == 6
    assert not list(tmp_path.iterdir())
    steps = [row for row in estimator.report()["phases"] if row["name"] == "optimizer"]
    assert steps and train(2) == 2  # and afterwards files are files
    assert (tmp_path / "out" / "checkpoint-2" / "model.safetensors").stat().st_size > 1000


def test_C4_files_that_were_there_stay(tmp_path: Path) -> None:
    good = {"weight": torch.arange(3.0)}
    for name in ("real.pt", "best.pt", "old.pt", "runs/model.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(good, tmp_path / name)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.*")}
    with estimating(GPU):
        new = {"weight": torch.zeros(5)}
        torch.save(new, tmp_path / "tmp.pt")  # as programs do that want to be sure
        os.replace(tmp_path / "tmp.pt", tmp_path / "real.pt")
        assert not (tmp_path / "tmp.pt").exists() and torch.load(tmp_path / "real.pt")["weight"].shape == (5,)
        shutil.copyfile(tmp_path / "real.pt", tmp_path / "best.pt")
        shutil.copy2(tmp_path / "real.pt", tmp_path / "another.pt")
        for name in ("best.pt", "another.pt"):
            assert torch.load(tmp_path / name)["weight"].shape == (5,)
        (tmp_path / "another.pt").unlink()
        (tmp_path / "old.pt").unlink()  # making room
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        with open(tmp_path / "opened.pt", "wb") as file:
            torch.save(new, file)
        assert torch.load(tmp_path / "opened.pt")["weight"].shape == (5,)
        os.makedirs(tmp_path / "made" / "deep")
        torch.save(new, tmp_path / "made" / "deep" / "model.pt")
        os.rename(tmp_path / "made", tmp_path / "moved")
        assert torch.load(tmp_path / "moved" / "deep" / "model.pt")["weight"].shape == (5,)
        (tmp_path / "moved" / "scores.json").write_text("{}")
        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
            torch.save(new, Path(scratch, "x.pt"))
            assert os.listdir(scratch) == ["x.pt"]
        assert not Path(scratch).exists()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.*")} == before
    assert not (tmp_path / "moved").exists() and torch.load(tmp_path / "old.pt")["weight"].shape == (3,)
    (tmp_path / "old.pt").unlink()
    assert not (tmp_path / "old.pt").exists()


def test_C4_a_program_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), estimating(GPU):
        os.mkdir(tmp_path / "out")
        torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "out" / "model.pt")
        assert (tmp_path / "out" / "model.pt").exists()
        1 / 0
    assert not list(tmp_path.iterdir())


def test_C4_small_values_come_back(tmp_path: Path) -> None:
    with estimating(GPU):
        state = torch.get_rng_state()
        torch.save({"ids": torch.arange(5), "random": state, "step": torch.tensor(3)}, tmp_path / "a.pt")
        loaded = torch.load(tmp_path / "a.pt")
        assert loaded["ids"].tolist() == [0, 1, 2, 3, 4] and loaded["step"].item() == 3
        torch.set_rng_state(loaded["random"])


def _checkpoints() -> dict[str, Any]:
    """Ways of a program's own to write what it made into a file of that name."""
    import gzip
    import pickle

    def by_open(path: Path, state: Any) -> None:
        with open(path, "wb") as file:
            torch.save(state, file)

    def in_parts(path: Path, state: Any) -> None:
        with open(path, "w+b") as file:
            file.write(b"magic")
            torch.save(state, file)
            file.seek(0)
            assert file.read(5) == b"magic"

    def by_buffer(path: Path, state: Any) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path.write_bytes(buffer.getvalue())

    def pickled(path: Path, state: Any) -> None:
        with path.open("wb") as file:
            pickle.dump(state, file)

    def zipped(path: Path, state: Any) -> None:
        with gzip.open(path, "wb") as file:
            pickle.dump(state, file)

    return {way.__name__: way for way in (by_open, in_parts, by_buffer, pickled, zipped)}


@pytest.mark.parametrize("way", _checkpoints())
def test_C4_a_file_that_the_program_opens_itself_stays_as_it_was(tmp_path: Path, way: str) -> None:
    write, there, new = _checkpoints()[way], tmp_path / "there.pt", tmp_path / "new.pt"
    there.write_bytes(b"weights of last week")
    with estimating(GPU):
        state = nn.Linear(2, 2).state_dict()
        write(there, state)
        write(new, state)
        named = private_files.left_alone()["not_written"]
    assert there.read_bytes() == b"weights of last week" and not new.exists()
    assert str(there) in named and str(new) in named
    write(there, {"w": torch.ones(1)})  # afterwards files are written as ever
    assert there.read_bytes() != b"weights of last week"


def test_C4_torch_load_refuses_what_is_no_weights_as_torch_does(tmp_path: Path) -> None:
    file = tmp_path / "net.pkl"
    with estimating(GPU):
        net = nn.Sequential(nn.Linear(2, 2))
        torch.save(net, file)
        with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL torch\.nn\.modules\.container\.Sequential"):
            torch.load(file)
        assert isinstance(torch.load(file, weights_only=False), nn.Sequential)
        torch.save({"accuracy": np.float64(3), "net": net.state_dict()}, file)
        with pytest.raises(pickle.UnpicklingError, match="numpy"):
            torch.load(file)
        torch.save({"accuracy": 3.0, "net": net.state_dict()}, file)
        assert torch.load(file)["accuracy"] == 3.0


def test_C4_torch_load_of_a_whole_model_takes_the_classes_that_the_program_allows(tmp_path: Path) -> None:
    file = tmp_path / "net.pkl"
    with estimating(GPU):
        net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3)).cuda()
        torch.save({"net": net, "epoch": 1}, file)
        held = torch.cuda.memory_allocated()
        with (
            torch.serialization.safe_globals([nn.Sequential, nn.Linear]),
            pytest.raises(pickle.UnpicklingError, match=r"GLOBAL torch\.nn\.modules\.batchnorm\.BatchNorm1d"),
        ):
            torch.load(file)
        assert torch.cuda.memory_allocated() == held  # what was refused was not made
        with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.BatchNorm1d]):
            loaded = torch.load(file)["net"]
        weight = loaded[0].weight
        assert (weight.shape, weight.device.type, weight.requires_grad) == ((3, 2), "cuda", True)


@pytest.mark.parametrize(("there", "here"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_C4_a_whole_model_is_loaded_to_where_the_program_says(tmp_path: Path, there: str, here: str) -> None:
    with estimating(GPU):
        torch.save(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(there), tmp_path / "net.pkl")
        kept = torch.load(tmp_path / "net.pkl", weights_only=False)
        loaded = torch.load(tmp_path / "net.pkl", here, weights_only=False)
        for model, device in ((kept, there), (loaded, here)):
            assert {each.device.type for each in model.state_dict().values()} == {device}
            assert all(isinstance(each, nn.Parameter) and each.requires_grad for each in model.parameters())
        assert loaded(torch.ones(4, 2, device=here)).shape == (4, 3)


def test_C4_a_checkpoint_is_loaded_to_where_a_dict_or_a_function_says(tmp_path: Path) -> None:
    with estimating(GPU):
        torch.save({"w": torch.ones(2, device="cuda"), "b": torch.ones(2)}, tmp_path / "w.pt")
        for says, places in (
            (lambda storage, _location: storage, ["cpu", "cpu"]),
            ({"cuda:0": "cpu"}, ["cpu", "cpu"]),
            ({"cpu": "cuda:0"}, ["cuda", "cuda"]),
        ):
            loaded = torch.load(tmp_path / "w.pt", map_location=says)
            assert [loaded[name].device.type for name in ("w", "b")] == places
