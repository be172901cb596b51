"""L13: patterns of others, and the example of the page."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, Pattern, find, find_patterns, library

PAGE = Path(__file__).parents[2] / "docs" / "PATTERNS.md"


@pytest.fixture
def silu() -> Pattern:
    (code,) = re.findall(r"test_library.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    pattern: Pattern = names["Silu"]()
    return pattern


def found(pattern: Pattern, by: float) -> list[Instance]:
    x = torch.randn(3, 4)
    with capture() as graph:
        y = x + 1
        y * torch.sigmoid(y if by == 1 else by * y)
    return find_patterns(graph, [pattern])


def test_L13_the_pages_pattern_is_found_and_proven(silu: Pattern) -> None:
    (instance,) = [each for each in found(silu, 1.0) if each.verified]
    assert (instance.pattern, len(instance.nodes)) == ("silu by hand", 2)


def test_L13_the_pages_pattern_refuses_another_function(silu: Pattern) -> None:
    assert [each.refused for each in found(silu, 2.0)] == ["the gate is of something else"]


def test_L13_patterns_are_found_again_after_an_optimizer_has_written_the_weights() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(x)))

    with capture() as graph:
        block = Block()
        optimizer = torch.optim.SGD(block.parameters(), 0.1)
        for _ in range(2):
            block(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    found = [(each.pattern, each.verified) for each in find_patterns(graph)]
    assert found == [("feed-forward", True)] * 2 + [("optimizer update", True)] * 2


class EntryPoint:
    name = "mine"

    def __init__(self, what: Any) -> None:
        self.what = what

    def load(self) -> Any:
        return self.what


def entry_point(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [EntryPoint(what)])
    library.cache_clear()
    monkeypatch.setattr(find, "library", library)


def test_L13_entry_points_come_before_ours(monkeypatch: pytest.MonkeyPatch, silu: Pattern) -> None:
    entry_point(monkeypatch, silu)
    try:
        assert [pattern.name for pattern in library()][:2] == ["silu by hand", "rotary embedding"]
    finally:
        library.cache_clear()


def test_L13_an_entry_point_that_is_no_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, object())
    try:
        with pytest.raises(TypeError, match="expected a Pattern with a name from the entry point mine, got <object"):
            library()
    finally:
        library.cache_clear()


@pytest.mark.parametrize("module", [nn.LayerNorm(6), nn.GroupNorm(2, 4), nn.RMSNorm(6)])
def test_L13_normalizations_as_one_call_are_proven(module: nn.Module) -> None:
    with capture() as graph, torch.no_grad():
        module(torch.randn(3, 4, 6))
    (instance,) = find_patterns(graph)
    assert (instance.pattern, instance.verified) == ("normalization", True)


@pytest.mark.parametrize(("power", "names"), [(2, ["normalization"]), (4, [])])
def test_L13_a_written_out_root_mean_square_is_proven(power: int, names: list[str]) -> None:
    weight, x = nn.Parameter(torch.randn(6)), torch.randn(3, 6)
    with capture() as graph, torch.no_grad():
        y = x + 1
        weight * (y * torch.rsqrt(y.pow(power).mean(-1, keepdim=True) + 1e-6))
    assert [each.pattern for each in find_patterns(graph) if each.verified] == names


@pytest.mark.parametrize(
    ("axis", "scale", "offset", "names"),
    [
        (-1, 6**0.5, 0.0, ["normalization"]),
        (1, 4**0.5, 1.0, ["normalization"]),
        (-1, 2.0, 0.0, []),
        (-1, None, 0.0, []),
    ],
)
def test_L13_a_vector_made_as_long_as_its_root_mean_square_is_one_is_proven(
    axis: int, scale: float | None, offset: float, names: list[str]
) -> None:
    """Divided by its length, it is normalized only with the root of its size; the weight may come before that."""
    weight, x = nn.Parameter(torch.randn(1, 1, 6)), torch.randn(3, 4, 6)
    with capture() as graph, torch.no_grad():
        y = F.normalize(x + 1, dim=axis) * (weight + offset)
        if scale is not None:
            y * scale
    assert [each.pattern for each in find_patterns(graph) if each.verified] == names


ROWS = nn.Parameter(torch.randn(5, 3))


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (lambda ids: ROWS[ids], True),
        (lambda ids: torch.index_select(ROWS, 0, ids[0]), True),
        (lambda ids: ROWS.float()[ids[0], :], True),
        (lambda ids: ROWS[:, ids[0] % 3], False),
        (lambda ids: torch.index_select(ROWS, 1, ids[0] % 3), False),
        (lambda ids: ROWS[ids > 2][:1] if ids.dim() == 1 else ROWS[ids[0, :] > -1, ids[0] % 3], False),
        (lambda ids: torch.randn(5, 3)[ids], False),
    ],
)
def test_L13_rows_that_are_picked_from_a_table_of_weights_are_an_embedding(
    program: Callable[[torch.Tensor], object], found: bool
) -> None:
    ids = torch.tensor([[0, 4, 1, 1, 2]])
    with capture() as graph, torch.no_grad():
        program(ids)
    assert [(each.pattern, each.verified) for each in find_patterns(graph)] == [("embedding", True)] * found


def test_L13_an_embedding_is_proven() -> None:
    table = nn.Embedding(5, 3)
    with capture() as graph, torch.no_grad():
        table(torch.tensor([[0, 4, 1]]))
    (instance,) = find_patterns(graph)
    assert (instance.pattern, instance.verified, instance.place) == ("embedding", True, ("Embedding.weight",))


class Placed(nn.Module):
    """Its table of sines and the first values of its weights are written in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, padding_idx=0)
        at = torch.arange(20.0)[:, None] * torch.exp(-torch.arange(0, 8, 2.0))
        places = torch.zeros(20, 8)
        places[:, 0::2], places[:, 1::2] = at.sin(), at.cos()
        self.register_buffer("places", places)
        self.norm, self.conv = nn.LayerNorm(8), nn.Conv1d(8, 8, 3)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        with torch.no_grad():
            self.norm.weight[0] = self.conv.bias[0] = self.conv.weight[0, 0, 0] = 2.0
            for name, weight in self.lstm.named_parameters():
                weight[16:32].fill_(1.0) if "bias" in name else nn.init.orthogonal_(weight[:16])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids) + self.places[: ids.shape[1]])
        return self.lstm(self.conv(x.mT).mT)[0]


def test_L13_blocks_whose_weights_were_first_written_in_parts_are_proven() -> None:
    with capture() as graph, torch.no_grad():
        Placed()(torch.ones(3, 5, dtype=torch.int64))
    found = {each.pattern: each for each in find_patterns(graph)}
    wanted = {"embedding", "normalization", "convolution", "recurrent cell"}
    assert wanted <= found.keys() and all(found[name].verified and not found[name].refused for name in wanted)
    assert found["embedding"].place == ("Placed.table.weight",)


@pytest.mark.parametrize(
    ("module", "name"),
    [(nn.Conv1d(4, 4, 3), "convolution"), (nn.LayerNorm(8), "normalization"), (nn.MSELoss(), "loss")],
    ids=str,
)
def test_L13_blocks_whose_input_was_written_in_parts_are_proven(module: nn.Module, name: str) -> None:
    x = torch.randn(3, 4, 8)
    with capture() as graph, torch.no_grad():
        y = x + 1
        y[:, 0] = 1.0
        module(y, x) if name == "loss" else module(y)
    (found,) = (each for each in find_patterns(graph) if each.pattern == name)
    assert found.verified and not found.refused
