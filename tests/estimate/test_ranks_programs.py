"""C4: programs for several accelerators, in the style of torch's tutorials and unmodified, one rank at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

PROGRAMS = Path(__file__).with_name("ranks")
#: Program → collectives that each rank has, and how many ranks are in them.
EXPECTED = {
    "ddp": {("all_reduce", 8)},
    "spawn": {("all_reduce", 8)},
    "fsdp2": {("all_gather", 8), ("reduce_scatter", 8), ("all_reduce", 8)},
    "tensor_parallel": {("all_reduce", 8)},
    "sequence_parallel": {("all_gather", 8), ("reduce_scatter", 8)},
    "fsdp_and_tensor_parallel": {("all_gather", 4), ("reduce_scatter", 4), ("all_gather", 2), ("reduce_scatter", 2)},
    "pipeline": {("send", 2), ("recv", 2)},
    "zero": {("all_reduce", 8), ("broadcast", 8)},
    "fsdp1": {("all_gather", 8), ("reduce_scatter", 8)},
    "checkpoint": {("all_gather", 8), ("reduce_scatter", 8)},
    "collectives": {("all_reduce", 8), ("all_gather", 8), ("reduce_scatter", 8), ("all_to_all", 8), ("broadcast", 8)},
    "model_parallel": set(),
    "accumulation": {("all_reduce", 8), ("all_gather", 8)},
    "hybrid": {("all_gather", 4), ("reduce_scatter", 4), ("all_reduce", 2)},
    "interleaved": {("send", 2), ("recv", 2)},
    "expert_parallel": {("all_to_all", 8), ("all_reduce", 8)},
}


#: Of these torch keeps a model when they have ended, which others in this process would find alive.
ALONE = ("fsdp1.py", "fsdp_and_tensor_parallel.py")


Estimate = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def estimate(forked: Callable[..., subprocess.CompletedProcess[str]]) -> Estimate:
    """The report as JSON, and what was shown."""

    def run(program: str, *options: str, target: str = "8xh100") -> tuple[dict[str, Any], str]:
        words = ["profile", "--target", target, *options, "--json", "out.json", program]
        if program in ALONE or "all" in options:  # also: torch forks no process that has run a backward pass
            done = forked("-m", "mindtorch", *words)
            assert done.returncode == 0, done.stderr
            return json.loads(Path("out.json").read_text()), done.stdout
        result = CliRunner().invoke(cli, words, prog_name="genie")
        assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
        report: dict[str, Any] = json.loads(Path("out.json").read_text())
        return report, result.output

    return run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", EXPECTED)
def test_C4_programs_for_several_accelerators(name: str, estimate: Estimate) -> None:
    report, shown = estimate(f"{name}.py", "--rank", "3")
    facts = report["cluster"]
    assert (facts["rank"], facts["world_size"], facts["machines"]) == (3, 8, 1)
    assert facts["process_group"] is bool(EXPECTED[name])
    assert ("3 of 8" if EXPECTED[name] else "none: one process with 8 accelerators") in shown
    found = {(row["kind"], row["ranks"]) for row in facts["collectives"]}
    assert found >= EXPECTED[name], found
    assert report["memory"]["device"] == ("cuda:3" if EXPECTED[name] else "cuda:0")
    for row in facts["collectives"]:
        assert row["count"] > 0 and row["time_s"] >= row["exposed_s"] >= 0, row
        assert row["overlapped_s"] == pytest.approx(row["time_s"] - row["exposed_s"], abs=1e-12)
    assert ("Communication" in shown) == bool(EXPECTED[name])
    totals, roofline = report["totals"], report["roofline"]
    assert roofline.get("communication_s", 0.0) == pytest.approx(facts["exposed_s"], rel=1e-4, abs=1e-8)
    assert totals["predicted_s"] == pytest.approx(totals["time_s"], rel=1e-4)


def test_C4_every_rank_of_a_pipeline(here: Path, estimate: Estimate) -> None:
    """Middle stages are alike; the last has the table of the output."""
    (here / "two.py").write_text((here / "pipeline.py").read_text().replace("range(8)", "range(4)").replace(
        "per = 8 //", "per = 4 //").replace("32, 500", "8, 20"))  # fmt: skip
    report, shown = estimate("two.py", "--rank", "all", target="4xh100")
    ranks = report["ranks"]
    assert [row["rank"] for row in ranks] == [0, 1, 2, 3] and report["cluster"]["rank"] == 3
    assert ranks[1]["peak_bytes"] == ranks[2]["peak_bytes"] < ranks[3]["peak_bytes"]
    assert ranks[3]["peak_bytes"] == report["memory"]["peak_bytes"]
    assert "Ranks" in shown and "\n1-2 " in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "8xh100", "--rank", "99", "ddp.py"], "expected 0 to 7, or all, got '99'"),
        (["--target", "8xh100", "--rank", "two", "ddp.py"], "expected 0 to 7, or all, got 'two'"),
        (["--target", "0xh100", "ddp.py"], "got 0"),
        (["--target", "8x", "ddp.py"], "expected <number>x<accelerator>"),
        (["--target", "8xh1000", "ddp.py"], "h1000"),
        (["--target", "8xcpu", "ddp.py"], "expected accelerators"),
        (["--target", "h100", "--rank", "1", "ddp.py"], "--target 8xh100"),
        (["--rank", "1", "ddp.py"], "--target 8xh100"),
        (["--target", "h100", "--interconnect", "100", "ddp.py"], "--interconnect is for several"),
        (["--target", "8xh100", "config.json"], "runs on one: --target h100"),
    ],
)
def test_C4_what_no_cluster_can_be_is_one_clear_error(here: Path, arguments: list[str], words: str) -> None:
    (here / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    result = CliRunner().invoke(cli, ["profile", *arguments], prog_name="genie")
    assert result.exit_code == 2 and words in result.output, result.output
    assert "Traceback" not in result.output


def test_C4_under_torchrun_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(cli, ["profile", "--target", "8xh100", "ddp.py"], prog_name="genie")
    assert result.exit_code == 2 and "without torchrun" in result.output
