"""L12: modules whose ``forward`` the program calls by that name run like those that are called."""

import sys
import threading
import time
import weakref

import pytest
import torch

import mindtorch
from mindtorch._ext import context, named_forwards
from mindtorch.engine.semantics import modules


@pytest.fixture
def listened(tracked):
    def listener(model, path):
        pass

    modules.add_listener(listener)
    yield
    modules.remove_listener(listener)


def here():
    return context.module_path(context.get_module())


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def helper(self, y):
        return y.exp()

    def forward(self, x):
        return self.helper(self.linear(x)).sin()


class Derived(Inner):
    def forward(self, x):
        return super().forward(x).cos()


class Outer(torch.nn.Module):
    def __init__(self, *, named):
        super().__init__()
        self.inner, self.derived, self.head, self.named = Inner(), Derived(), torch.nn.Linear(4, 4), named

    def forward(self, x):
        if self.named:
            x = self.derived.forward(self.inner.forward(x.neg()))
        else:
            x = self.derived(self.inner(x.neg()))
        return self.head(x).tanh()


def seen_of(Seen, *, named):
    net, x = Outer(named=named), torch.ones(2, 4)
    with Seen() as seen:
        for _ in range(2):
            out = net.forward(x) if named else net(x)
            out.square().mean().backward()
            between = here()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.grad = parameter.grad.neg()
    assert between == ""
    return seen.ops


def test_L12_named_calls_are_calls(listened, Seen):
    assert seen_of(Seen, named=True) == seen_of(Seen, named=False)


def test_L12_named_calls_are_their_callers_where_nobody_listens(tracked, Seen):
    net, x = Outer(named=True), torch.ones(2, 4)
    with Seen() as seen:
        net(x)
    assert seen.paths("sin") == ["Outer", "Outer"]
    assert seen.paths("addmm") == ["Outer.inner.linear", "Outer.derived.linear", "Outer.head"]


@pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 12), reason="other releases have a public function for it")
def test_L12_named_calls_are_their_callers_where_frames_are_not_as_expected(listened, Seen):
    net, x = Outer(named=True), torch.ones(2, 4)
    assert named_forwards.look_inside(False) is False
    try:
        with Seen() as seen:
            net(x)
    finally:
        assert named_forwards.look_inside(True) is True
    assert seen.paths("sin") == ["Outer", "Outer"]


class Cell(torch.nn.Module):
    def forward(self, x):
        return x + 1


def test_L12_each_named_call_counts():
    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()

        def forward(self, x):
            for _ in range(5):
                x = self.cell.forward(x)
            return x

    net = Loop()
    counted = {row["path"]: row["calls"] for row in mindtorch.profile(net, torch.ones(2)).report()["modules"]}
    assert counted == {"Loop": 1, "Loop.cell": 5, "": 0}


@pytest.mark.parametrize("target", [None, "h100"])
def test_L12_reports_of_named_calls_are_those_of_calls(target):
    def rows(named):
        net, x = Outer(named=named), torch.ones(2, 4)
        with mindtorch.profile(target=target) as profile:
            for _ in range(2):
                (net.forward(x) if named else net(x)).square().mean().backward()
        found = profile.report()
        kinds = {"modules": ("path", "calls", "ops", "flops", "peak_bytes"), "phases": ("name", "ops", "flops")}
        return {kind: [[row[key] for key in keys] for row in found[kind]] for kind, keys in kinds.items()}

    assert rows(True) == rows(False)


def test_L12_named_calls_end_when_their_frames_do(listened):
    class Once(torch.nn.Module):
        def forward(self, x):
            local = x * 2
            ended.append(weakref.ref(local))
            at.append(here())
            return local + 1

    ended, at, net = [], [], Once()
    for _ in range(2):
        net.forward(torch.ones(2))
        assert ended.pop()() is None  # nothing that it had lives on
        assert context.get_phase() == context.PHASES.index("forward")  # a loss may follow
        assert here() == ""
    assert at == ["Once", "Once"]


