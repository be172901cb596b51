"""How often each line of the program's own files is reached."""

import json
import sys
import threading

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import mindtorch
from mindtorch.cli.main import cli
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator


def called(n):
    total = 0
    for i in range(n):  # asked once more than it gives
        if i % 2:
            total += i  # odd
        else:
            torch.ones(2).relu()  # even
    return total


def hits(report):
    return {row["source"].rpartition("# ")[2]: row["hits"] for row in report["lines"] if "# " in row["source"]}


@pytest.mark.parametrize("n", [0, 1, 2, 7, 300])
def test_C2_hits_are_how_often_a_line_is_reached(n):
    with Profiler(whole=True, hits=True) as seen:
        called(n)
    found = hits(seen.report())
    asked = {"asked once more than it gives": n + 1, "odd": n // 2, "even": (n + 1) // 2}
    assert {name: found.get(name, 0) for name in asked} == asked


SPREAD = """
for i in range(4):  # 5
    x = torch.stack([  # 4
        torch.ones(2),  # 4 each
        torch.ones(2) + i,  # 4 too
    ])  # none
    names = [  # 4 lists
        "a",
        "b",
    ]
    try:
        pass
    finally:
        x.add(  # 4 adds
            names.count("c"))
    for j, k in zip(  # 4 times 4
        range(3),
        range(3),
    ):
        x.mul(j)  # 12
    with torch.no_grad():  # 4 blocks
        x.add(
            k)
"""


@pytest.mark.skipif(not hasattr(called.__code__, "co_positions"), reason="Python 3.10 does not say where calls begin")
def test_C2_a_statement_on_several_lines_is_reached_once(tmp_path):
    """Python comes back to its first line for the call; a loop does for its next value."""
    path = tmp_path / "spread.py"
    path.write_text(SPREAD)
    with Profiler(whole=True, hits=True) as seen:
        exec(compile(SPREAD, str(path), "exec"), {"torch": torch})
    found = hits(seen.report())
    expected = {"5": 5, "4": 4, "4 each": 4, "4 too": 4, "4 lists": 4, "4 adds": 4, "4 times 4": 16, "12": 12}
    assert {name: found.get(name) for name in expected} == expected
    assert (
        found["4 blocks"] in (4, 8) and "none" not in found
    )  # the end of a block is at its line, too, in some Pythons


CHAINED = """\
x = torch.ones(2, requires_grad=True)
for i in range(4):
    (x.sum() +  # 4 begins
     x.mean() * 2).backward()  # 4 ends
    y = torch.cat([x,  # 4 stores
                   x]).view(  # 4 views
        -1)
    for k in range(2): y = (y +  # 12 loops
                            1).view(-1)  # 8 within
"""


def test_C2_a_method_of_an_expression_on_several_lines_is_no_other_time(tmp_path):
    path = tmp_path / "chained.py"
    path.write_text(CHAINED)
    with Profiler(whole=True, hits=True) as seen:
        exec(compile(CHAINED, str(path), "exec"), {"torch": torch})
    expected = {"4 begins": 4, "4 ends": 4, "4 stores": 4, "4 views": 4, "8 within": 8}
    assert {name: hits(seen.report()).get(name) for name in expected} == expected


@pytest.mark.parametrize("target", [None, "h100"])
def test_C2_an_estimate_has_hits_and_totals(target):
    def program():
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        for _ in range(5):
            model(torch.ones(2, 8)).sum().backward()  # step

    with Estimator(target=targets.find(target) if target else None, lines=True, hits=True) as seen:
        program()  # all
    report = seen.report()
    found = {row["source"].rpartition("# ")[2]: row for row in report["lines"]}
    assert (found["step"]["hits"], found["all"]["hits"]) == (5, 1)
    if target:
        assert found["all"]["total_s"] == pytest.approx(report["totals"]["time_s"]) and found["all"]["self_s"] == 0
        assert found["step"]["total_s"] == pytest.approx(found["step"]["self_s"])
        assert sum(row["self_s"] for row in report["lines"]) == pytest.approx(report["totals"]["time_s"])


def test_C2_the_lines_that_led_to_a_recorded_op_have_its_time():
    def program(x):
        return (x @ x).tanh()  # recorded

    with Profiler(whole=True, lines=True) as seen:
        program(torch.ones(64, 64, device="remote_accelerator")).cpu()  # led there
    report = seen.report()
    found = {row["source"].rpartition("# ")[2]: row for row in report["lines"]}
    assert found["recorded"]["calls"] == 2
    assert found["led there"]["total_s"] >= found["recorded"]["self_s"] > 0


def test_C2_an_error_names_the_line_also_where_lines_that_led_there_are_noted():
    with Profiler(whole=True, lines=True):
        late = torch.ones(3, device="remote_accelerator").index_select(0, torch.tensor([7]).to("remote_accelerator"))
        with pytest.raises(mindtorch.LazyTensorError, match=r"test_hits\.py:"):
            late.cpu()


def test_C2_hits_of_steps_leave_out_warm_up_and_construction():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()  # in a step

    with Profiler(warmup=2, steps=3, hits=True) as seen:
        step_of = nn.Linear(2, 2)  # construction
        for _ in range(8):
            step()
    found = hits(seen.report())
    assert found["in a step"] == 3 and "construction" not in found and step_of is not None


def test_C2_another_trace_function_leaves_lines_without_hits_and_a_warning():
    def trace(frame, event, argument):
        return None

    with Profiler(whole=True, hits=True) as seen:
        assert sys.gettrace() is None  # the program sees none
        called(2)
        sys.settrace(trace)
    kept = sys.gettrace()
    sys.settrace(None)
    report = seen.report()
    assert kept is trace and {row["hits"] for row in report["lines"]} == {None}
    assert any("sys.settrace" in warning for warning in report["warnings"])
    sys.settrace(trace)
    try:
        with Profiler(whole=True, hits=True) as seen:
            called(2)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert any("sys.settrace" in warning for warning in seen.report()["warnings"])


def test_C2_a_run_without_hits_has_none_and_no_warning():
    with Profiler(whole=True) as seen:
        called(2)
    report = seen.report()
    assert {row["hits"] for row in report["lines"]} == {None} and not report["warnings"]


def test_C2_hits_are_the_calling_threads_and_nothing_stays():
    with Profiler(whole=True, hits=True) as seen:
        called(2)
        other = threading.Thread(target=called, args=(40,))
        other.start()
        other.join()
    assert hits(seen.report())["odd"] == 1
    assert sys.gettrace() is None
    with Profiler(whole=True, hits=True) as again:  # after another
        called(4)
    assert hits(again.report())["odd"] == 2


def test_C2_code_without_a_file_and_of_libraries_has_no_hits():
    with Profiler(whole=True, hits=True) as seen:
        scope: dict = {}
        exec(compile("def made():\n    return 1\n", "<string>", "exec"), scope)
        scope["made"]()
        json.dumps({"a": [1]}, indent=1)
    assert {row["file"] for row in seen.report()["lines"] if row["hits"]} == {__file__}


def test_C2_asking_for_hits_shows_the_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import torch\nfor _ in range(7):\n    torch.ones(3).relu()\n")
    result = CliRunner().invoke(cli, ["profile", "--hits", "script.py"], prog_name="genie")
    assert result.exit_code == 0, result.output
    [row] = [line.split() for line in result.output.splitlines() if line.startswith("script.py:3")]
    assert row[2:4] == ["7", "14"]  # hits, ops


@pytest.mark.parametrize("kind", [Profiler, Estimator])
@pytest.mark.parametrize("how", [{"lines": True}, {"hits": True}, {"lines": True, "hits": True}])
def test_C2_what_precedes_the_first_call_counts_alike_where_the_lines_that_led_there_are_noted(kind, how):
    model = torch.nn.Linear(4, 2)

    def prepared():
        return torch.ones(3, 4).mul(2)  # prepared

    def again():
        return model(prepared())

    def program():
        x = prepared()  # by another line than below
        model(x)
        again()

    reports = []
    for options in ({}, how):
        with kind(**options) as seen:
            program()
        reports.append(seen.report())
    plain, noted = reports
    assert noted["totals"]["ops"] == plain["totals"]["ops"]
    assert noted["totals"]["flops"] == plain["totals"]["flops"]
    assert {row["name"]: row["calls"] for row in noted["ops"]}["aten::mul"] == 2
    if "hits" in how:
        assert hits(noted)["prepared"] == 2
