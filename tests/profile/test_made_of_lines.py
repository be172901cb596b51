"""What a report says a model is made of, where several things are called on one line (L13, C2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import sampling

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


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("kind", "options"), [
    (_O.SGD, {}), (_O.SGD, {"momentum": 0.9}), (_O.Adam, {}), (_O.AdamW, {"amsgrad": True}), (_O.Adagrad, {}),
])  # fmt: skip
def test_L13_fused_steps_are_updates_with_and_without_a_gradient_scaler(how, kind, options, scaled):
    """In an estimate, those of SGD and Adagrad were none: what a call writes that is not recorded was lost."""

    def program() -> None:
        model = nn.Linear(4, 2)
        optimizer, scaler = (
            kind(model.parameters(), 0.1, fused=True, **options),
            torch.amp.GradScaler("cpu", enabled=scaled),
        )
        for _ in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    row = patterns(how, program)["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (1, STEPS, kind.__name__)


def test_L13_what_no_pattern_is_stays_none_beside_an_optimizer_on_its_line():
    """What SparseAdam computes was Adagrad's."""
    with Profiler(whole=True) as seen:
        trained(_O.SparseAdam, _O.Adagrad)()
    report = seen.report()
    (row,) = [each for each in report["patterns"] if each["name"] == "optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (1, STEPS, "Adagrad")
    assert 0 < row["flops"] < 0.7 * next(each["flops"] for each in report["phases"] if each["name"] == "optimizer")


class Packed(nn.Module):
    """Between its layers it multiplies by what dropout keeps, as its cells multiply, on one line."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, 2, bidirectional=True, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3])))[0].data


@pytest.mark.parametrize("how", HOW)
def test_L13_cells_between_which_is_dropout_are_cells(how):
    def program() -> None:
        model = Packed()
        for _ in range(STEPS):
            model(torch.ones(5, 2, 3)).sum().backward()

    row = patterns(how, program)["recurrent cell"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (4, 4 * 5 * STEPS, "LSTM")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", [_O.SGD, _O.AdamW])
def test_L13_an_optimizer_whose_first_rate_is_0_is_one(how, kind):
    """The first step moves nothing and shows nothing; gradients that are added up were none's; SGD's first step makes
    other calls than those that follow."""

    def program() -> None:
        model = nn.Linear(4, 2)
        optimizer = kind(model.parameters(), 0.0, **{"momentum": 0.9} if kind is _O.SGD else {})
        for _ in range(STEPS):
            for _ in range(2):
                model(nn.utils.rnn.pad_sequence([torch.ones(4), torch.ones(4)], True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            optimizer.param_groups[0]["lr"] += 0.1

    row = patterns(how, program)["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (1, STEPS, kind.__name__)


@pytest.mark.parametrize("how", HOW)
def test_L13_an_optimizer_for_each_weight_is_as_many_as_there_are_weights(how):
    """As Pyro steps. Of each step there was another place for a weight that the graph met transposed, before it."""

    def program() -> None:
        model = nn.Sequential(*(nn.Linear(n, m) for n, m in ((6, 5), (5, 4), (4, 3))))
        optimizers = [_O.Adam([weight]) for weight in model.parameters()]
        for step in range(STEPS):
            x = torch.ones(8 + step, 6)
            for layer in model:  # the graph of the last one's call goes on to the steps
                x = layer(x)
            x.square().sum().backward()
            for each in optimizers:
                each.step()
                each.zero_grad(set_to_none=False)

    row = patterns(how, program)["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (6, 6 * STEPS, "Adam")


@pytest.mark.parametrize("how", HOW)
def test_L13_a_step_of_more_weights_than_a_graph_showed_inputs_of_is_one(how):
    """In an estimate, an optimizer of 129 weights had no row: its calls were taken to write to all that they read."""

    def program() -> None:
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(70)))
        optimizer = _O.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(STEPS):
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    row = patterns(how, program)["optimizer update"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (1, STEPS, "SGD")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("late", [0, STEPS + 2])
def test_L13_optimizers_with_a_pass_backward_each_are_as_many(how, late):
    """As a CycleGAN's three are, or one whose part of the training begins later. There were two of them."""

    def program() -> None:
        nets = [nn.Linear(3, 3) for _ in range(3)]
        optimizers = [_O.Adam(net.parameters()) for net in nets]
        for step in range(late + STEPS):
            for net, optimizer in list(zip(nets, optimizers))[: 3 if step >= late else 2]:
                net(torch.ones(2, 3)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    row = patterns(how, program)["optimizer update"]
    assert (row["instances"], row["calls"]) == (3, 2 * (late + STEPS) + STEPS)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("first", [_O.Adam, _O.SGD])
@pytest.mark.parametrize("together", [False, True])
def test_L13_steps_on_one_line_of_optimizers_with_as_many_weights_as_they_have_are_counted(how, first, together):
    """As a GAN's two: 10 steps were 15. Together, after all passes backward: the first one's were none, as the graph
    begins after its gradients are made."""

    def program() -> None:
        nets = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), nn.Linear(3, 3)]
        optimizers = [first(nets[0].parameters(), 0.1), _O.Adam(nets[1].parameters())]
        for _ in range(STEPS):
            for net, optimizer in zip(nets, optimizers):
                net(torch.ones(2, 3)).square().sum().backward()
                if not together:
                    optimizer.step()
            for optimizer in optimizers if together else ():
                optimizer.step()

    row = patterns(how, program)["optimizer update"]
    kinds = "Adam" if first is _O.Adam else ["SGD", "Adam"]
    assert (row["instances"], row["calls"], row["attributes"]["kind"]) == (2, 2 * STEPS, kinds)