def test_L12_named_calls_that_raise_are_over(listened):
    class Raises(torch.nn.Module):
        def forward(self, x):
            x.neg()
            at.append(here())
            raise ValueError("expected another x")

    class Catches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.raises = Raises()

        def forward(self, x):
            try:
                self.raises.forward(x)
            except ValueError as error:
                at.append(here())
                return error
            return x

    at, net = [], Catches()
    held = [net(torch.ones(2)), net.forward(torch.ones(2))]  # their tracebacks keep the frames
    assert at == ["Catches.raises", "Catches"] * 2
    assert len(held) == 2 and here() == ""


def test_L12_named_calls_of_many_within_each_other(listened):
    class Deep(torch.nn.Module):
        def __init__(self, below):
            super().__init__()
            self.below = below

        def forward(self, x):
            found = self.below.forward(x) if self.below is not None else x.neg()
            at.append(here())
            return found

    def paths(depth):
        at.clear()
        net = None
        for _ in range(depth):
            net = Deep(net)
        net.forward(torch.ones(2))
        assert here() == ""
        return [*reversed(at)]

    at = []
    assert paths(16) == ["Deep" + ".below" * i for i in range(16)]
    assert paths(17)[:16] == ["Deep" + ".below" * i for i in range(16)]


def test_L12_named_calls_of_itself(listened):
    class Again(torch.nn.Module):
        def forward(self, x, times=3):
            at.append(here())
            return self.forward(x, times - 1) if times else x.neg()

    at = []
    Again().forward(torch.ones(2))
    assert at == ["Again"] * 4


def test_L12_named_calls_under_a_tracer(listened):
    class Traced(torch.nn.Module):
        def forward(self, x):
            at.append((here(), sys._getframe().f_trace))
            return x.neg()

    lines = []

    def tracer(frame, event, arg):
        lines.append(event)
        return tracer

    at, net = [], Traced()
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        net.forward(torch.ones(2))
    finally:
        sys.settrace(before)
    assert at == [("Traced", tracer)] and "line" in lines
    assert here() == ""


def test_L12_a_tracer_may_come_within_a_named_call(listened):
    def tracer(frame, event, arg):
        events.append(event)

    class Begins(torch.nn.Module):
        def forward(self, x):
            at.append(here())
            sys.settrace(tracer)
            x = x.neg()
            x = x.neg()
            sys.settrace(before)
            at.append(here())
            return x

    at, events, before, net = [], [], sys.gettrace(), Begins()
    net.forward(torch.ones(2))
    assert at == ["Begins", "Begins"] and here() == ""


def test_L12_named_calls_in_a_constructor_have_no_path(listened):
    class Makes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()
            self.cell.forward(torch.ones(2))
            at.append(here())
            self.notes = Notes()
            self.notes(torch.ones(2))

    class Notes(torch.nn.Module):
        def forward(self, x):
            at.append(here())
            return x

    at = []
    Makes()
    assert at == ["", ""]


