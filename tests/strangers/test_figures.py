"""SPEC C1, C2, C3: forty strangers' programs run unmodified, and their totals are those that torch itself tells.

Each runs plainly, under `reference.py` and under ``genie profile --json --trace``; output and exit code must be the
same. Compared are

- calls by op, with torch.profiler's: the whole run, start-up included, which the trace holds and the report sums up in
  two parts (``startup.ops`` and ``totals.ops``);
- FLOPs of products and convolutions, with FlopCounterMode's, which sees the main thread alone;
- peak memory, with that of the allocations that torch.profiler notes, less what kernels take and give back within one
  op. Torch notes allocations only where it is told to look at a single thread.

Times are not compared. What is known to differ stands here, with its reason: once for all programs, or beside one.

A few programs run by default; ``--strangers=full`` runs all, and all of them without torch.profiler, too.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

#: Calls that torch keeps from dispatch modes, and so from genie: ``torch.tensor`` makes an empty tensor and detaches
#: it in place, ``Parameter`` and gradient accumulation detach. Genie may see fewer of them, never more.
HIDDEN = {"aten::empty", "aten::detach", "aten::detach_"}

#: Where torch would write in place, or make an alias, it makes a new tensor as long as a dispatch mode is there: the
#: sums of gradients, some backward formulas. The calls are the same ones under another name.
SAME = {"aten::_reshape_alias": "aten::view"}

#: Of one op in inference mode and outside: FlopCounterMode takes the first apart.
PRODUCTS = {"aten::linear": "aten::mm", "aten::matmul": "aten::mm", "aten::addmm": "aten::mm", "aten::conv1d":
            "aten::convolution", "aten::conv2d": "aten::convolution"}  # fmt: skip


class Program(NamedTuple):
    """How to run it, and what differs for which reason."""

    name: str
    arguments: tuple[str, ...] = ()
    stdin: str = ""
    code: int = 0
    always: bool = False
    threads: bool = False  # ops run in several
    calls: Mapping[str, str] = MappingProxyType({})  # op → why its calls differ; "*": of all
    flops: str = ""  # why they differ
    peak: str = ""
    own: str = ""  # why there are no figures of torch's to compare with


#: bytes by which the peaks may differ where no reason is given.
EXACT = 0

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on and on"

PROGRAMS = [
    Program("accumulate.py", code=3, always=True),
    Program("asyncio_server.py", threads=True),
    Program("char_lstm.py", stdin=TEXT),
    Program(
        "checkpointing.py",
        calls={
            "aten::addmm": "it stops computing again within a call that never runs",
            "aten::detach": "what is saved is detached within the call that saves it",
        },
        peak="the generator's state is kept without an op",
    ),
    Program("cnn_amp.py", flops="a grouped convolution's weight gradient is counted ungrouped"),
    Program("compiled.py", calls={"*": "Dynamo calls ops on fake tensors"}, peak="Dynamo keeps tensors of its own"),
    Program("contrastive.py"),
    Program("diffusion.py"),
    Program("distill.py"),
    Program("dqn.py"),
    Program("encoder_mask.py"),
    Program(
        "ensemble.py",
        calls={"*": "vmap makes other calls of them, within the first"},
        peak="so what they give back counts as within the first",
    ),
    Program("exported.py", calls={"*": "export calls ops on fake tensors"}, peak="fake tensors are counted here"),
    Program("gan.py"),
    Program("gcn.py", flops="a sparse matrix is counted as dense", peak="sparse tensors hold theirs out of sight"),
    Program("generate.py"),
    Program(
        "jagged.py",
        calls={"*": "counted as the jagged tensor gets them, before it makes others of them"},
        flops="FlopCounterMode fails with nested tensors",
    ),
    Program("lbfgs.py"),
    Program("least_squares.py"),
    Program("loader_collate.py", calls={"aten::clone": "autograd keeps what is overwritten, within the call"}),
    Program("loader_workers.py"),
    Program(
        "maml.py",
        calls={"*": "vmap makes other calls of them, within the first"},
        peak="gradients are added up in new tensors",
    ),
    Program("manual_sgd.py"),
    Program("mlp_config.py", ("--epochs", "1")),
    Program("own_function.py"),
    Program("own_profiler.py", own="torch has one profiler at a time"),
    Program("policy_gradient.py", peak="gradients are added up in new tensors"),
    Program("pool_left_open.py", threads=True),
    Program("pool_of_processes.py"),
    Program("prefetcher.py", threads=True),
    Program(
        "quantized.py",
        calls={
            "aten::_empty_affine_quantized": "some are within a TorchBind object",
            "quantized::linear_unpack": "within a TorchBind object",
        },
    ),
    Program("raises_after.py", code=1),
    Program(
        "recommender.py",
        calls=dict.fromkeys(
            ("aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::clone", "aten::_indices", "aten::_values"),
            "sparse gradients are added up in new tensors",
        ),
        peak="sparse tensors hold theirs out of sight",
    ),
    Program(
        "scripted.py",
        calls={"aten::_local_scalar_dense": "TorchScript's are within a call of its own"},
        peak="what TorchScript loads has no op",
    ),
    Program("spectrum.py"),
    Program("stops_on_signal.py", code=1),
    Program("threads_infer.py", threads=True),
    Program("train_in_thread.py", threads=True),
    Program("vae.py"),
    Program("-m zoo.train", ("--fast",), always=True),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" in metafunc.fixturenames:
        full = metafunc.config.getoption("--strangers") == "full"
        chosen = [program for program in PROGRAMS if full or program.always]
        metafunc.parametrize("program", chosen, ids=[program.name for program in chosen])


def test_C1_forty_programs() -> None:
    assert len(PROGRAMS) == len({program.name for program in PROGRAMS}) == 40


def test_C3_totals_are_those_that_torch_tells(program, each, programs, tmp_path, request, record_property) -> None:
    full = request.config.getoption("--strangers") == "full"
    words = program.name.split() if program.name.startswith("-m") else [str(programs / program.name)]
    words += program.arguments
    out = {name: tmp_path / f"{name}.json" for name in ("report", "trace", "torch")}
    reference = str(programs.parent / "reference.py")
    ran = each({
        **({"plain": [sys.executable, *words]} if full or program.own else {}),
        **({} if program.own else {"reference": [sys.executable, reference, str(out["torch"]), *words]}),
        "genie": [sys.executable, "-m", "mindtorch.cli.main", "profile", "--json", str(out["report"]),
                  "--trace", str(out["trace"]), *words],
    }, program.stdin, programs if words[0] == "-m" else None,
        **({"REFERENCE_THREADS": "1"} if program.threads else {}))  # fmt: skip
    for which in ran:
        assert ran[which].code == program.code, f"{which}: {ran[which].stderr}"
    for plain in (ran[which] for which in ran if which != "genie"):
        lines = iter(ran["genie"].stdout.splitlines())
        assert all(line in lines for line in own(plain.stdout)), ran["genie"].stdout
    for plain in (ran[which] for which in ran if which == "plain"):
        assert all(line in ran["genie"].stderr for line in own(plain.stderr)), ran["genie"].stderr

    if program.own:
        return
    report, trace = json.loads(out["report"].read_text()), json.loads(out["trace"].read_text())["traceEvents"]
    torchs = json.loads(out["torch"].read_text())
    ops = [event for event in trace if event["ph"] == "X" and "::" in event["name"]]
    calls = Counter(event["name"] for event in ops)
    counted = torchs["other"] == program.code  # the run under FlopCounterMode
    assert counted or program.flops
    assert report["startup"]["ops"] + report["totals"]["ops"] == len(ops)
    for row in report["ops"]:
        assert row["calls"] <= calls[row["name"]] or row["name"] == "(python)", row
    record_property("calls", (sum(calls.values()), sum(torchs["calls"].values())))
    compare_calls(program, calls, torchs["calls"])

    flops: Counter[str] = Counter()
    for event in ops:
        flops[event["name"]] += event.get("args", {}).get("flops", 0)
    expected = json.loads((tmp_path / "torch.json.flops").read_text())["flops"]
    mine = sum(n for name, n in flops.items() if name in expected or PRODUCTS.get(name) in expected)
    record_property("FLOPs", (mine, sum(expected.values())))
    if counted and not program.threads:
        assert (mine == sum(expected.values())) != bool(program.flops), (mine, expected, flops)

    peak = max((event["args"].get("bytes", 0) for event in trace if event["ph"] == "C"), default=0)
    assert report["totals"]["peak_bytes"] <= peak
    if not program.threads:
        record_property("peak", (peak, torchs["tensors_peak_bytes"], torchs["peak_bytes"]))
        assert (abs(peak - torchs["tensors_peak_bytes"]) <= EXACT) != bool(program.peak), (peak, torchs)


def own(text: str) -> list[str]:
    """The program's lines, without those that torch's profiler prints of itself, with the time."""
    return [line for line in text.splitlines() if not line.startswith("USDT:")]


def compare_calls(program: Program, genie: dict[str, int], torchs: dict[str, int]) -> None:
    if "*" in program.calls:
        return
    folded: list[Counter[str]] = [Counter(), Counter()]
    for counts, calls in zip(folded, (genie, torchs)):
        for name, n in calls.items():
            name = SAME.get(name, name)
            counts[name if name in HIDDEN else name.rstrip("_")] += n
    mine, theirs = folded
    different = {name: (mine[name], theirs[name]) for name in {*mine, *theirs} if mine[name] != theirs[name]}
    hidden = {name for name in HIDDEN if mine[name] <= theirs[name]}
    unknown = {name: pair for name, pair in different.items() if name not in hidden and name not in program.calls}
    assert not unknown, f"calls (genie's, torch.profiler's): {unknown}"
    assert set(program.calls) <= set(different), "what is said to differ does not"
