"""Errors at the call where eager has them, and of eager's class where they can only come later (SPEC L9)."""

from __future__ import annotations

import copy
import gc
import multiprocessing as mp
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import linalg
from torch.nn import functional as F

import mindtorch
from mindtorch import LazyTensorError, MaterializationError
from mindtorch.engine.tensor.queues import told_at_the_other_end

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


# ---- what depends on a matrix ----------------------------------------------------------------------------------------
def nan(d: str) -> torch.Tensor:
    return torch.full((3, 3), float("nan"), device=d)


def singular(d: str) -> torch.Tensor:
    return torch.zeros(3, 3, device=d)


OF_MATRICES: dict[str, Callable[[str], Any]] = {
    "matrix_power": lambda d: torch.matrix_power(singular(d), -1),
    "matrix_power by name": lambda d: linalg.matrix_power(singular(d), n=-2),
    "matrix_power as a method": lambda d: singular(d).matrix_power(-1),
    "inv_ex": lambda d: linalg.inv_ex(singular(d), check_errors=True),
    "cholesky_ex": lambda d: linalg.cholesky_ex(singular(d), check_errors=True),
    "lu_factor_ex": lambda d: linalg.lu_factor_ex(singular(d), check_errors=True),
    "ldl_factor_ex": lambda d: linalg.ldl_factor_ex(singular(d), check_errors=True),
    "solve_ex": lambda d: linalg.solve_ex(singular(d), torch.ones(3, 1, device=d), check_errors=True),
    "_linalg_solve_ex": lambda d: torch.ops.aten._linalg_solve_ex(singular(d), singular(d), check_errors=True),
    "inv": lambda d: linalg.inv(singular(d)),
    "cholesky": lambda d: linalg.cholesky(singular(d)),
    "solve": lambda d: linalg.solve(singular(d), torch.ones(3, 1, device=d)),
    "svd": lambda d: linalg.svd(nan(d)),
    "torch.svd": lambda d: torch.svd(nan(d)),
    "_linalg_svd": lambda d: torch.ops.aten._linalg_svd(nan(d)),
    "svdvals": lambda d: linalg.svdvals(nan(d)),
    "svd_lowrank": lambda d: torch.svd_lowrank(nan(d)),
    "pca_lowrank": lambda d: torch.pca_lowrank(nan(d)),
    "eigh": lambda d: linalg.eigh(nan(d)),
    "_linalg_eigh": lambda d: torch.ops.aten._linalg_eigh(nan(d)),
    "eigvalsh": lambda d: linalg.eigvalsh(nan(d)),
    "eig": lambda d: linalg.eig(nan(d)),
    "pinv": lambda d: linalg.pinv(nan(d)),
    "pinv of a hermitian": lambda d: linalg.pinv(nan(d), hermitian=True),
    "pinverse": lambda d: torch.pinverse(nan(d)),
    "cond": lambda d: linalg.cond(nan(d)),
    "cond -2": lambda d: linalg.cond(nan(d), p=-2),
    "cond nuc": lambda d: linalg.cond(nan(d), "nuc"),
    "matrix_rank": lambda d: linalg.matrix_rank(nan(d)),
    "matrix_rank of a hermitian": lambda d: linalg.matrix_rank(nan(d), hermitian=True),
    "matrix_norm nuc": lambda d: linalg.matrix_norm(nan(d), "nuc"),
    "matrix_norm 2": lambda d: linalg.matrix_norm(nan(d), ord=2),
    "norm -2": lambda d: linalg.norm(nan(d), -2),
    "norm 2 of two dimensions": lambda d: linalg.norm(nan(d)[None], 2, dim=(1, 2)),
    "torch.norm nuc": lambda d: torch.norm(nan(d), p="nuc"),
    "norm nuc as a method": lambda d: nan(d).norm("nuc"),
    "nuclear_norm": lambda d: torch.nuclear_norm(nan(d)),
    "lobpcg": lambda d: torch.lobpcg(nan(d)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("name", OF_MATRICES)
def test_L9_what_a_matrix_does_not_allow_is_said_at_the_call(name: str, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        with pytest.raises(RuntimeError) as eager:
            OF_MATRICES[name]("cpu")
        with pytest.raises(type(eager.value)) as lazy:
            OF_MATRICES[name](LAZY)
    assert not isinstance(lazy.value, MaterializationError), "raised late"
    assert str(lazy.value) == str(eager.value)


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "matrix_power 2": lambda m: torch.matrix_power(m, 2),
    "matrix_power 0": lambda m: linalg.matrix_power(m, 0),
    "inv_ex": lambda m: linalg.inv_ex(m),
    "cholesky_ex": lambda m: linalg.cholesky_ex(m),
    "norm 2 of vectors": lambda m: linalg.norm(m, 2, dim=1),
    "norm 2 of a vector": lambda m: linalg.norm(m[0], 2),
    "norm": lambda m: linalg.norm(m),
    "matrix_norm": lambda m: linalg.matrix_norm(m),
    "matrix_norm 1": lambda m: linalg.matrix_norm(m, 1),
    "torch.norm": lambda m: torch.norm(m, 2),
    "cond 1": lambda m: linalg.cond(m, 1),
    "qr": lambda m: linalg.qr(m),
}


@pytest.mark.parametrize("name", WAITS)
def test_L6_what_no_matrix_is_refused_by_is_recorded(name: str, same_bits: Callable[..., None]) -> None:
    m = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    with torch.no_grad():
        x = m.to(LAZY) + 0
        ran = mindtorch.stats()["segments"]
        out = WAITS[name](x)
        assert mindtorch.stats()["segments"] == ran
        expected = WAITS[name](m + 0)
    for a, b in zip(torch.utils._pytree.tree_leaves(out), torch.utils._pytree.tree_leaves(expected), strict=True):
        same_bits(a, b)


def test_L9_a_program_that_adds_jitter() -> None:
    def factor(m: torch.Tensor) -> tuple[torch.Tensor, int]:
        for tries in range(8):
            try:
                return linalg.cholesky_ex(m, check_errors=True).L, tries
            except linalg.LinAlgError:
                m = m + 1e-3 * 10**tries * torch.eye(2, device=m.device)
        raise AssertionError("no jitter was enough")

    m = torch.tensor([[1.0, 1.0], [1.0, 1.0]]) - 0.05 * torch.eye(2)
    (expected, tries), (got, lazily) = factor(m), factor(m.to(LAZY))
    assert tries == lazily > 0 and torch.equal(got.cpu(), expected)


# ---- classes of what can only come late ------------------------------------------------------------------------------
LATE: dict[str, tuple[type[Exception], Callable[[str], torch.Tensor]]] = {
    "index": (IndexError, lambda d: torch.ones(2, device=d)[torch.full((1,), 9, device=d)]),
    "embedding": (IndexError, lambda d: F.embedding(torch.full((1,), 9, device=d), torch.ones(3, 2, device=d))),
    "cross_entropy": (IndexError, lambda d: F.cross_entropy(torch.ones(1, 3, device=d), torch.full((1,), 9, device=d))),
    "gather": (RuntimeError, lambda d: torch.ones(3, device=d).gather(0, torch.full((1,), 7, device=d))),
}


@pytest.mark.parametrize("name", LATE)
def test_L9_a_late_error_is_of_the_class_that_torch_raises(name: str) -> None:
    kind, call = LATE[name]
    with pytest.raises(kind):
        call("cpu")
    with torch.no_grad():
        waits = call(LAZY)
    after = waits + 1
    for t in (waits, waits, after):
        with pytest.raises(kind, match=name.split("_")[0]) as e:
            t.cpu()
        assert isinstance(e.value, MaterializationError) and isinstance(e.value, LazyTensorError)
        assert type(e.value.__cause__) is kind


@pytest.fixture
def refusing() -> Any:
    """An operator of the program's own that raises what it is told to."""
    lib = torch.library.Library("lateerrors", "DEF")
    lib.define("refuse(Tensor x, int which) -> Tensor")
    raised: list[Exception] = []

    def refuse(x: torch.Tensor, which: int) -> torch.Tensor:
        if x.sum() > 10:  # not where it is tried: small copies are of ones
            raise raised[which]
        return x + 1

    lib.impl("refuse", refuse, "CPU")
    lib.impl("refuse", lambda x, which: torch.empty_like(x), "Meta")
    yield raised
    lib._destroy()


class Mine(Exception):
    """A class of the program's."""


class Demanding(Exception):
    """One that cannot be made of a text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


@pytest.mark.only_on("local", reason="an operator of this process's")
def test_L9_late_errors_of_any_class(refusing: list[Exception]) -> None:
    refusing += [linalg.LinAlgError("a"), KeyError("b"), Mine("c"), OSError(2, "d"), UnicodeError("e"), Demanding(1, 2)]
    refusing += [torch.OutOfMemoryError("f"), NotImplementedError("g"), StopIteration("h"), ZeroDivisionError("i")]
    for which, error in enumerate(refusing):
        y = torch.ops.lateerrors.refuse(torch.full((3,), 9.0, device=LAZY), which)
        with pytest.raises(
            MaterializationError, match=rf"lateerrors::refuse\] recorded in .*: {type(error).__name__}"
        ) as e:
            y.cpu()
        assert isinstance(e.value, type(error)) or type(error) is Demanding
        assert e.value.__cause__ is error and str(e.value).startswith("[lateerrors::refuse]"), "a KeyError shows a repr"


KINDS = (IndexError, KeyError, ValueError, OSError, MemoryError, linalg.LinAlgError, torch.OutOfMemoryError)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_L9_errors_and_their_classes_can_be_pickled(kind: type[Exception]) -> None:
    made = MaterializationError.also(kind)
    assert made is MaterializationError.also(kind) and made is MaterializationError.also(made)
    error = made("what it says")
    error.lost_write = True
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(made, protocol)) is made
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is made and str(again) == "what it says" and again.lost_write
    assert type(copy.deepcopy(error)) is made
    assert MaterializationError.also(RuntimeError) is MaterializationError is MaterializationError.also(Exception)
    for cls in (MaterializationError, mindtorch.base.errors.SessionLost):
        assert pickle.loads(pickle.dumps(cls)) is cls and type(pickle.loads(pickle.dumps(cls("x")))) is cls


class _Failing(torch.utils.data.Dataset):
    def __getitem__(self, index: int) -> Any:
        raise MaterializationError.also(IndexError)("of a worker")

    def __len__(self) -> int:
        return 2


def test_L9_a_loaders_worker_tells_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    # How long the end of a worker is waited for, which by then waits for the other one.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = torch.utils.data.DataLoader(_Failing(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(IndexError, match="of a worker") as e:
        list(loader)
    assert isinstance(e.value, MaterializationError)
    del e, loader
    gc.collect()


def test_L9_a_queue_tells_the_class_unless_it_is_the_programs() -> None:
    class Hidden(Exception):
        pass

    def fails(kind: type[Exception]) -> Any:
        def reduce(t: Any, *protocol: Any) -> Any:
            raise kind("x")

        return told_at_the_other_end(reduce)

    def told(kind: type[Exception]) -> Any:
        found: list[Any] = []
        only_prints: Any = mp.queues.Queue
        thread = threading.Thread(
            target=lambda *_: found.append(fails(kind)(None)), args=(only_prints._on_queue_feeder_error,)
        )
        thread.start()
        thread.join()
        load, given = pickle.loads(pickle.dumps(found[0]))
        with pytest.raises(MaterializationError, match="queue could not pass on") as e:
            load(*given)
        return e.value

    assert isinstance(told(IndexError), IndexError)
    assert type(told(Hidden)) is MaterializationError


# ---- numbers ---------------------------------------------------------------------------------------------------------
def mask(d: str) -> torch.Tensor:
    return torch.tensor([True, False, True], device=d)


def half(d: str) -> torch.Tensor:
    return torch.ones(3, device=d, dtype=torch.float16)


OF_NUMBERS: dict[str, Callable[[str, Any], torch.Tensor]] = {
    "masked_fill": lambda d, n: half(d).masked_fill(mask(d), n),
    "masked_fill_": lambda d, n: half(d).masked_fill_(mask(d), n),
    "masked_fill of integers": lambda d, n: half(d).to(torch.int8).masked_fill(mask(d), n / 512),
    "add": lambda d, n: torch.add(half(d), half(d), alpha=n),
    "clamp": lambda d, n: half(d).clamp(n, None),
    "where": lambda d, n: torch.where(mask(d), half(d), n),
    "lerp": lambda d, n: torch.lerp(half(d), half(d), n),
    "threshold": lambda d, n: F.threshold(half(d), n, n),
    "hardtanh": lambda d, n: F.hardtanh(half(d), -abs(n), abs(n)),
    "pow": lambda d, n: half(d) ** n,
    "fill_": lambda d, n: half(d).fill_(n),
    "full": lambda d, n: torch.full((3,), n, dtype=torch.float16, device=d),
    "full by name": lambda d, n: torch.full(size=(3,), fill_value=n, dtype=torch.float16, device=d),
    "full, large": lambda d, n: torch.full((700, 700), n, dtype=torch.float16, device=d),
    "full_like": lambda d, n: torch.full_like(half(d), n),
    "new_full": lambda d, n: half(d).new_full((2,), n),
    "scalar_tensor": lambda d, n: torch.scalar_tensor(n, dtype=torch.float16, device=d),
    "arange": lambda d, n: torch.arange(0.0, n, n / 4, dtype=torch.float16, device=d),
    "addcmul": lambda d, n: torch.addcmul(half(d), half(d), half(d), value=n),
    "foreach": lambda d, n: torch._foreach_add([half(d)], n)[0],
    "large": lambda d, n: torch.ones(70_000, dtype=torch.float16, device=d).masked_fill(mask(d)[:1], n),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_L9_every_number_is_looked_at(name: str, same_bits: Callable[..., None]) -> None:
    """Small ones first, as a program's first calls have them; 65504 is the last that half precision holds."""
    call = OF_NUMBERS[name]
    for number in (
        -1e4,
        1e4,
        0.5,
        65504.0,
        65520.0,
        -65520.0,
        70_000,
        1e9,
        -1e9,
        2.0**31,
        2**63 - 1,
        float("inf"),
        3.0,
    ):
        with torch.no_grad():
            try:
                expected = call("cpu", number)
            except RuntimeError as e:
                with pytest.raises(type(e)) as lazy:
                    call(LAZY, number)
                assert not isinstance(lazy.value, MaterializationError), number
            else:
                same_bits(call(LAZY, number), expected)


def test_L9_signs_and_which_number_is_the_greater_matter(same_bits: Callable[..., None]) -> None:
    x = torch.tensor([-1.0, 0.5, 3.0])
    for call in (
        lambda t, a, b: F.hardtanh(t, a, b),
        lambda t, a, b: torch._C._nn.hardtanh(t, a, b),
        lambda t, a, b: torch.clamp(t, a, b),
        lambda t, a, b: F.softshrink(t, a),
        lambda t, a, b: F.huber_loss(t, t * b, delta=a),
        lambda t, a, b: F.celu(t, a),
        lambda t, a, b: torch._C._nn.hardtanh(t.byte(), a, b),
    ):
        for a, b in (
            (0.25, 0.75),
            (0.75, 0.25),
            (0.25, 2.0),
            (2.0, 0.25),
            (-0.5, 0.5),
            (0.5, -0.5),
            (0.0, 0.0),
            (-0.25, -2.0),
            (0.5, 0.5),
        ):
            try:
                expected = call(x, a, b)
            except (RuntimeError, ValueError) as e:
                with pytest.raises(type(e)) as lazy:
                    call(x.to(LAZY), a, b)
                assert not isinstance(lazy.value, MaterializationError), (a, b)
            else:
                same_bits(call(x.to(LAZY), a, b), expected)


def test_L7_numbers_that_any_dtype_holds_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from mindtorch.engine.record import trial

    asked: list[str] = []
    passes = trial.passes

    def noted(info: Any, *rest: Any) -> bool:
        asked.append(info.name)
        return passes(info, *rest)

    monkeypatch.setattr(trial, "passes", noted)
    x = torch.ones(5, 7, device=LAZY)
    with torch.no_grad():
        for number in (0.5, 0.25, 1.0, 1e-7):
            x * number
        assert len(asked) <= 1
        for number in (100.0, 1.5, 99.5):
            x * number
        assert len(asked) <= 2
        x * 101.0
        x * 102.0
    assert len(asked) in (3, 4), asked


# ---- memory that there is not, classes that there are none of --------------------------------------------------------
@pytest.mark.parametrize(
    "layout",
    [
        ((2, 2), (-1, 1)),
        ((2, 2), (1, -1)),
        ((2**31, 2**31), (2**31, 2**31)),
        ((2**62, 4), (4, 1)),
        ((2**40, 2**40), (1, 1)),
        ((2**60 + 1,), (2,)),
        ((-1,), (1,)),
        ((2, 2), (1,)),
    ],
    ids=str,
)
def test_L9_layouts_that_no_memory_has(layout: tuple) -> None:
    for call in (
        lambda d: torch.empty_strided(*layout, device=d),
        lambda d: torch.empty_strided(size=layout[0], stride=layout[1], device=d),
        lambda d: torch.ones(1, device=d).new_empty_strided(*layout),
        lambda d: torch.ones(1, device=d, requires_grad=True).new_empty_strided(layout[0], stride=layout[1]),
    ):
        with pytest.raises(RuntimeError) as eager:
            call("cpu")
        with pytest.raises(RuntimeError) as lazy:
            call(LAZY)
        assert not isinstance(lazy.value, MaterializationError) and type(lazy.value) is type(eager.value)
    assert torch.empty_strided((0, 2**62), (2**62, 2**62), device=LAZY).stride() == (2**62, 2**62)
    with pytest.raises(TypeError):
        torch.empty_strided(device=LAZY)


@pytest.mark.parametrize("classes", [0, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("values", [[], [0], [-1, 2], [0, 1]], ids=str)
def test_L9_one_hot_of_any_number_of_classes(values: list[int], classes: int, same_bits: Callable[..., None]) -> None:
    t = torch.tensor(values, dtype=torch.int64)
    try:
        expected = F.one_hot(t, classes)
    except RuntimeError as e:
        with pytest.raises(RuntimeError) as lazy:
            F.one_hot(t.to(LAZY), classes).cpu()
        if classes < 1:
            assert str(lazy.value) == str(e)
    else:
        same_bits(F.one_hot(t.to(LAZY), classes), expected)


def test_L9_meshgrid_shows_what_it_refuses() -> None:
    a, b = torch.arange(2.0), torch.arange(4.0).view(2, 2)
    for call in (
        lambda d: torch.meshgrid(a.to(d), b.to(d), indexing="ij"),
        lambda d: torch.meshgrid([b.to(d) * 2, a.to(d)], indexing="xy"),
        lambda d: torch.meshgrid(a.to(d), a.to(d), indexing="no"),
    ):
        with pytest.raises(RuntimeError) as eager:
            call("cpu")
        with pytest.raises(RuntimeError) as lazy:
            call(LAZY)
        assert str(lazy.value) == str(eager.value)
    assert [t.tolist() for t in torch.meshgrid(a.to(LAZY), a[0].to(LAZY), indexing="ij")] == [
        [[0.0], [1.0]],
        [[0.0]] * 2,
    ]