def test_L12_named_calls_in_other_threads(listened):
    class Notes(torch.nn.Module):
        def forward(self, x):
            at.append(here())
            return x

    at, net = [], Notes()
    threads = [threading.Thread(target=lambda: (net.forward(torch.ones(2)), at.append(here()))) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert at == ["Notes", ""] * 3


def test_L12_a_closure_over_self_is_found(listened):
    class Closes(torch.nn.Module):
        def forward(self, x):
            def inner():
                return self, here()

            return inner()[1]

    found = Closes().forward(torch.ones(2))
    assert found == "Closes"


def test_L12_functions_of_that_name_are_no_modules(listened, Seen):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Not:
        def forward(self, x):
            return x.neg()

    def forward():
        return torch.ones(2).exp()

    with Seen() as seen:
        Not().forward(Square.apply(torch.ones(2, requires_grad=True)))
        forward()
    assert {path for _, path, _ in seen.ops} == {""}


def test_L12_a_named_call_in_a_profile_is_left_when_that_ends(tracked):
    class Ends(torch.nn.Module):
        def forward(self, x):
            x = x.neg()
            profile.__exit__(None, None, None)
            at.append(here())
            return x.neg()

    at = []
    profile = mindtorch.profile()
    profile.__enter__()
    Ends().forward(torch.ones(2))
    assert at == [""] and here() == ""


def test_L12_time_after_a_named_call_is_the_callers():
    class Quick(torch.nn.Module):
        def forward(self, x):
            return x.neg()

    net = Quick()
    with mindtorch.profile() as profile:
        net.forward(torch.ones(2))
        time.sleep(0.3)
        torch.ones(2).exp()
    rows = {row["path"]: row for row in profile.report()["modules"]}
    assert rows["Quick"]["total_s"] < 0.25


class Penalized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.two(self.one(x).tanh()).square()


def test_L12_a_pass_through_a_pass_belongs_to_the_modules(tracked, Seen):
    net = Penalized()
    x = torch.ones(2, 4, requires_grad=True)
    with Seen():
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    with Seen() as seen:
        grad.square().sum().backward()
    assert set(seen.paths("mm", phase="backward")) == {"Penalized.one", "Penalized.two"}
    assert set(seen.paths("tanh_backward", phase="backward")) <= {"Penalized"}
    with Seen() as seen:
        grad = grad.neg()
        grad.exp().sum()
    assert {path for _, path, _ in seen.ops} == {""}


def test_L1_first_arguments_are_those_of_the_running_function():
    def one(first, second=2):
        return named_forwards.first_argument()

    def closed_over(first):
        return (lambda: first)() and named_forwards.first_argument()

    def every(*first):
        return named_forwards.first_argument()

    def gone(first):
        del first
        return named_forwards.first_argument()

    value = object()
    assert one(value) is value and one(first=value) is value
    assert closed_over(value) is value
    assert every(value) is None and gone(value) is None
    before = sys.getrefcount(value)
    for _ in range(10):
        one(value)
    assert sys.getrefcount(value) == before


class Remembers(torch.nn.Module):
    """A language model with a cache of its own, as Meta's Llama has it."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8)
        self.cache = torch.zeros(16, 4)

    def forward(self, tokens, start=0, *more, scale=1.0, **options):
        self.cache[start : start + tokens.shape[1]] = self.tokens(tokens)[0] * scale
        return self.head(self.cache[: start + tokens.shape[1]].mean(0, keepdim=True))


@pytest.mark.parametrize("disabled", [torch.no_grad, torch.inference_mode])
def test_L12_a_model_that_is_called_by_name_generates(disabled):
    def phases(call):
        net, found = Remembers(), torch.zeros(1, 8, dtype=torch.int64)
        with mindtorch.profile() as profile, disabled():
            before = 0
            for at in range(3, 8):
                found[:, at] = call(net, found[:, before:at], before).argmax(-1)
                before = at
        report = profile.report()
        return [(row["name"], row["ops"]) for row in report["phases"]], report["generation"]

    called = phases(lambda net, tokens, start: net(tokens, start))
    assert [name for name, _ in called[0]][:2] == ["prefill", "decode"]
    assert [row["steps"] for row in called[1]["phases"]] == [1, 4]
    assert phases(lambda net, tokens, start: net.forward(tokens, start)) == called
    assert phases(lambda net, tokens, start: net.forward(start=start, tokens=tokens, scale=2.0, other=1)) == called


def test_L12_what_follows_a_named_call_without_gradients_of_its_own_is_a_loss(listened, Seen):
    class Without(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x):
            return x.neg()

    net = Without()
    with Seen() as seen:
        net.forward(torch.ones(2)).exp()
        with torch.no_grad():
            net.forward(torch.ones(2)).sin()
    assert seen.ops[1:3] == [("neg", "Without", "forward"), ("exp", "", "forward")]
    assert seen.ops[-1] == ("sin", "", "other")
