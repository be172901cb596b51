"""SPEC C1, C3, C8: strangers' programs run unmodified, end as they do without us, and are reported truly."""

from __future__ import annotations

import pytest


def calls(report, name):
    return sum(row["calls"] for row in report["ops"] if row["name"] == f"aten::{name}")


@pytest.mark.parametrize("command", [("profile",), ("graph",), ("profile", "--target", "h100")], ids=" ".join)
def test_C8_a_pool_left_open_is_ended_as_python_ends_it(both, command):
    ran = both("pool_left_open.py", *command)
    assert ran.plain.code == 0 and ran.plain.stdout.count("(4, 2)") == 3


def test_C8_a_prefetcher_with_a_pool(both):
    ran = both("prefetcher.py")
    report = ran.report
    assert "bye" in ran.plain.stdout
    assert report["steps"]["count"] == 4 and calls(report, "addmm") == 8
    # The fifth batch is made, too, in the pool's thread; two draws a batch and four for the weights.
    assert {row["name"]: row["count"] for row in report["threads"]} == {"main": 1, "ThreadPoolExecutor": 1}
    assert calls(report, "randint") + calls(report, "random_") >= 4


def test_C8_a_failure_beside_threads(both):
    ran = both("raises_beside_threads.py")
    assert ran.plain.code == 1 and "thread 6" in ran.genie.stdout
    assert ran.genie.stderr.count("RuntimeError: mat1 and mat2 shapes cannot be multiplied") == 1


def test_C3_training_in_a_thread_is_measured(both):
    report = both("train_in_thread.py").report
    assert report["totals"]["flops"] and report["steps"]["count"] == 5 and calls(report, "addmm") == 10
    assert {row["name"] for row in report["phases"]} >= {"forward", "backward", "optimizer"}
    assert [row["name"] for row in report["threads"]] == ["train"]
    assert both("train_in_thread.py", "graph").report["counts"]["ops"] > 100


def test_C3_a_server_with_asyncio_is_measured(both):
    report = both("asyncio_server.py").report
    assert calls(report, "linear") == 12 and report["totals"]["params"] == 16 * 32 + 32 + 32 * 4 + 4
    assert report["model"]["name"] == "Sequential" and report["steps"]["count"] == 6
    graph = both("asyncio_server.py", "graph").report
    assert sum(node.get("op") == "aten::linear" for node in graph["nodes"]) == 12
