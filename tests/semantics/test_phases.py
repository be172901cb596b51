"""L12: the execution phase of every op."""

import contextlib
import functools
import inspect

import pytest
import torch

from mindtorch._ext import context, timeline
from mindtorch.engine import semantics
from mindtorch.engine.semantics import phases
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator


def phase():
    return context.phase_name(context.get_phase())


def test_L12_tracking_begins_outside_of_any_phase(after_a_step):
    code = """
        import torch
        from mindtorch.engine import semantics
        from mindtorch._ext import context
        for _ in range(2):
            semantics.install()
            print(context.phase_name(context.get_phase()))
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
            print(context.phase_name(context.get_phase()))  # up to a backward: still forward
            semantics.uninstall()
    """
    assert after_a_step(code).stdout.split() == ["other", "forward"] * 2


def test_L12_training_step_phases(tracked, Seen):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    with Seen() as seen:
        x = torch.ones(1, 2)
        loss = net(x).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    by_op: dict[str, set] = {}
    for name, _, when in seen.ops:
        by_op.setdefault(name, set()).add(when)
    assert by_op["ones"] == {"other"} and by_op["addmm"] == {"forward"} and "forward" in by_op["sum"]
    assert "backward" in by_op["mul"] and by_op["addcdiv_"] == {"optimizer"}
    assert by_op["linalg_vector_norm"] == {"other"} and by_op["zero_"] == {"other"}


def test_L12_no_grad_leaves_no_forward_behind(tracked):
    with torch.no_grad():
        torch.nn.Identity()(torch.ones(1))
        assert phase() == "other"
    torch.nn.Identity()(torch.ones(1))
    assert phase() == "forward"  # in grad mode a loss may follow
    torch.ones(1, requires_grad=True).sum().backward()
    assert phase() == "other"


def test_L12_closure_and_user_optimizers(tracked):
    net, said = torch.nn.Linear(2, 1), []

    class Mine(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure):
            said.append(phase())
            loss = closure()
            said.append(phase())
            return loss

    net.register_forward_hook(lambda *_: said.append(phase()))

    def closure():
        loss = net(torch.ones(1, 2)).sum()
        loss.register_hook(lambda g: said.append(phase()))
        loss.backward()
        return loss

    optimizer = Mine(net.parameters())
    optimizer.step(closure)
    assert said == ["optimizer", "forward", "backward", "optimizer"]
    assert phase() == "other"
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.step(closure)
    assert phase() == "other"


def test_L12_in_a_closure_phases_are_as_outside_of_a_step(tracked, Seen):
    """What a closure computed outside modules, its loss and its gradients' start, was counted as the optimizer's."""
    net, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def closure():
        mine.zero_grad()
        data = x.neg()
        loss = net(data).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        return loss

    for kind in torch.optim.AdamW, torch.optim.LBFGS, torch.optim.SGD:
        for given in ((closure,), {}), ((), {"closure": functools.partial(closure)}):
            mine = kind(net.parameters(), lr=0.1)
            with Seen() as seen:
                mine.step(*given[0], **given[1])
            by_op: dict[str, set] = {}
            for name, _, when in seen.ops:
                by_op.setdefault(name, set()).add(when)
            assert by_op["neg"] - {"optimizer"} == {"other"} and by_op["linalg_vector_norm"] == {"other"}
            assert by_op["addmm"] == {"forward"} and by_op["pow"] <= {"forward", "backward"}
            assert by_op["ones_like"] <= {"forward", "backward"} and "optimizer" in {when for *_, when in seen.ops}
            assert phase() == "other"


def test_L12_steps_within_closures_and_closures_that_raise(tracked):
    net, said = torch.nn.Linear(2, 1), []
    outer, inner = (torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(2))

    class Wraps(torch.optim.Optimizer):
        def __init__(self):
            super().__init__(net.parameters(), {})

        def step(self, closure):
            with contextlib.suppress(ZeroDivisionError):
                closure(fails=True)
            said.append(phase())
            inner.step()  # not in a closure
            said.append(phase())
            closure()
            said.append(phase())

    def closure(fails=False):
        said.append(phase())
        if fails:
            net(torch.ones(1, 2))  # after it a loss might follow
            raise ZeroDivisionError
        outer.step()
        said.append(phase())
        net(torch.ones(1, 2))
        said.append(phase())

    Wraps().step(closure)
    assert said == ["other", "optimizer", "optimizer", "other", "other", "forward", "optimizer"]
    assert phase() == "other"
    said.clear()
    outer.step(closure)  # which steps the same one
    assert said == ["other", "other", "forward"]
    outer.step()
    assert phase() == "other"


