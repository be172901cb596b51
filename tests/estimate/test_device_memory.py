"""C4: what the card holds: torch's books in the run and in the report, workspaces, context, torch's memory viewer."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mindtorch.cli.main import cli
from mindtorch.profile.cost import targets
from mindtorch.profile.cost.driver import context_bytes
from mindtorch.profile.cost.targets import Target
from mindtorch.profile.estimate.device_memory import DeviceMemory
from mindtorch.profile.estimate.estimator import Estimator

MIB = 1 << 20
H100, L4 = targets.find("h100"), targets.find("l4")
SCRIPT = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
for _ in range(2):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
"""


def estimated(program: Callable[[], Any], target: Target = H100) -> dict[str, Any]:
    with Estimator(target=target) as estimator:
        program()
    return estimator.report()


def test_C4_the_card_holds_segments_and_context_beside_the_tensors() -> None:
    held = []

    def run() -> None:
        held.append(torch.empty(11 * MIB, dtype=torch.uint8, device="cuda"))
        held.append(torch.empty(600, dtype=torch.uint8, device="cuda"))

    report = estimated(run)
    totals, memory = report["totals"], report["memory"]
    assert totals["peak_bytes"] == 11 * MIB + 1024
    assert totals["peak_allocated_bytes"] == 12 * MIB + 1024  # 1 MiB is not split off
    assert totals["peak_reserved_bytes"] == 14 * MIB
    assert memory["context_bytes"] == context_bytes((9, 0), 132)
    assert totals["peak_device_bytes"] == 14 * MIB + memory["context_bytes"]
    assert memory["spare_bytes"] == memory["capacity_bytes"] - totals["peak_device_bytes"] and memory["fits"]
    held.clear()


def test_C4_contexts_are_those_that_torch_has_told_of() -> None:
    for capability, processors, mib in (((7, 5), 40, 126), ((8, 6), 68, 257), ((8, 0), 108, 517), ((8, 9), 142, 428),
                                        ((12, 0), 170, 595), ((9, 0), 132, 666)):  # fmt: skip
        assert abs(context_bytes(capability, processors) / MIB - mib) <= 80
    assert context_bytes((9, 4), 304) == 0  # nobody has told


@pytest.mark.parametrize(
    ("target", "config", "nbytes"),
    [
        (H100, None, 32 * MIB),
        (targets.find("mi300x"), None, 128 * MIB),
        (L4, None, 8320 * 1024),
        (L4, ":16:8", 128 * 1024),
        (H100, ":4096:2:16:8", 8320 * 1024),
    ],
)
def test_C4_cublas_has_a_workspace_for_each_thread(
    target: Target, config: str | None, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    seen = []

    def run() -> None:
        w = torch.empty(256, 256, device="cuda", requires_grad=True)
        seen.append(torch.cuda.memory_allocated())
        y = w @ w
        y = y @ w
        seen.append(torch.cuda.memory_allocated())
        y.sum().backward()
        del y
        seen.append(torch.cuda.memory_allocated())

    report = estimated(run, target)
    one = 256 * 256 * 4
    assert seen[0] == one and seen[1] == 3 * one + nbytes  # w, w @ w and what came of it
    assert seen[2] == 2 * one + 2 * nbytes  # autograd's thread has a handle of its own
    assert report["memory"]["workspace_bytes"] == 2 * nbytes


def test_C4_programs_are_told_what_the_report_says() -> None:
    told: list[Any] = []

    def run() -> None:
        cuda = torch.cuda
        total = int(H100.memory_bytes)
        assert cuda.memory_reserved() == 0 and cuda.mem_get_info() == (total - context_bytes((9, 0), 132), total)
        a, b = (torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2))
        del a
        told.append((cuda.memory_allocated(), cuda.max_memory_allocated(), cuda.memory_reserved()))
        cuda.reset_peak_memory_stats()
        told.append((cuda.max_memory_allocated(), cuda.max_memory_reserved()))
        free, total = cuda.mem_get_info()
        told.append(total - free - cuda.memory_reserved())
        cuda.empty_cache()
        told.append((cuda.memory_reserved(), cuda.max_memory_reserved()))
        stats = cuda.memory_stats()
        told.append((stats["allocated_bytes.all.current"], stats["num_ooms"], stats["segment.all.current"]))
        assert torch.accelerator.memory_allocated() == cuda.memory_allocated() == 30 * MIB
        del b

    totals = estimated(run)["totals"]
    context = context_bytes((9, 0), 132)
    assert told == [
        (30 * MIB, 60 * MIB, 60 * MIB), (30 * MIB, 60 * MIB), context, (30 * MIB, 60 * MIB), (30 * MIB, 0, 1),
    ]  # fmt: skip
    assert totals["peak_allocated_bytes"] == totals["peak_reserved_bytes"] == 60 * MIB


