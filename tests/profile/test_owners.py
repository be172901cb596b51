"""What models are called, of which the program calls parts: ``agent.critic(x)``, and never the model itself."""

import copy
import time

import pytest
import torch
from torch import nn

from mindtorch.engine.semantics import owners
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator


class Agent(nn.Module):
    """As in cleanrl's PPO: nobody calls its forward, it has none."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.spare = nn.Linear(16, 16)

    def act(self, x):
        return self.actor(x), self.critic(x)


class VAE(nn.Module):
    """As diffusers' AutoencoderKL: encode and decode are methods."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())
        self.decoder = nn.Sequential(nn.ConvTranspose2d(4, 3, 3))

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)


class Lit(nn.Module):
    """As a LightningModule: the loop calls training_step."""

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"body": nn.Linear(4, 4)})
        self.loss = nn.MSELoss()

    def training_step(self, batch):
        return self.loss(self.model["body"](batch), batch)


class Generator(nn.Linear):
    pass


class Discriminator(nn.Linear):
    pass


def size(model):
    return sum(p.numel() for p in model.parameters())


def measured(program):
    with Profiler() as seen:
        program()
    return seen.report()


def estimated(program):
    with Estimator() as seen:
        program()
    return seen.report()


def paths(report):
    return [row["path"] for row in report["modules"] if row["path"]]


both = pytest.mark.parametrize("run", [measured, estimated])


@both
def test_C2_a_model_of_which_parts_are_called_has_its_name_and_all_its_parameters(run):
    def program():
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters())
        for _ in range(2):
            with torch.no_grad():
                agent.act(torch.randn(8, 4))
            sum(part.sum() for part in agent.act(torch.randn(8, 4))).backward()
            optimizer.step()

    report = run(program)
    assert report["model"] == {"name": "Agent", "params": size(Agent()), "param_bytes": 4 * size(Agent())}
    assert report["models"] == [report["model"]] and report["totals"]["params"] == size(Agent())
    assert paths(report)[0] == "Agent" and {path.partition(".")[0] for path in paths(report)} == {"Agent"}
    rows = {row["path"]: row for row in report["modules"]}
    assert rows["Agent"]["calls"] == 0 and rows["Agent.critic"]["calls"] == rows["Agent.actor"]["calls"] == 4
    assert rows["Agent"]["params"] == size(Agent()) and rows["Agent"]["class"] == "Agent"


class Learner(nn.Module):
    """As MAML's: what torch's methods are called, it has for lists and numbers of its own."""

    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.zeros(3))])
        self.modules = self.children = 3

    def parameters(self):
        return self.vars

    def buffers(self):
        return []

    named_parameters = named_buffers = named_modules = named_children = None

    def forward(self, x):
        return nn.functional.linear(x, *self.vars)


@both
def test_C2_a_class_may_call_something_else_parameters_and_modules(run):
    def program():
        for _ in range(3):
            learner = Learner()
            learner(torch.ones(4, 2)).sum().backward()
            holder = nn.ModuleList([learner, nn.Linear(1, 1)])
            holder[1](torch.ones(1, 1))

    report = run(program)
    assert report["model"]["params"] >= 9
    assert any(row["path"].endswith("Learner") or row["class"] == "Learner" for row in report["modules"])


@both
def test_C2_methods_that_are_not_forward_belong_to_their_model(run):
    report = run(lambda: [vae.decode(vae.encode(torch.randn(1, 3, 8, 8))) for vae in (VAE(),)])
    assert [path for path in paths(report) if path.count(".") == 1] == ["VAE.encoder", "VAE.decoder"]
    assert report["model"]["name"] == "VAE" and report["model"]["params"] == size(VAE())


@both
def test_C2_a_loop_that_calls_what_a_container_holds(run):
    report = run(lambda: Lit().training_step(torch.randn(2, 4)))
    assert paths(report) == ["Lit", "Lit.model", "Lit.model.body", "Lit.loss"]
    assert report["model"]["name"] == "Lit"


@both
def test_C2_several_models_are_all_named_the_largest_first(run):
    def program():
        g, d = Generator(4, 8), Discriminator(8, 1)
        d(g(torch.randn(2, 4)))
        nn.MSELoss()(torch.zeros(2), torch.ones(2))

    report = run(program)
    assert [(m["name"], m["params"]) for m in report["models"]] == [("Generator", 40), ("Discriminator", 9)]
    assert report["model"] == report["models"][0]


def test_C2_models_of_one_class_of_which_parts_are_called_are_numbered_in_the_order_of_the_run():
    one, two = Agent(), Agent()

    def program():
        two.critic(torch.randn(1, 4)), one.actor(torch.randn(1, 4)), two.actor(torch.randn(1, 4))

    report = measured(program)
    assert [path for path in paths(report) if path.count(".") == 1] == [
        "Agent.critic", "Agent.actor", "Agent #2.actor",
    ]  # fmt: skip
    assert [model["name"] for model in report["models"]] == ["Agent", "Agent #2"]


def test_C2_a_part_that_was_met_alone_is_no_model_of_its_own_beside_the_one_that_holds_it():
    body = nn.Linear(4, 4)

    def program():
        body(torch.randn(2, 4))
        nn.Sequential(body, nn.Linear(4, 4))(torch.randn(2, 4))

    assert [(m["name"], m["params"]) for m in measured(program)["models"]] == [("Sequential", 40)]


