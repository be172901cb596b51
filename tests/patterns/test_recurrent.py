"""L13: recurrent cells in one call, as torch's modules decompose, and written by hand; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, explain, find_patterns

T, B, D, H = 3, 5, 4, 6
Step = Callable[["Net", Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Net(nn.Module):
    """A loop over the steps; what a step does with (x, h, c) is given."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.x, self.h, self.both = nn.Linear(D, 4 * H), nn.Linear(H, 4 * H, bias=False), nn.Linear(D + H, 4 * H)
        self.x1, self.h1, self.both1 = nn.Linear(D, H), nn.Linear(H, H), nn.Linear(D + H, H)
        self.xs, self.hs = (nn.ModuleList(nn.Linear(n, H) for _ in range(4)) for n in (D, H))
        self.two, self.one, self.small = nn.Linear(D + H, 2 * H), nn.Linear(D + H, H), nn.Linear(H, 2)
        self.up, self.norm, self.peep = nn.Linear(2, 4 * H), nn.LayerNorm(4 * H), nn.Parameter(torch.randn(H))
        self.wx, self.wh = nn.Parameter(torch.randn(D, 4 * H)), nn.Parameter(torch.randn(H, 4 * H))
        self.bias, self.table = nn.Parameter(torch.randn(4 * H)), nn.Embedding(7, 4 * H)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(B, H), torch.zeros(B, H)
        found = []
        for at in x.unbind(0):
            h, c = self.step(self, at, h, c)
            found.append(h)
        return torch.stack(found)


def cells(model: nn.Module, *inputs: Any) -> list[Instance]:
    torch.manual_seed(0)
    with capture() as graph, torch.no_grad():
        model(*inputs or [torch.randn(T, B, D)])
    return [each for each in find_patterns(graph) if each.pattern == "recurrent cell"]


