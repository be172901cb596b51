"""SPEC C1, C3, C8: strangers' programs run unmodified, end as they do without us, and are reported truly."""

from __future__ import annotations

import json
import re
import sys

import pytest


def calls(report, name):
    return sum(row["calls"] for row in report["ops"] if row["name"] == f"aten::{name}")


@pytest.mark.sample(1)
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
    ran = both("raises_beside_threads.py", anew=True)
    assert ran.plain.code == 1 and "thread 6" in ran.genie.stdout
    # torch 2.15 says of which operator
    assert len(re.findall("RuntimeError: (?:mm: )?mat1 and mat2 shapes cannot be multiplied", ran.genie.stderr)) == 1


@pytest.mark.whole
def test_C8_compiling_from_nothing_ends(both):
    ran = both("compiles.py", anew=True)
    assert ran.plain.code == 0 and "(2, 4)" in ran.plain.stdout
    assert ran.report["unseen"] == [{"what": "compiled function", "count": 1}]


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


def test_C3_a_spawned_process_is_named_as_not_seen(both):
    ran = both("spawned.py")
    assert ran.report["unseen"] == [{"what": "child process", "count": 1}]
    assert any("NOT COUNTED" in text and "multiprocessing: work" in text for text in ran.report["warnings"])
    assert "NOT SEEN: 1 child process" in " ".join(ran.genie.stdout.replace("│", "").split())


@pytest.mark.whole
def test_C3_stages_in_processes_of_their_own_are_named_as_not_seen(both):
    ran = both("subprocess_steps.py")
    assert "genie does not see what 1 child process ran" in ran.genie.stderr
    assert "what 1 child process ran" in both("subprocess_steps.py", "graph").genie.stderr


#: Runs a program as two ranks, without torchrun, whose processes take seconds to begin.
RANKS = """
import os, runpy, socket, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(int(not (other := os.fork())))
runpy.run_path(sys.argv[1], run_name="__main__")
sys.exit(other and os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_C1_every_rank_under_torchrun_has_a_report_and_all_have_one(tmp_path, programs, forked):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    genie = [sys.executable, "-m", "mindtorch.cli.main", "profile", "--json", "out.json"]
    plain = forked("-c", RANKS, str(programs / "ddp.py"), folder=tmp_path)
    under = forked(*torchrun, *genie, str(programs / "ddp.py"), folder=tmp_path)
    assert plain.returncode == under.returncode == 0, f"{plain.stderr}\n{under.stderr}"
    assert under.stdout.startswith(plain.stdout) and under.stdout.count("genie profile ") < 8  # one report is shown
    assert "rank      0 of 2" in under.stdout
    single = [json.loads((tmp_path / f"out.rank{rank}.json").read_text()) for rank in range(2)]
    merged = json.loads((tmp_path / "out.json").read_text())
    assert [report["rank"]["rank"] for report in single] == [0, 1]
    assert merged["totals"]["flops"] == sum(report["totals"]["flops"] for report in single) > 0
    assert merged["totals"]["params"] == 36 and len(merged["ranks"]) == 2
