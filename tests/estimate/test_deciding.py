"""C4: what a program decides by comparisons with values that nobody knows."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import assumptions, waiting_loops
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


@pytest.fixture
def session() -> Iterator[None]:
    with estimating(Accelerator("Test GPU", 10**9)):
        yield


def test_C4_values_are_finite_whatever_they_are(session: None) -> None:
    for x in (torch.randn(3, device="cuda").sum(), torch.randn(300, 300, device="cuda")):
        assert torch.isfinite(x).all() and not torch.isnan(x).any() and not torch.isinf(x).any()
        assert not (torch.isnan(x) | torch.isinf(x)).any() and (x == x).all() and not (x != x).any().item()
        assert torch.isfinite(x).sum().item() == x.numel() and x[torch.isfinite(x)].shape == (x.numel(),)
    assert math.isfinite(torch.randn(3).sum().item())


def test_C4_a_step_that_is_left_out_for_numbers_that_are_not_finite_is_counted() -> None:
    with Estimator() as estimator:
        model = nn.Linear(8, 8)
        for _ in range(2):
            loss = model(torch.randn(4, 8)).square().mean()
            if not torch.isfinite(loss):
                continue
            loss.backward()
    assert {row["name"]: row["calls"] for row in estimator.report()["ops"]}["aten::mm"] == 2


def test_C4_comparisons_say_what_they_say_of_the_assumption(session: None) -> None:
    x = torch.randn(3, device="cuda").sum()
    assert not x > 0.5 and x < 0.5 and x > 0 and not (x - 1 > 1).cpu().item()
    with assumptions.instead(0):
        assert torch.randn(3, device="cuda").sum() <= 0
    with assumptions.instead(1):
        y = torch.randn(3, device="cuda").norm()
        assert y > 0.5 and not y < 0.5


@pytest.mark.filterwarnings("ignore:.*waits for an unknown value")
def test_C4_loops_that_wait_for_unknown_values_end(session: None) -> None:
    x, rounds = torch.randn(3, device="cuda"), 0
    while not x.norm() < 1e-3:
        rounds += 1
    with assumptions.instead(1):
        while x.norm() > 1e-3:
            rounds += 1
        while x.norm().item() > 1e-3:
            rounds += 1
    assert 0 < rounds < 2 * waiting_loops.MANY + 1


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_C4_lbfgs_takes_all_its_iterations(session: None, search: str | None) -> None:
    model, calls = nn.Linear(4, 4).cuda(), 0
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn=search)

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4, device="cuda")).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert 10 <= calls <= 13
    assert optimizer.param_groups[0]["tolerance_grad"] > 0
    kept = optimizer.state[model.weight]
    assert len(kept["old_dirs"]) == len(kept["old_stps"]) == 9  # its memory: two vectors an iteration


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD])
def test_C4_a_report_says_that_lbfgs_takes_all_its_iterations(kind: type) -> None:
    with Estimator() as estimator:
        model = nn.Linear(4, 4)
        optimizer = kind(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            loss = model(torch.randn(2, 4)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    said = [words for words in estimator.report()["warnings"] if "all iterations of LBFGS" in words]
    assert len(said) == (kind is torch.optim.LBFGS)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_C4_the_closure_of_lbfgs_reads_what_is_assumed(session: None, search: str | None) -> None:
    model, read = nn.Linear(4, 4).cuda(), set()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn=search)

    def closure() -> torch.Tensor:
        loss = model(torch.randn(2, 4, device="cuda")).square().sum()
        loss.backward()
        read.add(loss.item())
        return loss

    optimizer.step(closure)
    assert 0 < max(read) < 1e-9, "1 is what a step takes its own values for"


CHOICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "topk": lambda scores: scores.topk(2, -1).indices,
    "topk of one": lambda scores: scores.topk(1, -1).indices,
    "sort": lambda scores: scores.sort(-1, descending=True).indices[:, :2],
    "argsort": lambda scores: scores.argsort(-1)[:, -3:],
    "max": lambda scores: scores.max(-1).indices,
    "argmax": lambda scores: scores.argmax(-1),
    "argmax, kept": lambda scores: scores.argmax(-1, keepdim=True),
    "multinomial": lambda scores: scores.multinomial(2),
    "along the first": lambda scores: scores.t().contiguous().topk(2, 0).indices,
}


def routed(choose: Callable[[torch.Tensor], torch.Tensor], tokens: int, balanced: bool = False) -> list[int]:
    with estimating(Accelerator("Test GPU", 10**9), balanced=balanced):
        experts = choose(nn.Linear(16, 8).cuda()(torch.randn(tokens, 16, device="cuda")).softmax(-1))
        assert assumptions.assumed() or balanced
        return [len(torch.where(experts == k)[0]) for k in range(8)]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("tokens", [8, 64, 10_000])
def test_C4_tokens_are_routed_to_all_experts_alike(choice: str, tokens: int) -> None:
    """All chose the first two: gradients and optimizer states of two experts of eight, and a quarter of the work where
    each has room for its share only."""
    found = routed(CHOICES[choice], tokens)
    assert sum(found) == tokens * CHOICES[choice](torch.randn(1, 8).softmax(-1)).numel()
    assert set(found) == {sum(found) // 8}


def test_C4_fewer_choices_than_experts_are_the_first_ones() -> None:
    """As when a model decodes one token; it reads no more experts than that token has."""
    assert routed(CHOICES["topk"], 3) == [3, 3, 0, 0, 0, 0, 0, 0]
    assert routed(CHOICES["topk"], 4) == [1] * 8
    assert routed(CHOICES["topk"], 3, balanced=True) == [1, 1, 1, 1, 1, 1, 0, 0]


def test_C4_experts_of_a_token_are_different_ones(session: None) -> None:
    """Both were the first one: one expert's work for two, and room for all tokens twice."""
    scores = nn.Linear(16, 8).cuda()(torch.randn(2, 16, device="cuda")).softmax(-1)
    assert scores.topk(3, -1).indices.tolist() == [[0, 1, 2]] * 2
    assert scores.topk(4, -1).indices.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert scores.t().topk(3, 0).indices.tolist() == [[0] * 2, [1] * 2, [2] * 2]
    assert scores.multinomial(2).unique().tolist() == [0, 1]
    found = {(row["op"], row["value"]) for row in assumptions.assumed()}
    assert found == {("topk", "0 … 2"), ("topk", "0 … 7 in turn"), ("multinomial", "0 … 1")}


