"""R5: what is made of little is computed on each worker that reads it, where that costs less than a transfer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch.cli.plan_table import lines
from mindtorch.engine import passes
from mindtorch.engine.remote import placing
from mindtorch.engine.remote.division import parted
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.pricing import Plan
from mindtorch.engine.remote.repeated import Repeatable, repeated
from mindtorch.engine.remote.run_time import Costs

from ..executors import using
from .test_homes import record
from .test_placing import DEVICE, same

pytestmark = pytest.mark.usefixtures("nothing_pending")

LARGE = 1 << 20


# ---- records that are written down here ------------------------------------------------------------------------------
def again(records: Sequence[Any], places: Sequence[int], homes: dict[int, int], **given: Any) -> dict[int, set[int]]:
    """All records may run on several workers, unless `given` says otherwise. What 1 and 2 hold is small, 9 is large."""
    sizes = {1: 64, 2: 64, 9: LARGE, **{slot: n for made in records for slot, n in made[7] if n}}
    can = Repeatable(**{"positions": range(len(records)), "message": 5e-4, "byte": 1.2e-9, **given})
    return repeated(records, places, sizes, {slot: {home} for slot, home in homes.items()}, can)


def mask(of: Sequence[int] = ()) -> list[Any]:
    """5, made of that, its view, and 6, made of the view; another worker reads it."""
    return [record(of, [(5, LARGE)]), record([5], [(5, 0)]), record([5], [(6, LARGE)]), record([6, 9], [(7, LARGE)])]


def test_R5_what_is_made_of_nothing_is_made_on_each_worker_that_reads_it() -> None:
    assert again(mask(), [0, 0, 0, 1], {9: 1}) == {0: {1}, 1: {1}, 2: {1}}
    assert again(mask(), [0, 0, 0, 0], {9: 0}) == {}
    both = [*mask(), record([6], [(8, 4)])]
    assert again(both, [0, 0, 0, 1, 2], {9: 1}) == {0: {1, 2}, 1: {1, 2}, 2: {1, 2}}
    # What makes it is on two workers already: each has all of it then.
    assert again(mask(), [0, 1, 1, 0], {9: 0}) == {0: {1}, 1: {0}, 2: {0}}


def test_R5_what_is_made_of_small_storages_is_too_and_these_are_copied() -> None:
    assert again(mask([1, 2]), [0, 0, 0, 1], {1: 0, 2: 0, 9: 1}) == {0: {1}, 1: {1}, 2: {1}}
    twice = {0: {1}, 1: {1}, 2: {1}}
    found = parted(mask([1]), [0, 0, 0, 1], {1: 0, 9: 1}, 0, {}, (), {}, twice)
    assert [(part.worker, part.positions, part.again is not None) for part in found.parts] == [
        (0, [0, 1, 2], False), (1, [0, 1, 2], True), (1, [3], False),
    ]  # fmt: skip
    assert found.moves == [(1, 0, 1)] and found.messages == 1
    assert (1, 5, 1, False) in found.stays and (3, 6, 1, False) in found.stays


def test_R5_bytes_that_come_count_as_much_as_those_that_need_not_cross() -> None:
    """How long a message may take depends on the bytes that come, one by one, and on none that are there."""

    def longest(of: list[int], homes: dict[int, int]) -> int:
        """Message, in bytes that would cross meanwhile, up to which it is made there, too."""
        may = [
            n for n in range(LARGE - 512, LARGE + 512, 32) if again(mask(of), [0, 0, 0, 1], homes, byte=1.0, message=n)
        ]
        return max(may) if len(may) < 32 else 2 * LARGE

    one, two = longest([1], {1: 0, 9: 1}), longest([1, 2], {1: 0, 2: 0, 9: 1})
    assert LARGE - 512 < two == one - 64 < LARGE
    assert longest([1, 2], {1: 0, 2: 1, 9: 1}) == one and longest([1], {1: 1, 9: 1}) == 2 * LARGE


@pytest.mark.parametrize(
    ("records", "places", "given"),
    [
        (mask([9]), [0, 0, 0, 1], {}),  # of what is as large
        (mask(), [0, 0, 0, 1], {"positions": [0, 1]}),  # by a call that may not
        (mask(), [0, 0, 0, 1], {"positions": [1, 2]}),
        ([*mask(), record([6], [], [6])], [0, 0, 0, 1, 0], {}),  # and written later
        ([record([1], [], [1]), *mask([1])], [0, 0, 0, 0, 1], {}),  # of what is written
        (mask(), [0, 0, 0, 1], {"byte": 1e-11}),  # by a fast connection
        (mask(), [0, 0, 0, 1], {"alike": ["one processor", "another"]}),
        ([record([] if k == 0 else [20 + k], [(21 + k, 64 if k < 70 else LARGE)]) for k in range(71)]
         + [record([91], [(92, 4)])], [0] * 71 + [1], {}),  # by too many calls
    ],
)  # fmt: skip
def test_R5_other_values_cross(records: list[Any], places: list[int], given: dict[str, Any]) -> None:
    assert again(records, places, {1: 0, 2: 0, 9: 0}, **given) == {}


# ---- programs --------------------------------------------------------------------------------------------------------
WIDTH, TOKENS, BATCH = 32, 96, 2
MASK = BATCH * TOKENS * TOKENS * 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x).split(WIDTH, -1)
        return x + self.dropout(self.out((q @ k.transpose(-1, -2) / 8 + mask).softmax(-1) @ v))


class Masked(nn.Module):
    """Makes a mask of the batch's padding, for all of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(50, WIDTH), nn.ModuleList(Attention() for _ in range(4))

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        seen = (at < lengths[:, None])[:, None, :] & (at[:, None] >= at)
        mask = torch.zeros(seen.shape, device=ids.device).masked_fill(~seen, -1e9)
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return x