def _two(first: int, second: int) -> None:
    a = torch.empty(first, dtype=torch.uint8, device="cuda")
    del a
    b = torch.empty(second, dtype=torch.uint8, device="cuda")
    del b


def test_C4_what_one_stream_freed_is_not_handed_out_on_another() -> None:
    """torch's allocator keeps its free blocks by stream: FSDP, whose gathers and reductions have streams of their own,
    reserves more than it would on one."""
    told: list[int] = []

    def ask() -> torch.Tensor:
        return torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")

    def run() -> None:
        cuda = torch.cuda
        side, other = cuda.Stream(), cuda.Stream()
        with cuda.stream(side):
            a = ask()
            with cuda.stream(other):
                del a
                b = ask()  # noqa: F841 - freed at the end
            told.append(cuda.memory_reserved())
            c = ask()  # what `a` had  # noqa: F841
            told.append(cuda.memory_reserved())
        d = ask()  # noqa: F841
        told.append(cuda.memory_reserved())
        w = torch.empty(256, 256, device="cuda")
        w @ w
        with cuda.stream(side):
            w @ w
        told.append(cuda.memory_allocated())

    report = estimated(run)
    assert told[:3] == [60 * MIB, 60 * MIB, 90 * MIB]
    assert report["memory"]["workspace_bytes"] == 2 * 32 * MIB and told[3] == 90 * MIB + 256 * 1024 + 64 * MIB


def test_C4_the_snapshot_says_of_which_stream_memory_is() -> None:
    with Estimator(target=H100) as estimator:
        a = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")  # noqa: F841
        with torch.cuda.stream(torch.cuda.Stream()):
            b = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        del b
    snapshot = estimator.memory_snapshot()
    assert snapshot is not None
    assert [(row["total_size"], row["stream"]) for row in snapshot["segments"]] == [(30 * MIB, 0), (40 * MIB, 1)]
    told = [(row["action"], row["size"], row["stream"]) for row in snapshot["device_traces"][0]]
    assert told[-2:] == [("free_requested", 40 * MIB, 1), ("free_completed", 40 * MIB, 1)]


