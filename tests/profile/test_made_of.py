"""What a report says a model is made of: instances, calls, shares, sums, measured and estimated (L13, C2)."""

import importlib.metadata
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.graph.patterns import Flow, Pattern
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import sampling
from mindtorch.profile.report import made_of

LAYERS, D, TOKENS, BATCH = 3, 16, 6, 2


class Attention(nn.Module):
    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.after = after  # a mask after the softmax: no attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(*x.shape[:2], 2, D // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if self.after:
            shares = scores.softmax(-1) * mask
        else:
            shares = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return self.out((shares @ v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mixes = Attention(after)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixes(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, D)
        self.layers = nn.ModuleList(Block(after) for _ in range(LAYERS))
        self.head = nn.Linear(D, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(steps: int = 4, after: bool = False, model: nn.Module | None = None) -> None:
    model = Model(after) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    for _ in range(steps):
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def generate(tokens: int = 3) -> None:
    model = Model().eval()
    ids = torch.zeros(1, 4, dtype=torch.long)
    with torch.no_grad():
        for _ in range(tokens):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)


HOW = {"measured": lambda: Profiler(whole=True), "estimated": lambda: Estimator(target=targets.find("h100"))}


def report(how, program, **options):
    with HOW[how]() as seen:
        program(**options)
    found = seen.report()
    return found, {row["name"]: row for row in found["patterns"]}


@pytest.mark.parametrize("how", HOW)
def test_L13_a_report_names_each_block_with_its_places_and_calls(how):
    found, patterns = report(how, train, steps=4)
    assert {name: (row["instances"], row["calls"], row["verified"]) for name, row in patterns.items()} == {
        "attention": (LAYERS, 4 * LAYERS, True),
        "feed-forward": (LAYERS, 4 * LAYERS, True),
        "normalization": (2 * LAYERS, 8 * LAYERS, True),
        "embedding": (1, 4, True),
        "loss": (1, 4, True),
        "optimizer update": (1, 4, True),
    }
    assert patterns["optimizer update"]["modules"] == patterns["loss"]["modules"] == []
    assert patterns["optimizer update"]["attributes"]["kind"] == "AdamW"
    assert patterns["attention"]["modules"] == ["Model.layers.*.mixes"]
    assert patterns["feed-forward"]["modules"] == ["Model.layers.*"]
    assert patterns["attention"]["attributes"]["kind"] == "multi-head"
    assert patterns["attention"]["attributes"]["heads"] == 2
    assert patterns["feed-forward"]["attributes"] == {"activation": "gelu", "gated": False}
    json.dumps(found["patterns"])


@pytest.mark.parametrize("how", HOW)
def test_L13_no_time_and_no_flop_of_a_block_is_counted_twice(how):
    found, patterns = report(how, train)
    assert all(row["time_s"] > 0 for row in patterns.values())
    assert sum(row["time_s"] for row in patterns.values()) <= found["totals"]["time_s"]
    assert sum(row["flops"] for row in patterns.values()) <= found["totals"]["flops"]
    assert [row["time_s"] for row in found["patterns"]] == sorted(
        (row["time_s"] for row in patterns.values()), reverse=True
    )


@pytest.mark.parametrize("how", HOW)
def test_L13_the_flops_of_a_block_are_its_products_forward_and_backward(how):
    """Of attention: four projections and two products; of a feed-forward block: two. Elementwise ones come to them."""
    _, patterns = report(how, train, steps=4)
    rows = BATCH * TOKENS
    products = 4 * 2 * rows * D * D + 2 * 2 * BATCH * TOKENS * TOKENS * D
    expected = {"attention": 3 * 4 * LAYERS * products, "feed-forward": 3 * 4 * LAYERS * 2 * 2 * rows * D * 4 * D}
    for name, flops in expected.items():
        assert flops <= patterns[name]["flops"] < 1.2 * flops, name


def test_L13_an_estimate_says_what_bounds_each_block():
    _, patterns = report("estimated", train)
    for row in patterns.values():
        assert sum(row["bound_by_s"].values()) == pytest.approx(row["time_s"])
        assert set(row["bound_by_s"]) == {"compute", "memory", "launch"}
    assert patterns["attention"]["bound_by_s"]["launch"] > patterns["attention"]["bound_by_s"]["memory"]  # tiny
    assert {row["bound_by_s"] for row in report("measured", train)[1].values()} == {None}


def test_L13_measured_and_estimated_programs_are_made_of_the_same():
    rows = [
        [(row["name"], row["instances"], row["calls"], row["modules"], row["attributes"]) for row in sorted(
            report(how, generate)[0]["patterns"], key=lambda row: row["name"])]
        for how in HOW
    ]  # fmt: skip
    assert rows[0] == rows[1]
    assert {name: (instances, calls) for name, instances, calls, *_ in rows[0]} == {
        "attention": (LAYERS, 3 * LAYERS), "feed-forward": (LAYERS, 3 * LAYERS),
        "normalization": (2 * LAYERS, 6 * LAYERS), "embedding": (1, 3), "sampling": (1, 3),
    }  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_L13_two_models_of_one_class_are_two_places(how):
    def program() -> None:
        first, second = Model(), Model()
        with torch.no_grad():
            for model in (first, second, second):
                model(torch.zeros(BATCH, TOKENS, dtype=torch.long))

    _, patterns = report(how, program)
    assert {name: (row["instances"], row["calls"]) for name, row in patterns.items()} == {
        "attention": (2 * LAYERS, 3 * LAYERS), "feed-forward": (2 * LAYERS, 3 * LAYERS),
        "normalization": (4 * LAYERS, 6 * LAYERS), "embedding": (2, 3),
    }  # fmt: skip
    assert patterns["attention"]["modules"] == ["Model.layers.*.mixes", "Model #2.layers.*.mixes"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_L13_whether_attention_in_one_call_is_causal_is_told_by_every_kernel(how, device):
    if how == "measured" and device == "cuda":
        pytest.skip("there is no GPU")

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(D, 3 * D)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(BATCH, TOKENS, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def program() -> None:
        model, x = Causal().to(device), torch.ones(BATCH, TOKENS, D, device=device)
        model(x).sum().backward()
        with torch.no_grad():
            model(x)

    _, patterns = report(how, program)
    assert patterns["attention"]["attributes"]["causal"] is True


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


@pytest.mark.parametrize("how", HOW)
def test_L13_a_block_on_one_line_that_calls_an_op_twice_is_one_call(how):
    """Its last product and the one before have the same line, module and name."""
    model = nn.Sequential(nn.Embedding(11, D), RootMeanSquare(), nn.Linear(D, D), RootMeanSquare())
    _, patterns = report(how, train, steps=4, model=model)
    assert (patterns["normalization"]["instances"], patterns["normalization"]["calls"]) == (2, 8)


@pytest.mark.parametrize("how", HOW)
def test_L13_what_only_looks_like_attention_has_no_row(how):
    _, patterns = report(how, train, after=True)
    assert sorted(patterns) == ["embedding", "feed-forward", "loss", "normalization", "optimizer update"]


@pytest.mark.parametrize("how", HOW)
def test_L13_a_program_of_no_known_block_has_no_row(how):
    def program() -> None:
        train(model=nn.Sequential(nn.Embedding(11, D), nn.Linear(D, 11), nn.Dropout(0.1)))

    _, patterns = report(how, program)
    assert sorted(patterns) == ["embedding", "loss", "optimizer update"]
    with HOW[how]() as seen:
        torch.ones(3) + 1
    assert seen.report()["patterns"] == []


def test_L13_a_shared_block_is_one_place():
    class Shared(Model):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            for _ in range(5):
                x = self.layers[0](x)
            return self.head(x)

    _, patterns = report("measured", train, model=Shared(), steps=2)
    assert {name: (row["instances"], row["calls"]) for name, row in patterns.items()} == {
        "attention": (1, 10), "feed-forward": (1, 10), "normalization": (2, 20), "embedding": (1, 2),
        "loss": (1, 2), "optimizer update": (1, 2),
    }  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_L13_a_layer_that_is_put_into_another_stays_where_it_was(how):
    """LoRA by hand, of a model that was evaluated before: blocks counted twice, by the two names of their weights."""

    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    def program() -> None:
        model = Model()
        train(2, model=model)
        for module in [*model.layers.modules()]:
            for name, child in [each for each in module.named_children() if isinstance(each[1], nn.Linear)]:
                setattr(module, name, Around(child))
        with torch.no_grad():
            model(torch.zeros(BATCH, TOKENS, dtype=torch.long))

    _, patterns = report(how, program)
    for name in ("attention", "feed-forward"):
        assert (patterns[name]["instances"], patterns[name]["calls"]) == (LAYERS, 3 * LAYERS), name


def test_L13_taking_graphs_ends_where_they_would_grow_too_large(monkeypatch):
    monkeypatch.setattr(sampling, "MOST_NODES", 10)
    found, patterns = report("measured", train)
    assert patterns.keys() <= {"embedding", "normalization"} and found["totals"]["ops"] > 100


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_L13_tensors_that_no_graph_can_hold_leave_the_program_alone():
    class Ragged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nested = torch.nested.nested_tensor([x[:2], x])
            return torch.nested.to_padded_tensor(nested + nested, 0.0).sum()

    told = []
    with Profiler(whole=True) as seen:
        told.append(Ragged()(torch.ones(3, 2)).item())
    assert told == [20.0] and seen.report()["totals"]["ops"] > 0


class Failing(Pattern):
    name = "failing"

    def find(self, flow: Flow):
        yield next(iter(flow.nodes)), "not the first one"
        raise IndexError("nothing there")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("broken", [Failing(), None], ids=["while it looks", "when it is loaded"])
def test_C8_a_pattern_that_fails_costs_its_own_row_alone(how, broken, monkeypatch):
    """Somebody's package may be the one that names it: the run was not in vain."""

    class EntryPoint:
        name = "failing"

        def load(self):
            if broken is None:
                raise ModuleNotFoundError("No module named 'failing'")
            return broken

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [EntryPoint()])
    found, patterns = report(how, train)
    assert sorted(patterns) == ["attention", "embedding", "feed-forward", "loss", "normalization", "optimizer update"]
    (said,) = [line for line in found["warnings"] if "pattern" in line]
    why = "ModuleNotFoundError: No module named 'failing'" if broken is None else "IndexError: nothing there"
    assert said == f"the search for the pattern failing failed: {why}"


def test_L13_an_attribute_of_some_places_is_not_said_of_all() -> None:
    assert made_of._common([{"heads": 4, "kind": "multi-head"}, {"kind": "multi-head"}]) == {
        "heads": [4, None], "kind": "multi-head"
    }  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_L13_clipping_and_steps_written_by_hand_have_rows(how):
    def program() -> None:
        model = Model()
        ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        for _ in range(3):
            for p in model.parameters():
                p.grad = None
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=0.1)

    found, patterns = report(how, program)
    assert {name: (patterns[name]["instances"], patterns[name]["calls"], patterns[name]["verified"])
            for name in ("gradient clipping", "optimizer update")} == {
        "gradient clipping": (1, 3, True), "optimizer update": (1, 3, True),
    }  # fmt: skip
    assert patterns["gradient clipping"]["attributes"] == {"by": "norm", "most": 1.0, "norm": 2.0}
    assert patterns["optimizer update"]["attributes"] == {"kind": "SGD", "form": "one by one"}
    assert sum(row["time_s"] for row in patterns.values()) <= found["totals"]["time_s"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("cell", "calls", "said"),
    [
        (nn.LSTM, 3, {"kind": "LSTM", "hidden": D, "form": "fused"}),
        (nn.GRU, 3 * TOKENS, {"kind": "GRU", "hidden": D, "form": "one cell per step", "reset": "after"}),
    ],
    ids=["lstm", "gru"],
)
def test_L13_recurrent_cells_are_one_place_and_a_call_for_each_step(how, cell, calls, said):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell(D, D), nn.Linear(D, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(x)[0])

    def program() -> None:
        model = Recurrent()
        for _ in range(3):
            model(torch.randn(TOKENS, BATCH, D)).sum().backward()

    _, patterns = report(how, program)
    row = patterns["recurrent cell"]
    assert (row["instances"], row["calls"], row["verified"], row["attributes"]) == (1, calls, True, said)
    assert row["modules"] == ["Recurrent.cell"]
    forward = 3 * TOKENS * 2 * BATCH * 2 * D * D * (4 if cell is nn.LSTM else 3)
    assert 2 * forward <= row["flops"] < 4 * forward  # what came in has no gradient


LOSSES = {
    "cross-entropy": lambda found, wanted: F.cross_entropy(found, wanted.argmax(1)),
    "mean squared error": lambda found, wanted: ((found - wanted) ** 2).mean(),
    "mean absolute error": lambda found, wanted: F.l1_loss(found, wanted),
    "huber": lambda found, wanted: F.huber_loss(found, wanted),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", LOSSES)
def test_L13_a_loss_that_the_program_computes_outside_modules_has_a_row(how, kind):
    def program() -> None:
        model, wanted = nn.Linear(4, 3), torch.randn(5, 3)
        for _ in range(4):
            LOSSES[kind](model(torch.randn(5, 4)), wanted).backward()

    _, patterns = report(how, program)
    row = patterns["loss"]
    assert (row["instances"], row["calls"], row["verified"], row["attributes"]) == (1, 4, True, {"kind": kind})
    assert row["modules"] == [] and row["time_s"] > 0


@pytest.mark.parametrize("how", HOW)
def test_L13_a_loss_of_two_calls_of_a_model_is_one_at_each_line(how):
    def program() -> None:
        model, wanted = nn.Linear(4, 3), torch.randn(5, 3)
        for _ in range(3):
            first = model(torch.randn(5, 4))
            F.mse_loss(model(torch.randn(5, 4)) + first, wanted).backward()

    row = report(how, program)[1]["loss"]
    assert (row["instances"], row["calls"], row["verified"]) == (1, 3, True)


@pytest.mark.parametrize("fused", [False, True])
def test_L13_a_step_has_all_of_its_time_on_a_line_that_does_everything(fused: bool) -> None:
    def program() -> None:
        net = nn.Sequential(*(nn.Linear(D, D) for _ in range(4))).to("cuda")
        step, x = torch.optim.AdamW(net.parameters(), fused=fused or None), torch.ones(2, D, device="cuda")
        for _ in range(4):
            loss = net(x).square().mean(); step.zero_grad(); loss.backward(); step.step()  # fmt: skip  # noqa: E702

    found, patterns = report("estimated", program)
    assert found["warnings"] == []
    (phase,) = [row for row in found["phases"] if row["name"] == "optimizer"]
    update = patterns["optimizer update"]
    assert (update["verified"], update["attributes"]["form"]) == (True, "fused" if fused else "foreach")
    assert update["time_s"] == pytest.approx(phase["time_s"]), "what the device waits for belongs to it, too"


@pytest.mark.parametrize("how", HOW)
def test_L13_a_loss_that_several_loops_call_has_all_their_calls(how):
    entropy, x, y = nn.CrossEntropyLoss(), torch.randn(8, 6), torch.zeros(8, dtype=torch.long)

    def program():
        for _ in range(2):
            model = nn.Linear(6, 3)
            for _ in range(4):
                entropy(model(x), y).backward()
            entropy(model(x), y)
        model = nn.Linear(6, 3)
        for _ in range(4):
            entropy(model(x), y).backward()

    _, patterns = report(how, program)
    assert (patterns["loss"]["instances"], patterns["loss"]["calls"]) == (1, 14)


@pytest.mark.parametrize("how", HOW)
def test_L13_convolutions_of_two_models_are_places_of_their_own(how):
    """Their modules have the same names; cast weights are kept from the call before; one weight is computed."""
    normalized = nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 2, 3))
    models = [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), normalized),
    ]

    def program():
        x = torch.randn(2, 1, 8, 8)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = sum(model(x).sum() + model(x + 1).sum() for model in models)
            loss.backward()

    _, patterns = report(how, program)
    assert (patterns["convolution"]["instances"], patterns["convolution"]["calls"]) == (4, 24)
    assert patterns["convolution"]["verified"]


class Residual(nn.Module):
    """One line does a feed-forward, and what is none."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("estimated", [True, False])
def test_C2_a_pattern_has_what_its_modules_waited_for_between_operations(estimated: bool) -> None:
    """Of lines that do several things, no pattern had the launches, nor Python's time: a third of it was told."""
    device = "cuda" if estimated else "cpu"
    with Estimator(target=targets.find("h100")) if estimated else Profiler(warmup=1) as seen, torch.no_grad():
        model = nn.Sequential(Residual(), Residual()).to(device)
        for _ in range(3):
            model(torch.ones(4, 8, 32, device=device))
    report = seen.report()
    found = {row["name"]: row["time_s"] for row in report["patterns"]}
    rows = {row["path"]: row for row in report["modules"]}
    linears = sum(row["self_s"] for path, row in rows.items() if path.endswith((".up", ".down")))
    norms = sum(row["self_s"] for path, row in rows.items() if path.endswith(".norm"))
    blocks = sum(row["total_s"] for path, row in rows.items() if path in ("Sequential.0", "Sequential.1"))
    assert linears < found["feed-forward"] <= blocks - norms
    assert found["normalization"] == pytest.approx(norms, rel=0.01)
    assert sum(found.values()) <= report["totals"]["time_s"]
