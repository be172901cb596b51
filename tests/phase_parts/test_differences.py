"""Parts of phases in comparisons of two reports (SPEC C5, L12)."""

import pytest
import torch
from test_reports import HOW, report
from towers_by_hand import TOWERS, Layers, called, ids, words

from mindtorch.profile.report.difference import compare

FIGURES = ("ops", "flops", "macs")


def differing(before, after):
    return compare(before, after, ("a", "b"))["phases"]


def trains(*, evaluates):
    model = Layers(words())
    called(model, ids(), trains=True)
    for _ in range(evaluates):
        called(model, ids(), trains=False)


@pytest.mark.parametrize("how", HOW)
def test_C5_what_a_run_evaluates_beside_training_is_a_part_of_its_phase(how):
    alone, with_one, with_two = (report(how, lambda n=n: trains(evaluates=n))[0] for n in range(3))
    for before, after, what in (
        (alone, with_one, "new"),
        (with_one, alone, "removed"),
        (with_one, with_two, "changed"),
    ):
        forward, inference, *others = differing(before, after)
        assert (forward["phase"], forward["part"], forward["what"]) == ("forward", "", "changed")
        assert (inference["phase"], inference["part"], inference["what"]) == ("forward", "inference", what)
        assert all(row["phase"] == "other" for row in others), "the rest of forward is the same, and so is backward"
        for name in FIGURES:
            assert forward[name]["difference"] == inference[name]["difference"] != 0, name


@pytest.mark.parametrize("how", HOW)
def test_C5_a_part_that_grows_is_told_beside_one_that_does_not(how):
    made, towers = TOWERS["vision and text"]

    def program(again):
        model, inputs = made()
        called(model, *inputs, trains=True)
        tower = model.get_submodule(next(m for m, part in towers.items() if part == "text tower").partition(".")[2])
        for _ in range(again):
            with torch.enable_grad():
                tower(inputs[1])

    before, after = (report(how, lambda n=n: program(n))[0] for n in range(2))
    rows = {(row["phase"], row["part"]): row for row in differing(before, after)}
    assert rows.keys() - {("other", "")} == {("forward", ""), ("forward", "text tower")}
    for name in FIGURES:
        assert rows["forward", ""][name]["difference"] == rows["forward", "text tower"][name]["difference"] > 0


@pytest.mark.parametrize("how", HOW)
def test_C5_one_program_has_no_phase_that_differs(how):
    before, after = (report(how, lambda: trains(evaluates=1))[0] for _ in range(2))
    assert differing(before, after) == []
    if how == "estimated":
        assert compare(before, after, ("a", "b"))["totals"]["time"]["difference"] == 0