WORKERS = {f"Masked{name and '.' + name}": int(name[7]) // 2 if "layers." in name else 0
           for name, _ in Masked().named_modules()}  # fmt: skip


@pytest.fixture
def chosen() -> Iterator[Callable[[Any], None]]:
    """Sets passes."""
    before = mindtorch.set_passes(None)
    yield mindtorch.set_passes
    mindtorch.set_passes(before)


def placed_on(kind: Callable[[], Any]) -> PlacingExecutor:
    executor = PlacingExecutor([kind() for _ in range(2)], 1 << 30)
    executor._workers = dict(WORKERS)
    executor._costs = Costs(1e-4, 1e-8)  # a slow connection
    return executor


def run(device: str, trains: bool, executor: PlacingExecutor | None = None) -> Any:
    torch.manual_seed(3)
    model = Masked().to(device)
    step, out, crossed = torch.optim.SGD(model.parameters(), lr=0.1), [], []
    for k in range(3):
        ids = (torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % (k + 7)).to(device)
        lengths = torch.tensor([TOKENS - k, TOKENS - 9 * k]).to(device)
        if executor is not None:
            executor.moves.clear()
            executor.joined = 0
        torch.manual_seed(7 + k)
        with torch.set_grad_enabled(trains):
            loss = model(ids, lengths).square().mean()
        if trains:
            step.zero_grad()
            loss.backward()
            step.step()
        out.append(loss.item())
        if executor is not None:
            mindtorch.flush("test")
            crossed.append((dict(executor.moves), executor.joined))
    return (out, list(model.parameters())), crossed


@pytest.mark.parametrize("kind", [mindtorch.LoopbackExecutor, mindtorch.PipeExecutor])
@pytest.mark.parametrize("trains", [False, True])
def test_R5_a_mask_is_computed_on_both_workers_and_the_bits_are_eager_s(
    kind: Callable[[], Any], trains: bool, chosen: Callable[[Any], None]
) -> None:
    """Of each batch, only the lengths cross, with what the layers give each other."""
    activations, gradients = BATCH * TOKENS * WIDTH * 4, BATCH * TOKENS * WIDTH * 4 * trains
    found: dict[bool, Any] = {}
    for on in (True, False):
        chosen(None if on else ["in place"])
        before = mindtorch.stats()["passes"].get("recompute", 0)
        executor = placed_on(kind)
        with using(executor):
            same(lambda device: run(device, trains)[0])
            found[on] = run(DEVICE, trains, executor)[1]
            gc.collect()
        calls = mindtorch.stats()["passes"].get("recompute", 0) - before
        assert (calls > 0) == on and (sum(executor.spared.values()) >= 6 * MASK) == on
    for on, crossed in found.items():
        for moves, joined in crossed[1:]:  # the first finds generators where the program before left them
            assert moves[0, 1] == activations + (16 if on else MASK)
            assert moves.get((1, 0), 0) == gradients
            assert joined <= 4 + on


def test_R5_a_plan_tells_what_is_computed_again() -> None:
    found: list[list[Plan]] = []
    before = placing.tell(found.append)
    try:
        executor = placed_on(mindtorch.LoopbackExecutor)
        assert executor._workers is not None
        del executor._workers["Masked.layers.0"]  # so there is a plan
        with using(executor):
            run(DEVICE, False)
    finally:
        placing.tell(*before)
    ((best, *_),) = found
    assert best.again.keys() == {1} and best.again[1] >= 2 * MASK and best.moved < MASK
    assert sum("computed again instead of moved: " in line for line in lines([best])) == 1


def test_R5_what_a_cache_knows_is_not_computed_again(chosen: Callable[[Any], None]) -> None:
    """Its results are copied to the other worker, as without the pass."""
    chosen(None)
    executor = placed_on(mindtorch.LoopbackExecutor)
    with using(executor), mindtorch.cache():
        for _ in range(2):
            same(lambda device: run(device, False)[0])
    assert sum(executor.moves.values()) > 0


def test_R5_calls_that_may_run_twice_depend_on_their_arguments_alone() -> None:
    """None of them draws, writes, or leaves memory as it is."""
    names = passes.repeatable()
    assert {"aten::arange", "aten::masked_fill", "aten::zeros"} <= names
    for name in sorted(names):
        assert not name.endswith("_") and not any(word in name for word in ("rand", "empty", "dropout", "bernoulli"))
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
        for overload in (getattr(packet, each) for each in packet.overloads()):  # __getattr__ makes new ones
            assert torch.Tag.nondeterministic_seeded not in overload.tags, overload
    mindtorch.set_passes(["in place"])
    try:
        assert passes.repeatable() == frozenset()
    finally:
        mindtorch.set_passes(None)
