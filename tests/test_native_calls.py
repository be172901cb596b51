"""Recorded calls that are made without Python give eager's bits, and are not made so where they would not (SPEC S7,
L13)."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import mindtorch
from mindtorch.base import torch_facts
from mindtorch.engine.passes import native
from mindtorch.engine.record.arguments import tensors_in
from tests.native import CAN, made, soon

D = "remote_accelerator:0"

pytestmark = [CAN, pytest.mark.usefixtures(soon.__name__)]

AGAIN = 3  # runs, of which the first is looked at, and the others are made without Python


def bits(t: torch.Tensor) -> bytes:
    plain = t.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    return plain.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


def facts(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride(), bits(t)


def moved(x: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return to(x)
    if type(x) in (tuple, list):
        return type(x)(moved(each, to) for each in x)
    return {name: moved(each, to) for name, each in x.items()} if type(x) is dict else x


def runs(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Gives and writes eager's bits each time. How many of the calls were made without Python?"""
    given = moved((args, kwargs), torch.clone)
    expected = [*map(facts, tensors_in(function(*given[0], **given[1]))), *map(facts, tensors_in(given[0]))]
    before = made()
    for _ in range(AGAIN):
        given = moved((args, kwargs), lambda t: t.clone().to(D))
        got = [*tensors_in(function(*given[0], **given[1])), *tensors_in(given[0])]
        assert [*map(facts, got)] == expected
    return made() - before


# ---- every operator --------------------------------------------------------------------------------------------------
def _names() -> set[str]:
    return {name.removeprefix("aten::").strip("_") for name in native.NATIVE}


#: Those of torch's samples that come to native calls, at least, in single precision.
COME = frozenset(
    "abs add addcdiv addcmul addmm addmv all amax amin any argmax argmin atan baddbmm bmm cat ceil clamp cos cumsum "
    "div dot eq erf exp floor ge gt isnan le lerp log logical_not logsumexp lt masked_fill matmul maximum mean minimum "
    "mm mul mv ne neg pow prod reciprocal round rsqrt rsub sigmoid sign sin sqrt square sub sum tan tanh topk tril "
    "triu trunc where".split()
)


def samples(op: Any, dtype: torch.dtype, most: int) -> list[Any]:
    return list(itertools.islice(op.sample_inputs("cpu", dtype), most)) if dtype in op.supported_dtypes("cpu") else []


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64], ids=lambda d: str(d)[6:]
)
def test_S7_operators_made_without_python_have_eagers_bits(dtype: torch.dtype, pytestconfig: pytest.Config) -> None:
    most, came, n = 1000 if pytestconfig.getoption("--whole") else 2, set(), 0
    for op in op_db:
        name = op.name.rpartition(".")[2]
        if name.strip("_") not in _names() or op.name.startswith("sparse."):
            continue
        for sample in samples(op, dtype, most):
            for function in filter(None, (op.op, op.inplace_variant)):
                try:
                    function(*moved((sample.input, *sample.args), torch.clone), **moved(sample.kwargs, torch.clone))
                except (RuntimeError, TypeError, IndexError):
                    continue  # in place, into what is too small or of another dtype
                if runs(function, sample.input, *sample.args, **sample.kwargs):
                    came.add(name)
                n += 1
    assert n > 100
    if dtype is torch.float32:
        assert came >= COME
    else:
        assert len(came) > 15