def test_L12_a_closure_is_the_same_one_to_an_optimizer_that_keeps_it(tracked):
    class Keeps(torch.optim.Optimizer):
        kept = None

        def step(self, closure):
            same, self.kept = closure is self.kept, closure
            return same, closure.mark, closure.__name__, closure()

    def closure():
        return phase()

    closure.mark = 3
    optimizer = Keeps([torch.nn.Parameter(torch.ones(1))], {})
    assert optimizer.step(closure) == (False, 3, "closure", "other")
    assert optimizer.step(closure) == (True, 3, "closure", "other")
    assert optimizer.kept() == "other"
    torch.nn.Linear(2, 1)(torch.ones(1, 2))
    assert optimizer.kept() == phase() == "forward"  # no step runs


def test_L12_a_model_that_a_step_takes_stays_a_model(tracked):
    class Mine(torch.optim.Optimizer):
        def step(self, model):
            return type(model), phase()

    net = torch.nn.Linear(2, 1)
    assert Mine(net.parameters(), {}).step(net) == (torch.nn.Linear, "optimizer")


def test_L12_a_step_that_raises_has_ended(tracked):
    net = torch.nn.Linear(2, 1)

    def fails():
        raise ZeroDivisionError(phase())

    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    for kind in torch.optim.SGD, torch.optim.LBFGS, Mine:
        optimizer = kind(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)  # wraps the optimizer's step again
        with pytest.raises(ZeroDivisionError, match="other"):
            optimizer.step(fails)
        assert phase() == "other" and schedule
        net(torch.ones(1, 2))
        assert phase() == "forward"
        torch.ones(1, requires_grad=True).sum().backward()
        other = torch.optim.SGD(net.parameters(), lr=0.1)

        def within(optimizer=optimizer):
            with pytest.raises(ZeroDivisionError):
                optimizer.step(fails)
            return phase()

        assert other.step(within) == "other" and phase() == "other"


def test_L12_a_step_ends_whatever_stood_in_its_place_before(tracked, monkeypatch):
    kind, net = torch.optim.Rprop, torch.nn.Linear(2, 1)
    own = inspect.unwrap(kind.step)  # as it is before the first such optimizer
    monkeypatch.setattr(kind, "step", lambda self, closure=None: own(self, closure))
    kind(net.parameters())
    monkeypatch.setattr(kind, "step", own)
    optimizer = kind(net.parameters())
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert phase() == "other"


class Around(torch.optim.Optimizer):
    """Stands around another optimizer, as Opacus' and Accelerate's do: ``Optimizer.__init__`` is never called."""

    def __init__(self, inner, said):
        self.inner, self.said = inner, said

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def state(self):
        return self.inner.state

    def step(self, closure=None):
        self.said.append(phase())
        self.inner.step(closure)
        self.said.append(phase())


class Further(Around):
    def step(self, closure=None):
        super().step(closure)
        self.said.append(phase())


class WithoutGroups(torch.optim.Optimizer):
    def __init__(self, inner, said):
        self.said = said

    def step(self, closure=None):
        self.said.append(phase())


@pytest.mark.parametrize("kind", [Around, Further, WithoutGroups])
def test_L12_the_step_of_an_optimizer_around_another_one_is_a_step(tracked, kind):
    net, said = torch.nn.Linear(2, 1), []
    optimizer = kind(torch.optim.SGD(net.parameters(), lr=0.1), said)
    optimizer.step()
    assert set(said) == {"optimizer"} and phase() == "other"
    if kind is not WithoutGroups:
        said.clear()
        optimizer.step(lambda: said.append(phase()))
        assert said[:3] == ["optimizer", "other", "optimizer"] and phase() == "other"
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
    net(torch.ones(1, 2))
    assert phase() == "forward"


