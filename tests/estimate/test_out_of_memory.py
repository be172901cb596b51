"""C4: ``--oom raise``, CUDA graphs, and files that were saved within the estimate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

L4 = targets.find("l4")
GIB = 1 << 30


def test_C4_what_does_not_fit_raises_where_it_is_asked_for() -> None:
    with Estimator(target=L4, oom="raise") as estimator:
        held = torch.empty(16 * GIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has"):
            torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(8 * GIB, dtype=torch.uint8).cuda()
        assert torch.cuda.memory_allocated() == 16 * GIB
        del held
        torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
    memory = estimator.report()["memory"]
    assert memory["peak_bytes"] == 20 * GIB and memory["fits"]


def test_C4_programs_that_search_for_a_batch_size_find_it() -> None:
    with Estimator(target=L4, oom="raise"):
        model, batch, tried = nn.Linear(1024, 1024).cuda(), 1 << 23, 0
        while True:
            tried += 1
            try:
                model(torch.randn(batch, 1024, device="cuda")).relu().sum().backward()
                break
            except torch.OutOfMemoryError:
                batch //= 2
        assert tried > 1 and batch * 1024 * 4 * 3 < 24 * GIB <= batch * 1024 * 4 * 8


def test_C4_without_it_what_does_not_fit_is_told_of() -> None:
    with Estimator(target=L4) as estimator:
        torch.empty(64 * GIB, dtype=torch.uint8, device="cuda")
    assert not estimator.report()["memory"]["fits"]


def test_C4_replays_of_a_graph_are_counted() -> None:
    with Estimator(target=L4) as estimator:
        x, graph = torch.randn(4, 4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x @ x
        for _ in range(3):
            graph.replay()
    assert Counter({row["name"]: row["calls"] for row in estimator.report()["ops"]})["aten::mm"] == 3


def test_C4_what_numpy_saved_can_be_loaded(tmp_path: Path) -> None:
    with estimating(Accelerator("Test GPU", 10**9)):
        numpy.save(tmp_path / "a", torch.ones(3, device="cuda").cpu().numpy())
        assert numpy.load(tmp_path / "a.npy").tolist() == [1, 1, 1]
        numpy.savez(tmp_path / "b.npz", x=torch.ones(2).numpy())
        with numpy.load(tmp_path / "b.npz") as loaded:
            assert loaded.files == ["x"] and loaded["x"].shape == (2,)
    assert not list(tmp_path.iterdir())


def test_C4_the_best_of_unknown_results_is_saved_and_loaded(tmp_path: Path) -> None:
    with estimating(Accelerator("Test GPU", 10**9)):
        model, best = nn.Linear(4, 3).cuda(), 0.0
        labels = torch.arange(9, device="cuda") % 3
        for _ in range(2):
            right = (model(torch.randn(9, 4, device="cuda")).argmax(-1) == labels).float().mean().item()
            if right > best:
                best = right
                torch.save(model.state_dict(), tmp_path / "best.pt")
        model.load_state_dict(torch.load(tmp_path / "best.pt"))


def test_C4_arrays_of_any_size_can_be_had(tmp_path: Path) -> None:
    with estimating(Accelerator("Test GPU", 10**9)):
        assert torch.randn(5000, 5000, device="cuda").cpu().numpy().shape == (5000, 5000)


def test_C4_open_files_of_weights_are_not_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1 << 20)}, tmp_path / "w.pt")
    with estimating(Accelerator("Test GPU", 10**9)), open(tmp_path / "w.pt", "rb") as file:
        loaded = torch.load(file)["w"]
        assert loaded.shape == (1 << 20,) and not loaded.is_cuda
        assert file.tell() == 0
