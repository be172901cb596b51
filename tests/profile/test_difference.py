"""C5: every planted difference is found and put on its module and line, and rows sum to the totals."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindtorch.base.errors import UsageError
from mindtorch.base.ranks import merge
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report import matching
from mindtorch.profile.report.conditions import Condition
from mindtorch.profile.report.conditions import where as where_most
from mindtorch.profile.report.difference import COUNTS, compare
from tests.profile.shown_difference import shown_adds_up

BLOCK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d, wide):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, wide)
        self.down = nn.Linear(wide, d)

    def forward(self, x):
        y = self.norm(x)
        y = self.up(y)
        y = torch.relu(y)
        y = self.down(y)
        return x + y
"""
PROGRAM = (
    BLOCK
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16, 100) for _ in range(3))
        self.tail = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tail(x)

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
"""
)
Report = dict[str, Any]
Run = Callable[[str, str], Report]


def executed(text: str, path: Path, profiler: Any) -> Report:
    """The report of a program in a file of this name. In another folder each time, as nobody reads a file twice."""
    path.parent.mkdir()
    path.write_text(text)
    with profiler:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    report: Report = profiler.report()
    return report


def estimating() -> Estimator:
    return Estimator(target=targets.find("h100"))


@pytest.fixture(params=[Profiler, estimating], ids=["measured", "target"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def of(text: str, folder: str) -> Report:
        from mindtorch.engine.semantics import modules, phases

        monkeypatch.setattr(modules, "_roots", [])  # the other program's are alive still
        monkeypatch.setattr(phases, "_optimizers", {})
        return executed(text, tmp_path / folder / "train.py", request.param())

    return of


def compared(before: Report, after: Report) -> dict[str, Any]:
    """The difference, of which all tables sum to the totals."""
    found = compare(before, after, ("before.json", "after.json"))
    totals = found["totals"]
    for name in COUNTS:
        for table in ("rows", "modules"):
            assert sum(row[name]["difference"] for row in found[table]) == totals[name]["difference"], (name, table)
    assert sum(row["params"]["difference"] for row in found["modules"]) == totals["params"]["difference"]
    whole = {row["phase"]: row for row in found["phases"] if not row["part"]}
    for name in ("ops", "flops", "macs"):
        assert sum(row[name]["difference"] for row in whole.values()) == totals[name]["difference"], name
        for phase in {row["phase"] for row in found["phases"] if row["part"]}:
            of_phase = whole[phase][name]["difference"] if phase in whole else 0
            parts = [row for row in found["phases"] if row["part"] and row["phase"] == phase]
            assert sum(row[name]["difference"] for row in parts) == of_phase, (phase, name)
    for table in ("memory", "held"):
        assert sum(row["difference"] for row in found[table]) == totals["peak"]["difference"], table
    if found["mode"] == "estimate":
        for table in ("rows", "modules"):
            times = sum(row["time"]["difference"] for row in found[table])
            assert times == pytest.approx(totals["time"]["difference"], abs=1e-9 * len(before["detail"]["rows"]))
    for row in (*totals.values(), *found["memory"], *found["held"]):
        assert row["after"] - row["before"] == row["difference"]
    shown_adds_up(found)
    return found


def edited(*changes: tuple[str, str]) -> str:
    text = PROGRAM
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def forward(found: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """(module, op, source, what) of the rows of forward."""
    return {(row["module"], row["op"].removeprefix("aten::"), row["source"], row["what"])
            for row in found["rows"] if row["phase"] == "forward"}  # fmt: skip


def changes_nothing(found: dict[str, Any]) -> bool:
    return not (found["rows"] or found["modules"] or found["held"] or found["phases"])


def test_C5_the_same_program_has_no_difference(run: Run) -> None:
    first, second = (run(PROGRAM, folder) for folder in ("one", "two"))
    found = compared(first, second)
    assert changes_nothing(found) and found["renamed"] == []
    assert found["totals"]["flops"]["before"] > 0 and found["totals"]["flops"]["ratio"] == 1


def test_C5_a_layer_that_is_one_percent_wider_is_found_on_its_modules_and_lines(run: Run) -> None:
    before, after = run(PROGRAM, "one"), run(edited(("Block(16, 100)", "Block(16, 101)")), "two")
    found = compared(before, after)
    products = {(module, source) for module, op, source, what in forward(found) if op == "addmm" and what == "changed"}
    assert products == {(f"Net.blocks.{i}.{name}", f"y = self.{name}(y)") for i in range(3) for name in ("up", "down")}
    flops = {row["module"]: row["flops"] for row in found["modules"] if row["class"] == "Linear"}
    assert {name: round(each["ratio"], 3) for name, each in flops.items()} == {
        f"Net.blocks.{i}.{name}": 1.01 for i in range(3) for name in ("up", "down")
    }
    assert not any(row["flops"]["difference"] for row in found["rows"] if row["module"].startswith("Net.tail"))
    held = {row["source"] for row in found["held"] if row["category"] == "parameters"}
    assert held == {"self.up = nn.Linear(d, wide)", "self.down = nn.Linear(wide, d)"}


def test_C5_one_more_layer_is_new_and_the_others_are_the_same(run: Run) -> None:
    before, after = run(PROGRAM, "one"), run(edited(("in range(3)", "in range(4)")), "two")
    found = compared(before, after)
    new = {row["module"] for row in found["modules"] if row["what"] == "new"}
    assert new == {"Net.blocks.3", *(f"Net.blocks.3.{name}" for name in ("norm", "up", "down"))}
    counted = {row["module"] for row in found["modules"] if row["flops"]["difference"]}
    assert counted == new | {""}, "and the optimizer does more"
    back = compared(after, before)
    assert {row["module"] for row in back["modules"] if row["what"] == "removed"} == new
    assert all(row["what"] == "removed" for row in back["rows"] if row["module"] in new)


def test_C5_a_module_with_another_name_is_the_same(run: Run) -> None:
    text = edited(("self.norm =", "self.normalize ="), ("self.norm(x)", "self.normalize(x)"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    assert changes_nothing(found)
    assert found["renamed"] == [
        {"before": f"Net.blocks.{i}.norm", "after": f"Net.blocks.{i}.normalize"} for i in range(3)
    ]


def test_C5_a_model_whose_class_has_another_name_is_the_same(run: Run) -> None:
    found = compared(run(PROGRAM, "one"), run(PROGRAM.replace("Net", "Network"), "two"))
    assert [row["before"] for row in found["renamed"]] == ["Net"]
    assert not any(row["flops"]["difference"] for row in found["modules"])


def test_C5_one_more_line_is_new_at_its_module(run: Run) -> None:
    text = edited(("y = torch.relu(y)", "y = torch.relu(y)\n        y = torch.sin(y)"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    new = {(f"Net.blocks.{i}", "sin", "y = torch.sin(y)", "new") for i in range(3)}
    assert {row for row in forward(found) if row[3] == "new" and row[1] != "(launch)"} == new
    assert all(row["line_before"] is None for row in found["rows"] if row["source"] == "y = torch.sin(y)")
    below = [row for row in found["rows"] if row["source"] == "loss.backward()"]
    assert below and all(row["line_before"] == row["line"] - 1 for row in below)


def test_C5_a_line_that_does_something_else_is_the_same_line(run: Run) -> None:
    found = compared(run(PROGRAM, "one"), run(edited(("torch.relu(y)", "torch.sin(y)")), "two"))
    assert {row[:2] for row in forward(found)} >= {
        (f"Net.blocks.{i}", name) for i in range(3) for name in ("relu", "sin")
    }
    (source,) = {row["source"] for row in found["rows"] if row["op"] in ("aten::relu", "aten::sin")}
    assert source == "y = torch.sin(y)"


def test_C5_comments_and_lines_elsewhere_move_nothing(run: Run) -> None:
    text = "# a comment\n\n" + edited(("net = Net()", "unused = 1\nnet = Net()"))
    assert changes_nothing(compared(run(PROGRAM, "one"), run(text, "two")))


def test_C5_a_layer_inserted_between_others_is_the_new_one(run: Run) -> None:
    text = edited(("nn.Tanh(), nn.Linear(16, 10)", "nn.Tanh(), nn.Linear(16, 16, bias=False), nn.Linear(16, 10)"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    assert [(row["module"], row["params"]["difference"]) for row in found["modules"] if row["what"] == "new"] == [
        ("Net.tail.2", 256)
    ]
    assert found["renamed"] == [{"before": "Net.tail.2", "after": "Net.tail.3"}]


def test_C5_what_is_wrapped_is_found_within_the_wrapper(run: Run) -> None:
    text = edited(("in range(3))", "in range(3))\n        self.blocks = nn.Sequential(nn.Sequential(*self.blocks))"),
                  ("for block in self.blocks:\n            x = block(x)", "x = self.blocks(x)"))  # fmt: skip
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    assert not any(row["flops"]["difference"] for row in found["modules"])
    assert {row["before"] for row in found["renamed"]} >= {f"Net.blocks.{i}" for i in range(3)}
    assert not any(row["what"] == "removed" and row["ops"]["difference"] for row in found["modules"])


def test_C5_parameters_of_what_is_never_called_count_at_what_holds_them(run: Run) -> None:
    text = edited(
        ("self.down = nn.Linear(wide, d)", "self.down = nn.Linear(wide, d)\n        self.idle = nn.Linear(3, 4)")
    )
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    params = {row["module"]: row["params"]["difference"] for row in found["modules"] if row["params"]["difference"]}
    assert params == {f"Net.blocks.{i}": 16 for i in range(3)}


def test_C5_any_two_programs_have_differences_that_sum_up(run: Run) -> None:
    chosen = random.Random(5)

    def layers() -> str:
        kinds = ("nn.Linear(16, 16)", "nn.ReLU()", "nn.LayerNorm(16)", "nn.Sequential(nn.Linear(16, 16), nn.Tanh())",
                 "Block(16, 20)", "nn.Identity()")  # fmt: skip
        return ", ".join(chosen.choice(kinds) for _ in range(chosen.randrange(1, 7)))

    reports = [run(edited(("nn.Linear(16, 16), nn.Tanh()", layers())), str(i)) for i in range(6)]
    for before, after in itertools.product(reports, reports):
        found = compared(before, after)
        assert changes_nothing(found) == (before is after)
        pairs = matching.modules(before["modules"], after["modules"])
        assert len(set(pairs.values())) == len(pairs), "no module is two"
        assert set(pairs) <= {row["path"] for row in before["modules"]}
        assert set(pairs.values()) <= {row["path"] for row in after["modules"]}


# ---------------------------------------------------------------------------------------------------------- alignment


def module(path: str, cls: str, flops: int = 0, params: int = 0) -> dict[str, Any]:
    return {
        "path": path,
        "class": cls,
        "depth": path.count("."),
        "calls": 1,
        "ops": 1,
        "flops": flops,
        "params": params,
    }


def test_C5_modules_that_change_places_keep_their_names() -> None:
    before = [module("Net", "Net"), module("Net.a", "Linear", 5), module("Net.b", "Linear", 7)]
    after = [before[0], before[2], before[1]]
    assert matching.modules(before, after) == {path: path for path in ("", "Net", "Net.a", "Net.b")}


def test_C5_many_siblings_are_matched_by_name() -> None:
    rows = [
        [module("Net", "Net"), *(module(f"Net.{i}", "Expert", i * factor) for i in range(600))] for factor in (1, 2)
    ]
    found = matching.modules(*rows)
    assert found["Net.7"] == "Net.7" and len(found) == 602


def test_C5_a_tree_deeper_than_pythons_stack() -> None:
    paths = list(itertools.accumulate(["Net"] + ["a"] * 3000, lambda above, name: f"{above}.{name}"))
    rows = [module(path, "Block") for path in paths]
    assert matching.modules(rows, rows) == {path: path for path in ["", *paths]}


def line(file: str, number: int, source: str, package: str = "") -> dict[str, Any]:
    return {"file": file, "line": number, "function": "f", "source": source, "package": package}


def test_C5_files_are_matched_by_the_end_of_their_path() -> None:
    before = [line("/old/pkg/a/util.py", 3, "x"), line("/old/pkg/b/util.py", 3, "x")]
    after = [line("/new/pkg/b/util.py", 4, "x"), line("/new/pkg/a/util.py", 3, "x")]
    found = matching.lines(before, after)
    assert found == {
        ("/old/pkg/a/util.py", 3): ("/new/pkg/a/util.py", 3),
        ("/old/pkg/b/util.py", 3): ("/new/pkg/b/util.py", 4),
    }


def test_C5_a_script_with_another_name_is_matched_by_its_lines() -> None:
    before = [line("/train.py", i, f"line {i}") for i in range(4)]
    after = [line("/small.py", i + 1, f"line {i}") for i in range(4)] + [line("/other.py", 1, "else")]
    assert matching.lines(before, after)["/train.py", 2] == ("/small.py", 3)
    libraries = [[{**row, "package": "lib"} for row in rows] for rows in (before, after)]
    assert matching.lines(*libraries) == {}, "files of a library keep their names"


# --------------------------------------------------------------------------------------------------------------- times


@pytest.fixture
def measured(tmp_path: Path, alone: None) -> Report:
    """Of six iterations, with times that are made up: equal ones differ by 2 % at most."""
    report = executed(PROGRAM.replace("range(2)", "range(6)"), tmp_path / "one" / "train.py", Profiler())
    report["steps"]["quartiles_s"] = report["steps"]["running_quartiles_s"] = [0.99, 1.0, 1.01]
    for row in report["detail"]["rows"]:
        if row[-1] is not None:
            row[-1] = [0.0099, 0.01, 0.0101]
    return report


def slower(report: Report, factor: float, op: str = "") -> Report:
    found = copy.deepcopy(report)
    for key in ("quartiles_s", "running_quartiles_s"):
        found["steps"][key] = [value * factor for value in report["steps"][key]]
    for row in found["detail"]["rows"]:
        if row[-1] is not None and op in row[1]:
            row[-1] = [value * factor for value in row[-1]]
    return found


def test_C5_times_within_the_noise_of_steps_are_no_difference(measured: Report) -> None:
    found = compared(measured, slower(measured, 1.03))
    assert found["totals"]["time"]["beyond_noise"] is False and found["rows"] == []


def test_C5_times_beyond_the_noise_of_steps_are_put_on_their_rows(measured: Report) -> None:
    found = compared(measured, slower(measured, 1.5, "native_layer_norm"))
    assert found["totals"]["time"]["beyond_noise"] is True and found["totals"]["time"]["ratio"] == 1.5
    assert {row["op"] for row in found["rows"]} == {"aten::native_layer_norm", "aten::native_layer_norm_backward"}
    assert [note.partition(":")[0] for note in found["notes"]] == ["the same operations took a different time"]
    assert all(row["time"]["beyond_noise"] and row["time"]["ratio"] == pytest.approx(1.5) for row in found["rows"])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("running", "beyond"), [([1.53, 1.56, 1.6], False), ([1.57, 1.6, 1.63], True), (None, True)])
def test_C5_steps_that_waited_for_a_processor_have_to_be_slower_without_that(
    measured: Report, running: list[float] | None, beyond: bool, reverse: bool
) -> None:
    """They took 3.2 s where the others took 1: half of it waiting, or less. Then 55 % more is needed."""
    busy = slower(measured, 3.2)
    busy["steps"]["running_quartiles_s"] = running
    found = compared(*((busy, measured) if reverse else (measured, busy)))
    assert found["totals"]["time"]["beyond_noise"] is beyond
    assert any(note.startswith("the machine was busy") for note in found["notes"]) is (running is not None)


def test_C5_what_running_steps_do_has_to_be_what_steps_do(measured: Report) -> None:
    """Slower by the clock, faster without waiting: nobody knows."""
    busy = slower(measured, 3.0)
    busy["steps"]["running_quartiles_s"] = [0.3, 0.31, 0.32]
    assert compared(measured, busy)["totals"]["time"]["beyond_noise"] is False


@pytest.mark.parametrize(("factor", "beyond"), [(1.049, False), (1.051, True), (1 / 1.049, False), (1 / 1.051, True)])
def test_C5_steps_of_two_processes_differ_by_some_per_cent(measured: Report, factor: float, beyond: bool) -> None:
    for key in ("quartiles_s", "running_quartiles_s"):
        measured["steps"][key] = [0.9999, 1.0, 1.0001]
    assert compared(measured, slower(measured, factor))["totals"]["time"]["beyond_noise"] is beyond


def test_C5_a_row_alone_is_no_difference_while_steps_take_as_long(measured: Report) -> None:
    faster = slower(measured, 0.2, "addmm")
    faster["steps"] = measured["steps"]
    assert compared(measured, faster)["rows"] == []


def test_C5_few_steps_tell_nothing_about_time(measured: Report) -> None:
    few = copy.deepcopy(measured)
    few["steps"]["count"] = 4
    found = compared(measured, few)
    assert "time" not in found["totals"] and any("times are not compared" in note for note in found["notes"])
    warm = copy.deepcopy(measured)
    warm["steps"]["warmup"] = 2
    assert "time" not in compared(warm, measured)["totals"]


# ---------------------------------------------------------------------------------------------- refusals and conditions


def test_C5_reports_of_different_kinds_are_refused(tmp_path: Path, alone: None) -> None:
    reports = [executed(PROGRAM, tmp_path / str(i) / "train.py", profiler)
               for i, profiler in enumerate((Profiler(), estimating(), Estimator()))]  # fmt: skip
    for before, after in itertools.permutations(reports, 2):
        with pytest.raises(UsageError, match=r"expected two reports of one kind, got a\.json, .*, and b\.json, "):
            compare(before, after, ("a.json", "b.json"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda report: {**report, "schema_version": 1},
            "b.json: expected a report with schema_version 2, got 1: make",
        ),
        (lambda report: [], "b.json: expected a file that genie profile --json made, got something else"),
        (lambda report: {"schema_version": 1, "nodes": []}, "b.json: expected a file that genie profile --json made"),
        (lambda report: {k: v for k, v in report.items() if k != "detail"}, "b.json: .* got one of an older genie"),
        (
            lambda report: {k: v for k, v in report.items() if k != "detail"} | {"rank": None, "ranks": [{}, {}]},
            "b.json: expected the report of one rank, got that of all 2 ranks in one",
        ),
    ],
)
def test_C5_what_cannot_be_compared_is_refused(change: Callable[[Report], Any], says: str, measured: Report) -> None:
    with pytest.raises(UsageError, match=says):
        compare(measured, change(measured), ("a.json", "b.json"))


def test_C5_the_report_of_all_ranks_is_refused(measured: Report) -> None:
    merged = merge([{**measured, "rank": {"rank": i, "world_size": 2, "run": "x"}} for i in range(2)])
    with pytest.raises(UsageError, match=r"all.json: expected the report of one rank, got that of all 2 ranks in one"):
        compare(merged, measured, ("all.json", "b.json"))


@pytest.mark.parametrize("text", ["flops", "flops>1%", "flops>+", "flops>+1%%", "speed>+1%", "flops<+1%", ">+1%", ""])
def test_C5_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected a condition like 'flops>\+1%'"):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("text", "before", "after", "holds"),
    [
        ("flops>+1%", 1000, 1010, False),
        ("flops>+1%", 1000, 1011, True),
        ("flops>+1%", 1000, 500, False),
        ("flops>+0%", 1000, 1001, True),
        ("flops>+0%", 0, 1, True),
        ("flops>+0%", 0, 0, False),
        ("FLOPs > +10", 1000, 1010, False),
        ("flops>+1e1", 1000, 1011, True),
        ("flops>+1e-1%", 1000, 1002, True),
        ("parameters>+0.5%", 1000, 1006, True),
        ("time>+1%", 0.1, 0.1 * 1.01, False),  # as far as a float says
    ],
)
def test_C5_a_condition_holds_beyond_its_limit_and_not_at_it(
    text: str, before: float, after: float, holds: bool
) -> None:
    condition = Condition.parse(text)
    total = {"before": before, "after": after, "difference": after - before}
    difference = {"mode": "estimate", "totals": {condition.metric: total}}
    condition.check(difference)
    assert condition.holds(difference) is holds


def test_C5_a_condition_about_measured_time_is_refused(measured: Report) -> None:
    with pytest.raises(UsageError, match="compares estimated times: make both reports with --target"):
        Condition.parse("time>+1%").check(compared(measured, measured))


@pytest.mark.parametrize(
    ("metric", "where"),
    [
        ("flops", ("Net.tail.1", "return self.tail(x)")),
        ("params", ("Net.tail.0", None)),  # 8,500 - 272 more there, 8,016 new
        ("bytes", ("", "optimizer.step()")),  # its temporaries are larger than what a small batch makes
        ("peak", ("", None)),
    ],
)
def test_C5_a_condition_that_holds_says_where(metric: str, where: tuple[str, str | None], run: Run) -> None:
    text = edited(("nn.Linear(16, 16), nn.Tanh()", "nn.Linear(16, 500), nn.Linear(500, 16), nn.Tanh()"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    condition = Condition.parse(f"{metric}>+1%")
    assert condition.holds(found)
    most = where_most(condition.metric, found)
    assert most is not None and most.times == 1 and most.by_module >= most.by_row > 0
    assert most.row["module"] == where[0] and where[1] in (most.row.get("source"), None)


def test_C5_models_of_one_class_are_told_apart(run: Run) -> None:
    text = edited(("net = Net()", "net, more = Net(), Net()"), ("loss = net(", "loss = (net + more)("))
    text = text.replace("net.parameters()", "[*net.parameters(), *more.parameters()]")
    text = text.replace("(net + more)(torch.randn(8, 16))", "(net(torch.randn(8, 16)) + more(torch.randn(8, 16)))")
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    assert "Net #2.blocks.0.up" in {row["module"] for row in found["modules"] if row["what"] == "new"}
    assert not any(row["module"].startswith("Net.") for row in found["modules"] if row["flops"]["difference"])