@pytest.mark.parametrize("how", HOW)
def test_L13_steps_are_counted_in_the_iterations_that_are_reported(how):
    """One of them steps in the first iteration only."""
    kind, options = (Profiler, {}) if how == "measured" else (Estimator, {"target": targets.find("h100")})
    with kind(warmup=1, **options) as seen:
        nets = [nn.Linear(3, 3), nn.Linear(3, 3)]
        optimizers = [_O.Adam(net.parameters()) for net in nets]
        for step in range(STEPS):
            for net, optimizer in list(zip(nets, optimizers))[step > 0 :]:
                net(torch.ones(2, 3)).square().sum().backward()
                optimizer.step()
    (row,) = [row for row in seen.report()["patterns"] if row["name"] == "optimizer update"]
    assert (row["instances"], row["calls"]) == (1, STEPS - 1)


@pytest.mark.parametrize(("kind", "most"), [
    (_O.SGD, sampling.CALLS),
    (_O.LBFGS, sampling.CALLS + sampling.MOST_IN_VAIN),  # whose step ends when no graph of it is taken
])  # fmt: skip
def test_L13_few_graphs_of_steps_are_taken(kind, most, monkeypatch):
    begun = []
    begin = sampling.SamplingProfile._begin
    monkeypatch.setattr(sampling.SamplingProfile, "_begin", lambda self: (begun.append(0), begin(self)))

    def program() -> None:
        net = nn.Linear(3, 3)
        optimizer = kind(net.parameters(), 0.1)
        for _ in range(40):
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step(lambda: net(torch.ones(2, 3)).sum() if kind is _O.LBFGS else None)

    patterns("measured", program)
    assert len(begun) <= sampling.CALLS + most  # with those of the model's calls


def test_L13_what_a_backward_pass_does_on_an_optimizers_line_is_no_step():
    """Gradients of a loss outside of modules are made by mul and add, too: a tenth of the time was a seventh."""
    net = nn.Linear(4, 4)
    step, x = _O.AdamW(net.parameters()), torch.ones(2, 4)
    with Profiler(whole=True) as seen:
        for _ in range(STEPS):
            loss = (net(x).exp() * 2 + 1).div(3).mul(4).sqrt().sum()
            loss.backward(); step.step(); step.zero_grad()  # fmt: skip  # noqa: E702
    report = seen.report()
    (update,) = [row for row in report["patterns"] if row["name"] == "optimizer update"]
    (phase,) = [row for row in report["phases"] if row["name"] == "optimizer"]
    assert update["flops"] == phase["flops"] and 0 < update["time_s"] <= phase["time_s"] * (1 + 1e-9)


