"""Known values and assumptions of estimates (SPEC C4), against torch on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_programs import run_program
from torch.utils._python_dispatch import TorchDispatchMode

import mindtorch
from mindtorch._ext import lazy as core
from mindtorch.base.errors import UsageError
from mindtorch.engine.record import predict
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import assumptions, known_values
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator

META = torch.device("meta")


@pytest.fixture()
def knowing() -> Iterator[None]:
    with known_values.knowing():
        yield


real = torch._C.DisableTorchFunction  # while it is entered, tensors have data in an estimate, too


def is_known(t: Any) -> bool:
    return core.is_kept(t._handle)


def unknown(*size: int, dtype: torch.dtype = torch.float32) -> Any:
    return mindtorch.rand(*size, device="meta").to(dtype)


class Through(TorchDispatchMode):
    """Sees every op at the dispatch level and does it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


# ---- random programs -------------------------------------------------------------------------------------------------
@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(["whole", "no_grad", "dispatch", "inference"]))
def test_C4_integer_programs_are_exact(seed: int, level: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(known_values.knowing())
        if level == "no_grad":
            stack.enter_context(torch.no_grad())
        if level == "inference":
            stack.enter_context(torch.inference_mode())
        if level == "dispatch":
            stack.enter_context(Through())
        torch.manual_seed(seed)
        run_program(seed, 25)


# ---- what is known ---------------------------------------------------------------------------------------------------
def test_C4_only_while_it_is_installed() -> None:
    with known_values.knowing():
        t = mindtorch.arange(3, device="meta")
        assert t.tolist() == [0, 1, 2] and type(torch.ones(1, device="meta")) is not torch.Tensor
    for read in (t.tolist, mindtorch.arange(3, device="meta").sum().item, lambda: t[t > 1]):
        with pytest.raises(mindtorch.NoDataError):
            read()
    assert type(torch.ones(1, device="meta")) is torch.Tensor


def test_C4_large_tensors_stay_unknown(knowing: None) -> None:
    assert is_known(mindtorch.zeros(predict.MOST_KNOWN, dtype=torch.int64, device="meta"))
    assert not is_known(mindtorch.zeros(predict.MOST_KNOWN + 1, dtype=torch.int64, device="meta"))
    assert is_known(mindtorch.linspace(0, 1, predict.MOST_KNOWN_FLOATS, device="meta"))
    assert not is_known(mindtorch.zeros(predict.MOST_KNOWN_FLOATS + 1, device="meta"))
    assert not is_known(mindtorch.arange(1100, device="meta").unsqueeze(1) == mindtorch.arange(1100, device="meta"))
    wide = mindtorch.ones(1, dtype=torch.int64, device="meta").expand(10**12)
    assert not is_known(wide.sum()) and wide[5].item() == 1


def test_C4_random_floats_and_weights_stay_unknown(knowing: None) -> None:
    with real():
        weight = torch.ones(3)
    for t in (
        mindtorch.rand(3, device="meta"),
        mindtorch.randn(3, device="meta"),
        mindtorch.empty(3, device="meta"),
        mindtorch.zeros(3, device="meta").uniform_(),
        mindtorch.zeros(3, device="meta").normal_(),
        mindtorch.engine.record.meta.as_meta(weight, -1),
        torch.bernoulli(mindtorch.full((3,), 0.5, device="meta")),
    ):
        assert not is_known(t)


def test_C4_constant_floats_are_known(knowing: None) -> None:
    rates = mindtorch.linspace(0, 0.1, 12, device="meta")
    with real():
        expected = torch.linspace(0, 0.1, 12).tolist()
    assert [r.item() for r in rates] == expected
    step = mindtorch.tensor(0.0, device="meta")
    step += 1
    assert 0.9 ** step.item() == 0.9 and f"{step:.1f}" == "1.0" and known_values.assumed() == []


def test_C4_draws_are_those_of_torch(knowing: None) -> None:
    torch.manual_seed(7)
    g, h = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    with real():
        expected = [
            torch.randperm(9).tolist(),
            torch.randint(0, 99, (4,)).tolist(),
            torch.empty(3, dtype=torch.int64).random_(9).tolist(),
        ]
        permuted = torch.randperm(5, generator=h).tolist()
        drawn = torch.empty((), dtype=torch.int64).random_(generator=h).item()
    torch.manual_seed(7)
    assert [
        mindtorch.randperm(9, device="meta").tolist(),
        mindtorch.randint(0, 99, (4,), device="meta").tolist(),
        mindtorch.empty(3, dtype=torch.int64, device="meta").random_(9).tolist(),
    ] == expected
    assert torch.randperm(5, generator=g, device="meta").tolist() == permuted
    assert mindtorch.empty((), dtype=torch.int64, device="meta").random_(generator=g).item() == drawn


def test_C4_plain_tensors_that_meet_are_known(knowing: None) -> None:
    with real():
        plain, row = torch.tensor([1, 2, 3]), torch.tensor([[1]])[0].expand(4)
    t = mindtorch.arange(3, device="meta") + plain
    moved = plain.to("meta")
    plain.zero_()
    assert t.tolist() == [1, 3, 5] and moved.tolist() == [1, 2, 3] and plain.to(META, torch.int8).tolist() == [0, 0, 0]
    assert mindtorch.as_tensor(numpy.array([4, 5]), device="meta").tolist() == [4, 5]
    assert mindtorch.tensor([t[0], t[2]], device="meta").tolist() == [1, 5]
    assert row.to("meta").tolist() == [1, 1, 1, 1]


def test_C4_moves_stay_without_data(knowing: None) -> None:
    t = mindtorch.arange(6, device="meta").view(2, 3).t()
    for there in (t.cpu(), t.to("cpu"), t.to("meta:1"), torch.zeros_like(t, device="cpu") + t.cpu(), t.cuda()):
        assert isinstance(there, mindtorch.MetaTensor) and there.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert t.cpu().device == torch.device("cpu") and t.to("cpu").stride() == (1, 3)
    t.cpu().add_(1)
    assert t[0, 0].item() == 0
    assert known_values.assumed() == []


def test_C4_moves_are_differentiable(knowing: None) -> None:
    w = torch.nn.Parameter(unknown(3, 3))
    (w @ w).to("cpu").sum().to("meta").backward()
    assert w.grad is not None and w.grad.device == META


def test_C4_printing_shows_known_values(knowing: None) -> None:
    t = mindtorch.arange(3, device="meta")
    assert repr(t).startswith("tensor([0, 1, 2], device='meta'") and repr(unknown(2)).startswith("tensor(..., ")
    assert known_values.assumed() == []


def test_C4_numpy_shares_the_memory(knowing: None) -> None:
    t = mindtorch.zeros(3, dtype=torch.int64, device="meta")
    t.numpy()[1] = 5
    assert t.tolist() == [0, 5, 0]


def test_C4_gradients_of_known_floats(knowing: None) -> None:
    x = mindtorch.linspace(0, 1, 5, device="meta").requires_grad_()
    y = x[x.detach() > 0.3]
    (y * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 2, 2, 2] and known_values.assumed() == []


def test_C4_a_weight_that_is_moved_gets_its_gradient(knowing: None) -> None:
    w = torch.nn.Parameter(unknown(3))
    (w.to("cpu") * 2).sum().backward()
    assert w.grad is not None and w.grad.device == META


# ---- what is lost ----------------------------------------------------------------------------------------------------
LOSING: list[Callable] = [
    lambda t, u: t.add_(u), lambda t, u: t[1:].copy_(u[1:]), lambda t, u: t.__setitem__(0, u[0]),
    lambda t, u: torch.add(t, u, out=t),
    lambda t, u: t.masked_fill_(u.bool(), 1), lambda t, u: t.index_put_((u,), t), lambda t, u: t.scatter_(0, u, 1),
    lambda t, u: torch._foreach_add_([t, u.clone()], [u, u]), lambda t, u: t.__setitem__(u.bool(), 7),
    lambda t, u: torch.cumsum(u, 0, out=t), lambda t, u: t.resize_(9), lambda t, u: t.set_(u.clone()),
]  # fmt: skip


@pytest.mark.parametrize("write", LOSING)
@pytest.mark.parametrize("level", ["whole", "dispatch"])
def test_C4_what_is_unknown_never_leaves_a_stale_value(knowing: None, write: Callable, level: str) -> None:
    t = mindtorch.arange(4, device="meta")
    view, twin, kept = t[2:], t.detach(), t.clone()
    with Through() if level == "dispatch" else ExitStack():
        write(t, unknown(4, dtype=torch.int64))
    assert core.kept(t._handle) is None and is_known(kept)
    if write not in LOSING[-2:]:  # these give t another storage, or more of it
        assert core.kept(view._handle) is None and core.kept(twin._handle) is None


def test_C4_a_lost_tensor_is_known_again_once_it_is_overwritten(knowing: None) -> None:
    t = mindtorch.arange(4, device="meta")
    view = t[1:]
    t.add_(unknown(4, dtype=torch.int64))
    view.fill_(1)
    assert not is_known(t)  # t[0] is not
    for source, expected in (
        (mindtorch.full((4,), 3, device="meta"), [3, 3, 3]),
        (mindtorch.arange(4, device="meta"), [1, 2, 3]),
    ):
        t.copy_(source)
        assert view.tolist() == expected
        t.add_(unknown(4, dtype=torch.int64))


def test_C4_what_is_written_elsewhere_stays_known(knowing: None) -> None:
    base, source = unknown(9).long(), mindtorch.arange(3, device="meta")
    base[:3].copy_(source)
    base[3:6] += source
    assert source.tolist() == [0, 1, 2] and not is_known(base)


def test_C4_a_refused_fill_leaves_the_unknown_unknown(knowing: None) -> None:
    t = unknown(3, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="without overflow"):
        t.fill_(300)
    assert not is_known(t)


def test_C4_tensors_of_torchs_own_meta_device_are_unknown(knowing: None) -> None:
    t = mindtorch.arange(3, device="meta")
    found = tuple(torch.combinations(t).shape), [row["op"] for row in known_values.assumed()]
    # Until 2.14 C++ makes a mask on torch's own meta device; later it needs none.
    assert found in [((9, 2), ["masked_select"]), ((3, 2), [])]


def test_C4_what_follows_whatever_is_unknown(knowing: None) -> None:
    u = unknown(3, dtype=torch.bool)
    true, false = (mindtorch.full((3,), v, device="meta") for v in (True, False))
    assert (u | true).tolist() == [True] * 3 and (u & false).tolist() == [False] * 3
    assert (u.long() & ~true).tolist() == [0, 0, 0] and torch.logical_and(false, u).tolist() == [False] * 3
    assert not is_known(u | false) and not is_known(u & true) and not is_known(u.long() | true)


def test_C4_an_error_of_the_program_is_raised(knowing: None) -> None:
    t = mindtorch.arange(4, device="meta")
    for wrong in (lambda x: x[torch.tensor([7], device=x.device)], lambda x: (x - 3).bincount(), lambda x: x // 0):
        with real(), pytest.raises((IndexError, RuntimeError)) as expected:
            wrong(torch.arange(4))
        with pytest.raises(type(expected.value)) as got:
            wrong(t)
        assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


# ---- what is assumed -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("assume", "expected"), [
    (0, (0.0, False, 3, [0, 0])), (1, (1.0, True, 3, [1, 1])), (-2, (-2.0, True, 3, [-2, -2])),
])  # fmt: skip
def test_C4_unknown_values_are_assumed(assume: float, expected: tuple) -> None:
    with known_values.knowing(assume):
        x = unknown(3)
        got = (x[0].item(), bool(x.bool().any()), x[x.bool()].shape[0], unknown(2, dtype=torch.int64).tolist())
        assert got == expected
        assert x.to(torch.uint8)[0].item() == max(0, assume)
    rows = known_values.assumed()
    assert {row["op"] for row in rows} == {"item", "bool", "index", "tolist"}
    assert all(row["file"] == __file__ and row["function"] == "test_C4_unknown_values_are_assumed" for row in rows)


