"""L13: losses, each in the forms that torch has of it; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator


def likely(*shape: int) -> Tensor:
    return torch.randn(shape)


def classes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def losses(program: Callable[[], object]) -> list[Instance]:
    with capture() as graph:
        program()
    return [each for each in find_patterns(graph) if each.pattern == "loss"]


A, B, WEIGHT = likely(5, 7), torch.rand(5, 7), torch.rand(7)
#: Name → (program, kind, how many operations).
FORMS: dict[str, tuple[Callable[[], Tensor], str, int]] = {
    "mean": (lambda: F.cross_entropy(A, classes(5)), "cross-entropy", 2),
    "some do not count": (lambda: F.cross_entropy(A, classes(5), ignore_index=3), "cross-entropy", 2),
    "what does not count is no class": (
        lambda: F.cross_entropy(likely(2, 7, 9, 9), classes(2, 9, 9), ignore_index=255), "cross-entropy", 2,
    ),
    "weighted mean": (lambda: F.cross_entropy(A, classes(5), WEIGHT), "cross-entropy", 2),
    "weighted sum": (lambda: F.cross_entropy(A, classes(5), WEIGHT, reduction="sum"), "cross-entropy", 2),
    "each": (lambda: F.cross_entropy(A, classes(5), reduction="none"), "cross-entropy", 2),
    "of one": (lambda: F.cross_entropy(likely(7), torch.tensor(1)), "cross-entropy", 2),
    "of one row": (lambda: F.cross_entropy(likely(1, 7), classes(1)), "cross-entropy", 2),
    "of many rows": (lambda: F.cross_entropy(likely(5000, 5000), classes(5000)), "cross-entropy", 2),
    "of an image": (lambda: F.cross_entropy(likely(2, 7, 9, 9), classes(2, 9, 9)), "cross-entropy", 2),
    "of each of an image": (
        lambda: F.cross_entropy(likely(2, 7, 9, 9), classes(2, 9, 9), reduction="none"), "cross-entropy", 2,
    ),
    "of a sequence, classes second": (lambda: F.cross_entropy(likely(2, 7, 9), classes(2, 9)), "cross-entropy", 3),
    "of a sequence, classes last": (
        lambda: F.nll_loss(F.log_softmax(likely(2, 5, 7), -1).view(-1, 7), classes(10)), "cross-entropy", 3,
    ),
    "of a sequence, classes last, then second": (
        lambda: F.nll_loss(F.log_softmax(likely(2, 9, 7), -1).transpose(1, 2), classes(2, 9)), "cross-entropy", 5,
    ),
    "of an image, classes last, then second": (
        lambda: F.nll_loss(F.log_softmax(likely(2, 5, 9, 7), -1).permute(0, 3, 1, 2), classes(2, 5, 9)),
        "cross-entropy", 3,
    ),
    "of a volume": (lambda: F.cross_entropy(likely(2, 7, 3, 4, 5), classes(2, 3, 4, 5)), "cross-entropy", 3),
    "of probabilities": (lambda: F.nll_loss(A, classes(5)), "negative log-likelihood", 1),
    "of the first rows": (lambda: F.nll_loss(F.log_softmax(A, 1)[:3], classes(3)), "negative log-likelihood", 1),
    "of chosen rows": (
        lambda: F.nll_loss(F.log_softmax(A, 1)[torch.tensor([3, 0, 4])], classes(3)), "negative log-likelihood", 1,
    ),
    "of rows in another order": (
        lambda: F.nll_loss(F.log_softmax(A, 1)[torch.tensor([3, 0, 4, 1, 2])], classes(5)),
        "negative log-likelihood", 1,
    ),
    "squares": (lambda: F.mse_loss(A, B), "mean squared error", 1),
    "sum of squares": (lambda: F.mse_loss(A, B, reduction="sum"), "mean squared error", 1),
    "each square": (lambda: F.mse_loss(A, B, reduction="none"), "mean squared error", 1),
    "huber": (lambda: F.huber_loss(A, B, delta=0.5), "huber", 1),
    "smooth": (lambda: F.smooth_l1_loss(A, B, beta=0.5), "smooth l1", 1),
    "binary": (lambda: F.binary_cross_entropy_with_logits(A, B), "binary cross-entropy", 1),
    "weighted binary": (
        lambda: F.binary_cross_entropy_with_logits(A, B, WEIGHT, pos_weight=2 * WEIGHT, reduction="sum"),
        "binary cross-entropy", 1,
    ),
    "absolute differences": (lambda: F.l1_loss(A.tanh(), B), "mean absolute error", 3),
    "squares written out": (lambda: ((A.tanh() - B) ** 2).mean(), "mean squared error", 3),
    "squares of what was wanted first": (lambda: (B - A.tanh()).square().sum(), "mean squared error", 3),
    "squares by a product": (lambda: (lambda d: (d * d).mean())(A.tanh() - B), "mean squared error", 3),
    "squares of rows": (lambda: (A.tanh()[1:, 0] - B[1:, 1]).pow(2).mean(), "mean squared error", 3),
    "many squares": (lambda: (likely(5000, 5000).tanh() - likely(5000, 5000)).pow(2).mean(), "mean squared error", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_L13_losses_are_found_and_proven(name: str) -> None:
    program, kind, ops = FORMS[name]
    (found,) = losses(program)
    assert (found.attributes, found.verified, len(found.nodes), found.refused) == ({"kind": kind}, True, ops, "")


def test_L13_a_loss_too_large_to_try_is_not_said_to_be_proven() -> None:
    (found,) = losses(lambda: F.nll_loss(F.log_softmax(likely(1, 4100, 4100), -1)[0], classes(4100)))
    assert not found.verified and not found.refused


NEAR: dict[str, Callable[[], object]] = {
    "another axis": lambda: F.nll_loss(F.log_softmax(likely(7, 7), 0), classes(7)),
    "a sequence's other axis": lambda: F.nll_loss(F.log_softmax(likely(2, 7, 7), 2), classes(2, 7)),
    "the other axis, moved": lambda: F.nll_loss(F.log_softmax(likely(2, 7, 7), 1).transpose(1, 2), classes(2, 7)),
    "the other axis of two": lambda: F.nll_loss(F.log_softmax(likely(2, 2, 2), 2), classes(2, 2)),
    "an image's other axis": lambda: F.nll_loss(F.log_softmax(likely(2, 7, 7, 9), 2), classes(2, 7, 9)),
}


@pytest.mark.parametrize("name", NEAR)
def test_L13_what_only_looks_like_a_loss_is_none(name: str) -> None:
    (found,) = losses(NEAR[name])
    assert found.refused == "it does not compute cross-entropy"


def test_L13_a_softmax_over_another_number_of_classes_is_no_loss() -> None:
    (found,) = losses(lambda: F.nll_loss(F.log_softmax(likely(2, 7, 9), 2), classes(2, 9)))
    assert found.refused == "its classes are on another axis than its softmax"


def test_L13_logarithms_of_probabilities_that_nobody_takes_a_loss_of_are_none() -> None:
    assert losses(lambda: F.log_softmax(A, -1).sum()) == []


WEIGHTS = torch.nn.Parameter(torch.randn(5, 7))
NONE: dict[str, Callable[[], object]] = {
    "a variance": lambda: (lambda x: ((x - x.mean()) ** 2).mean())(A.tanh()),
    "a variance of rows": lambda: (lambda x: ((x - x.mean(0).expand(5, 7)) ** 2).mean())(A.tanh()),
    "differences of neighbours": lambda: (lambda x: ((x[1:] - x[:-1]) ** 2).mean())(A.tanh()),
    "how large weights are": lambda: (WEIGHTS**2).sum(),
    "how far weights went": lambda: ((WEIGHTS - A.tanh()) ** 2).sum(),
    "of each row": lambda: ((A.tanh() - B) ** 2).mean(1),
    "data": lambda: ((A - B) ** 2).mean(),
    "no square": lambda: ((A.tanh() - B) * A.tanh()).mean(),
    "sizes that grow": lambda: ((A.tanh()[:, :1] - B[:, 0]) ** 2).mean(),
}


@pytest.mark.parametrize("name", NONE)
def test_L13_means_of_what_is_no_difference_from_what_was_wanted_are_no_loss(name: str) -> None:
    assert losses(NONE[name]) == []


def test_L13_a_mean_of_another_power_is_no_loss() -> None:
    (found,) = losses(lambda: ((A.tanh() - B) ** 4).mean())
    assert found.refused == "it is not a mean of squared or absolute differences"


#: As the functions of torch.nn.functional are recorded whole where no gradient is needed.
WHOLE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str | None]] = {
    "mean": (F.mse_loss, "mean squared error"),
    "sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), "mean squared error"),
    "each": (lambda x, y: F.mse_loss(x, y, reduction="none"), "mean squared error"),
    "in older words": (lambda x, y: F.mse_loss(x, y, size_average=False), "mean squared error"),
    "weighted": (lambda x, y: F.mse_loss(x, y, weight=y), None),
    "absolute": (lambda x, y: F.l1_loss(x, y, reduction="sum"), "mean absolute error"),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.5, reduction="sum"), "huber"),
    "smooth": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5), "smooth l1"),
    "binary": (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"), "binary cross-entropy"),
    "weighted binary": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, y, pos_weight=y[0]), "binary cross-entropy",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:size_average")
@pytest.mark.parametrize("form", WHOLE)
def test_L13_losses_that_are_recorded_whole_are_known(form: str) -> None:
    """ "the search for the pattern loss failed: <lambda>() takes 2 positional arguments but 5 were given"."""
    program, kind = WHOLE[form]
    with Estimator(target=targets.find("a100")) as seen, torch.no_grad():
        model = torch.nn.Linear(7, 7)
        for _ in range(3):  # the second time it is known that nothing else has to happen
            program(model(likely(5, 7)), torch.rand(5, 7))
    report = seen.report()
    assert [row["name"] for row in report["patterns"]] == ([] if kind is None else ["loss"])
    assert not [text for text in report["warnings"] if "pattern" in str(text)], report["warnings"]
