"""C5: what a report holds for a comparison: rows by module, op, phase and line, parts of the peak, noise of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator

TABLES = {
    "module": ("modules", "path", "self_flops"),
    "op": ("ops", "name", "flops"),
    "phase": ("phases", "name", "flops"),
}


def steps(net: torch.nn.Module, count: int = 6) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        net(torch.arange(8).view(2, 4)).square().mean().backward()
        optimizer.step()


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@pytest.fixture(params=[Profiler, Estimator], ids=["measured", "estimate"])
def report(request: pytest.FixtureRequest, Net: type[torch.nn.Module]) -> dict[str, Any]:
    with request.param() as profiler:
        steps(Net())
    found: dict[str, Any] = profiler.report()
    return found


def test_C5_rows_of_the_detail_sum_to_every_table(report: dict[str, Any]) -> None:
    rows = rows_of(report["detail"])
    for column, (table, name, flops) in TABLES.items():
        for row in report[table]:
            if not row[name].startswith("("):
                mine = [each for each in rows if each[column] == row[name]]
                assert sum(each["flops"] for each in mine) == row[flops], (column, row[name])
    lines = report["detail"]["lines"]
    for row in report["lines"]:
        mine = [each for each in rows if all(lines[each["line"]][key] == row[key] for key in ("file", "line"))]
        assert sum(each["ops"] for each in mine) == row["calls"] and mine
    for op in report["ops"]:
        if not op["name"].startswith("("):
            assert sum(each["bytes"] for each in rows if each["op"] == op["name"]) == op["bytes"]
    assert len({(row["module"], row["op"], row["phase"], row["line"]) for row in rows}) == len(rows)


def test_C5_parts_of_the_peak_by_module_and_line_sum_to_its_kinds(report: dict[str, Any]) -> None:
    memory = report["memory"]
    found: dict[str, int] = {}
    for row in rows_of(memory["held"]):
        found[row["category"]] = found.get(row["category"], 0) + row["bytes"]
    assert found == memory["categories"] and sum(found.values()) == memory["peak_bytes"]
    assert sum(row["bytes"] for row in rows_of(memory["held"])) > sum(row["bytes"] for row in memory["largest"][:1])
    assert all(memory["held"]["lines"][row["line"]]["package"] == "" for row in rows_of(memory["held"]))


def test_C5_a_row_has_the_quartiles_of_its_iterations(Net: type[torch.nn.Module]) -> None:
    with Profiler() as profiler:
        steps(Net())
    seen, report = profiler.recording(), profiler.report()
    assert len(seen.spans) == 6 and len(seen.step_ns) == 6
    rows = [row for row in rows_of(report["detail"]) if row["ops"]]
    assert rows and all(0 <= row["step_s"][0] <= row["step_s"][1] <= row["step_s"][2] for row in rows)
    low, middle, high = report["steps"]["quartiles_s"]
    assert low <= middle <= high and middle == pytest.approx(report["steps"]["time_s"]["median"])
    assert all(row["step_s"] is None for row in rows_of(report["detail"]) if row["op"] == "(python)")


def test_C5_the_only_iteration_has_the_time_of_the_rows(Net: type[torch.nn.Module]) -> None:
    with Profiler(warmup=1) as profiler:
        steps(Net(), 2)
    rows = [row for row in rows_of(profiler.report()["detail"]) if row["step_s"]]
    timed, own = (sum(column) for column in zip(*((row["step_s"][1], row["self_s"]) for row in rows), strict=True))
    recording = sum(row["ops"] for row in rows) * profiler.costs[0] / 1e9
    assert own <= timed <= own + recording + 1e-9


def test_C5_iterations_that_the_program_announces_have_quartiles_too(Net: type[torch.nn.Module]) -> None:
    net, tokens = Net(), torch.arange(8).view(2, 4)
    with Profiler() as profiler, torch.no_grad():
        for name in ("warmup", "main", "main", "init", "main"):
            profiler.stage(name)
            net(tokens)
        profiler.stage("init")
    report = profiler.report()
    assert report["steps"]["count"] == 4 and report["steps"]["warmup"] == 1
    assert len(profiler.recording().spans) == 3, "what is made ready between two of them is none"
    assert all(row["step_s"] for row in rows_of(report["detail"]) if row["ops"])


def test_C5_events_that_found_no_room_leave_whole_iterations_alone(Net: type[torch.nn.Module]) -> None:
    with Profiler(max_events=1000) as profiler:
        steps(Net())
    assert profiler.collector.dropped_events
    assert all(row["step_s"] and row["step_s"][1] > 0 for row in rows_of(profiler.report()["detail"]) if row["ops"])
