"""L13, attention: every form is found and proven, and what only looks like it is not labelled."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.patterns import Instance, find_patterns, pattern

Core = Callable[[Tensor, Tensor, Tensor, "Block"], Tensor]


class Block(nn.Module):
    """Attention with projections, a residual and a core that is given; sizes differ in all places."""

    def __init__(self, core: Core, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.core, self.heads, self.width = core, choose.choice([2, 3, 4]), choose.choice([8, 12, 16])
        self.batch, self.length = choose.choice([1, 2, 5]), choose.choice([6, 7, 11])
        wide = self.heads * self.width
        self.q, self.k, self.v, self.o = (nn.Linear(wide, wide) for _ in range(4))
        self.table = nn.Parameter(torch.rand(self.heads, self.length, self.length) + 0.5)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(self.batch, self.length, self.heads, self.width).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        y = self.core(q, k, v, self)
        return x + self.o(y.transpose(1, 2).reshape(x.shape))


def labels(core: Core, seed: int = 0, train: bool = False) -> tuple[list[Instance], ComputationGraph]:
    torch.manual_seed(seed)
    block = Block(core, seed).train(train)
    x = torch.randn(block.batch, block.length, block.heads * block.width)
    with capture() as graph, torch.no_grad():
        block(x)
    return [found for found in find_patterns(graph) if found.pattern == "attention"], graph


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def by_hand(q: Tensor, k: Tensor, v: Tensor, b: Block) -> Tensor:
    e = torch.exp(scores(q, k))
    return (e / e.sum(-1, keepdim=True)) @ v


def by_hand_stably(q: Tensor, k: Tensor, v: Tensor, b: Block) -> Tensor:
    s = scores(q, k).masked_fill(~causal(q.shape[2]), -math.inf)
    e = torch.exp(s - s.max(-1, keepdim=True).values)
    return (e / e.sum(-1, keepdim=True)) @ v


def powers_over(q: Tensor, k: Tensor, axis: int, less: float = 0.0) -> Tensor:
    e = torch.exp(scores(q, k))
    return e / (e.sum(axis, keepdim=True) + less)


def sink(q: Tensor, k: Tensor, v: Tensor, b: Block) -> Tensor:
    s = scores(q, k)
    column = b.table[:, 0, 0].view(1, -1, 1, 1).expand(*s.shape[:-1], 1)
    s = torch.cat([s, column], -1)
    s = s - s.max(-1, keepdim=True).values
    return s.softmax(-1)[..., :-1] @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, b: Block) -> Tensor:
    n = q.shape[2]
    flat_q, flat_k, flat_v = (t.reshape(-1, n, t.shape[-1]) for t in (q, k, v))
    bias = b.table.repeat(q.shape[0], 1, 1)
    s = torch.baddbmm(bias, flat_q, flat_k.transpose(1, 2), beta=1.0, alpha=0.3)
    return torch.bmm(s.softmax(-1), flat_v).view(q.shape)


ARE: dict[str, Core] = {
    "fused": lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v),
    "fused, causal": lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused, another scale": lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, scale=0.2),
    "plain": lambda q, k, v, b: scores(q, k).softmax(-1) @ v,
    "no scale": lambda q, k, v, b: (q @ k.mT).softmax(-1) @ v,
    "scale on q": lambda q, k, v, b: ((q * 0.3) @ k.mT).softmax(-1) @ v,
    "root of the scale on both": lambda q, k, v, b: (
        ((q * q.shape[-1] ** -0.25) @ (k / k.shape[-1] ** 0.25).mT).softmax(-1) @ v
    ),
    "fused, scale on q": lambda q, k, v, b: F.scaled_dot_product_attention(q * 0.3, k, v, scale=1.0),
    "scale in place": lambda q, k, v, b: (q @ k.mT).mul_(0.3).softmax(-1) @ v,
    "einsum": lambda q, k, v, b: torch.einsum("bhls,bhsd->bhld", torch.einsum("bhld,bhsd->bhls", q, k).softmax(-1), v),
    "masked_fill": lambda q, k, v, b: scores(q, k).masked_fill(~causal(q.shape[2]), -math.inf).softmax(-1) @ v,
    "masked_fill_": lambda q, k, v, b: scores(q, k).masked_fill_(~causal(q.shape[2]), -1e9).softmax(-1) @ v,
    "where": lambda q, k, v, b: (
        torch.where(causal(q.shape[2]), scores(q, k), torch.tensor(torch.finfo(torch.float32).min)).softmax(-1) @ v
    ),
    "bias": lambda q, k, v, b: (scores(q, k) + b.table).softmax(-1) @ v,
    "two biases": lambda q, k, v, b: (scores(q, k) + b.table + b.table.mT).softmax(-1) @ v,
    "baddbmm": alibi,
    "soft cap": lambda q, k, v, b: (5 * torch.tanh(scores(q, k) / 5)).softmax(-1) @ v,
    "scale per head": lambda q, k, v, b: (scores(q, k) * b.table[:, :1, :1]).softmax(-1) @ v,
    "sink": sink,
    "exponentials": by_hand,
    "exponentials less the largest": by_hand_stably,
    "values first": lambda q, k, v, b: (v.mT @ scores(q, k).softmax(-1).mT).mT,
    "one head for all keys": lambda q, k, v, b: (q @ k[:, :1].mT).softmax(-1) @ v[:, :1],
    "repeated heads": lambda q, k, v, b: (
        (q @ k[:, :1].expand_as(k).clone().mT).softmax(-1) @ v[:, :1].expand_as(v).clone()
    ),
}

ARE_NONE: dict[str, Core] = {
    "softmax over queries": lambda q, k, v, b: scores(q, k).softmax(-2) @ v,
    "softmax over heads": lambda q, k, v, b: scores(q, k).softmax(1) @ v,
    "softmin": lambda q, k, v, b: F.softmin(scores(q, k), -1) @ v,
    "negative scale": lambda q, k, v, b: (scores(q, k) * -1.5).softmax(-1) @ v,
    "scale per key": lambda q, k, v, b: (scores(q, k) * b.table[:, :1, :]).softmax(-1) @ v,
    "scale per pair": lambda q, k, v, b: (scores(q, k) * b.table).softmax(-1) @ v,
    "mask multiplied before": lambda q, k, v, b: (scores(q, k) * causal(q.shape[2])).softmax(-1) @ v,
    "mask after": lambda q, k, v, b: (scores(q, k).softmax(-1) * causal(q.shape[2])) @ v,
    "filled after": lambda q, k, v, b: scores(q, k).softmax(-1).masked_fill(~causal(q.shape[2]), 0.0) @ v,
    "weights after": lambda q, k, v, b: (scores(q, k).softmax(-1) * b.table) @ v,
    "normalized again": lambda q, k, v, b: F.normalize(scores(q, k).softmax(-1), dim=-1) @ v,
    "squared": lambda q, k, v, b: scores(q, k).softmax(-1).square() @ v,
    "scores squared": lambda q, k, v, b: scores(q, k).square().softmax(-1) @ v,
    "absolute scores": lambda q, k, v, b: scores(q, k).abs().softmax(-1) @ v,
    "relu of scores": lambda q, k, v, b: scores(q, k).relu().softmax(-1) @ v,
    "scores clamped": lambda q, k, v, b: scores(q, k).clamp(-0.2, 0.2).softmax(-1) @ v,
    "bias of the scores": lambda q, k, v, b: (lambda s: (s + 0.3 * s * s).softmax(-1) @ v)(scores(q, k)),
    "bias of other scores": lambda q, k, v, b: (lambda s: (s + s.mT).softmax(-1) @ v)(scores(q, k)),
    "second reader of scores": lambda q, k, v, b: (lambda s: s.softmax(-1) @ v + s @ v)(scores(q, k)),
    "second reader of probabilities": lambda q, k, v, b: (lambda p: p @ v + p.mT @ v)(scores(q, k).softmax(-1)),
    "sum of probabilities": lambda q, k, v, b: (lambda p: p @ v + p.sum(-1, keepdim=True))(scores(q, k).softmax(-1)),
    "sigmoid": lambda q, k, v, b: torch.sigmoid(scores(q, k)) @ v,
    "linear": lambda q, k, v, b: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "channels": lambda q, k, v, b: ((F.normalize(q, dim=-2).mT @ F.normalize(k, dim=-2)).softmax(-1) @ v.mT).mT,
    "exponentials over queries": lambda q, k, v, b: powers_over(q, k, -2) @ v,
    "exponentials and a sink": lambda q, k, v, b: powers_over(q, k, -1, 1.0) @ v,
    "exponentials over the root of their squares": lambda q, k, v, b: F.normalize(scores(q, k).exp(), dim=-1) @ v,
    "exponentials over a sum of others": lambda q, k, v, b: (
        (scores(q, k).exp() / scores(k, q).exp().sum(-1, keepdim=True)) @ v
    ),
    "log probabilities": lambda q, k, v, b: scores(q, k).log_softmax(-1) @ v,
}

ARE_NONE_IN_TRAINING: dict[str, Core] = {
    "scores dropped": lambda q, k, v, b: b.drop(scores(q, k)).softmax(-1) @ v,
}


@pytest.mark.parametrize("form", ARE)
def test_L13_attention_is_found_in_each_form_and_proven(form: str, generated: int) -> None:
    for seed in range(generated):
        found, graph = labels(ARE[form], seed)
        (instance,) = [each for each in found if not each.refused]
        assert instance.verified, instance
        core = [graph.nodes[n].op for n in instance.nodes]
        assert sum(op in ("aten::addmm", "aten::mm") for op in core) == 4  # its projections
        assert instance.place == tuple(f"Block.{name}.weight" for name in "koqv")


@pytest.mark.parametrize("form", ARE_NONE)
def test_L13_what_only_looks_like_attention_is_not_labelled(form: str, generated: int) -> None:
    for seed in range(generated):
        found, _ = labels(ARE_NONE[form], seed)
        assert [each for each in found if not each.refused] == [], seed


@pytest.mark.parametrize("form", ARE_NONE_IN_TRAINING)
def test_L13_dropped_scores_are_no_attention(form: str) -> None:
    found, _ = labels(ARE_NONE_IN_TRAINING[form], train=True)
    assert [each.refused for each in found] == ["it drops scores"]


def test_L13_dropped_probabilities_are_attention() -> None:
    (found,), _ = labels(lambda q, k, v, b: b.drop(scores(q, k).softmax(-1)) @ v, train=True)
    assert found.verified


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("plain", "1/sqrt(d)"),
        ("no scale", "none"),
        ("scale per head", "learned"),
        ("fused, another scale", 0.2),
        ("scale on q", 0.3),
        ("root of the scale on both", "1/sqrt(d)"),
        ("fused, scale on q", 0.3),
    ],
)
def test_L13_the_scale_of_attention_is_told(form: str, said: object) -> None:
    (found,), _ = labels(ARE[form])
    assert found.attributes["scale"] == said


def test_L13_heads_of_keys_are_told() -> None:
    (found,), _ = labels(ARE["repeated heads"])
    assert found.attributes["kv_heads"] == 1 < found.attributes["heads"]
    assert found.attributes["kind"] == "multi-query"


@pytest.mark.parametrize("form", ["plain", "fused"])
def test_L13_attention_of_the_same_sizes_to_another_tensor_is_told_from_that_to_itself(form: str) -> None:
    block = Block(ARE[form], 0).eval()

    class Crossed(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            q, k, v = (
                project(given).view(block.batch, block.length, block.heads, block.width).transpose(1, 2)
                for project, given in ((block.q, x), (block.k, other), (block.v, other))
            )
            return block.o(block.core(q, k, v, block).transpose(1, 2).reshape(x.shape))

    x = torch.randn(block.batch, block.length, block.heads * block.width)
    crossed = Crossed()
    with capture() as graph, torch.no_grad():
        crossed(crossed(x, x) + 1, x)
    assert [each.attributes["of"] for each in find_patterns(graph) if each.pattern == "attention"] == [
        "itself",
        "another",
    ]


@pytest.mark.parametrize("crossed", [False, True])
def test_L13_projections_of_low_rank_are_of_what_they_got(crossed: bool) -> None:
    """As LoRA's, beside the whole ones; keys and values have whole ones alone."""
    down, up = nn.Linear(32, 2, bias=False), nn.Linear(2, 32, bias=False)
    whole = [nn.Linear(32, 32) for _ in range(3)]
    norm = nn.LayerNorm(32)

    class Adapted(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            q, k, v = whole[0](x) + 0.5 * up(down(x)), whole[1](other), whole[2](other)
            return F.scaled_dot_product_attention(*(t.view(2, 5, 4, 8).transpose(1, 2) for t in (q, k, v)))

        def of(self) -> str:
            with capture() as graph, torch.no_grad():
                x = norm(torch.randn(2, 5, 32))
                self(x, norm(torch.randn(2, 5, 32)) if crossed else x)
            (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
            return str(found.attributes["of"])

    assert Adapted().of() == ("another" if crossed else "itself")


@pytest.mark.parametrize("most", [1 << 24, 10])
def test_L13_graph_attention_of_any_size_is_none(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What two nodes give is added up: a(i) + b(j), each the product with a part of a weight."""
    monkeypatch.setattr(pattern, "MOST_ELEMENTS", most)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.a = nn.Linear(5, 6), nn.Parameter(torch.randn(2, 6, 1))

        def forward(self, x: Tensor, near: Tensor) -> Tensor:
            h = self.w(x).view(-1, 2, 3).permute(1, 0, 2)
            e = F.leaky_relu(h @ self.a[:, :3] + (h @ self.a[:, 3:]).mT, 0.2)
            return (torch.where(near, e, -9e15 * torch.ones_like(e)).softmax(-1) @ h).mean(0)

    with capture() as graph, torch.no_grad():
        Graph()(torch.randn(7, 5), torch.rand(7, 7) > 0.5)
    assert [each.refused != "" for each in find_patterns(graph) if each.pattern == "attention"] == [True]


@pytest.mark.parametrize("averaged", [True, False])
def test_L13_attention_whose_probabilities_are_given_too_is_attention(averaged: bool) -> None:
    """As torch's own module gives them unless it is told not to; a mean that something else computes with, or not."""
    module = nn.MultiheadAttention(64, 4, batch_first=True)
    with capture() as graph:
        x = torch.randn(8, 16, 64)
        module(x, x, x, average_attn_weights=averaged)[0].sum()
    (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
    assert not found.refused and found.verified and found.attributes["form"] == "written out"
    assert ("aten::mean" in {graph.nodes[n].op for n in range(len(graph))}) == averaged


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("repeated", [False, True])
def test_L13_heads_that_share_keys_are_counted_in_each_form(tokens: int, repeated: bool) -> None:
    """Without a copy of the keys for each head, they were told to be as many; of one token, only those of keys."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (f(x).view(2, -1, n, 4).transpose(1, 2) for f, n in ((self.q, 4), (self.k, 2), (self.v, 2)))
            q, k = q * 2, k * 2
            if repeated:
                k, v = (t[:, :, None].expand(2, 2, 2, -1, 4).reshape(2, 4, -1, 4) for t in (k, v))
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=not repeated)

    with torch.no_grad(), capture() as graph:
        Grouped()(torch.randn(2, tokens, 16))
    (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
    assert [found.attributes[name] for name in ("heads", "kv_heads", "kind")] == [4, 2, "grouped-query"]


def test_L13_keys_that_are_repeated_and_then_scaled_are_those_of_fewer_heads() -> None:
    """As torch's attention of operations has it, which gpt-fast decodes with: some calls of a place were multi-head."""
    q, k, v = torch.randn(2, 4, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    with torch.no_grad(), capture() as graph:
        keys, values = (nn.Linear(4, 4)(t).repeat_interleave(2, 1) for t in (k, v))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            F.scaled_dot_product_attention(nn.Linear(4, 4)(q), keys, values)
    (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
    assert [found.attributes[name] for name in ("heads", "kv_heads", "kind")] == [4, 2, "grouped-query"]


def test_L13_one_query_for_each_head_of_keys_that_few_have_is_a_head_each() -> None:
    q, k, v = torch.randn(2, 16), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    with torch.no_grad(), capture() as graph:
        heads = nn.Linear(16, 16)(q).view(2, 1, 4, 4).transpose(1, 2) * 2
        F.scaled_dot_product_attention(heads.view(2, 2, 2, 4), k, v)
    (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
    assert [found.attributes[name] for name in ("heads", "kv_heads", "kind")] == [4, 2, "grouped-query"]


@pytest.mark.parametrize("fused", [True, False])
def test_L13_keys_that_are_written_in_parts_are_as_wide_as_they_are_read(fused: bool) -> None:
    """As DeepSeek's latent attention of transformers has it: its last part, of 2, was taken for the keys, and the whole
    search for the pattern failed in an estimate."""
    q, rest = torch.randn(2, 4, 3, 6), torch.randn(2, 4, 3, 4)
    with torch.no_grad(), capture() as graph:
        k = torch.empty(2, 4, 3, 6)
        k[..., :4] = nn.Linear(4, 4)(rest)
        k[..., 4:] = nn.Linear(4, 2)(rest)
        backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION if fused else torch.nn.attention.SDPBackend.MATH
        with torch.nn.attention.sdpa_kernel(backend):
            F.scaled_dot_product_attention(nn.Linear(6, 6)(q), k, nn.Linear(4, 6)(rest))
    (found,) = [each for each in find_patterns(graph) if each.pattern == "attention"]
    assert (found.verified, found.refused) == (True, "")
    assert [found.attributes[name] for name in ("heads", "kv_heads", "scale")] == [4, 4, "1/sqrt(d)"]
