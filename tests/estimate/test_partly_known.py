"""C4: known integers that a program puts beside unknown ones stay known: the token that ends each sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

END = 49


def tokens() -> Tensor:
    """Unknown ones, of two sequences of five."""
    return torch.nn.Linear(8, 50).cuda()(torch.ones(2, 5, 8).cuda()).argmax(-1)


def ended() -> Tensor:
    return F.pad(tokens(), (0, 1), value=END)


def appended() -> Tensor:
    return torch.cat((tokens(), torch.full((2, 1), END, device="cuda")), 1)


def twice() -> Tensor:
    return F.pad(torch.cat((torch.ones(2, 3, dtype=torch.long, device="cuda"), tokens()), 1), (0, 2), value=END)


@pytest.mark.parametrize(("made", "length"), [(ended, 5), (appended, 5), (twice, 8)])
@pytest.mark.parametrize("of", ["rows", "slices", "not equal"])
def test_C4_a_sequence_ends_where_the_program_ended_it(made: Callable[[], Tensor], length: int, of: str) -> None:
    """Whisper's decoding ended with an IndexError, "an estimate cannot tell": no token was the one that it appends."""
    with Estimator(target=targets.find("l4")) as seen:
        found = []
        for row in made():
            if of == "not equal":
                found.append(len(row[row != END]))
            else:
                row, start = (row, 0) if of == "rows" else (row[2:], 2)
                found.append(len(row[: (row == END).nonzero()[0, 0]]) + start)
    assert found == [length, length]
    said = " ".join(seen.report()["warnings"])
    assert of == "not equal" or "keep all rows" not in said, said


def test_C4_what_was_written_since_is_not_known_any_more() -> None:
    with Estimator(target=targets.find("l4")):
        made = ended()
        made[:, -1] = tokens()[:, 0]
        assert len((made[0] == END).nonzero()) == 0


def test_C4_of_unknown_integers_alone_none_is_the_one_that_is_looked_for() -> None:
    with Estimator(target=targets.find("l4")) as seen:
        assert len((tokens()[0] == END).nonzero()) == 0
    assert "unknown integers are all the same number" in " ".join(seen.report()["warnings"])


@pytest.mark.parametrize("count", [4, 1])
def test_C4_several_tokens_chosen_of_a_vocabulary_differ(count: int) -> None:
    """Whisper's beam search, which tells its beams by their tokens, had one where it needs three: ValueError."""
    with Estimator(target=targets.find("l4")):
        logits = torch.nn.Linear(8, 51865).cuda()(torch.ones(3, 8).cuda())
        beams = [{token.item() for token in scores.topk(count)[1]} for scores in logits.log_softmax(-1)]
    assert beams == [set(range(25932, 25932 + count))] * 3