def test_L12_an_optimizer_around_another_one_counts_one_step_and_goes_back_to_its_own(after_a_step):
    code = """
        import torch
        class Around(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
            param_groups = property(lambda self: self.inner.param_groups)
            state = property(lambda self: self.inner.state)
            def step(self):
                torch.ones(3).add_(1)
                self.inner.step()
        class Late(torch.optim.SGD):  # torch hooks it once there is one
            def step(self, closure=None):
                super().step(closure)
                torch.ones(3).add_(1)
        before = vars(Around)["step"], vars(Late)["step"]
        from mindtorch.profile import Profiler
        net = torch.nn.Linear(2, 1)
        with Profiler() as p:
            for optimizer in Around(torch.optim.SGD(net.parameters(), lr=0.1)), Late(net.parameters(), lr=0.1):
                for _ in range(2):
                    net(torch.zeros(1, 2)).sum().backward()
                    optimizer.step()
        report = p.report()
        detail = report["detail"]
        ones = [dict(zip(detail["columns"], row)) for row in detail["rows"] if "aten::add_" in row]
        print(report["steps"]["count"], [(row["phase"], row["ops"]) for row in ones if row["flops"] == 3 * row["ops"]])
        print(vars(Around)["step"] is before[0], vars(Late)["step"].hooked, vars(Late)["step"].__wrapped__ is before[1])
    """
    assert after_a_step(code).stdout.split("\n")[:2] == ["4 [('optimizer', 2), ('optimizer', 2)]", "True True True"]


def test_L12_steps_that_raise_end_in_optimizers_from_before_and_torch_gets_its_own_back(after_a_step):
    code = """
        import torch
        from mindtorch.engine import semantics
        from mindtorch._ext import context
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        before = torch.optim.SGD.step, torch.optim.Optimizer._patch_step_function
        for _ in range(2):
            semantics.install()
            try:
                optimizer.step(lambda: 1 / 0)
            except ZeroDivisionError:
                print(context.phase_name(context.get_phase()))
            semantics.uninstall()
            print(before == (torch.optim.SGD.step, torch.optim.Optimizer._patch_step_function))
    """
    assert after_a_step(code).stdout.split() == ["other", "True"] * 2


def test_L12_autograd_grad_and_hooks_in_nested_backward(tracked):
    x = torch.ones(2, requires_grad=True)
    said = []

    def hook(grad):
        said.append(phase())
        with torch.enable_grad():
            torch.autograd.grad((x * 3).sum(), x)
        said.append(phase())

    y = (x * x).sum()
    y.register_hook(hook)
    torch.autograd.grad(y, x)
    assert said == ["backward", "backward"] and phase() == "other"
    with pytest.raises(RuntimeError):
        y.backward()
    assert phase() == "other"


def test_L12_torch_compile_fx_jit_and_export_work(tracked):
    class Hooked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
            self.inner[0].register_forward_hook(lambda module, args, out: out + 1)

        def forward(self, x):
            return self.inner(x) * 2

    net, x = Hooked(), torch.ones(1, 2)
    want = net(x)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), want)

    @torch.compile(backend="eager", fullgraph=True)
    def function(x):
        return net(x) - 1

    assert torch.equal(function(x), want - 1)
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    assert torch.equal(torch.fx.symbolic_trace(plain)(x), plain(x))
    assert torch.equal(torch.jit.trace(plain, x)(x), plain(x))
    assert torch.equal(torch.jit.script(plain)(x), plain(x))
    assert torch.equal(torch.export.export(plain, (x,)).module()(x), plain(x))
    assert torch.equal(torch.func.functional_call(plain, dict(plain.named_parameters()), (x,)), plain(x))
    assert context.get_module() == 0