def test_C4_each_expert_of_a_mixture_is_trained() -> None:
    """Where each has room for its share only, half of the work was left out; and what most of the optimizer holds."""
    with Estimator() as estimator:
        experts, gate = nn.ModuleList(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 8)
        x, out = torch.randn(64, 16), torch.zeros(64, 16)
        chosen = gate(x).topk(2, -1).indices
        for k, expert in enumerate(experts):
            (rows,) = torch.where((chosen == k).any(-1))
            out = out.index_add(0, rows[:16], expert(x[rows[:16]]))
        out.sum().backward()
        assert all(expert.weight.grad is not None for expert in experts)
    [product] = [row for row in estimator.report()["ops"] if row["name"] == "aten::addmm"]
    assert (product["calls"], product["flops"]) == (1 + 8, 2 * 16 * (64 * 8 + 8 * 16 * 16))


@pytest.mark.parametrize(("tokens", "rows"), [(64, [16] * 8), (400_000, [800_000] * 8)])
def test_C4_experts_that_look_for_their_tokens_in_one_hot_get_their_share(tokens: int, rows: list[int]) -> None:
    """As transformers' do. Where they are too many to be known, each keeps all."""
    found = []
    with estimating(Accelerator("Test GPU", 10**9)):
        chosen = nn.Linear(16, 8).cuda()(torch.randn(tokens, 16, device="cuda")).topk(2, -1).indices
        mask = nn.functional.one_hot(chosen, 9).permute(2, 1, 0)
        for k in (mask.sum((-1, -2)) > 0).nonzero():
            if k[0] != 8:
                found.append(len(torch.where(mask[k[0]])[1]))
    assert found == rows and assumptions.assumed()


def test_C4_a_number_is_written_at_the_first_of_unknown_places(session: None) -> None:
    scores = torch.randn(2, 5, device="cuda")
    marked = torch.zeros(2, 5, dtype=torch.int64, device="cuda").scatter_(1, scores.topk(2).indices, 3)
    assert marked.tolist() == [[3, 3, 0, 0, 0]] * 2
    unknown = torch.randn(2, 2, device="cuda").long()
    assert marked.scatter_(1, unknown, 4).tolist() == [[0] * 5] * 2  # what was there is lost
    assert torch.zeros(2, 5, dtype=torch.int64).scatter_(1, unknown.cpu(), 1).tolist() == [[1, 1, 0, 0, 0]] * 2
    assert torch.zeros(2, 1, dtype=torch.int64).scatter_(1, unknown.cpu(), 1).tolist() == [[1]] * 2


def test_C4_quantiles_of_known_numbers_are_known(session: None) -> None:
    """As of the times that torch.utils.benchmark measured."""
    times = torch.tensor([3.0, 1.0, 2.0])
    assert times.quantile(0.5).item() == torch.quantile(times, q=0.5, dim=0).item() == 2
    assert torch.nanquantile(times, 1).item() == 3 and assumptions.assumed() == []