def test_C2_a_part_that_was_called_before_its_model_was_made_belongs_to_the_model_from_its_call_on():
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def program():
        body(torch.randn(2, 4))
        model = nn.ModuleDict({"body": body, "head": nn.Linear(4, 4)})
        model.forward = lambda x: model["head"](model["body"](x))
        model(torch.randn(2, 4))
        body(torch.randn(2, 4))
        body[0](torch.randn(2, 4))
        return model

    calls = {row["path"]: row["calls"] for row in measured(program)["modules"] if row["path"]}
    assert calls["Sequential"] == calls["Sequential.0"] == 1
    assert calls["ModuleDict.body"] == 2 and calls["ModuleDict.body.0"] == 3 and calls["ModuleDict.head"] == 1


def test_C2_a_copied_model_owns_its_parts():
    other = copy.deepcopy(Agent())  # no child of it was registered
    other.critic = nn.Sequential(*other.critic)
    assert paths(measured(lambda: other.critic(torch.randn(1, 4))))[:2] == ["Agent", "Agent.critic"]


def test_C2_of_several_holders_the_outermost_of_most_modules_gives_the_name():
    part = nn.Linear(2, 2)
    small, large = nn.ModuleList([part]), nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ModuleList([part])})
    assert paths(measured(lambda: part(torch.ones(1, 2)))) == ["ModuleDict", "ModuleDict.b", "ModuleDict.b.0"]
    assert len(small) == 1 and len(large) == 2


def test_S12_modules_that_nobody_holds_are_looked_for_ever_more_rarely():
    watched = []
    with Profiler():
        owners.watching.append(watched.append)
        for _ in range(300):
            nn.ReLU()(torch.ones(1))
        owners.watching.remove(watched.append)
    assert len(watched) == owners.MOST_IN_VAIN + 5  # 16, 32, 64, 128, 256


def test_C2_searching_is_none_of_the_programs_time(monkeypatch):
    search, spent = owners.paths.living, []

    def living(kind):
        begun = time.perf_counter()
        time.sleep(0.02)
        found = search(kind)
        spent.append(time.perf_counter() - begun)
        return found

    with Profiler() as seen:
        monkeypatch.setattr(owners.paths, "living", living)
        nn.Linear(2, 2)(torch.ones(1, 2))
        monkeypatch.undo()
    assert len(spent) == 1 and seen.report()["totals"]["overhead_s"] >= spent[0]


class Around(nn.Module):
    """As torchdiffeq's: each solution wraps the model that is given, and throws the wrapper away."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@both
def test_C2_parameters_of_several_models_count_in_one_of_them(run):
    def program():
        inner = nn.Linear(4, 4)
        around = [Around(inner) for _ in range(5)]
        for one in around:
            one(torch.ones(2, 4)).sum().backward()

    report = run(program)
    assert (
        report["totals"]["params"] == size(nn.Linear(4, 4)) and report["model"]["params"] == report["totals"]["params"]
    )
    assert sum(row["params"] for row in report["modules"] if not row["depth"]) == report["totals"]["params"]


class Field(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, size))

    def forward(self, x):
        return self.net(x)


def solve(function, x, steps=3):
    wrapper = Around(Around(function))
    for _ in range(steps):
        x = wrapper(x)
    return x


@pytest.mark.parametrize("kind", [Profiler, Estimator])
@pytest.mark.parametrize("calls", [1, 4])
def test_C2_a_wrapper_that_a_library_throws_away_is_not_the_model(kind, calls):
    """Nine models called "_PerturbFunc #2" and so on, for one that the program calls ODEFunc."""
    model = Field()
    with kind() as seen:
        for _ in range(calls):
            solve(model, torch.ones(1, 4)).sum().backward()
    report = seen.report()
    assert [(row["name"], row["params"]) for row in report["models"]] == [("Field", 4 * 8 + 8 + 8 * 4 + 4)]
    assert report["model"]["name"] == "Field"
    rows = {row["path"]: row for row in report["modules"] if row["class"] == "Field"}
    assert [(row["calls"], row["params"]) for row in rows.values()] == [(3 * calls, report["totals"]["params"])]


def test_C2_other_models_in_the_same_wrapper_are_told_apart():
    models = [Field(4), Field(6)]
    with Profiler() as seen:
        for model, size in zip(models, (4, 6), strict=True):
            solve(model, torch.ones(1, size)).sum().backward()
    report = seen.report()
    assert sorted(row["params"] for row in report["models"]) == [76, 110]
    assert [row["calls"] for row in report["modules"] if row["class"] == "Field"] == [3, 3]


def test_C2_a_wrapper_that_stays_is_the_model():
    wrapper = Around(Field())
    with Profiler() as seen:
        for _ in range(2):
            wrapper(torch.ones(1, 4)).sum().backward()
    assert [row["name"] for row in seen.report()["models"]] == ["Around"]


def test_C2_a_wrapper_of_the_programs_function_is_the_model_when_all_ends_with_it():
    def program():
        for wrapper in (Around(Field()),):
            wrapper(torch.ones(1, 4)).sum().backward()

    with Profiler() as seen:
        program()
    assert [row["name"] for row in seen.report()["models"]] == ["Around"]


@pytest.mark.parametrize("kind", [Profiler, Estimator])
def test_C2_a_model_that_grows_while_it_is_called_has_its_name(kind):
    """As in the tutorial on neural style: called with one layer of weights, cut off, called with all: "Conv2d"."""
    with kind() as seen:
        model = nn.Sequential(nn.Tanh())
        for _ in range(3):
            model.append(nn.Linear(4, 4))
            model(torch.ones(1, 4))
        model = model[:3]
        model(torch.ones(1, 4)).sum().backward()
    report = seen.report()
    assert [row["name"] for row in report["models"]] == ["Sequential"]
    assert {row["path"] for row in report["modules"] if not row["depth"] and row["params"]} == {"Sequential"}
