"""Any nn.Parameter is a parameter at the peak, also of a module that nobody calls, or of none."""

import pytest
import torch
from torch import nn

from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator

KIB = 1024


def measured(program):
    with Profiler() as seen:
        program()
    return seen.report()["memory"]["categories"]


def estimated(program):
    with Estimator() as seen:
        program()
    return seen.report()["memory"]["categories"]


def never_called():
    unused = nn.Linear(256, 16, bias=False)  # 16 KiB
    nn.Linear(16, 16, bias=False)(torch.ones(1, 16))
    return unused.weight.shape


def made_after_the_first_call():
    nn.Linear(16, 16, bias=False)(torch.ones(1, 16))
    unused = nn.Linear(256, 16, bias=False)
    torch.ones(1, requires_grad=True).sum().backward()
    return unused.weight.shape


def of_no_module():
    weight = nn.Parameter(torch.ones(256, 16))
    x = torch.ones(1, 256) @ weight
    x.sum().backward()
    assert weight.grad is not None


KEPT = []


def of_no_module_and_kept():
    KEPT[:] = [nn.Parameter(torch.ones(256, 16))]


def changed_in_place():
    """Moved, as .to() does: another storage."""
    model = nn.Linear(256, 16, bias=False)
    model.weight.data = model.weight.data.clone()
    nn.Linear(16, 16, bias=False)(torch.ones(1, 16))


def thrown_away():
    """As `vgg19().features`: its classifier is most of what there is when it is made, and gone before anything runs."""
    nn.Linear(16, 16, bias=False)(torch.ones(1, 16))
    nn.Linear(256, 16, bias=False)


@pytest.mark.parametrize("run", [measured, estimated])
@pytest.mark.parametrize(
    "program", [thrown_away, never_called, made_after_the_first_call, of_no_module_and_kept, changed_in_place]
)
def test_C2_parameters_that_no_called_module_has_are_parameters(program, run):
    found = run(program)
    assert found["parameters"] >= 16 * KIB, found
    assert found.get("inputs and other", 0) < 4 * KIB and found.get("activations", 0) < 4 * KIB, found


@pytest.mark.parametrize("run", [measured, estimated])
def test_C2_a_parameter_of_no_module_is_one_that_a_backward_pass_looks_at(run):
    KEPT.clear()

    def program():
        KEPT[:] = [nn.Parameter(torch.ones(256, 16))]
        (torch.ones(1, 256) @ KEPT[0]).sum().backward()

    found = run(program)
    assert (found["parameters"], found["gradients"]) == (16 * KIB, 16 * KIB), found


def test_C2_the_hook_for_parameters_is_gone_afterwards():
    hooks = nn.modules.module._global_parameter_registration_hooks
    before = dict(hooks)
    for profile in (Profiler, Estimator):
        with profile():
            assert len(hooks) == len(before) + 1
        assert dict(hooks) == before


def made_in_the_first_call_and_dropped():
    net = nn.Sequential(nn.LazyLinear(16, bias=False), nn.LazyLinear(4))
    for _ in range(2):
        net(torch.ones(2, 256))


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_parameters_made_in_the_first_call_of_a_model_that_is_dropped(profiler):
    """A `main()` that returns took the model with it: "Model, 0 parameters"."""
    with profiler() as seen:
        made_in_the_first_call_and_dropped()
    [model] = seen.report()["models"]
    assert (model["name"], model["params"]) == ("Sequential", 256 * 16 + 16 * 4 + 4)


class Gathered(nn.Module):
    """As FSDP2 leaves its root: after the first forward pass its parameters are those that were gathered."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.tied = nn.Linear(64, 64)
        self.tied.weight = self.inner.weight
        self.replaced = nn.Linear(64, 8)

    def forward(self, x):
        self.inner.weight = self.tied.weight = nn.Parameter(self.inner.weight.detach().clone())
        self.replaced.weight = nn.Parameter(torch.zeros(16, 64))  # another size: another one
        return self.tied(self.inner(x))


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
def test_C2_what_was_gathered_in_the_place_of_a_parameter_is_no_further_one(profiler):
    """A Llama of 70.6 B on FSDP2 had 72.7: embedding and head counted twice."""
    with profiler() as seen:
        model = Gathered()
        for _ in range(3):
            model(torch.ones(2, 64))
    report = seen.report()
    [found] = report["models"]
    assert found["params"] == report["totals"]["params"] == 64 * 64 + 2 * 64 + 8 * 64 + 8 + 16 * 64


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.ModuleList([nn.Linear(8, 8)]), nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def grows(model, how):
    if how == "first":
        model.layers.insert(0, nn.Linear(8, 8))  # the others move on by one
    else:
        model.layers.append(nn.Linear(8, 8))


@pytest.mark.parametrize("profiler", [Profiler, Estimator])
@pytest.mark.parametrize("how", ["first", "last"])
def test_C2_a_model_that_grew_has_the_parameters_that_it_has_in_the_end(profiler, how):
    """A new first layer was the one whose place it took."""
    with profiler() as seen:
        model = Growing()
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            grows(model, how)
    report = seen.report()
    assert report["totals"]["params"] == report["model"]["params"] == sum(p.numel() for p in model.parameters())