def test_C4_predictions_are_compared_with_known_labels(session: None) -> None:
    labels = torch.arange(8, device="cuda") // 2
    predicted = nn.Linear(4, 4).cuda()(torch.randn(8, 4, device="cuda")).argmax(-1)
    assert (predicted == labels).sum().item() == 2
    assert (predicted == labels).float().mean().item() == 0.25


def test_C4_scaled_gradients_are_finite(session: None) -> None:
    model, scaler = nn.Linear(4, 4).cuda(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with assumptions.instead(1):
        scaler.scale(model(torch.randn(2, 4, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536


def test_C4_generation_goes_on_to_its_last_token(session: None) -> None:
    going, ended = torch.ones(2, dtype=torch.int64, device="cuda"), torch.tensor([0], device="cuda")
    for step in range(4):
        token = nn.Linear(4, 4).cuda()(torch.randn(2, 4, device="cuda")).argmax(-1)
        stop = torch.zeros(2, dtype=torch.bool, device="cuda") | torch.isin(token, ended)
        going = going & ~(stop | (step == 2))
        assert (going.max() == 0).item() is (step >= 2), step
        assert ((going ^ going).max() == 0).item()


@pytest.mark.parametrize("grad", [False, True])
def test_C4_comparisons_say_the_same_each_time(grad: bool) -> None:
    """Without gradients a repeated call was replayed as it was first logged, and said nothing: generation ended."""
    with Estimator(target=targets.find("h100")), torch.set_grad_enabled(grad):
        scores, going = torch.randn(4, 9, device="cuda"), torch.ones(4, dtype=torch.int64, device="cuda")
        for _ in range(4):
            ended = scores.argmax(-1) == 3
            going = going & ~ended
            assert bool(going.max() == 1) and not bool(ended.any())


def test_C4_a_mask_of_which_a_part_is_unknown_keeps_what_its_known_part_lets_it(session: None) -> None:
    """e3nn's graph by distances within a batch had no edges: ``d > 9`` of distances that are assumed to be less."""
    d, batch = torch.rand(16, 16, device="cuda"), torch.arange(16, device="cuda") // 4
    same = batch[:, None] == batch[None]
    for mask, rows in {
        (d > 9) & same: 64, (d < 1.1) & (d > 9) & same: 64, torch.logical_and(same, d > 9): 64, (d > 9) * same: 64,
        (d > 9) | same: 256, ~((d > 9) & same): 192, (d > 9) & same & (batch > 1): 32 // 2 * 2, ~same: 192,
    }.items():  # fmt: skip
        assert mask.nonzero().shape == (rows, 2)
        assert d[mask].shape == torch.masked_select(d, mask).shape == torch.where(mask)[0].shape == (rows,)
    assert not ((d > 9) & same).any()  # what comparisons say is as before
    assert ("nonzero", True) in {(row["op"], row["value"]) for row in assumptions.assumed()}
    predicted = torch.rand(16, 3, device="cuda").argmax(1)
    assert d[(predicted == 0) & (batch == 1)].shape == (1, 16)  # of four, in turn
    assert d[(predicted == 1) & (batch == 1)].shape == (2, 16)


def test_C4_a_solver_that_got_assumed_values_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of BoTorch, an estimate counted an eighth of the calls that SciPy makes, and did not say that it cannot know."""
    solver: dict[str, Any] = {"__name__": "scipy.optimize._lbfgsb_py"}
    exec("def minimize(function, x):\n    while function(x) > 0: x = x / 2", solver)
    monkeypatch.setitem(sys.modules, "scipy.optimize", ModuleType("scipy.optimize"))
    line = sys._getframe().f_lineno + 4
    with Estimator() as estimator:
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        seen = torch.randn(3, device="cuda")
        solver["minimize"](lambda x: (seen * weight).sum().item() * x, 2.0)
        assert not (seen.sum() > 1).item()
    (text,) = [text for text in estimator.report()["warnings"] if "scipy" in text]
    words = re.fullmatch(r"scipy\.optimize got assumed values \(test_deciding\.py:(\d+)\): how often .* unknown", text)
    assert words and int(words[1]) == line


def test_C4_what_a_known_mask_chooses_is_no_unknown_amount_of_work() -> None:
    """Indexing by a mask noted the values, too: twice where both were unknown, and where the mask was known."""
    with Estimator() as estimator:
        data, known = torch.randn(4, 2), torch.tensor([True, False, True, False])
        assert data[known].shape == (2, 2) and data[:, 0].masked_select(known).shape == (2,)
        assert not assumptions.anything()
        assert data[data[:, 0] > 1].shape == (4, 2)
        assert "abc"[torch.rand(3).multinomial(1)[0]] == "a"
    report = estimator.report()
    assert [(row["op"], row["calls"]) for row in report["assumed"]] == [("index", 1), ("__index__", 1)]
    (text,) = [text for text in report["warnings"] if "amount of work" in text]
    line = report["assumed"][0]["line"]
    assert text == f"unknown values decided the amount of work (test_deciding.py:{line}): unknown masks keep all rows"


def test_C4_a_loss_of_known_lengths_assumes_nothing() -> None:
    """Its probabilities, which nobody reads, were said to be assumed."""
    targets = torch.randint(1, 9, (4, 3))
    for lengths, said in ((torch.full((4,), 3), []), (None, ["_ctc_loss"])):
        with Estimator() as estimator:
            found = torch.randn(12, 4, 9).log_softmax(-1)
            of_targets = torch.randn(4).long() if lengths is None else lengths.clone()
            torch.nn.functional.ctc_loss(found, targets.clone(), torch.full((4,), 12), of_targets)
        assert [row["op"] for row in estimator.report()["assumed"]] == said


def test_C4_how_unknown_values_decide_sizes_is_said_of_those_that_did() -> None:
    with Estimator() as estimator:
        assert torch.randn(4).unique().shape == (1,)
        torch.randn(2, 2).to_sparse()
    (text,) = [text for text in estimator.report()["warnings"] if "amount of work" in text]
    assert text.endswith(
        "): unknown elements made sparse are not 0, unknown elements are all equal, so that one is unique"
    )


@pytest.mark.parametrize("on", [False, True])
def test_C4_experts_whose_room_is_the_most_that_any_has_have_room(on: bool) -> None:
    """Of weights that `einsum` puts where the one_hot says, ``> 0`` was False of each: room for no token."""
    with estimating(Accelerator("Test GPU", 10**9), balanced=on):
        weights, chosen = nn.Linear(16, 4).cuda()(torch.randn(64, 16, device="cuda")).softmax(-1).topk(2)
        combine = torch.einsum("tk,tke->te", weights, nn.functional.one_hot(chosen, 4).to(weights.dtype))
        room = int((combine > 0).sum(0).max())
        assert 32 <= room <= 64 and combine.t().topk(room).indices.shape == (4, room)


@pytest.mark.parametrize("end", [0, 1, 999])
@pytest.mark.parametrize("ends", [
    lambda new, tokens, end: bool(new[0] == end), lambda new, tokens, end: not tokens[-1] != end,
    lambda new, tokens, end: new.item() == end, lambda new, tokens, end: new.cpu().tolist() == [end],
    lambda new, tokens, end: int(new) in (end,), lambda new, tokens, end: torch.isin(new, end).all(),
])  # fmt: skip
@pytest.mark.parametrize("choose", [
    lambda scores: scores.argmax(-1), lambda scores: torch.multinomial(scores.softmax(-1)[0], 1),
    lambda scores: scores.max(-1).indices,
])  # fmt: skip
def test_C4_generation_ends_where_its_length_ends(session: None, choose: Any, ends: Any, end: int) -> None:
    """The token that ends it, or pads, was the one that was assumed: a loop of one step; Whisper's raised an error."""
    model, tokens, steps = nn.Linear(8, 1000).cuda(), torch.full((3,), 7, device="cuda"), 0
    while steps < 5:
        new = choose(model(torch.randn(1, 8, device="cuda")))
        tokens, steps = torch.cat([tokens, new]), steps + 1
        if ends(new, tokens, end):
            break
    assert steps == 5 and tokens.shape == (8,)


def test_C4_an_expert_of_few_is_still_found_by_equality(session: None) -> None:
    chosen = nn.Linear(8, 4).cuda()(torch.randn(1, 8, device="cuda")).argmax(-1)
    assert [len(torch.where(chosen == k)[0]) for k in range(4)] == [1, 0, 0, 0] and chosen.item() == 0


def test_C4_known_tokens_beside_unknown_ones_are_no_trouble_without_versions(session: None) -> None:
    """Nobody counts what is written to tensors of inference mode: transformers' generation there ended in an error."""
    with torch.inference_mode():
        tokens = torch.tensor([[3, 4]], device="cuda")
        for _ in range(3):
            new = nn.Linear(8, 50).cuda()(torch.randn(1, 8, device="cuda")).argmax(-1)
            tokens = torch.cat([tokens, new[:, None]], -1)
    assert tokens.shape == (1, 5)


def test_C4_what_a_comparison_with_known_values_reads_is_told_as_read() -> None:
    """ "eq = 1e-12": that is what it reads, not what it gives."""
    with Estimator() as estimator:
        known = torch.tensor([[0, 1], [2, 3]], dtype=torch.float32)
        torch.randn(2, 2).round().eq(known).all(dim=1).double().mean().item()
    (row,) = estimator.report()["assumed"]
    assert (row["op"], row["value"], row["operand"]) == ("eq", assumptions.ALMOST_ZERO, True)