def lstm(gates: Callable[..., Tensor], order: str = "ifgo") -> Step:
    def step(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        found = dict(zip(order, gates(net, x, h).chunk(4, -1), strict=True))
        c = found["f"].sigmoid() * c + found["i"].sigmoid() * found["g"].tanh()
        return found["o"].sigmoid() * c.tanh(), c

    return step


def two(net: Net, x: Tensor, h: Tensor) -> Tensor:
    return net.x(x) + net.h(h)


def joined(net: Net, x: Tensor, h: Tensor) -> Tensor:
    found: Tensor = net.both(torch.cat([x, h], -1))
    return found


def separate(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = (a(x) + b(h) for a, b in zip(net.xs, net.hs, strict=True))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def sigmoids_at_once(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    gates = two(net, x, h)
    i, f, o = torch.sigmoid(gates[:, : 3 * H]).chunk(3, 1)
    c = torch.addcmul(f * c, i, torch.tanh(gates[:, 3 * H :]))
    return o * c.tanh(), c


def gates_beside_each_other(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = two(net, x, h).view(B, 4, H).unbind(1)
    c = i.sigmoid() * g.tanh() + c * f.sigmoid()
    return c.tanh() * o.sigmoid(), c


def in_place(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = two(net, x, h).chunk(4, 1)
    c = f.sigmoid_().mul(c).add_(i.sigmoid_() * g.tanh_())
    return o.sigmoid_() * c.tanh(), c


def masked(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    new, after = lstm(two)(net, x, h, c)
    kept = x[:, :1] > 0
    return torch.where(kept, new, h), torch.where(kept, after, c)


def gru(mix: Callable[[Tensor, Tensor, Tensor], Tensor], reset: str = "after") -> Step:
    def step(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        r, z = (torch.sigmoid(net.xs[k](x) + net.hs[k](h)) for k in range(2))
        if reset == "after":
            n = torch.tanh(net.xs[2](x) + r * net.hs[2](h))
        elif reset == "before":
            n = torch.tanh(net.xs[2](x) + net.hs[2](r * h))
        else:
            n = torch.tanh(net.one(torch.cat([x, r * h], 1)))
        return mix(z, n, h), c

    return step


def gru_by_cat(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z, r = torch.sigmoid(net.two(torch.cat([x, h], 1))).chunk(2, 1)
    n = torch.tanh(net.one(torch.cat([x, r * h], 1)))
    return (1 - z) * h + z * n, c


def elman(function: Callable[[Tensor], Tensor]) -> Step:
    return lambda net, x, h, c: (function(net.x1(x) + net.h1(h)), c)


LSTM, GRU, RNN = (({"kind": kind, "hidden": H, "form": "one cell per step"}) for kind in ("LSTM", "GRU", "RNN"))
AFTER, BEFORE = GRU | {"reset": "after"}, GRU | {"reset": "before"}
TANH, RELU = RNN | {"activation": "tanh"}, RNN | {"activation": "relu"}
ARE: dict[str, tuple[Step, dict[str, Any]]] = {
    "lstm of two products": (lstm(two), LSTM),
    "lstm of one product": (lstm(joined), LSTM),
    "lstm, gates in another order": (lstm(two, "ofig"), LSTM),
    "lstm, a weight for each gate": (separate, LSTM),
    "lstm, no bias": (lstm(lambda net, x, h: x @ net.wx + h @ net.wh), LSTM),
    "lstm, a bias by itself": (lstm(lambda net, x, h: x @ net.wx + h @ net.wh + net.bias), LSTM),
    "lstm, sigmoids at once": (sigmoids_at_once, LSTM),
    "lstm, gates beside each other": (gates_beside_each_other, LSTM),
    "lstm, in place": (in_place, LSTM),
    "lstm, masked": (masked, LSTM),
    "lstm of rows of a table": (lstm(lambda net, x, h: net.table(x[:, 0].long().abs()) + net.h(h)), LSTM),
    "gru": (gru(lambda z, n, h: (1 - z) * n + z * h), AFTER),
    "gru, gate the other way": (gru(lambda z, n, h: z * n + (1 - z) * h), AFTER),
    "gru by a difference": (gru(lambda z, n, h: n + z * (h - n)), AFTER),
    "gru by the other difference": (gru(lambda z, n, h: h + z * (n - h)), AFTER),
    "gru of three": (gru(lambda z, n, h: n - z * n + z * h), AFTER),
    "gru by lerp": (gru(lambda z, n, h: torch.lerp(n, h, z)), AFTER),
    "gru, ones less": (gru(lambda z, n, h: (torch.ones_like(z) - z) * n + z * h), AFTER),
    "gru, reset before": (gru(lambda z, n, h: (1 - z) * n + z * h, "before"), BEFORE),
    "gru, reset before, joined": (gru(lambda z, n, h: (1 - z) * n + z * h, "joined"), BEFORE),
    "gru of one product": (gru_by_cat, BEFORE),
    "elman": (elman(torch.tanh), TANH),
    "elman, relu": (elman(torch.relu), RELU),
    "elman of one product": (lambda net, x, h, c: (torch.tanh(net.both1(torch.cat([x, h], 1))), c), TANH),
}


@pytest.mark.parametrize("form", ARE)
def test_L13_recurrent_cells_written_out_are_found_at_each_step_and_proven(form: str) -> None:
    step, said = ARE[form]
    found = [each for each in cells(Net(step)) if not each.refused]
    assert [(each.verified, each.attributes) for each in found] == [(True, said)] * T
    assert len({each.place for each in found}) == 1
    assert all(isinstance(name, str) and name.startswith("Net.") for name in found[0].place)


@pytest.mark.parametrize(
    ("module", "n", "said"),
    [
        (nn.LSTM(D, H, 2), 2, {"kind": "LSTM", "hidden": H, "form": "fused"}),
        (nn.LSTM(D, H, bias=False, bidirectional=True), 2, {"kind": "LSTM", "hidden": H, "form": "fused"}),
        (nn.LSTM(D, H, batch_first=True), 1, {"kind": "LSTM", "hidden": H, "form": "fused"}),
        (nn.LSTM(D, H, proj_size=2), T, LSTM),
        (nn.GRU(D, H), T, AFTER),
        (nn.GRU(D, H, 2, bias=False, bidirectional=True), 4 * T, AFTER),
        (nn.RNN(D, H), T, TANH),
        (nn.RNN(D, H, 2, nonlinearity="relu"), 2 * T, RELU),
    ],
    ids=["lstm", "lstm both ways", "lstm by batch", "lstm projected", "gru", "gru both ways", "rnn", "rnn, relu"],
)
def test_L13_torchs_recurrent_modules_are_proven(module: nn.Module, n: int, said: dict[str, Any]) -> None:
    found = [each for each in cells(module) if not each.refused]
    assert [(each.verified, each.attributes) for each in found] == [(True, said)] * n


@pytest.mark.parametrize("ways", [1, 2])
def test_L13_a_packed_batch_is_proven_step_by_step(ways: int) -> None:
    """Backwards, rows of states that begin later come to those that there are."""
    x = nn.utils.rnn.pack_padded_sequence(torch.randn(T, B, D), torch.tensor([3, 3, 2, 2, 1]))
    found = cells(nn.LSTM(D, H, bidirectional=ways == 2), x)
    assert [(each.verified, each.refused, each.attributes) for each in found] == [(True, "", LSTM)] * ways * T


@pytest.mark.parametrize(
    ("module", "said"), [(nn.LSTMCell(D, H), LSTM), (nn.GRUCell(D, H, bias=False), AFTER)], ids=["lstm", "gru"]
)
def test_L13_a_step_of_torchs_cells_alone_is_proven(module: nn.Module, said: dict[str, Any]) -> None:
    (found,) = cells(module, torch.randn(B, D))
    assert (found.verified, found.attributes) == (True, said)


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def cudnn(mode: int, gates: int, cell: Tensor | None) -> object:
    weights = [meta(gates * H, D), meta(gates * H, H)]
    sizes = (mode, H, 0, 1, False, 0.0, False, False, [])
    return torch.ops.aten._cudnn_rnn(meta(T, B, D), weights, 2, None, meta(1, B, H), cell, *sizes, None)


def fused_step() -> object:
    gates, biases = (meta(B, 4 * H), meta(B, 4 * H)), (meta(4 * H), meta(4 * H))
    return torch.ops.aten._thnn_fused_lstm_cell(*gates, meta(B, H), *biases)


ON_GPU: dict[str, tuple[str, Callable[[], object]]] = {
    "cudnn's LSTM": ("LSTM", lambda: cudnn(2, 4, meta(1, B, H))),
    "cudnn's GRU": ("GRU", lambda: cudnn(3, 3, None)),
    "a step of an LSTM": ("LSTM", fused_step),
}


@pytest.mark.parametrize("form", ON_GPU)
def test_L13_a_gpus_calls_are_named_by_what_they_are_and_not_called_proven(form: str) -> None:
    kind, program = ON_GPU[form]
    with capture() as graph, torch.no_grad():
        program()
    (found,) = find_patterns(graph)
    said = {"kind": kind, "hidden": H, "form": "fused", "not_run": "torch computes it only on a GPU"}
    assert (found.pattern, found.verified, found.attributes) == ("recurrent cell", False, said)


def test_L13_a_step_written_out_has_all_its_operations_and_no_others() -> None:
    net = Net(lstm(two))
    with capture() as graph, torch.no_grad():
        net(torch.randn(T, B, D))
    found = [each for each in find_patterns(graph) if not each.refused]
    taken = [node for each in found for node in each.nodes]
    assert len(taken) == len(set(taken))
    rest = [node.op for node in graph.nodes if node.kind == "op" and node.id not in set(taken)]
    assert sorted(rest) == ["aten::randn", "aten::stack", "aten::unbind", "aten::zeros", "aten::zeros"]


# ---- what is only near one -------------------------------------------------------------------------------------------
def near_lstm(
    new: Callable[..., Tensor] = lambda i, f, g, c: f * c + i * g,
    out: Callable[..., Tensor] = lambda o, c: o * c.tanh(),
    squash: Callable[[Tensor], Tensor] = torch.sigmoid,
    gates: Callable[..., Tensor] = two,
) -> Step:
    def step(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = gates(net, x, h).chunk(4, 1)
        c = new(i.sigmoid(), f.sigmoid(), g.tanh(), c)
        return out(squash(o), c), c

    return step


def peephole(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = two(net, x, h).chunk(4, 1)
    c = (f + net.peep * c).sigmoid() * c + (i + net.peep * c).sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gates_of_what_comes_in_alone(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = net.x(x).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def always(step: Step, hidden: bool, cell: bool) -> Step:
    """Reading what was there at first."""
    first: list[tuple[Tensor, Tensor]] = []

    def other(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        first.append((h, c))
        return step(net, x, first[0][0] if hidden else h, first[0][1] if cell else c)

    return other


def no_reset(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z, n = torch.sigmoid(net.xs[0](x) + net.hs[0](h)), torch.tanh(net.xs[1](x) + net.hs[1](h))
    return (1 - z) * n + z * h, c


def multiplied(net: Net, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(net.x1(x) * net.h1(h)), c


NO_SUM = "a gate is not a sum of products with weights: it adds "
ARE_NONE: dict[str, tuple[Step, str]] = {
    "coupled gates": (
        near_lstm(lambda i, f, g, c: f * c + (1 - f) * g),
        "its gates are coupled: the input gate is 1 minus the forget gate, or the other way round",
    ),
    "one gate for both": (near_lstm(lambda i, f, g, c: f * c + f * g), "one gate is both input and forget gate"),
    "no output gate": (near_lstm(out=lambda o, c: c.tanh()), "it has no output gate"),
    "a softmax gate": (near_lstm(squash=lambda o: o.softmax(-1)), "its output gate is not a sigmoid"),
    "a hard gate": (near_lstm(squash=F.hardsigmoid), "its output gate is not a sigmoid"),
    "an output gate turned over": (near_lstm(out=lambda o, c: (1 - o) * c.tanh()), "its output gate is not a sigmoid"),
    "a sigmoid of what comes in": (
        near_lstm(lambda i, f, g, c: f * c + i * f),
        "what is added to its cell state is not a tanh",
    ),
    "less what comes in": (near_lstm(lambda i, f, g, c: f * c - i * g), "it is not o · tanh(f · c + i · g)"),
    "twice what comes in": (
        near_lstm(lambda i, f, g, c: torch.add(f * c, i * g, alpha=2)),
        "it is not o · tanh(f · c + i · g)",
    ),
    "peephole": (peephole, NO_SUM + "aten::mul"),
    "a norm within": (near_lstm(gates=lambda net, x, h: net.norm(two(net, x, h))), NO_SUM + "aten::native_layer_norm"),
    "other rows": (
        near_lstm(gates=lambda net, x, h: net.x(x) + net.h(h).roll(1, 0)),
        NO_SUM + "aten::roll",
    ),
    "gates along the batch": (
        lambda net, x, h, c: lstm(lambda *_: two(net, x, h).reshape(4, B, H).transpose(0, 1).reshape(B, 4 * H))(
            net, x, h, c
        ),
        "a gate is not the expected function of W x + U h + b",
    ),
    "gates of what comes in": (gates_of_what_comes_in_alone, "a gate reads one tensor: no hidden state, or no input"),
    "lstm, state not carried": (always(lstm(two), True, True), "its hidden state is not carried to another step"),
    "lstm, hidden state not carried": (
        always(lstm(two), True, False),
        "its cell state is carried to another step, its hidden state is not",
    ),
    "lstm, cell state not carried": (always(lstm(two), False, True), "its cell state is not carried to another step"),
    "gru, residual in place of a mix": (
        gru(lambda z, n, h: h + n),
        "its new state is not a gated mix of the old one and a candidate",
    ),
    "gru, a residual of the gated": (gru(lambda z, n, h: h + z * n), "it is not (1 - z) · n + z · h"),
    "gru, a mix that adds up to more": (gru(lambda z, n, h: (2 - z) * n + z * h), "it is not (1 - z) · n + z · h"),
    "gru, no reset gate": (no_reset, "it has no reset gate"),
    "elman, state not carried": (
        always(elman(torch.tanh), True, True),
        "its hidden state is not carried to another step",
    ),
    "elman, another function": (elman(torch.sin), ""),
    "elman, residual": (
        lambda net, x, h, c: (h + torch.tanh(net.x1(x) + net.h1(h)), c),
        "its hidden state is not carried to another step",
    ),
    "elman, multiplied": (multiplied, ""),
    "elman, no weight": (lambda net, x, h, c: (torch.tanh(x.sum(1, True) + net.h1(h)), c), ""),
    "elman, no input": (lambda net, x, h, c: (torch.tanh(net.h1(h)), c), ""),
}


@pytest.mark.parametrize("form", ARE_NONE)
def test_L13_what_is_only_near_a_recurrent_cell_has_no_name_and_why_says_so(form: str) -> None:
    step, why = ARE_NONE[form]
    torch.manual_seed(0)
    with capture() as graph, torch.no_grad():
        Net(step)(torch.randn(T, B, D))
    found = [each for each in find_patterns(graph) if each.pattern == "recurrent cell"]
    assert [each for each in found if not each.refused] == []
    assert why in {each.refused for each in found} or (not why and not found)
    text = explain(graph, "recurrent cell")
    assert f"not one: {why}" in text if why else text == "recurrent cell: no candidates\n"