def test_C4_assumptions_are_listed_by_line_and_op(knowing: None) -> None:
    x = unknown(2, 3)
    for _ in range(5):
        if x.sum() > 1:  # this line
            raise AssertionError("assumed to be 0")
    torch.nonzero(x)
    first, second = known_values.assumed()
    assert (first["source"], first["op"], first["calls"], first["shape"], first["dtype"], first["value"]) == (
        "if x.sum() > 1:  # this line",
        "bool",
        5,
        (),
        "bool",
        False,
    )
    assert (second["op"], second["calls"], second["shape"], second["dtype"]) == ("nonzero", 1, (2, 3), "float32")
    assert second["line"] == first["line"] + 2
    with known_values.knowing():
        assert known_values.assumed() == []


def test_C4_the_list_is_bounded(knowing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "MOST_PLACES", 2)
    x = unknown(2)
    reads = (lambda: x.tolist(), lambda: x[0].item(), lambda: bool(x[0]), lambda: float(x[0]), lambda: torch.nonzero(x))
    for read in reads:
        read()
    rows = known_values.assumed()
    assert len(rows) == 3 and rows[0]["op"] == "(other ops)" and rows[0]["calls"] == 3


DEPENDENT: list[Callable] = [
    lambda x: torch.unique(x),
    lambda x: torch.bincount(x.long()), lambda x: torch.repeat_interleave(x, x.long()), lambda x: torch.equal(x, x + 1),
    lambda x: torch.allclose(x, x), lambda x: torch.tensor_split(x, x.long()),
    lambda x: torch.nn.functional.one_hot(x.long()),
    lambda x: torch.unique_consecutive(x), lambda x: list(torch.isfinite(x)),
    lambda x: x.is_nonzero() if x.numel() == 1 else 0,
    lambda x: torch.split(x, x.long().tolist()) if x.sum() == 5 else (), lambda x: x.histc(),
    lambda x: torch.linalg.lstsq(x.view(5, 1), x.view(5, 1)).solution,
    lambda x: torch.geqrf(x.view(5, 1)),
]  # fmt: skip