@pytest.mark.parametrize("how", HOW)
def test_L13_a_convolution_called_under_vmap_at_two_lines_is_one(how):
    """There its weights have no names; what a module of torch's does is at the module, wherever it is called."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    given = {name: weight.detach() for name, weight in net.named_parameters()}

    def call(weights, x):
        return torch.func.functional_call(net, weights, (x[None],)).sum()

    def again(weights, x):
        return torch.func.functional_call(net, weights, (x[None],)).square().sum()

    def program() -> None:
        x = torch.randn(5, 1, 8, 8)
        torch.func.vmap(torch.func.grad(call), (None, 0))(given, x)
        torch.func.vmap(torch.func.grad(again), (None, 0))(given, x)

    assert patterns(how, program)["convolution"]["instances"] == 1


@pytest.mark.parametrize("how", HOW)
def test_L13_losses_that_are_modules_of_their_own_are_as_many(how):
    """L1Loss is a difference and a mean: without the call before it, of two tensors from nowhere, it was no loss."""

    def program() -> None:
        model, other = nn.Linear(3, 3), nn.Linear(3, 3)
        near, far = nn.L1Loss(), nn.MSELoss()
        for _ in range(STEPS):
            x = torch.ones(2, 3)
            first = near(model(x), x)
            (first + far(other(x), x)).backward()

    row = patterns(how, program)["loss"]
    assert (row["instances"], row["calls"]) == (2, 2 * STEPS)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("alike", [False, True])
def test_L13_losses_of_several_models_that_follow_their_calls_are_as_many(how, alike):
    """The graph of the first call ended at the second, and the first loss, of two tensors from nowhere, was none."""

    def program() -> None:
        nets = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3)) if alike else nn.Linear(3, 3)]
        for _ in range(STEPS):
            x = torch.ones(2, 3)
            outs = [net(x) for net in nets]
            first = nn.functional.l1_loss(outs[0], x)
            second = (outs[1] - x).square().mean()
            (first + second).backward()

    row = patterns(how, program)["loss"]
    assert (row["instances"], row["calls"]) == (2, 2 * STEPS)


@pytest.mark.parametrize("how", HOW)
def test_L13_a_loss_after_calls_that_no_graph_is_of_is_one(how):
    """As a CycleGAN's third: its generators are called twice before those whose results it gets."""

    def program() -> None:
        net, losses = nn.Linear(3, 3), [nn.MSELoss(), nn.L1Loss(), nn.L1Loss()]
        for _ in range(STEPS):
            x = torch.ones(2, 3)
            sum(loss(net(x), x) for loss in losses).backward()

    row = patterns(how, program)["loss"]
    assert (row["instances"], row["calls"]) == (3, 3 * STEPS)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("grad", [False, True])
def test_L13_a_model_that_grows_is_made_of_what_it_has_in_the_end(how, grad):
    """As in the tutorial on neural style: graphs of the first calls had two convolutions of five."""

    def program() -> None:
        net = nn.Sequential()
        for _ in range(5):
            net.append(nn.Conv2d(2, 2, 3, padding=1))
            with torch.set_grad_enabled(grad):
                net(torch.ones(1, 2, 8, 8))
        for _ in range(STEPS):
            net(torch.ones(1, 2, 8, 8)).sum().backward()

    row = patterns(how, program)["convolution"]
    assert (row["instances"], row["calls"]) == (5, 1 + 2 + 3 + 4 + 5 + 5 * STEPS)