# ---- arguments -------------------------------------------------------------------------------------------------------
X = torch.arange(12.0).reshape(3, 4) - 5.5
I = torch.arange(12).reshape(3, 4)  # noqa: E741
Q = torch.cat([X, X + 1, X * 0.3, X * X]).reshape(1, 2, 6, 4)  # so many dimensions come to a kernel of its own
LOW, HIGH = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: runs(torch.add, X, 2.5),
        lambda: runs(torch.add, X, float("inf")),
        lambda: runs(torch.add, X, -0.0),
        lambda: runs(torch.add, X, float("nan")),
        lambda: runs(torch.add, X, 3),
        lambda: runs(torch.add, I, LOW),
        lambda: runs(torch.add, I, HIGH),
        lambda: runs(torch.add, I, True),
        lambda: runs(torch.add, I > 3, True),
        lambda: runs(torch.add, X, X, alpha=0.5),
        lambda: runs(torch.add, I, I, alpha=-3),
        lambda: runs(torch.sub, X, 0.1),
        lambda: runs(torch.clamp, X, -1.5, 2),
        lambda: runs(torch.clamp, X, min=0.25),
        lambda: runs(torch.clamp, X, max=I.float()),
        lambda: runs(torch.div, X, 3, rounding_mode=None),
        lambda: runs(torch.sum, X),
        lambda: runs(torch.sum, X, 1),
        lambda: runs(torch.sum, X, (0, 1), keepdim=True),
        lambda: runs(torch.sum, I > 3, dim=0, dtype=torch.float64),
        lambda: runs(torch.argmax, X, dim=1, keepdim=True),
        lambda: runs(torch.argmax, X),
        lambda: runs(torch.max, X, 1),
        lambda: runs(torch.topk, X, 2, largest=False),
        lambda: runs(torch.cat, [X, X + 1, X[:1]]),
        lambda: runs(torch.cat, [X, X], 1),
        lambda: runs(torch.stack, [X, X], -1),
        lambda: runs(torch.split, X, 2),
        lambda: runs(torch.unbind, X, 1),
        lambda: runs(torch.where, X > 0, X, X * 2),
        lambda: runs(torch.nn.functional.gelu, X, approximate="tanh"),
        lambda: runs(torch.nn.functional.layer_norm, X, (4,), X[0], X[1], 1e-3),
        lambda: runs(torch.nn.functional.layer_norm, X, (4,)),
        lambda: runs(torch.nn.functional.scaled_dot_product_attention, X[None], X[None], X[None], scale=0.5),
        lambda: runs(torch.nn.functional.scaled_dot_product_attention, Q, Q, Q),
        lambda: runs(torch.nn.functional.scaled_dot_product_attention, Q, Q, Q, is_causal=True, scale=-0.5),
        lambda: runs(torch.isin, I, I[:2, 1:]),
        lambda: runs(torch.nn.functional.embedding, I % 3, X),
        lambda: runs(torch.ops.aten.native_layer_norm_backward, X, X, [4], X[:, :1], X[:, :1], X[0], X[1], [True] * 3),
        lambda: runs(torch.ops.aten._to_copy, X, dtype=torch.int32),
        lambda: runs(torch.ops.aten.clone, X.t(), memory_format=torch.contiguous_format),
        lambda: runs(torch.ops.aten.nll_loss_forward, X, I[0, :3], None, 1, -100),
        lambda: runs(torch.ops.aten.slice, X, 1, 1, None, 2),
        lambda: runs(torch.Tensor.mul_, X, 0.5),
        lambda: runs(torch.Tensor.lerp_, X, X + 1, 0.3),
        lambda: runs(torch.Tensor.addcdiv_, X, X, X + 9, value=-0.1),
        lambda: runs(torch.Tensor.add_, X, X[0], alpha=2),
        lambda: runs(torch.Tensor.copy_, X, I),
        lambda: runs(torch.Tensor.zero_, X),
    ],
)  # fmt: skip
def test_S7_arguments_of_all_kinds_are_passed_to_native_calls(call: Callable[[], int]) -> None:
    assert call() > 0


