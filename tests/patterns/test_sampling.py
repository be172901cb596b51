"""L13: choosing the next token, in the forms that generation loops have of it; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns

Choose = Callable[[Tensor], Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids))
        return found


def sampled(choose: Choose) -> list[Instance]:
    """Of a loop that chooses two tokens."""
    model, ids = Model(), torch.zeros(2, 3, dtype=torch.long)
    with capture() as graph, torch.no_grad():
        for _ in range(2):
            ids = torch.cat([ids, choose(model(ids)[:, -1, :])], 1)
    return [each for each in find_patterns(graph) if each.pattern == "sampling"]


def drawn(scores: Tensor) -> Tensor:
    return torch.multinomial(F.softmax(scores, -1), 1)


def top_k(logits: Tensor) -> Tensor:
    logits = logits / 0.8
    best, _ = torch.topk(logits, 5)
    logits[logits < best[:, [-1]]] = -float("inf")
    return drawn(logits)


def by_noise(logits: Tensor) -> Tensor:
    best, _ = torch.topk(logits, 5)
    parts = F.softmax(torch.where(logits < best.select(-1, -1).unsqueeze(-1), -float("inf"), logits), -1)
    return torch.argmax(parts / torch.empty_like(parts).exponential_(1), -1, keepdim=True)


def top_p(logits: Tensor) -> Tensor:
    parts, places = torch.sort(torch.softmax(logits / 0.6, -1), -1, descending=True)
    parts[torch.cumsum(parts, -1) - parts > 0.9] = 0.0
    parts.div_(parts.sum(-1, keepdim=True))
    return torch.gather(places, -1, torch.multinomial(parts, 1))


def of_the_best(logits: Tensor) -> Tensor:
    best, places = torch.topk(logits, 4)
    return places.gather(-1, drawn(best / 1.5))


FORMS: dict[str, tuple[Choose, dict[str, Any]]] = {
    "plain": (drawn, {"kind": "drawn", "temperature": 1.0}),
    "distribution": (
        lambda x: torch.distributions.Categorical(logits=x).sample()[:, None], {"kind": "drawn", "temperature": 1.0}
    ),
    "top-k": (top_k, {"kind": "drawn", "temperature": 0.8, "top_k": 5}),
    "by noise": (by_noise, {"kind": "drawn", "temperature": 1.0, "top_k": 5}),
    "top-p": (top_p, {"kind": "drawn", "temperature": 0.6, "top_p": 0.9}),
    "of the best": (of_the_best, {"kind": "drawn", "temperature": 1.5, "top_k": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_L13_samplings_are_found_and_proven(name: str) -> None:
    choose, attributes = FORMS[name]
    found = sampled(choose)
    assert [(each.verified, each.refused, each.attributes) for each in found] == [(True, "", attributes)] * 2
    assert found[0].place == found[1].place


def test_L13_the_likeliest_is_sampling_where_a_model_gets_it() -> None:
    (found,) = sampled(lambda logits: logits.argmax(-1, keepdim=True))  # what the last one is for, nobody knows
    assert (found.verified, found.attributes) == (True, {"kind": "greedy"})
    model = Model()
    with capture() as graph, torch.no_grad():
        (model(torch.zeros(2, 3, dtype=torch.long)).argmax(-1) == 3).float().mean().item()  # an accuracy
    assert [each for each in find_patterns(graph) if each.pattern == "sampling"] == []


def the_worst(logits: Tensor) -> Tensor:
    worst, _ = torch.topk(logits, 5, largest=False)
    return drawn(logits.masked_fill(logits > worst[:, [-1]], -float("inf")))


def another_token(logits: Tensor) -> Tensor:
    best, places = torch.topk(logits, 4)
    return places.flip(-1).gather(-1, drawn(best))


@pytest.mark.parametrize(
    ("choose", "why"),
    [
        (lambda x: drawn(-x), "it uses a different temperature for each row"),
        (lambda x: torch.multinomial(F.softmax(x, 0), 1), "it does not draw by a softmax of logits"),
        (lambda x: drawn(x * x), "it does not draw by a softmax of logits"),
        (the_worst, "it does not keep the likeliest tokens"),
        (another_token, "its result is not the token that was drawn"),
    ],
    ids=["the unlikely", "over rows", "squares", "the worst", "another token"],
)
def test_L13_what_only_looks_like_sampling_is_refused(choose: Choose, why: str) -> None:
    assert {each.refused for each in sampled(choose)} == {why}


def test_L13_a_draw_by_weights_from_outside_is_no_sampling() -> None:
    with capture() as graph, torch.no_grad():
        torch.multinomial(torch.rand(40), 8)
    assert find_patterns(graph) == []


def test_L13_what_transformers_generate_draws_is_proven() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with capture() as graph, torch.no_grad():
        model.generate(torch.ones(1, 4, dtype=torch.long), do_sample=True, temperature=0.7, top_k=10, top_p=0.8,
                       max_new_tokens=2, min_new_tokens=2)  # fmt: skip
    found = [each for each in find_patterns(graph) if each.pattern == "sampling"]
    attributes = {"kind": "drawn", "temperature": 0.7, "top_k": 10, "top_p": 0.8}
    assert [(each.verified, each.attributes) for each in found] == [(True, attributes)] * 2