class Convolved(nn.Module):
    """Attention of a picture's places, whose projections are convolutions of kernels of one place, as diffusion has."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv1d(16, 48, 1), nn.Conv1d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, 1)
        shares = torch.softmax(q.transpose(1, 2) @ k / 4, -1)
        return x + self.out(v @ shares.transpose(1, 2))


@pytest.mark.parametrize("how", HOW)
def test_L13_convolutions_that_project_are_part_of_attention_in_each_call(how):
    """Without gradients, an estimate knows the calls after the first by the name that the program called: `conv1d`."""

    def program() -> None:
        model = Convolved()
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(2, 16, 5))

    found = patterns(how, program)
    assert {name: (row["instances"], row["calls"]) for name, row in found.items()} == {"attention": (1, 3)}


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 8), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


@pytest.mark.parametrize("how", HOW)
def test_L13_dropout_that_drops_nothing_stands_between_no_two_parts_of_a_block(how):
    """In inference mode an estimate took it for another reader of what it hands on."""

    def program() -> None:
        model = nn.Sequential(Dropping(), Dropping()).eval()
        with torch.inference_mode():
            for _ in range(3):
                model(torch.ones(2, 5, 8))

    row = patterns(how, program)["feed-forward"]
    assert (row["instances"], row["calls"]) == (2, 6)


def squared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """NeRF's img2mse: of two pictures, on the one line."""
    return torch.mean((x - y) ** 2)


@pytest.mark.parametrize("how", HOW)
def test_L13_a_loss_function_that_is_called_twice_is_two_losses(how):
    """They were one, as they are computed on one line."""

    def program() -> None:
        model = nn.Linear(3, 8)
        for _ in range(STEPS):
            coarse, fine = model(torch.ones(5, 3)).sigmoid().chunk(2, -1)
            (squared(fine, torch.zeros(5, 4)) + squared(coarse, torch.zeros(5, 4))).backward()

    row = patterns(how, program)["loss"]
    assert (row["instances"], row["calls"]) == (2, 2 * STEPS)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("grad", [True, False])
def test_L13_a_loss_of_each_call_is_one_loss(how, grad):
    def program() -> None:
        model = nn.Linear(3, 4)
        for _ in range(STEPS):
            with torch.set_grad_enabled(grad):
                losses = [squared(model(torch.ones(5, 3)), torch.zeros(5, 4)) for _ in range(2)]
            if grad:
                sum(losses).backward()

    row = patterns(how, program)["loss"]
    assert (row["instances"], row["calls"]) == (1, 2 * STEPS)


@pytest.mark.parametrize("how", HOW)
def test_L13_what_autocast_casts_for_a_block_is_part_of_it(how):
    """Half of a feed-forward block's time under autocast was no pattern's: casts of weights, and of gradients."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.mlp(self.norm(x))

    def program() -> None:
        device = "cpu" if how == "measured" else "cuda"
        model = nn.Sequential(Block(), Block()).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            with torch.autocast(device, torch.bfloat16):
                loss = model(torch.randn(4, 8, 32, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with HOW[how]() as seen:
        program()
    report = seen.report()
    (row,) = (each for each in report["patterns"] if each["name"] == "feed-forward")
    blocks = sum(each["total_s"] for each in report["modules"] if each["path"].endswith(".mlp"))
    assert blocks > 0 and row["time_s"] == pytest.approx(blocks, rel=0.02), report["patterns"]


@pytest.mark.parametrize("how", HOW)
def test_L13_a_convolution_has_its_backward_pass_where_its_module_does_more(how):
    """A blur, which pads and crops around its convolution, had the forward pass alone: 10 % of StyleGAN's time."""

    class Blur(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x.cumsum(2).sin(), self.weight).cumsum(3).cos()

    def program() -> None:
        model = nn.Sequential(Blur(), Blur())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(2, 4, 16, 16, requires_grad=True)).sum().backward()
            optimizer.step()

    with HOW[how]() as seen:
        program()
    report = seen.report()
    (row,) = (each for each in report["patterns"] if each["name"] == "convolution")
    own = sum(each["flops"] for each in report["ops"] if "convolution" in each["name"])
    assert own > 0 and row["flops"] == own, (row, own)