def test_C4_what_is_captured_has_a_private_pool() -> None:
    """As in torch: a graph gets no free memory of others, and they get none of its, until it is gone and the cache is
    emptied. The stream of a capture has a workspace of its own; a replay takes no memory."""
    told: list[tuple[int, int]] = []

    def run() -> None:
        cuda = torch.cuda
        note = lambda: told.append((cuda.memory_allocated() // MIB, cuda.memory_reserved() // MIB))  # noqa: E731
        x = torch.zeros(1024, 1024, device="cuda")  # 4 MiB in a segment of 20
        _two(30 * MIB, 30 * MIB)
        x @ x
        note()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            _two(30 * MIB, 30 * MIB)  # the second one has the first one's memory
            y = x @ x  # and the product of 4 MiB has a part of that
        note()
        _two(30 * MIB, 30 * MIB)  # not that of the graph
        note()
        graph.replay()
        graph.replay()
        cuda.empty_cache()
        note()
        del y
        cuda.empty_cache()
        note()
        graph.reset()
        note()
        cuda.empty_cache()
        note()

    estimated(run)
    workspace, segment = 32, 20
    first = (4 + workspace, 30 + segment + workspace)
    assert told[0] == first
    assert told[1] == (first[0] + 4 + workspace, first[1] + workspace)  # the capture has emptied the cache
    assert told[2] == (told[1][0], told[1][1] + 30)
    assert told[3] == told[1]
    assert told[4] == told[5] == (told[1][0] - 4, told[1][1])
    assert told[6] == (told[4][0], told[4][1] - 30)


def test_C4_graphs_of_one_pool_share_its_memory() -> None:
    reserved: list[int] = []

    def run() -> None:
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        pool = torch.cuda.graph_pool_handle()
        for graph, of in zip(graphs, (pool, pool, None), strict=True):
            with torch.cuda.graph(graph, pool=of):
                _two(30 * MIB, 30 * MIB)
            reserved.append(torch.cuda.memory_reserved())
        assert graphs[0].pool() == graphs[1].pool() == pool != graphs[2].pool()
        for graph in graphs[:2]:
            graph.reset()
            torch.cuda.empty_cache()
            reserved.append(torch.cuda.memory_reserved())

    estimated(run)
    assert reserved == [30 * MIB, 30 * MIB, 60 * MIB, 60 * MIB, 30 * MIB]


def test_C4_set_stream_is_of_all_that_follows() -> None:
    """It did nothing: the allocator handed out on it what another stream had freed."""
    reserved: list[int] = []

    def run() -> None:
        cuda = torch.cuda
        side, other, there = cuda.Stream(), cuda.Stream(), cuda.Stream(device=1)
        _two(30 * MIB, 30 * MIB)
        cuda.set_stream(side)
        assert cuda.current_stream() is side
        _two(30 * MIB, 30 * MIB)
        reserved.append(cuda.memory_reserved())
        with cuda.stream(other):
            cuda.set_stream(cuda.default_stream())
            assert cuda.current_stream() is cuda.default_stream()
            _two(30 * MIB, 30 * MIB)
        assert cuda.current_stream() is side
        cuda.set_stream(None)
        _two(30 * MIB, 30 * MIB)
        reserved.append(cuda.memory_reserved())
        cuda.set_stream(there)
        assert cuda.current_device() == 1 and cuda.current_stream() is there
        cuda.set_device(0)
        assert cuda.current_stream() is side
        torch.accelerator.set_stream(cuda.default_stream())
        assert cuda.current_stream() is cuda.default_stream()

    with Estimator(target=H100, devices=2):
        run()
    assert reserved == [60 * MIB, 60 * MIB]


def test_C4_a_program_that_makes_a_stream_at_each_step_has_those_of_a_pool() -> None:
    """The 33rd stream is the first one again, of each device and priority."""
    with Estimator(target=H100, devices=2):
        made = [torch.cuda.Stream() for _ in range(34)]
        high, there = torch.cuda.Stream(priority=-1), torch.cuda.Stream(device=1)
    assert [stream.number for stream in made] == [*range(1, 33), 1, 2]
    assert (high.number, there.number) == (33, 1)


@pytest.mark.parametrize("stop", ["leaves", "raises"])
def test_C4_a_stream_that_is_left_has_no_more_memory(stop: str) -> None:
    """Whether its block ends or raises; each device has its own."""
    reserved: list[int] = []

    def run() -> None:
        cuda = torch.cuda
        with contextlib.suppress(ZeroDivisionError), cuda.stream(cuda.Stream(device=1)):
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:0")  # the stream is another device's
            del x
            if stop == "raises":
                raise ZeroDivisionError
        for device in ("cuda:0", "cuda:1"):
            y = torch.empty(30 * MIB, dtype=torch.uint8, device=device)
            reserved.append(cuda.memory_reserved(device))
            del y
        with cuda.stream(cuda.Stream(device=1)):
            z = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:1")
            reserved.append(cuda.memory_reserved("cuda:1"))
            del z

    with Estimator(target=H100, devices=2):
        run()
    assert reserved == [30 * MIB, 30 * MIB, 60 * MIB]


def test_C4_what_fits_is_decided_by_what_the_card_holds() -> None:
    context = context_bytes((9, 0), 132)
    small = replace(H100, memory_bytes=float(context + 100 * MIB))
    memory = estimated(lambda: _two(60 * MIB, 90 * MIB), small)["memory"]
    assert memory["fits"] and memory["allocator"]["retries"] == 1 and memory["devices"] == 1
    assert memory["peak_reserved_bytes"] == 90 * MIB and memory["peak_device_bytes"] <= memory["capacity_bytes"]
    memory = estimated(lambda: _two(60 * MIB, 101 * MIB), small)["memory"]
    assert not memory["fits"] and memory["allocator"]["ooms"] == 1 and memory["devices"] == 2
    assert memory["peak_bytes"] < memory["capacity_bytes"] < memory["peak_device_bytes"]


def test_C4_the_programs_settings_are_those_of_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    memory = estimated(lambda: _two(30 * MIB, 50 * MIB))["memory"]
    assert memory["peak_reserved_bytes"] == 60 * MIB and memory["allocator"]["expandable_segments"]
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert estimated(lambda: _two(30 * MIB, 50 * MIB))["memory"]["peak_reserved_bytes"] == 80 * MIB


def test_C4_an_npu_pads_each_request_and_has_no_cublas() -> None:
    held = []

    def run() -> None:
        held.append(torch.empty(512, dtype=torch.uint8, device="npu"))
        held.append(torch.empty(64, 64, device="npu") @ torch.empty(64, 64, device="npu"))

    memory = estimated(run, targets.find("910b"))["memory"]
    assert memory["peak_allocated_bytes"] == 1024 + 3 * (64 * 64 * 4 + 512) and memory["workspace_bytes"] == 0
    held.clear()


def test_C4_a_program_that_stays_on_the_host_has_no_card() -> None:
    with Estimator(target=H100) as estimator:
        torch.zeros(1000)
    report = estimator.report()
    assert "peak_device_bytes" not in report["totals"] and estimator.memory_snapshot() is None
    assert not {"capacity_bytes", "fits", "spare_bytes"} & report["memory"].keys()
    assert report["memory"]["peak_bytes"] == 4000


def test_C4_the_books_are_the_same_however_often_they_are_asked_for() -> None:
    with Estimator(target=L4) as estimator:
        model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
        for _ in range(3):
            model(torch.ones(300, 512, device="cuda")).sum().backward()
            torch.cuda.memory_reserved()
    assert estimator.memory is not None and estimator._accelerator is not None
    once = DeviceMemory(estimator._place, int(L4.memory_bytes), (8, 9), 58)
    once.library = estimator._accelerator.devices.of(estimator._place, advance=False).library
    once.advance(estimator.memory.calls, estimator.memory.all_blocks)
    memory = estimator.report()["memory"]
    assert {key: memory[key] for key in once.report()} == once.report()
    assert once.highest_allocated >= np.max(estimator.memory.live)


def test_C4_torchs_memory_viewer_opens_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import _memory_viz

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    run = ["profile", "--target", "l4", "--memory-snapshot", "s.pickle", "train.py"]
    for _ in range(2):  # an older one of ours is replaced
        result = CliRunner().invoke(cli, run)
        assert result.exit_code == 0 and "wrote s.pickle" in result.output, result.output
    data = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert "total_reserved" in _memory_viz.segsum(data) and "entries" in _memory_viz.trace(data)
    assert _memory_viz.trace_plot(data).startswith("\n<!DOCTYPE html>") and _memory_viz.segment_plot(data)
    reserved = {"segment_alloc": 0, "alloc": 0, "free_completed": 0}
    for entry in data["device_traces"][0]:
        reserved[entry["action"]] = reserved.get(entry["action"], 0) + entry["size"]
    assert reserved["segment_alloc"] == sum(segment["total_size"] for segment in data["segments"])
    in_use = sum(block["requested_size"] for segment in data["segments"] for block in segment["blocks"])
    assert in_use == reserved["alloc"] - reserved["free_completed"]
    frames = [frame for entry in data["device_traces"][0] for frame in entry["frames"]]
    assert any(frame["filename"].endswith("train.py") and frame["line"] == 5 for frame in frames)
    assert {"workspace of aten::addmm", "aten::addmm"} <= {frame["name"] for frame in frames}


def test_C4_a_snapshot_replaces_no_file_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.pickle").write_bytes(pickle.dumps({"segments": []}, protocol=4))
    for options, words in (
        (["--target", "l4", "--memory-snapshot", "mine.pickle"], "will not replace mine.pickle"),
        (["--target", "l4", "--memory-snapshot", "-"], "give a file name, not -"),
        (["--memory-snapshot", "s.pickle"], "add --target NAME"),
        (["--target", "cpu", "--memory-snapshot", "s.pickle"], "add --target NAME"),
    ):
        result = CliRunner().invoke(cli, ["profile", *options, "train.py"])
        assert result.exit_code == 2 and words in result.output, result.output
