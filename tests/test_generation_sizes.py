"""How large what a generation keeps is, where calls get it in lists and dicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mindtorch.engine.semantics import generation
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

from .generating import WIDTH, WORDS, prompt


class Hooked(nn.Module):
    """A decoder whose keys and values forward hooks keep in a dict, beside those of its encoder, as Whisper does."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.keys = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.across = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, ids: Tensor, xa: Tensor, cache: dict[nn.Module, Tensor]) -> Tensor:
        x = self.embed(ids)
        for key, across in zip(self.keys, self.across, strict=True):
            key(x)
            if across not in cache:
                across(xa)
            x = x + cache[key].mean(1, keepdim=True) + cache[across].mean(1, keepdim=True)
        return self.head(x)


@pytest.mark.parametrize("where", ["here", "estimated"])
def test_C2_a_cache_in_a_dict_is_counted_whole(where: str) -> None:
    """Two thirds of Whisper's keys and values were: the memory of those that a call replaced was given to new ones,
    which were taken for them. What the decoder keeps of its encoder, written once, was missing."""

    def program() -> int:
        model, cache = Hooked(5).eval(), dict[nn.Module, Tensor]()

        def keep(module: nn.Module, _: Any, made: Tensor) -> None:
            cache[module] = torch.cat((cache[module], made), 1).detach() if module in cache else made

        for module in (*model.keys, *model.across):
            module.register_forward_hook(keep)
        generated, ids, xa = generation.Generated(), prompt("cpu"), torch.randn(2, 30, WIDTH)
        for _ in range(8):
            ids = model(ids, xa, cache)[:, -1:].argmax(-1)
        assert sum(t.nbytes for t in cache.values()) == 5 * 2 * (prompt("cpu").shape[1] + 7 + 30) * WIDTH * 4
        generated.ends("main")
        facts = generated.facts("main")
        assert facts is not None
        found: int = facts["kv_cache"]["bytes"]
        return found

    with torch.no_grad(), Profiler(whole=True) if where == "here" else Estimator(target=targets.find("l4")):
        found = program()
    assert found == 5 * 2 * (prompt("cpu").shape[1] + 7 + 30) * WIDTH * 4