def test_L12_announced_prefill_and_decode(tracked, Seen):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Seen() as seen:
        with torch.no_grad(), semantics.stage("prefill"):
            token = net(torch.ones(1, 2)).argmax(-1)
        with torch.no_grad(), semantics.stage("decode"):
            net(torch.ones(1, 2))
            token + 1
            with semantics.stage("prefill"):
                token - 1
            token * 2
        token / 2
        with semantics.stage("prefill"):  # training within it keeps its own phases
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    by_op: dict[str, list] = {}
    for name, path, when in seen.ops:
        by_op.setdefault(name, []).append((when, path))
    assert by_op["addmm"] == [(when, "Linear") for when in ("prefill", "decode", "prefill")]
    assert by_op["argmax"] == [("prefill", "")] and by_op["add"] == [("decode", "")]
    assert by_op["sub"] == [("prefill", "")] and by_op["mul"] == [("decode", "")]
    assert by_op["div"] == [("other", "")]
    assert by_op["expand"][0][0] == "backward" and by_op["add_"][0][0] == "optimizer"
    assert phase() == "other"


def test_L12_stage_ends_with_an_error(tracked):
    class Sick(torch.nn.Module):
        def forward(self):
            raise KeyError(phase())

    with pytest.raises(KeyError, match="decode"), semantics.stage("decode"):
        Sick()()
    assert phase() == "other"
    with pytest.raises(ValueError), semantics.stage("sideways"):
        pass
    with pytest.raises(ValueError, match="in 0"):
        context.enter_stage(len(context.PHASES))
    assert phase() == "other"


@pytest.mark.parametrize("block", [Profiler, Estimator])
def test_L12_what_a_block_begins_with_is_no_loss_of_the_block_before(block):
    """An evaluation in one block made the next one's first operations "forward"."""
    model, other = torch.nn.Linear(2, 2), context.PHASES.index("other")
    for _ in range(2):
        with block():
            assert context.get_phase() == other
            model(torch.ones(1, 2)).sum()
            assert context.phase_name(context.get_phase()) == "forward"
        assert context.get_phase() == other


def test_L12_backward_passes_that_are_differentiated_themselves_are_counted(tracked):
    x = torch.ones(2, requires_grad=True)

    def added(run) -> int:
        before = phases.twice()
        run(x.square().sum())
        return phases.twice() - before

    assert added(lambda y: y.backward()) == added(lambda y: torch.autograd.grad(y, x)) == 0
    assert added(lambda y: y.backward(create_graph=True)) == 1
    assert added(lambda y: torch.autograd.grad(y, x, create_graph=True)) == 1
    assert added(lambda y: [y.backward(torch.ones(()), True, True), y.backward()]) == 1
    assert added(lambda y: [torch.autograd.grad(y, x, None, None, True) for _ in range(3)]) == 3
    x.grad = None


def test_L12_a_profile_is_told_of_each_change_of_phase_which_is_of_no_module():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=1)

    class Trained(torch.nn.Module):
        def forward(self, batch):
            optimizer.step(self.loss)
            return batch

        def loss(self):
            optimizer.zero_grad()
            loss = (weight * weight).sum()
            loss.backward()
            return loss

    model = Trained()
    with Profiler(whole=True) as seen:
        for batch in torch.utils.data.DataLoader([1.0]):
            model(batch)
        events = [seen.collector.event(i) for i in range(seen.collector.event_count())]
    changes = [(event[4], context.phase_name(event[6])) for event in events if event[0] == timeline.PHASE]
    names = [name for _, name in changes]
    first = names.index("optimizer")
    assert names[first : first + 5] == ["optimizer", "other", "backward", "other", "optimizer"]
    assert names.count("data") == 2 and {module for module, _ in changes} == {0}


def test_C1_profiles_are_told_until_they_end_in_whatever_order_and_sixteen_at_most():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    first, second, third = seen = [Profiler(whole=True) for _ in range(3)]
    for profiler in seen:
        profiler.__enter__()
    first.__exit__(None, None, None)
    optimizer.step()
    third.__exit__(None, None, None)
    optimizer.step()
    second.__exit__(None, None, None)
    told = []
    for profiler in seen:
        events = [profiler.collector.event(i) for i in range(profiler.collector.event_count())]
        told.append([context.phase_name(event[6]) for event in events if event[0] == timeline.PHASE])
    assert told == [[], ["optimizer", "other"] * 2, ["optimizer", "other"]]

    with contextlib.ExitStack() as entered:
        for _ in range(16):
            entered.enter_context(Profiler(whole=True))
        with pytest.raises(RuntimeError, match="at most 16 profiles within each other"):
            Profiler(whole=True).__enter__()