@pytest.mark.parametrize("scale", [None, 0.25])
def test_S7_an_optional_float_behind_six_words_is_on_the_stack(scale: float | None) -> None:
    q = Q.to(D).requires_grad_()
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for operator, args, which in (
        (attend, (Q, Q, Q, 0.0, True), {"scale": scale}),
        (torch.nn.functional.scaled_dot_product_attention, (Q, Q, Q), {"scale": scale}),
    ):
        assert runs(operator, *args, **which) >= AGAIN - 1
    before = made()
    for _ in range(AGAIN):
        (gradient,) = torch.autograd.grad(attend(q, q, q, scale=scale)[0].sum(), q)
        plain = Q.clone().requires_grad_()
        (expected,) = torch.autograd.grad(attend(plain, plain, plain, scale=scale)[0].sum(), plain)
        assert bits(gradient) == bits(expected)
    assert made() > before


def test_S7_each_run_has_its_own_numbers() -> None:
    x = X.to(D)
    before = made()
    for k in range(30):
        number = k * 0.25 - 3
        assert bits((x * number).add_(x, alpha=number)) == bits((X * number).add_(X, alpha=number))
    assert made() - before >= 28  # the products: `alpha` is part of what a call is


def test_S7_names_of_cplusplus_functions() -> None:
    tensor = ("&", ("const", ("at::Tensor",)))
    assert native.symbol("add_Tensor", [tensor, tensor, ("&", ("const", ("c10::Scalar",)))]) == (
        "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE"
    )
    sym = ("c10::SymInt",)
    assert native.symbol("as_strided", [tensor, *[("c10::ArrayRef", sym)] * 2, ("std::optional", sym)]) == (
        "_ZN2at4_ops10as_strided4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEES8_St8optionalIS7_E"
    )
    many = [(f"c10::T{k}",) for k in range(40)]  # S_, S0_ … S9_, SA_ … SZ_, S10_
    name = native.symbol("f", [*many, many[31], many[32], many[33]])
    assert name.endswith("NS2_3T39ESY_SZ_S10_") and torch_facts.exported(name) == 0


@pytest.mark.parametrize("overload", ["aten::add.Tensor", "aten::sum.dim_IntList", "aten::cat", "aten::split.Tensor"])
def test_S7_types_are_the_schemas(overload: str) -> None:
    found, _ = torch._C._jit_get_operation(overload.partition(".")[0])
    assert found is not None
    packet = getattr(torch.ops.aten, overload.partition(".")[0].removeprefix("aten::"))
    arguments = native._arguments(getattr(packet, overload.partition(".")[2] or "default"))
    assert [(name, of, default) for name, of, default in arguments] == {
        "aten::add.Tensor": [("self", "Tensor", ...), ("other", "Tensor", ...), ("alpha", "Scalar", 1)],
        "aten::sum.dim_IntList": [
            ("self", "Tensor", ...), ("dim", "int[1]?", ...), ("keepdim", "bool", False),
            ("dtype", "ScalarType?", None),
        ],
        "aten::cat": [("tensors", "Tensor[]", ...), ("dim", "int", 0)],
        "aten::split.Tensor": [("self", "Tensor(a -> *)", ...), ("split_size", "SymInt", ...), ("dim", "int", 0)],
    }[overload]  # fmt: skip


# ---- what is not made so ---------------------------------------------------------------------------------------------
def test_L13_a_call_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = native.symbol
    monkeypatch.setattr(native, "symbol", lambda name, types: right(name.replace("atan2", "maximum"), types))
    assert runs(torch.atan2, X, X + 1) == 0


def test_L13_a_call_that_writes_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = native.symbol
    monkeypatch.setattr(native, "symbol", lambda name, types: right(name.replace("sqrt_", "exp_"), types))
    x = X.abs() + 1
    assert runs(torch.Tensor.sqrt_, x) == 0


def test_L13_without_the_pass_no_call_is_native() -> None:
    before = mindtorch.set_passes([])
    try:
        assert runs(torch.mul, X, X * 3) == 0
    finally:
        mindtorch.set_passes(before)


def test_L1_without_a_cplusplus_compiler_calls_are_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindtorch._ext.catching", None)
    monkeypatch.delattr(sys.modules["mindtorch._ext"], "catching", raising=False)
    assert not torch_facts.native_calls_made()


