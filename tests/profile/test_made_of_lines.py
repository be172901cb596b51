"""What a report says a model is made of, where several things are called on one line (L13, C2)."""

import pytest
import torch
from torch import nn

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

HOW = {"measured": lambda: Profiler(whole=True), "estimated": lambda: Estimator(target=targets.find("h100"))}
STEPS = 4


def patterns(how, program):
    with HOW[how]() as seen:
        program()
    return {row["name"]: row for row in seen.report()["patterns"]}


def trained(first, second):
    """Each steps a layer of its own, both on one line."""

    def program() -> None:
        table, top = nn.Embedding(7, 4, sparse=first is torch.optim.SparseAdam), nn.Linear(4, 2)
        a, b = first(table.parameters(), 0.1), second(top.parameters(), 0.1)
        for _ in range(STEPS):
            top(table(torch.tensor([1, 2]))).square().sum().backward()
            a.step(), b.step()  # type: ignore[func-returns-value]
            a.zero_grad()
            b.zero_grad()

    return program


_O = torch.optim


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("first", "second", "kinds"), [
    (_O.SGD, _O.Adagrad, ["SGD", "Adagrad"]), (_O.Adam, _O.Adam, "Adam"), (_O.AdamW, _O.SGD, ["AdamW", "SGD"]),
])  # fmt: skip
def test_L13_optimizers_whose_steps_are_on_one_line_are_as_many(how, first, second, kinds):
    row = patterns(how, trained(first, second))["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (2, 2 * STEPS, kinds)


def test_L13_what_no_pattern_is_stays_none_beside_an_optimizer_on_its_line():
    """What SparseAdam computes was Adagrad's."""
    row = patterns("measured", trained(_O.SparseAdam, _O.Adagrad))["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (1, STEPS, "Adagrad")

    def alone() -> None:
        top = nn.Linear(4, 2)
        optimizer = _O.Adagrad(top.parameters(), 0.1)
        for _ in range(STEPS):
            top(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert 0 < row["flops"] <= patterns("measured", alone)["optimizer update"]["flops"]
