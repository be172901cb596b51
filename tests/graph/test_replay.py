"""L6, L13: a captured graph holds all that values depend on: run again on what a program got, it gives its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.patterns.rerun import CannotRun, run

Inputs = dict[Any, torch.Tensor]


def views() -> Any:
    x = torch.randn(4, 6)
    a, b = x[0], x[1]
    x.add_(1)
    c = a * b
    x[:, 2:4].mul_(torch.arange(4.0)[:, None])
    x.t()[3] = c.sum()
    y = x.view(6, 4).t()
    y.diagonal().zero_()
    return x.sum(), a + 1, y.contiguous(), torch.as_strided(x, (3,), (2,), 1).exp()


def cache() -> Any:
    """Written by slices, read whole, as a generation's."""
    kept = torch.zeros(2, 8, 4)
    found = []
    for at in range(3):
        kept[:, at] = torch.randn(2, 4)
        found.append(torch.randn(2, 1, 4) @ kept[:, : at + 1].transpose(1, 2))
    return kept.sum(1), *found


def outs() -> Any:
    x, y = torch.randn(3, 4), torch.empty(3, 4)
    torch.mul(x, 2, out=y)
    z = y.relu_()
    torch.add(y, z, out=x)
    return x, torch.cat([x, y]).cumsum(0), *torch.max(x, 1)


def train(model: nn.Module, x: tuple[int, ...], optimizer: Callable[..., Any], **how: Any) -> Callable[[], Any]:
    def program() -> Any:
        step = optimizer(model.parameters(), **how)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(x)).flatten(1), torch.zeros(x[0], dtype=torch.long))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            step.step()
            step.zero_grad()
            losses.append(loss.detach() + 0)
        return losses

    return program


def half() -> Any:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(torch.randn(4, 8), torch.randn(3, 8))
    return x.softmax(-1), y, x.float().mean(), x.to(torch.float64).std()


def recurrent() -> Any:
    cells = [nn.LSTMCell(4, 5), nn.GRUCell(4, 5)]
    x, found = torch.randn(3, 4), []
    for cell in cells:
        state = None
        for _ in range(3):
            state = cell(x, state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return [each.detach() for each in found]


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.Dropout(0.3), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(36, 5))  # fmt: skip


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True)


def family(name: str, **sizes: Any) -> Callable[[], Any]:
    """A step of training a small model of one of transformers' families, dropout included."""

    def program() -> Any:
        from transformers import AutoConfig, AutoModel

        model = AutoModel.from_config(AutoConfig.for_model(name, vocab_size=99, pad_token_id=0, **sizes)).train()
        step = torch.optim.SGD(model.parameters(), 0.1)
        ids = torch.randint(1, 99, (2, 7))
        more = {"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {}
        out = model(input_ids=ids, **more)[0]
        out.square().mean().backward()
        step.step()
        return out.detach(), *model.parameters()

    return program


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
FAMILIES = {
    "t5": family("t5", d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8),
    "mamba": family("mamba", hidden_size=32, num_hidden_layers=2),
    "deberta-v2": family("deberta-v2", **_SIZES),
    "mixtral": family("mixtral", num_key_value_heads=2, head_dim=8, num_local_experts=4, **_SIZES),
}

PROGRAMS: dict[str, Callable[[], Any]] = {
    "views": views,
    "cache": cache,
    "outs": outs,
    "half": half,
    "recurrent": recurrent,
    "convolutions": lambda: train(convolutions(), (2, 3, 8, 8), torch.optim.SGD, lr=0.1, momentum=0.9)(),
    "convolutions, channels last": lambda: train(
        convolutions().to(memory_format=torch.channels_last), (2, 3, 8, 8), torch.optim.Adam)(),
    "encoder": lambda: train(encoder(), (2, 3, 8), torch.optim.AdamW)(),
    "encoder, one by one": lambda: train(encoder(), (2, 3, 8), torch.optim.AdamW, foreach=False)(),
}  # fmt: skip


@pytest.mark.parametrize("name", [*PROGRAMS, *FAMILIES])
def test_L13_a_captured_graph_runs_again_to_its_own_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in FAMILIES:
        pytest.importorskip("transformers")
    data: Inputs = {}
    source_of = ComputationGraph._source_of

    def kept(graph: ComputationGraph, tensor: torch.Tensor) -> tuple[int, int]:
        before = len(graph)
        found = source_of(graph, tensor)
        if len(graph) > before:
            data[found] = tensor.detach().clone()
        return found

    monkeypatch.setattr(ComputationGraph, "_source_of", kept)
    torch.manual_seed(0)
    with capture() as graph:
        wanted = (PROGRAMS | FAMILIES)[name]()
        places = [graph._source_of(t) for t in wanted]
    torch.manual_seed(0)
    values = dict(data)
    run(graph, [node.id for node in graph.nodes if node.kind == "op"], values, exact=True)
    for place, expected in zip(places, wanted, strict=True):
        assert torch.equal(values[place].reshape(expected.shape), expected), graph.nodes[place[0]]


def test_L13_operators_that_believe_sizes_are_not_run_on_those_that_do_not_fit() -> None:
    """A fused step writes as many numbers as the weight has, wherever that is: the process ended."""
    weight = nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight], momentum=0.9, fused=True)
    with capture() as graph:
        for _ in range(2):
            weight.grad = torch.ones(8, 8)
            optimizer.step()
    step = max(i for i, node in enumerate(graph.nodes) if node.op == "aten::_fused_sgd_")
    sizes = [torch.ones(8, 8), *(torch.ones(()) for _ in graph.nodes[step].inputs[1:])]
    with pytest.raises(CannotRun, match=r"_fused_sgd_: expected a tensor of \(8, 8\), got one of \(\)"):
        run(graph, [step], dict(zip(graph.nodes[step].inputs, sizes, strict=True)))