@pytest.mark.parametrize("call", DEPENDENT)
@pytest.mark.parametrize("assume", [0, 1])
def test_C4_sizes_follow_the_assumption(call: Callable, assume: int) -> None:
    expected = call(torch.full((5,), float(assume)))
    with known_values.knowing(assume):
        got = call(unknown(5))
    flat = (lambda a: list(a)) if isinstance(expected, (tuple, list)) else lambda a: [a]
    for g, e in zip(flat(got), flat(expected), strict=True):
        assert (g.shape, g.dtype) == (e.shape, e.dtype) if isinstance(e, torch.Tensor) else type(g) is type(e)


MASKS: list[Callable] = [
    lambda x: x[x > 0], lambda x: x[(x < 0) & (x > 1)], lambda x: x.masked_select(x > 0), lambda x: torch.nonzero(x),
    lambda x: torch.argwhere(x > 2), lambda x: torch.where(x.abs() < -1)[0], lambda x: x[torch.isnan(x)],
    lambda x: x[(x > 0).byte()], lambda x: x[~(x.long() >= 0)], lambda x: x[x.long().bool()],
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("call", MASKS)
@pytest.mark.parametrize("assume", [0, 1, -2])
def test_C4_an_unknown_mask_keeps_all_rows(call: Callable, assume: int) -> None:
    with known_values.knowing(assume):
        assert call(unknown(5)).shape[0] == 5


@pytest.mark.parametrize("assume", [0, 1, 2])
def test_C4_of_unknown_classes_it_is_one(assume: int) -> None:
    """Whatever is done for each class is done once for each element."""
    with known_values.knowing(assume):
        labels = unknown(5, dtype=torch.int64)
        rows = [int((labels == k).nonzero().shape[0]) for k in range(3)]
        found = [int(torch.where((labels == k) & (labels >= 0))[0].shape[0]) for k in range(3)]
    assert rows == found == [5 if k == assume else 0 for k in range(3)]


def test_C4_whether_unknown_tensors_are_alike_is_said_of_any_size(knowing: None) -> None:
    """As a program checks its own function against another one: no memory of their size is taken for it."""
    assert torch.equal(unknown(1 << 40), unknown(1 << 40)) and torch.allclose(unknown(1 << 40), unknown(1 << 40))
    assert not torch.equal(unknown(3), unknown(4)) and known_values.assumed()


def test_C4_too_much_to_assume_is_said(knowing: None) -> None:
    said = r"\[tolist\] meta tensor has no data \(.*test_known\.py:\d+\).*--assume"
    with pytest.raises(mindtorch.NoDataError, match=said):
        unknown(assumptions.MOST_ASSUMED + 1).tolist()
    with pytest.raises(mindtorch.NoDataError, match=r"\[aten::nonzero\] meta tensor has no data"):
        unknown(assumptions.MOST_ASSUMED + 1).nonzero()


def test_C4_a_wrong_assumption_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a finite number"):
        with known_values.knowing("yes"):  # type: ignore[arg-type]
            pass


def test_C4_training_with_guards(knowing: None) -> None:
    w = torch.nn.Parameter(unknown(4, 4))
    optimizer = torch.optim.AdamW([w])
    scaler = torch.amp.GradScaler("cpu")
    for step in range(3):
        loss = (w @ w).square().mean()
        assert torch.isfinite(loss) or step >= 0
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert optimizer.state[w]["step"].item() == 3


def test_C4_one_hot_of_nothing_wants_a_number_of_classes(knowing: None) -> None:
    nothing = torch.zeros(0, dtype=torch.int64, device=META)
    for classes in (-1, 0):
        with pytest.raises(RuntimeError, match="Can not infer total number of classes from empty tensor"):
            torch.nn.functional.one_hot(nothing, classes)
    assert torch.nn.functional.one_hot(nothing, 1).shape == (0, 1)


@pytest.mark.parametrize(("classes", "more"), [(5, {}), (-1, {"max": 1, "_local_scalar_dense": 1})])
def test_C4_one_hot_on_cuda_neither_looks_for_classes_that_are_given_nor_waits(classes: int, more: dict) -> None:
    """It compared the least and the greatest index with the classes, and read both: 4 kernels and 2 waits a call."""
    with Estimator(target=targets.find("h100")) as estimator:
        index = torch.tensor([0, 4, 2], device="cuda")
        assert torch.nn.functional.one_hot(index, classes).shape == (3, 5)
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            torch.nn.functional.one_hot(index, 4)
    calls = {row["name"].removeprefix("aten::"): row["calls"] for row in estimator.report()["ops"]}
    assert {name: calls[name] for name in calls if name[0] != "(" and name != "lift_fresh"} == {
        "zeros": 1, "unsqueeze": 1, "scatter_": 1, **more}  # fmt: skip


@pytest.mark.parametrize("classes", [5, -1])
def test_C4_one_hot_runs_the_ops_of_a_run(classes: int) -> None:
    counts = []
    for kind in (Profiler, Estimator):
        with kind() as seen:
            torch.nn.functional.one_hot(torch.tensor([0, 4, 2]), classes)
        counts.append({row["name"]: row["calls"] for row in seen.report()["ops"] if row["name"][0] != "("})
    assert counts[0] == counts[1]


def test_C4_what_an_estimate_knows_goes_to_no_executor() -> None:
    """Executors adopt values that were computed; what is known of tensors without data they took for such."""
    before = mindtorch.get_executor()
    with estimating(Accelerator("Test GPU", 10**9)):
        numbers, unknown = torch.tensor([3, 4]), torch.rand(4, device="cuda") > 0.5
        chosen = torch.where(unknown, 1, 0)  # decided, as nobody knows it
        mindtorch.set_executor(mindtorch.LoopbackExecutor("cpu"))
        try:
            assert numbers.tolist() == [3, 4] and (numbers + 1).tolist() == [4, 5]
        finally:
            mindtorch.set_executor(before)
        assert (numbers + 1).tolist() == [4, 5] and chosen.shape == (4,)