def test_L1_on_an_unknown_release_calls_are_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_facts, "is_tested", lambda: False)
    assert not torch_facts.native_calls_made()


@pytest.mark.parametrize(("n", "made_so"), [((1 << 22) // 8, True), ((1 << 22) // 8 + 1, False)])
def test_S7_calls_on_large_tensors_are_pythons(n: int, made_so: bool) -> None:
    assert bool(runs(torch.neg, torch.arange(float(n)))) is made_so


@pytest.mark.parametrize(("n", "brief"), [(1 << 11, True), ((1 << 11) + 1, False)])
def test_S7_other_threads_wait_for_short_calls_only(n: int, brief: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    proven = native._proven
    monkeypatch.setattr(native, "_proven", lambda *args: found.append(proven(*args)) or found[-1])
    assert runs(torch.neg, torch.arange(float(n))) > 0
    assert [each.brief for each in found] == [brief]


def test_L1_who_looks_on_does_not_see_the_proof() -> None:
    class Looking(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    x = X.to(D)
    plain = []
    for _ in range(8):
        with Looking() as looking:
            torch.sinc(torch.cos(x)).cpu()
        plain.append([*looking.names])
    assert all(each == plain[0] for each in plain[1:])


# ---- errors, memory, threads -----------------------------------------------------------------------------------------
def test_L6_an_error_of_a_native_call_is_the_operators() -> None:
    table, good, bad = X.to(D), torch.tensor([0, 2]).to(D), torch.tensor([0, 7]).to(D)
    for _ in range(AGAIN):
        torch.nn.functional.embedding(good, table).cpu()
    with pytest.raises(IndexError) as eager:
        torch.nn.functional.embedding(torch.tensor([0, 7]), X)
    before = table * 2
    lost = torch.nn.functional.embedding(bad, table)
    after = table * 3
    with pytest.raises(IndexError) as ours:
        lost.cpu()
    assert str(eager.value) in str(ours.value)
    assert bits(before) == bits(X * 2) and bits(after) == bits(X * 3)


def test_L13_a_result_takes_the_memory_of_what_nobody_needs() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1) * 3 - 2).tanh()

    x = X.to(D)
    for _ in range(AGAIN):
        chain(x).cpu()
    saved, before = mindtorch.stats()["bytes_saved"]["in place"], made()
    kept = x + 1
    got = (kept * 3 - 2).tanh()
    assert bits(got) == bits(chain(X)) and bits(kept) == bits(X + 1) and bits(x) == bits(X)
    assert made() - before == 4
    assert mindtorch.stats()["bytes_saved"]["in place"] - saved == 2 * X.nbytes  # of `- 2` and tanh: `kept` has a name


def test_L4_views_of_native_results_share_their_memory() -> None:
    def steps(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1].add_(10)
        z = y.t()
        z[0].mul_(-1)
        return torch.cat([y.reshape(-1), z.reshape(-1)])

    for _ in range(AGAIN):
        assert bits(steps(X.to(D))) == bits(steps(X))


def test_L1_training_through_native_calls_has_eagers_bits() -> None:
    def train(device: str) -> list[bytes]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 9), torch.nn.GELU(), torch.nn.LayerNorm(9), torch.nn.Linear(9, 3)
        )
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        x, y = torch.randn(5, 6).to(device), torch.tensor([0, 1, 2, 1, 0]).to(device)
        out = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            out.append(bits(loss))
        return [*out, *map(bits, model.parameters())]

    before = made()
    assert train(D) == train("cpu")
    assert made() - before > 200


def test_L9_threads_read_native_results_at_once() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.manual_seed(seed)
        plain = torch.randn(64, 64)
        x = plain.to(D)
        for k in range(40):
            a, b = (x @ x).tanh() + x[k % 3], (plain @ plain).tanh() + plain[k % 3]
            if bits(a * k) != bits(b * k):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
