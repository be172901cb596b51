"""C2: the place and the counts of a finding, as the rows have them."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mindtorch._ext import context
from mindtorch.profile.report import finding_inputs, time_findings
from mindtorch.profile.report.recording import WORKERS
from mindtorch.profile.report.rows import Row

_LIBRARY = str(Path(sysconfig.get_path("stdlib"), "site-packages", "library.py"))
_PLACES = {
    1: ("program.py", 3, "main"),
    2: (_LIBRARY, 5, "step"),
    3: (_LIBRARY, 7, "draw"),
    4: ("program.py", 9, "main"),
    5: ("program.py", 3, "main"),  # another call on line 3, or the same, reached by another way
    6: ("program.py", 3, "main"),
}


def of(steps: int = 0, warmup: int = 0) -> finding_inputs.Looked:
    seen: Any = SimpleNamespace(names={8: "net", 9: "net.head"}, mode="measured")
    report = {"totals": {"time_s": 1.0}, "memory": None, "steps": {"count": steps, "warmup": warmup}}
    return finding_inputs.Looked(seen, report, [], None, SimpleNamespace())  # type: ignore[arg-type]


def row(location: int, ns: int, module: int = 0) -> Row:
    return Row(1, module, location, 0, 1, ns, 0)


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_inputs, "context", SimpleNamespace(location=_PLACES.get, PHASES=context.PHASES))


@pytest.mark.parametrize(("own", "line"), [(5, 3), (4, 7)])
def test_C2_a_finding_names_a_line_of_the_programs_own_that_has_enough_of_it(own: int, line: int) -> None:
    """It named a print() that had a thousandth, though a library's lines had the rest."""
    rows = [row(1, own), row(2, 40 - own), row(3, 60, 8)]
    place = of().heaviest(rows)
    assert place["line"] == line and place["module"] == ("" if line == 3 else "net")


def test_C2_a_finding_names_the_heaviest_line_and_the_module_that_has_most_of_it() -> None:
    rows = [row(1, 30, 8), row(4, 20, 8), row(4, 25, 9), row(2, 800)]
    place = of().heaviest(rows)
    assert (place["file"], place["line"], place["module"]) == ("program.py", 9, "net.head")
    assert of().heaviest(rows, lambda each: each.ns if each.location == 1 else 0)["line"] == 3
    assert of().heaviest([])["line"] == 0


def test_C2_a_finding_names_the_line_that_has_most_of_it_in_all_its_calls() -> None:
    """It named the line with the heaviest single call: an optimizer's step, not nine small operations at one line."""
    rows = [row(4, 40, 9), row(1, 20, 8), row(5, 20), row(6, 20, 8)]
    place = of().heaviest(rows)
    assert (place["line"], place["module"]) == (3, "net")


def test_C2_a_finding_names_the_line_that_reads_most_in_all_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_findings, "context", finding_inputs.context)
    monkeypatch.setattr(time_findings.op_time, "read_seconds", lambda target: 0.02)
    found = of(10)
    found.forecast = SimpleNamespace(target=SimpleNamespace(model=None))  # type: ignore[assignment]
    found.seen.reached, found.seen.stages = "main", {"main": SimpleNamespace(reads={4: 4, 1: 3, 5: 3})}
    said = time_findings.reads(found)
    assert said is not None and said.place["line"] == 3


def test_C2_counts_are_per_iteration_where_there_are_iterations() -> None:
    assert of().an_iteration(12, "×") == "12 ×"
    assert of(1).an_iteration(12, "×") == "12 × an iteration"
    assert of(5, 1).an_iteration(12_000, "operations") == "3,000 operations an iteration"


@pytest.mark.parametrize(("ns", "told"), [(4 * 10**6, False), (10**7, True)])
def test_C2_workers_that_start_in_no_time_are_not_told_of(ns: int, told: bool) -> None:
    """It said "for another 0 % the DataLoader starts and ends workers"."""
    stage = SimpleNamespace(waits={(WORKERS, 4): ns})
    seen: Any = SimpleNamespace(names={}, mode="measured", stages={"main": stage}, reached="main", loaded=None)
    seen.children = seen.loads = {}
    report = {"totals": {"time_s": 1.0}, "memory": None, "steps": {"count": 0, "warmup": 0}}
    rows = [Row(1, 0, 4, time_findings.DATA, 1, 150 * 10**6, 0)]
    said = time_findings.data(finding_inputs.Looked(seen, report, rows, None, SimpleNamespace()))  # type: ignore[arg-type]
    more = ", and for another 1 % the DataLoader starts and ends workers" if told else ""
    assert said is not None and said.text == f"15 % of the time the model waits for data{more}"
    assert said.share == pytest.approx(0.16 if told else 0.15)
