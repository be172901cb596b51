"""What passes change in segments that repeat themselves, and what they leave alone (SPEC L13)."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mindtorch
from mindtorch._ext.forms import Form, Forms, Step
from mindtorch.base import torch_facts
from mindtorch.engine import passes
from mindtorch.engine.passes import Pass, SegmentGraph, Unproven, common_subexpressions

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.only_on("local", reason="passes are the executor's own")
CSE, IN_PLACE, DIRECT, NATIVE = "common subexpressions", "in place", "direct calls", "native calls"


@contextmanager
def using(*names: Any, after: int = 2) -> Iterator[None]:
    """These passes, on segments of any length that come for the `after`-th time."""
    forms = passes.optimizer_on(torch.device("cpu")).forms
    before, known = passes.set_passes(names), (forms.after, forms.fewest)
    forms.after, forms.fewest = after, 1
    try:
        yield
    finally:
        passes.set_passes(before)
        forms.after, forms.fewest = known


def changed(name: str, program: Callable[[Tensor], Any], x: Tensor | None = None, times: int = 3) -> int:
    """How many calls of the program's last run the pass had changed; its results are compared with eager's."""
    x = torch.linspace(-2, 2, 12).reshape(3, 4) if x is None else x
    with using(name), torch.no_grad():
        for _ in range(times):
            before = passes.counts()[0].get(name, 0)
            same(program(x.to(LAZY)), program(x.clone()))
        return passes.counts()[0].get(name, 0) - before


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        got = got.cpu()
        assert got.dtype == expected.dtype and got.stride() == expected.stride()
        view = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(got.element_size(), got.dtype)
        assert torch.equal(got.view(view), expected.view(view))
    else:
        assert len(got) == len(expected)
        mindtorch.flush("test")  # all at once, as a program that reads at the end
        for a, b in zip(got, expected, strict=True):
            same(a, b)


def test_L13_a_result_takes_the_memory_of_what_nobody_needs() -> None:
    assert changed(IN_PLACE, lambda x: ((x + 1) * 2).exp()) == 2
    assert changed(IN_PLACE, lambda x: torch.relu(torch.sub(x, x + 1, alpha=2))) == 1
    assert changed(IN_PLACE, lambda x: torch.nn.functional.gelu(x @ x.t(), approximate="tanh")) == 1
    assert changed(IN_PLACE, lambda x: (x + 1) + x.sum(0)) == 1  # which is as large
    assert changed(IN_PLACE, lambda x: (x + 1).mul(float("nan"))) == 1


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: (y := x + 1, y * 2), id="the program has it"),
        pytest.param(lambda x: torch.stack([(y := x.exp()).neg(), y]), id="another call needs it"),
        pytest.param(lambda x: (y := x + 1) * y, id="the same call needs it twice"),
        pytest.param(lambda x: ((y := x + 1)[0], y * 2), id="a view of it is left"),
        pytest.param(lambda x: (x + 1).t() * 2, id="it is a view"),
        pytest.param(lambda x: x.detach() * 2, id="it was there before"),
        pytest.param(lambda x: (x.sum(0, keepdim=True)) + x, id="the result is larger"),
        pytest.param(lambda x: (x.long() + 1) / 2, id="the result is of another dtype"),
        pytest.param(lambda x: x.long() + 1, id="integers"),
        pytest.param(lambda x: 1 - (x + 1), id="the kernel takes them in another order"),
    ],
)
def test_L13_what_may_still_be_read_is_not_overwritten(program: Callable[[Tensor], Any]) -> None:
    assert changed(IN_PLACE, program) == 0


def test_L13_what_autograd_saved_is_not_overwritten() -> None:
    weight = torch.linspace(-1, 1, 16).reshape(4, 4)

    def program(w: Tensor) -> tuple[Tensor, Tensor]:
        w = w.detach().requires_grad_()
        out = ((w @ w).exp() * 2).sigmoid().sum()
        out.backward()
        assert w.grad is not None
        return out.detach(), w.grad

    with using(IN_PLACE):
        for _ in range(4):
            same(program(weight.to(LAZY)), program(weight))


def test_L13_an_equal_call_is_not_made_twice() -> None:
    assert changed(CSE, lambda x: x.exp() + x.exp()) == 1
    assert changed(CSE, lambda x: (x.exp() + 1) * (x.exp() + 1)) == 2
    assert changed(CSE, lambda x: x.t() @ x + x.t().sum()) == 1  # a view
    assert changed(CSE, lambda x: (x.exp(), x.exp() + 1)) == 1  # one of them is the program's


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: x.exp() + x.add_(1).exp(), id="what they read was written in between"),
        pytest.param(lambda x: (a := x.exp(), b := x.exp(), a.add_(1), b * 1)[2:], id="the first is written"),
        pytest.param(lambda x: x.exp() + x.exp().add_(1), id="the second is written"),
        pytest.param(lambda x: x.exp() + x.exp()[0].add_(1), id="the second is written through a view"),
        pytest.param(lambda x: (x.exp(), x.exp()), id="the program has both"),
        pytest.param(lambda x: torch.add(x, x, alpha=2) + torch.add(x, x, alpha=3), id="of other numbers"),
        pytest.param(lambda x: torch.add(x, x, alpha=0.0) + torch.add(x, x, alpha=-0.0), id="of zeros of other signs"),
    ],
)
def test_L13_calls_that_may_differ_are_both_made(program: Callable[[Tensor], Any]) -> None:
    assert changed(CSE, program) == 0


def test_L13_random_draws_are_all_made() -> None:
    def program(device: str) -> list[Tensor]:
        torch.manual_seed(3)
        x = torch.ones(4, device=device)
        return [torch.nn.functional.dropout(x, 0.5) + torch.nn.functional.dropout(x, 0.5), torch.rand(3, device=device)]

    with using(CSE, IN_PLACE, DIRECT):
        for _ in range(4):
            same(program(LAZY), program("cpu"))


def test_L13_operators_are_called_by_the_function_that_makes_the_same_call() -> None:
    w = torch.linspace(-1, 1, 16).reshape(4, 4)

    def program(w: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        (w.exp() * 2.5 @ w).sum().backward()
        assert w.grad is not None
        return w.grad

    with using(DIRECT):
        before = passes.counts()[0].get(DIRECT, 0)
        for _ in range(4):
            same(program(w.to(LAZY)), program(w))
        assert passes.counts()[0][DIRECT] > before


def test_L13_a_failure_is_the_same_whatever_passes_do() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        y = (x + 1).exp() * 2
        z = torch.index_select(x.exp() + x.exp(), 0, index)
        return (z + 1).exp() + y.sum()

    x = torch.ones(4)
    with using(CSE, IN_PLACE, DIRECT):
        for _ in range(4):
            same(program(x.to(LAZY), torch.tensor([1, 2]).to(LAZY)), program(x, torch.tensor([1, 2])))
            with pytest.raises(IndexError):
                program(x.to(LAZY), torch.tensor([1, 9]).to(LAZY)).cpu()
        same((x.to(LAZY) + 1) * 2, (x + 1) * 2)


def _doubles() -> type[Pass]:
    """The class that the page on passes shows."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "PASSES.md").read_text()
    code = text.partition("<!-- run by tests/test_passes.py -->\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    found: type[Pass] = names["Doubles"]
    return found


def test_L13_a_pass_of_the_users() -> None:
    x = torch.ones(4).to(LAZY)
    with using(_doubles()()):
        mindtorch.reset_stats()
        for _ in range(3):
            assert (x * 2).tolist() == [2.0] * 4
        assert mindtorch.stats()["passes"] == {"doubles": 2}
    assert "doubles" not in [each.name for each in passes.set_passes(None)]


class Reversed(Pass):
    """Calls each function by one that takes its arguments from the last to the first, where keywords stay ones."""

    name = "reversed"

    def run(self, graph: SegmentGraph) -> None:
        for call in graph.calls:
            if call.pure and not call.view and call.args:
                function = call.function

                def turned(*args: Any, function: Any = function, **kwargs: Any) -> Any:
                    return function(*reversed(args), **kwargs)

                graph.replace(call, turned, call.args[::-1], call.kwargs)
                self.note(graph, call)


@pytest.mark.parametrize("program", [
    lambda x: x - x.exp(),
    lambda x: torch.where(x > 0.5, x * 3, x.exp()),
    lambda x: torch.lerp(x, x.exp(), x * x),
    lambda x: torch.addcmul(x, x.exp(), x * x, value=0.75),
    lambda x: torch.sub(x, x.exp(), alpha=0.25),
    lambda x: torch.clamp(x, 0.25, 1.5) - torch.clamp(x, -0.5, 0.75),
])  # fmt: skip
def test_L13_inputs_and_floats_of_a_replaced_call_go_where_the_pass_says(program: Callable[[Tensor], Any]) -> None:
    x = torch.linspace(-2, 2, 6)
    with using(Reversed()), torch.no_grad():
        before = passes.counts()[0].get("reversed", 0)
        for k in range(4):
            same(program((x + k).to(LAZY)), program(x + k))
        calls, spared = passes.counts()
        assert calls["reversed"] > before and spared["reversed"] == 0


def test_L9_an_op_for_which_there_was_no_memory_runs_when_there_is_unless_it_writes() -> None:
    full = [False]

    class Full(Pass):
        name = "full"

        def run(self, graph: SegmentGraph) -> None:
            for call in graph.calls:
                if call.op in ("aten::exp", "aten::mul_"):

                    def tried(*args: Any, function: Any = call.function, **kwargs: Any) -> Any:
                        if full[0]:
                            raise MemoryError("no room")
                        return function(*args, **kwargs)

                    graph.replace(call, tried, call.args, call.kwargs)

    x = torch.linspace(-2, 2, 6)
    programs: list[Callable[[Tensor], Tensor]] = [lambda t: (t + 1).exp(), lambda t: (t + 1).mul_(3)]
    with using(Full()), torch.no_grad():
        for program in programs:
            full[0] = False
            for _ in range(3):
                same(program(x.to(LAZY)), program(x))
            full[0] = True
            made = program(x.to(LAZY))
            with pytest.raises(MemoryError, match="no room"):
                made.cpu()
            full[0] = False
            same(made, program(x) if program is programs[0] else x + 1)  # a write is not made twice


@pytest.mark.parametrize("later", [0, 1, 2])
def test_L13_a_graph_says_which_values_can_be_read_when_it_has_run(later: int) -> None:
    """Also by what is recorded, and not part of it."""
    seen: list[list[bool]] = []

    class Looks(Pass):
        name = "looks"

        def run(self, graph: SegmentGraph) -> None:
            seen.append([value.kept for value in graph.values])

    x = torch.linspace(-2, 2, 6)
    with using(Looks()), torch.no_grad():
        for _ in range(2):
            given = x.to(LAZY)
            y = given + 1
            z = y * 2 + y
            others = [y * (k + 3.0) for k in range(later)]
            del y
            same(z, (x + 1) * 2 + (x + 1))
            for k, other in enumerate(others):
                same(other, (x + 1) * (k + 3.0))
    assert seen[0] == [True, later > 0, False, True]  # what is given, y, y * 2, z


@pytest.mark.parametrize("given", [((2, 0),), ((-1, 0),)])
def test_L13_a_step_takes_its_inputs_at_positions_that_it_has(given: tuple) -> None:
    with pytest.raises(IndexError, match="expected a position below 2"):
        Step(torch.sub, (1, 2), {}, given)
    assert Step(torch.sub, (1, 2), {}, ((1, 0),))
    assert Step(max, (0,) * 32) and Step(max, (0,) * 31, {"key": None})
    with pytest.raises(ValueError, match="at most 32 arguments, got 33"):
        Step(max, (0,) * 32, {"key": None})


def test_L13_passes_of_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is no pass is said to be none, and keeps nobody from reading."""
    good = types.SimpleNamespace(name="good", load=_doubles())
    bad = types.SimpleNamespace(name="bad", load=lambda: 3)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [good, bad])
    passes.known_passes.cache_clear()
    try:
        with pytest.warns(UserWarning, match="the entry point bad is left out: TypeError: expected a Pass .*, got 3"):
            found = passes.known_passes()
        assert [each.name for each in found] == [
            "doubles",
            IN_PLACE,
            DIRECT,
            NATIVE,
            "recompute",
            CSE,
            "constant folding",
            "copy elimination",
        ]
        by_default = {IN_PLACE, "recompute"}
        by_default |= {DIRECT} if torch_facts.is_tested() else set()
        by_default |= {NATIVE} if torch_facts.native_calls_made() else set()
        assert {each.name for each in passes.known_passes() if each.on} == by_default
    finally:
        passes.known_passes.cache_clear()


def test_L13_a_pass_that_fails_is_left_out() -> None:
    class Broken(_doubles()):  # type: ignore[misc]
        name = "broken"

        def run(self, graph: SegmentGraph) -> None:
            super().run(graph)
            raise ValueError("of no use")

    x = torch.ones(4).to(LAZY)

    def program() -> None:
        found = ((x + 1) * 2).tolist()  # not within an assert, which holds on to x + 1
        assert found == [4.0] * 4

    with using(Broken(), IN_PLACE):
        before = passes.counts()[0].get(IN_PLACE, 0)
        program()
        with pytest.warns(UserWarning, match="broken is no longer used: ValueError: of no use"):
            program()
        program()
        assert passes.counts()[0][IN_PLACE] >= before + 2 and "broken" not in passes.counts()[0]


def test_L13_what_is_large_is_not_kept_for_a_call_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> list[Tensor]:
        sums = [x.exp().sum(), x.exp().sum()]  # the first result is needed no more when the second is made
        return [*sums, x.neg() * x.neg()]

    assert changed(CSE, program) == 2  # of what the program has, nothing is shared
    monkeypatch.setattr(common_subexpressions, "MOST_BYTES", 47)
    assert changed(CSE, program, torch.linspace(-1, 1, 12)) == 1
    monkeypatch.setattr(common_subexpressions, "MOST_BYTES", 48)
    assert changed(CSE, program, torch.linspace(-1, 1, 12).reshape(2, 6)) == 2


def test_L13_what_is_no_pass_is_refused() -> None:
    with pytest.raises(mindtorch.UsageError, match=r"expected a Pass or one of .*in place.*, got 'no such'"):
        passes.set_passes(["no such"])


def test_L13_a_graph_refuses_what_might_show() -> None:
    """Whatever a pass believes."""
    refused, accepted = set(), set()

    class Bold(Pass):
        name = "bold"

        def run(self, graph: SegmentGraph) -> None:
            for call in graph.calls:
                for value in graph.values:
                    try:
                        graph.share(call, value.number)
                    except Unproven:
                        refused.add(call.op)
                    else:
                        accepted.add((call.op, graph.calls[value.maker].op if value.maker >= 0 else "given"))

    x = torch.ones(4).to(LAZY)
    mindtorch.flush("test")
    with using(Bold(), after=1):
        y = x.exp()
        z = (x.relu() * 2).add_(1)
        mindtorch.flush("test")
    del y, z
    assert {"aten::exp", "aten::mul", "aten::add_"} <= refused
    # Of the same sizes, and neither is written or the program's.
    assert accepted == {("aten::relu", "aten::exp"), ("aten::relu", "given")}
    with using(Bold(), after=1):
        drawn, spread = torch.bernoulli(x * 0.5) + 1, sum(torch.var_mean(x.neg()))
        mindtorch.flush("test")
    del drawn, spread
    assert {"aten::bernoulli", "aten::var_mean"} <= refused
    assert not {"aten::bernoulli", "aten::var_mean"} & {op for op, _ in accepted}, "one draws, one gives two tensors"


def test_L13_what_is_shared_with_numpy_is_not_overwritten() -> None:
    with using(IN_PLACE):
        for _ in range(4):
            x = torch.ones(4).to(LAZY)
            y = x + 1
            seen = y.numpy()
            z = y * 2
            del y
            found = z.tolist()
            assert found == [4.0] * 4 and seen.tolist() == [2.0] * 4


def test_L13_only_forms_that_are_the_same_share_their_steps() -> None:
    """What is kept by the program is part of a form, and so are writes in between."""
    x = torch.linspace(-1, 1, 4).to(LAZY)
    with using(CSE, after=1):
        for keep in (False, True, False):
            before = passes.counts()[0].get(CSE, 0)
            a, b = x.exp(), x.exp()
            kept = b if keep else None
            c = a + b
            del b
            c.tolist()
            assert passes.counts()[0].get(CSE, 0) - before == (0 if keep else 1)
            if kept is not None:
                kept.add_(1)
                assert a.tolist() == x.exp().tolist() != kept.tolist()


def test_L13_a_graph_numbers_values_as_they_come_and_owners_of_storages_after_the_first_on_them() -> None:
    seen: list[Any] = []

    class Looks(Pass):
        name = "looks"

        def run(self, graph: SegmentGraph) -> None:
            seen.append([(call.op, *call.inputs, *call.outputs) for call in graph.calls])
            seen.append([value.storage for value in graph.values])
            seen.append([value.number for value in graph.values if value.kept])

    x = torch.linspace(-2, 2, 12).reshape(3, 4).to(LAZY)
    other, view, inner = torch.ones(3).to(LAZY), x[1:], x[1:][1]
    mindtorch.flush("test")
    with using(Looks(), after=1):
        first = (view + 1).sum(0) * other[0]
        second = inner.exp() + x.t()[0, 1]
        mindtorch.flush("test")
    plain = x.cpu()
    same([first, second], [(plain[1:] + 1).sum(0), plain[2].exp() + plain[1, 0]])
    calls, storages, kept = seen
    assert calls == [
        ("aten::add", 0, 2),  # 0 is the view, 1 what it is a view of
        ("aten::sum", 2, 3),
        ("aten::select", 4, 5),
        ("aten::mul", 3, 5, 6),
        ("aten::exp", 7, 8),
        ("aten::t", 1, 9),
        ("aten::select", 9, 10),
        ("aten::select", 10, 11),
        ("aten::add", 8, 11, 12),
    ]
    assert storages == [1, 1, 2, 3, 4, 4, 6, 1, 8, 1, 1, 1, 12] and kept == [0, 1, 4, 6, 7, 12]


@pytest.mark.parametrize(("most", "improved"), [(9, [3, 3]), (8, [3, 6]), (2, [3, 6])])
def test_L13_forms_are_forgotten_where_they_would_be_too_many(
    most: int, improved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their counts are not. Three forms of three records, twice over."""
    optimizer, x = passes.optimizer_on(torch.device("cpu")), torch.linspace(0, 1, 4).to(LAZY)
    mindtorch.flush("test")
    seen: list[Form] = []

    def improve(form: Form) -> None:
        seen.append(form)
        optimizer.improve(form)

    programs = [lambda: x.exp() + x.exp(), lambda: x.sin() + x.sin(), lambda: x.cos() + x.cos()]
    with using(CSE):
        monkeypatch.setattr(optimizer, "forms", Forms(improve, 1, 1, most))
        found = []
        for _ in range(2):
            for program in programs:
                program().tolist()
            found.append(len(seen))
        assert optimizer.forms.totals()[CSE][0] == 6
    assert found == improved
