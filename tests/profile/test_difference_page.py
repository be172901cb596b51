"""C5: what the page of a comparison has in it; tests/profile/test_page_in_browser.py shows it."""

from __future__ import annotations

import pytest

from mindtorch.profile.report import difference_page, flame_boxes
from mindtorch.profile.report.conditions import where
from tests.profile.shown_difference import shown_adds_up
from tests.profile.test_difference import PROGRAM, Run, compared, edited, run

__all__ = ["run"]  # a fixture


@pytest.mark.parametrize("most", [1, 4, 30])
def test_C5_a_page_is_bounded_and_its_sums_stay(most: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = edited(("Block(16, 100)", "Block(16, 90)"), ("range(3)", "range(5)"), ("nn.Tanh()", "nn.ReLU()"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    monkeypatch.setattr(flame_boxes, "BOXES", most)
    monkeypatch.setattr(difference_page, "ROWS", most)
    shown = shown_adds_up(found)
    assert 0 < sum(frame >= 0 for frame in shown["flame"]["frame"]) <= most
    for table in ("rows", "modules", "held"):
        rest = shown[table].get("rest", {"count": 0})["count"]
        assert len(shown[table]["rows"]) == most or not rest
    assert len(shown["rows"]["rows"]) == most and shown["rows"]["rest"]["count"] > 0


def test_C5_a_page_has_repeated_layers_once_and_new_and_removed_modules_where_they_are(run: Run) -> None:
    text = edited(("Block(16, 100)", "Block(16, 90)"), ("nn.Tanh(), ", ""))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    shown = difference_page.page_data(found)
    up = next(row for row in shown["modules"]["rows"] if row["module"] == "Net.blocks.0.up")
    assert up["repeated"] == 3 and up["class"] == "Linear" and up["what"] == "changed"
    assert up["figures"]["params"] == [3 * 1700, 3 * 1530]
    flame = shown["flame"]
    names = [flame["frames"][i][1] for i in flame["frame"]]
    trail: list[str] = []
    above = {}
    for depth, name in zip(flame["depth"], names, strict=True):
        above[name] = trail[depth - 1] if depth else ""
        trail[depth:] = [name]
    assert above["Net.blocks.2.up"] == "Net.blocks.2" and above["Net.blocks.2"] == "Net.blocks"
    assert above["Net.tail.1"] == "Net.tail" and above["aten::tanh"] == "Net.tail.1"  # which is gone
    most = shown["most"]
    less = [row["flops"] for row in found["modules"] if row["module"].endswith(".up")]
    assert (most["metric"], most["module"], most["times"]) == ("flops", "Net.blocks.0.up", 3)
    assert most["by"] == sum(each["difference"] for each in less) < most["by_row"] < 0


def test_C5_layers_that_run_in_another_order_are_what_they_were(run: Run) -> None:
    text = edited(("for block in self.blocks:", "for block in reversed(self.blocks):"))
    found = compared(run(PROGRAM, "one"), run(text, "two"))
    assert found["renamed"] == []  # the one that is first needs no gradient of its input


def test_C5_a_class_with_another_name_is_said_where_nothing_else_differs(run: Run) -> None:
    text = PROGRAM.replace("Block", "Layer")
    shown = difference_page.page_data(compared(run(PROGRAM, "one"), run(text, "two")))
    assert ["Net.blocks.0 Block", "Net.blocks.0 Layer"] in shown["renamed"]
    assert all(row["figures"] for row in shown["modules"]["rows"])


def test_C5_modules_whose_names_only_end_in_numbers_are_no_repeated_layers(run: Run) -> None:
    before = edited(
        ("self.up = nn.Linear(d, wide)", "self.w1, self.w3 = nn.Linear(d, wide), nn.Linear(d, wide)"),
        ("y = self.up(y)", "y = self.w1(y) * self.w3(y)"),
    )
    after = before.replace("Block(16, 100)", "Block(16, 200)")
    found = compared(run(before, "one"), run(after, "two"))
    most = where("flops", found)
    assert most is not None and most.times == 3  # of 3 blocks
    shown = difference_page.page_data(found)
    names = {row["module"]: row["repeated"] for row in shown["modules"]["rows"]}
    assert names["Net.blocks.0.w1"] == names["Net.blocks.0.w3"] == 3
    assert all(row["repeated"] <= 3 for row in shown["rows"]["rows"])


def test_C5_of_equal_layers_all_together_is_where_most_is(run: Run) -> None:
    found = compared(run(PROGRAM, "one"), run(edited(("Block(16, 100)", "Block(16, 200)")), "two"))
    most = where("flops", found)
    assert most is not None and most.row["module"].startswith("Net.blocks.0") and most.times == 3
    alike = [
        row
        for row in found["rows"]
        if row["module"][:10] == "Net.blocks" and row["module"][12:] == most.row["module"][12:]
    ]
    assert (
        most.by_module
        == sum(row["flops"]["difference"] for row in alike)
        > most.by_row
        == most.row["flops"]["difference"]
    )
