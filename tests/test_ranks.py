"""SPEC C1, C2: ranks of one program, each with a report, and their sum."""

from __future__ import annotations

import pytest

from mindtorch.base.ranks import Rank, local_ranks, merge

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def report(rank, size=2, **more):
    calls = rank + 1
    return {
        "rank": {"rank": rank, "world_size": size, "run": "run"}, "device": "cpu", "exit_code": 0, "interrupted": False,
        "totals": {"ops": calls, "flops": 10 * calls, "macs": 5 * calls, "params": 7, "peak_bytes": 100 * calls,
                   "time_s": 1.0, "overhead_s": 0.5, "wall_s": 2.0 + rank, "counted_ops": calls, "coverage": 0.5},
        "startup": {"import_s": 1.0, "init_s": 0.0, "ops": 0},
        "phases": [{"name": "forward", "ops": calls, "time_s": 1.0, "flops": 10 * calls, "peak_bytes": 100 * calls}],
        "modules": [{"path": "Net", "class": "Net", "depth": 0, "calls": 1, "self_s": 1.0, "params": 7}],
        "ops": [{"name": "aten::mm", "calls": calls, "self_s": 1.0, "flops": 10 * calls, "bytes": 8},
                *([{"name": "aten::add", "calls": 1, "self_s": 0.5, "flops": 1, "bytes": 4}] if rank else [])],
        "lines": [], "threads": [], "unseen": [], "assumed": [],
        "uncounted": [{"name": "c10d::allreduce_", "calls": 1, "self_s": 0.1}], "warnings": ["same"], **more,
    }  # fmt: skip


def test_C1_rank_of_this_process():
    rank = Rank.of_process(ENVIRONMENT)
    assert rank is not None and (rank.rank, rank.world_size) == (1, 2)
    assert rank.run != Rank.of_process({**ENVIRONMENT, "MASTER_PORT": "29501"}).run
    for environment in ({}, {**ENVIRONMENT, "WORLD_SIZE": "1", "RANK": "0"}, {**ENVIRONMENT, "RANK": "x"},
                        {**ENVIRONMENT, "RANK": "2"}):  # fmt: skip
        assert Rank.of_process(environment) is None


def test_C2_merged_ranks_sum_up():
    merged = merge([report(1), report(0)])
    totals = merged["totals"]
    assert (totals["ops"], totals["flops"], totals["macs"], totals["params"]) == (3, 30, 15, 7)
    assert (totals["peak_bytes"], totals["wall_s"], totals["coverage"]) == (200, 3.0, 3 / 5)
    assert [(row["name"], row["calls"], row["flops"]) for row in merged["ops"]] == [
        ("aten::mm", 3, 30), ("aten::add", 1, 1)]  # fmt: skip
    assert merged["modules"][0]["calls"] == 2 and merged["modules"][0]["params"] == 7
    assert merged["phases"][0]["peak_bytes"] == 200 and merged["uncounted"][0]["calls"] == 2
    assert [row["rank"] for row in merged["ranks"]] == [0, 1] and merged["warnings"] == ["same"]


def test_C2_merged_ranks_sum_up_lists_and_mean_again():
    reports = [report(0), report(1)]
    for one in reports:
        one["startup"] |= {"imports": [{"name": "torch", "total_s": 2.0}], "waits": [{"for": "threads", "self_s": 0.5}]}
        one["ops"][0]["mean_s"] = one["ops"][0]["self_s"] / one["ops"][0]["calls"]
    reports[1]["startup"]["imports"] += [{"name": "numpy", "total_s": 1.0}]
    merged = merge(reports)
    assert merged["startup"]["imports"] == [{"name": "torch", "total_s": 4.0}, {"name": "numpy", "total_s": 1.0}]
    assert merged["startup"]["waits"] == [{"for": "threads", "self_s": 1.0}]
    assert merged["ops"][0]["mean_s"] == 2.0 / 3


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [report(0)],
        [report(0), report(0)],
        [report(0), {**report(1), "rank": None}],
        [report(0), {**report(1), "rank": {"rank": 1, "world_size": 2, "run": "other"}}],
    ],
)
def test_C2_only_whole_runs_are_merged(reports):
    with pytest.raises(ValueError, match="expected every rank of one run"):
        merge(reports)


@pytest.mark.parametrize(("said", "count"), [({"LOCAL_WORLD_SIZE": "4"}, 4), ({}, 1), ({"LOCAL_WORLD_SIZE": "x"}, 1)])
def test_C4_an_estimate_has_a_device_for_each_rank_here(said, count):
    assert local_ranks(said) == count
