"""N5: native operations that a row describes, and those made of several operators, compared with torch on the CPU."""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from native_calls import Device, eager, same

import mindtorch
from mindtorch._ext import acl, aclnn
from mindtorch.npu import counts, operators, staging
from mindtorch.npu.kernel_rows import ROWS
from mindtorch.npu.kernels import NATIVE
from mindtorch.npu.layers import LAYERS

_FLOATS = [torch.float32, torch.float16, torch.bfloat16]


_GENERATOR = torch.Generator().manual_seed(0)  # sums that nearly cancel differ by more than the tolerance


def _r(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=_GENERATOR) * 2 + 0.25


def _layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> tuple:
    return (_r(3, 4), x, [4], x.mean(1, True), 1 / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt(), weight, bias)


X, M = _r(3, 4) - 1, torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
I, W = torch.tensor([[1, -2, 3], [4, 5, 0]]), torch.tensor([2, 0, 1])  # noqa: E741
IMAGE = _r(2, 4, 5, 6)
CASES: dict[str, list[tuple]] = {
    "abs": [(X,), (X.t(),)],
    "clamp": [(X, -0.1, 0.5), (X, None, 0.5), (X, 0.5), (torch.tensor([float("nan"), 2.0]), 0, 1), (X, 1, 1)],
    "clamp_": [(X, -0.1, 0.5)],
    "clamp_min": [(X, 0.1)],
    "clamp_max": [(X, 0.1)],
    "pow.Tensor_Scalar": [(X, 3), (X, 2.0), (_r(3, 4), 0.5), (X, 0)],
    "pow_.Scalar": [(X, 2)],
    "maximum": [(X, _r(4) - 1), (torch.tensor([1.0, float("nan")]), torch.tensor([float("nan"), 1.0]))],
    "minimum": [(X, _r(3, 1) - 1), (torch.tensor([1.0, float("nan")]), torch.tensor([float("nan"), 1.0]))],
    "addcmul": [(X, _r(3, 4), _r(4)), (X, _r(3, 4), _r(3, 4), {"value": -0.5})],
    "addcmul_": [(X, _r(3, 4), _r(4), {"value": 0.1})],
    "addcdiv": [(X, _r(3, 4), _r(3, 4), {"value": -0.5})],
    "addcdiv_": [(X, _r(3, 4), _r(4))],
    "lerp.Scalar": [(X, _r(3, 4), 0.1), (X.t(), _r(4, 3), 0.9)],
    "lerp_.Scalar": [(X, _r(3, 4), 0.1)],
    "sigmoid_backward": [(_r(3, 4), _r(3, 4) / 3)],
    "tanh_backward": [(_r(3, 4), _r(3, 4) / 3)],
    "silu_backward": [(_r(3, 4), X)],
    "gelu_backward": [(_r(3, 4), X), (_r(3, 4), X, {"approximate": "tanh"})],
    "threshold_backward": [(_r(3, 4), X, 0), (_r(4, 3).t(), X, 0.5)],
    "bitwise_and.Tensor": [(M, M[1]), (I, I + 1)],
    "bitwise_and_.Tensor": [(M, M[2])],
    "bitwise_or.Tensor": [(M, M[1]), (I, I + 1)],
    "bitwise_or_.Tensor": [(I, W)],
    "bitwise_not": [(M,), (I,)],
    "logical_and": [(M, M[1])],
    "logical_or": [(M, M[1])],
    "logical_not": [(M,)],
    "where.self": [(M, X, _r(4)), (M, torch.full((4,), 2**62 + 1), torch.zeros(3, 4, dtype=torch.int64))],
    "masked_fill_.Scalar": [(X, M, -1.0), (I, torch.tensor([True, False, True]), -100.0)],
    "masked_fill.Scalar": [(X, M, float("-inf")), (X[0], M, 2), (I, torch.tensor([True, False, True]), 7)],
    "constant_pad_nd": [(X, [1, 2]), (X, [-1, 2, 0, 3], 5.0), (I, [0, 1], -100.0), (M, [1, 1])],
    "gather": [(X, 1, torch.tensor([[0, 3], [1, 1]])), (I, 0, torch.tensor([[1, 0, 1]]))],
    "_log_softmax": [(X, 1, False), (IMAGE, 1, False)],
    "_softmax_backward_data": [(_r(3, 4), X.softmax(1), 1, torch.float32), (_r(3, 4).t(), X.t(), 0, torch.float32)],
    "_log_softmax_backward_data": [(_r(3, 4), X.log_softmax(1), 1, torch.float32)],
    "nll_loss_forward": [(X.log_softmax(1), W, weight, how, ignored) for weight in (None, _r(4)) for how, ignored in
                         ((1, -100), (2, 0), (0, 0))] + [(X[0], W[0], None, 1, -100)],
    "nll_loss_backward": [(_r(), X, W, _r(4), 1, 0, torch.tensor(2.5)), (_r(3), X, W, None, 0, 1, torch.tensor(0.0))],
    "embedding_dense_backward": [(_r(2, 3, 4), I.abs(), 6, -1, False), (_r(3, 4), W * 0 + 1, 3, 2, True)],
    "native_layer_norm_backward": [(*_layer_norm(X, weight, bias), mask) for weight, bias, mask in
                                   ((_r(4), _r(4), [True] * 3), (None, None, [True, False, False]),
                                    (_r(4), None, [False, True, False]))],
    "native_batch_norm_backward": [(IMAGE, IMAGE * IMAGE, _r(4), _r(4), _r(4), None, None, False, 1e-5, [True] * 3)],
    "convolution": [
        (IMAGE, _r(6, 4, 3, 3), _r(6), [1, 2], [1, 0], [1, 1], False, [0, 0], 1),
        (IMAGE, _r(4, 1, 2, 2), None, [1, 1], [0, 0], [2, 1], False, [0, 0], 4),
        (_r(2, 4, 7), _r(4, 3, 3), _r(6), [2], [1], [1], True, [1], 2),
        (_r(1, 2, 3, 3, 4), _r(2, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
    ],
    "convolution_backward": [
        (_r(2, 6, 5, 2), IMAGE, _r(6, 4, 3, 3), [6], [1, 2], [1, 0], [1, 1], False, [0, 0], 1, [True] * 3),
        (_r(2, 6, 5, 2), IMAGE, _r(6, 4, 3, 3), None, [1, 2], [1, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
        (_r(2, 6, 14), _r(2, 4, 7), _r(4, 3, 3), [6], [2], [1], [1], True, [1], 2, [True] * 3),
    ],
    "_adaptive_avg_pool2d": [(IMAGE, [2, 4]), (IMAGE[0], [3, 3])],
    "_adaptive_avg_pool2d_backward": [(_r(2, 4, 5, 3), IMAGE)],
    "zeros_like": [(X,), (X.t(),), (X, {"dtype": torch.int64}), (IMAGE[:, ::2],)],
    "ones_like": [(X,), (M,), (I, {"dtype": torch.float16})],
    "full_like": [(X, 2.5), (I, 3)],
    "new_zeros": [(X, [2, 2])],
    "new_ones": [(X, [2], {"dtype": torch.bool})],
    "new_full": [(X, [2, 3], 7)],
    "slice_backward": [(_r(3, 2), [3, 5], 1, 1, 5, 2), (_r(0, 2), [3, 2], 0, 2, 2, 1)],
    "select_backward": [(_r(3), [3, 5], 1, -1)],
    "cat": [([X, X[:, 1:]], 1), ([IMAGE[:, :2], IMAGE[:, 1:]], 1), ([IMAGE.to(memory_format=torch.channels_last)] * 2,),
            ([torch.empty(0), X.t()],)],
    "stack": [([X, X + 1], -1), ([X.t(), X.t()],), ([_r(), _r()],)],
    "index.Tensor": [(X, [W]), (X, [W, torch.tensor([0, -1, 3])]), (IMAGE, [torch.tensor([[1], [0]]), W]),
                     (IMAGE.transpose(0, 3), [W, None])],
    "all": [(M,)],
    "all.dim": [(M, 1), (M, 0, True)],
    "all.dims": [(M, [0, 1])],
    "any": [(M,)],
    "any.dim": [(M, 1)],
    "any.dims": [(M, None, True)],
    "argmax": [(X, 1), (X, 0, True), (X,)],
    "linalg_vector_norm": [(X,), (X, 1, [0]), (X, float("inf"), [1], True), (X, 0)],
    "_safe_softmax": [(X.masked_fill(~M, float("-inf")), 1)],
    "native_batch_norm": [(IMAGE, _r(4), _r(4), _r(4), _r(4), False, 0.1, 1e-5)],
    "max_pool2d_with_indices": [(IMAGE, [2, 3]), (IMAGE[0], [3, 3], [2, 2], [1, 1], [1, 2], True)],
    "max_pool2d_with_indices_backward": [(_r(2, 4, 3, 3), IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], False,
                                          torch.randint(0, 30, (2, 4, 3, 3)))],
    **{f"{name}.Tensor": [(X, X.clone().round()), (I, W), (M, M[0])] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}.Scalar": [(X, 0.1), (I, 3), (torch.tensor([2**62, 2**62 + 1]), 5),
                          (torch.tensor([1.0, float("nan")]), 1)] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}  # fmt: skip
# They compute nothing, or have their own test below.
_ELSEWHERE = {"empty_like", "new_empty", "new_empty_strided"}
_MOVE = {"gather", "constant_pad_nd", "where.self", "cat", "stack", "index.Tensor", "masked_fill.Scalar", "argmax",
         "maximum", "minimum", "clamp", "abs", "zeros_like", "ones_like", "full_like"}  # fmt: skip


def _as(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, list):
        return [_as(dtype, each) for each in value]
    if value is torch.float32:
        return dtype
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def test_N5_every_row_has_its_cases() -> None:
    assert {*CASES, *_ELSEWHERE} == {name.removeprefix("aten::") for name in (*ROWS, *LAYERS)}


@pytest.mark.parametrize("dtype", _FLOATS)
@pytest.mark.parametrize("name", list(CASES))
def test_N5_rows_give_what_torch_gives(device: Device, name: str, dtype: torch.dtype) -> None:
    if "max_pool" in name and dtype is not torch.float32:
        return  # its operator takes float32 alone
    for case in CASES[name]:
        *args, kwargs = case if isinstance(case[-1], dict) else (*case, {})
        args = [_as(dtype, each) for each in args]
        held = [device.give(each) for each in args]
        native = NATIVE[f"aten::{name}"](device.calls, tuple(held), kwargs)
        assert native is not NotImplemented, case
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
        expected = eager(f"aten::{name}", *copies, **kwargs)
        if name.partition(".")[0].endswith("_"):
            assert native is held[0]
        if name == "native_layer_norm_backward" and dtype is not torch.float32:
            continue  # torch's CPU kernel sums the weights' gradient in short floats; see the next test
        natives, expecteds = (each if isinstance(each, tuple) else (each,) for each in (native, expected))
        for got, value in zip(natives, expecteds, strict=True):
            if value is None or got is None:
                assert value is got
            else:
                same(got.back(), value, name in _MOVE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_N5_norms_of_short_floats(device: Device, dtype: torch.dtype) -> None:
    """Forward and backward, parameters in the input's dtype and in float32, beside torch in float64."""
    for param in (dtype, torch.float32):
        x, weight, bias = (_r(*sizes).to(d) for sizes, d in (((6, 8), dtype), ((8,), param), ((8,), param)))
        native = device.run("aten::native_layer_norm", x, [8], weight, bias, 1e-5)
        expected = eager("aten::native_layer_norm", *(t.double() if isinstance(t, torch.Tensor) else t
                                                      for t in (x, [8], weight, bias, 1e-5)))  # fmt: skip
        assert [t.dtype for t in native] == [dtype, torch.float32, torch.float32]  # as on CUDA
        torch.testing.assert_close(native[0].double(), expected[0], rtol=0.01, atol=0.01)
        torch.testing.assert_close([t.double() for t in native[1:]], list(expected[1:]), rtol=1e-5, atol=1e-6)
        grad = _r(6, 8).to(dtype)
        back = device.run("aten::native_layer_norm_backward", grad, x, [8], *native[1:], weight, bias, [True] * 3)
        wide = [t.double() for t in (grad, x, *native[1:], weight, bias)]
        expected = eager("aten::native_layer_norm_backward", *wide[:2], [8], *wide[2:], [True] * 3)
        assert [t.dtype for t in back] == [dtype, param, param]
        torch.testing.assert_close([t.double() for t in back], list(expected), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("missing", ["LayerNorm", "LayerNormBackward"])
@pytest.mark.parametrize("param", [torch.bfloat16, torch.float32, None])
def test_N5_a_layer_norm_goes_back_where_one_half_of_it_is_staged(
    missing: str, param: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mean and 1/std are in float32 on the NPU, and in another dtype on the CPU."""
    available = aclnn.available
    monkeypatch.setattr(aclnn, "available", lambda name: name != missing and available(name))
    given = [_r(6, 8).bfloat16(), *([] if param is None else [_r(8).to(param), _r(8).to(param)])]
    found = []
    for inputs in ([t.npu() for t in given], [t.double() for t in given]):
        inputs = [t.requires_grad_() for t in inputs]
        y = torch.nn.functional.layer_norm(inputs[0], [8], *inputs[1:])
        slopes = torch.autograd.grad((y.double() ** 2).sum(), inputs)
        found.append([t.cpu() for t in (y, *slopes)])
    assert [t.dtype for t in found[0]] == [torch.bfloat16, *(t.dtype for t in given)]
    torch.testing.assert_close([t.double() for t in found[0]], found[1], rtol=0.03, atol=0.1)


NOT_TAKEN: list[tuple[str, tuple]] = [
    ("clamp", (X,)), ("pow.Tensor_Scalar", (I, 2)), ("lerp.Scalar", (X, _r(5), 0.5)), ("addcmul_", (X[0], X, X)),
    ("eq.Tensor", (X, I)), ("eq.Scalar", (I, 1.5)), ("eq.Scalar", (I, 2**60)), ("logical_and", (I, I)),
    ("where.self", (I, X, X)), ("where.self", (M, X, X.half())), ("masked_fill_.Scalar", (X.half(), M, 1e10)),
    ("gather", (X, 1, torch.tensor([[0.0]]))), ("gather", (X, 2, I)), ("nll_loss_forward", (X, W[:2], None, 1, -100)),
    ("_softmax_backward_data", (X.half(), X.half(), 1, torch.float32)), ("_log_softmax", (X.half(), 1, True)),
    ("convolution", (IMAGE, _r(6, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ("index.Tensor", (X, [None, W])), ("index.Tensor", (X, [M])), ("stack", ([X, X[0]],)), ("cat", ([X, X.half()],)),
    ("max_pool2d_with_indices", (I, [2, 2])), ("max_pool2d_with_indices", (IMAGE, [9, 9])),
    ("native_batch_norm", (IMAGE.half(), _r(4), _r(4).half(), None, None, True, 0.1, 1e-5)),
    ("native_batch_norm", (IMAGE, _r(4).half(), _r(4).half(), None, None, True, 0.1, 1e-5)),
    ("argmax", (torch.empty(0),)),
    ("linalg_vector_norm", (torch.empty(0),)),
    ("clamp", (X, 2, 1)), ("clamp", (X, float("nan"), 1)), ("clamp_max", (X, float("nan"))),
    ("linalg_vector_norm", (X, float("-inf"))), ("linalg_vector_norm", (X, float("nan"))),
    ("clamp", (X.half(), 1e5)), ("pow.Tensor_Scalar", (X.half(), 1e5)), ("add.Tensor", (X.half(), X.half(), 1e5)),
    ("nll_loss_forward", (X.log_softmax(1), W.int(), None, 1, -100)),
    ("all", (X,)), ("_safe_softmax", (X, 1, torch.float64)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), NOT_TAKEN)
def test_N5_rows_leave_the_rest_to_the_cpu(device: Device, name: str, args: tuple) -> None:
    assert device.run(f"aten::{name}", *args) is NotImplemented


def test_N5_the_memory_of_what_a_row_makes_on_the_way_is_its_own(device: Device) -> None:
    """The weights that an operator wants, and torch did not give, must not become its result."""
    for _ in range(3):
        x, target = _r(5, 64).log_softmax(1), torch.randint(0, 64, (5,))
        same(device.run("aten::nll_loss_forward", x, target, None, 1, -100),
             eager("aten::nll_loss_forward", x, target, None, 1, -100), False)  # fmt: skip


def test_N7_first_phases_are_those_of_the_test_library() -> None:
    """Letter by letter: what the table says that they take, and how the library declares them."""
    letters = {"int64_t": "l", "int": "i", "int8_t": "c", "_Bool": "b", "uint64_t": "u", "double": "d", "char *": "z"}
    source = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("acl/aclnn*.c")))
    found = re.findall(r"^PHASES\((\w+),([^{]*?)\) \{", source, re.MULTILINE)
    assert len(found) > 25
    for name, parameters in found:
        kinds = [re.sub(r"\b\w+$", "", each.replace("const ", "").strip()).strip() for each in parameters.split(",")]
        declared = "".join(letters.get(kind, "p") for kind in kinds)
        assert re.sub(r"[TtNnSsAaBL]", "p", operators.OPERATORS[name]) == declared, name


def test_N5_numbers_on_the_host_are_taken_for_numbers(library: Any) -> None:
    x, m = X.npu(), M.npu()
    native = dict(counts.native_counts)
    assert torch.equal(torch.where(m, x, torch.tensor(float("-inf"))).cpu(), torch.where(M, X, float("-inf")))
    assert torch.equal(torch.where(m, torch.tensor(1.5), torch.tensor(0)).cpu(), torch.where(M, 1.5, 0))
    assert torch.equal((x * torch.tensor(2.0, dtype=torch.float64)).cpu(), X * 2)
    assert torch.equal((I.npu() + 1).cpu(), I + 1) and torch.equal((I.npu() * W.npu()).cpu(), I * W)
    ran = [counts.native_counts.get(f"aten::{op}", 0) - native.get(f"aten::{op}", 0) for op in ("where", "mul", "add")]
    assert ran == [2, 2, 1]


@pytest.mark.parametrize("dtype", _FLOATS)
def test_N5_comparisons_round_the_number_as_the_tensor_is(device: Device, dtype: torch.dtype) -> None:
    numbers = 0.1, 0.3, 1e-9, 1e6, 1, float("inf"), float("nan")
    x = torch.tensor(numbers).to(dtype)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        for number in numbers:
            found = device.run(f"aten::{name}.Scalar", x, number)
            assert torch.equal(found, eager(f"aten::{name}.Scalar", x, number)), (name, number)


def test_N5_numbers_on_the_host_count_as_dtypes_beside_others_without_dimensions(library: Any) -> None:
    ones = [torch.tensor(1.5, dtype=torch.half), torch.tensor(2, dtype=torch.int32), torch.tensor(1.5), _r(3).half(),
            torch.arange(1, 4, dtype=torch.int8)]  # fmt: skip
    hosts = [torch.tensor(0.1, dtype=torch.float64), torch.tensor(3), torch.tensor(2.0), torch.tensor(300)]
    for one in ones:
        for host in hosts:
            for op in (torch.add, torch.sub, torch.mul, torch.div, lambda x, y: torch.where(x > 0, x, y)):
                torch.testing.assert_close(op(one.npu(), host).cpu(), op(one, host))


@pytest.mark.parametrize("dims", [(), []])
def test_N5_truths_along_no_dimension_are_the_elements_themselves(dims: Any, library: Any) -> None:
    for op in (torch.all, torch.any):
        for keepdim in (False, True):
            found = op(M.npu(), dim=dims, keepdim=keepdim).cpu()
            assert torch.equal(found, op(M, dim=dims, keepdim=keepdim))


def test_N5_a_mask_may_be_what_it_fills(library: Any) -> None:
    found = M.npu()
    assert torch.equal(found.masked_fill_(found, False).cpu(), M.clone().masked_fill_(M, False))


def test_N5_views_of_any_name_are_never_staged(library: Any) -> None:
    staged, x = dict(counts.staged_counts), X.npu()
    y = torch.ops.aten._unsafe_view(x, [4, 3])
    y.zero_()
    one, other = torch.ops.aten.unsafe_split(x, 2, 1)
    assert torch.equal(x.cpu(), torch.zeros(3, 4)) and one.shape == other.shape == (3, 2)
    assert x.is_same_size(x) and torch.empty_like(x).shape == x.new_empty(3, 4).shape
    assert counts.staged_counts == staged


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_N5_foreach_forms_are_the_ops_themselves(make: Any, library: Any) -> None:
    """Of an optimizer told to use them: nothing is staged, and the parameters are torch's."""
    found, versions = [], []
    for where in ("cpu", "npu"):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(sizes).to(where)) for sizes in ((3, 4), (5,))]
        more = {"momentum": 0.9} if make is torch.optim.SGD else {}
        optimizer = make(params, 0.1, weight_decay=0.01, foreach=True, **more)
        before = dict(counts.staged_counts)
        for _ in range(3):
            for p in params:
                p.grad = p.detach() * p.detach()
            torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()
        assert counts.staged_counts == before
        versions.append([p._version for p in params])
        found.append([p.detach().cpu() for p in params])
    torch.testing.assert_close(*found)
    assert versions[0] == versions[1]


def test_N5_batch_norm_trains_whoever_computes_its_backward(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the NPU saves for its own backward is not what torch's takes, and its derivative (on A2, a variance)."""
    found = []
    available = aclnn.available
    for where, back in (("cpu", True), ("npu", True), ("npu", False)):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm2d(4).to(where)
        x = IMAGE.detach().to(where).requires_grad_()
        y = norm(norm(x))
        with monkeypatch.context() as patched:
            if not back:
                patched.setattr(aclnn, "available", lambda name: name != "BatchNormBackward" and available(name))
            slope, *_ = torch.autograd.grad((y * y * y).sum(), [x, *norm.parameters()], create_graph=True)
            (slope * slope).sum().backward()  # as a penalty on gradients
        state = [p.detach().cpu() for p in (*norm.parameters(), *norm.buffers())]
        found.append([y.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in norm.parameters()), *state])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[2], found[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chip", ["Ascend910B1", "Ascend310P3", "Ascend910A"])
@pytest.mark.parametrize("dtype", _FLOATS)
def test_N5_batch_norm_saves_what_torch_saves(
    device: Device, dtype: torch.dtype, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its backward takes that: beside torch in float64."""
    monkeypatch.setattr(acl, "soc_name", lambda: chip)
    x, grad, params = _r(8, 4, 5).to(dtype), _r(8, 4, 5).to(dtype), [_r(4).to(dtype) for _ in range(4)]
    x[:, 0] = 1.0  # whose variance is 0
    native = device.run("aten::native_batch_norm", x, *params, True, 0.1, 1e-5)
    wide = eager("aten::native_batch_norm", x.double(), *(t.double() for t in params), True, 0.1, 1e-5)
    saved = [t.to(dtype) for t in wide[1:]]
    back = device.run("aten::native_batch_norm_backward", grad, x, *params[::2], params[3], *saved, True, 1e-5,
                      [True] * 3)  # fmt: skip
    given = [t.double() for t in (grad, x, *params[::2], params[3], *saved)]
    expected = [*wide, *eager("aten::native_batch_norm_backward", *given, True, 1e-5, [True] * 3)]
    tolerance = 1e-4 if dtype is torch.float32 else 0.03
    for got, wanted in zip((*native, *back), expected, strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance * wanted.abs().max().item())


def test_N5_batch_norm_trains_through_the_cpu_where_what_it_saves_is_not_known(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = IMAGE, _r(4), _r(4), _r(4), _r(4), True, 0.1, 1e-5
    backward = IMAGE, IMAGE, *(_r(4) for _ in range(5)), True, 1e-5, [True] * 3
    monkeypatch.setattr(acl, "soc_name", lambda: "Ascend950PR")
    assert device.run("aten::native_batch_norm", *training) is NotImplemented
    assert device.run("aten::native_batch_norm_backward", *backward) is NotImplemented


FORMS: list[Any] = [
    lambda x, y: torch._foreach_add(x, y, alpha=2), lambda x, y: torch._foreach_add_(x, 3),
    lambda x, y: torch._foreach_add(x, [1.0, 2.0]), lambda x, y: torch._foreach_pow(2.0, x),
    lambda x, y: torch._foreach_pow(x, 2.0), lambda x, y: torch._foreach_maximum(x, 1.0),
    lambda x, y: torch._foreach_maximum(x, y), lambda x, y: torch._foreach_norm(x),
    lambda x, y: torch._foreach_norm(x, 1, dtype=torch.float64), lambda x, y: torch._foreach_norm(x, float("inf")),
    lambda x, y: torch._foreach_addcmul(x, y, y, [1.0, 2.0]), lambda x, y: torch._foreach_lerp(x, y, 0.3),
    lambda x, y: torch._foreach_addcdiv(x, y, y, torch.tensor([1.0, 2.0])), lambda x, y: torch._foreach_lerp(x, y, x),
    lambda x, y: torch._foreach_zero_(x), lambda x, y: torch._foreach_copy_(x, y), lambda x, y: torch._foreach_round(x),
    lambda x, y: torch._foreach_mul(x, y[0].sum()), lambda x, y: torch._foreach_sub_(x, y),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_N5_foreach_forms_of_every_kind(form: Any, library: Any) -> None:
    one, other = [_r(3), _r(2, 2)], [_r(3), _r(2, 2)]
    found = []
    for where in ("cpu", "npu"):
        x, y = ([t.clone().to(where) for t in each] for each in (one, other))
        found.append([[t.cpu() for t in form(x, y) or ()], [t.cpu() for t in x], [t._version for t in x]])
    torch.testing.assert_close(*found)


REFUSED: list[Any] = [
    lambda x: x.half() ** 1e5, lambda x: torch.add(x.half(), x.half(), alpha=1e5), lambda x: x.half().clamp(max=1e5),
    lambda x: torch.sub(x, x, alpha=1e300), lambda x: torch.addcmul(x, x, x, value=1e300),
    lambda x: torch.addmm(x[:, :3], x, x.t(), alpha=1e300),
    lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(3, dtype=torch.int32, device=x.device)),
    lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, (x @ x.t()).long()),
    lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, (x @ x.t()).half()),
]  # fmt: skip


@pytest.mark.parametrize("call", REFUSED)
def test_N5_what_torch_refuses_is_refused_in_its_words(call: Any, library: Any) -> None:
    with pytest.raises(RuntimeError) as expected:
        call(X)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value).partition("\n")[0])):
        call(X.npu())


def test_N5_bounds_and_orders_of_every_kind(library: Any) -> None:
    x, inf, nan = torch.tensor([-1.0, 0.5, 1.5, 3.0, float("nan")]), float("inf"), float("nan")
    for bounds in ((2, 1), (nan, 1), (0, nan), (None, nan), (-inf, inf), (inf, -inf)):
        for dtype in _FLOATS:
            found = x.to(dtype).npu().clamp(*bounds).cpu()
            torch.testing.assert_close(found, x.to(dtype).clamp(*bounds), rtol=0, atol=0, equal_nan=True)
    for order in (-inf, -2, -0.5, 0, 0.5, inf, nan):
        found = torch.linalg.vector_norm(X.npu(), order, 1).cpu()
        torch.testing.assert_close(found, torch.linalg.vector_norm(X, order, 1), equal_nan=True)


@pytest.mark.parametrize("needs_weights", [False, True])
def test_N5_attention_of_torchs_module_runs_on_the_device(library: Any, needs_weights: bool) -> None:
    """Without weights its Python calls attention where nobody is asked any more, and it went through the CPU."""
    torch.manual_seed(0)
    module, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 5, 16)
    mask = torch.ones(5, 5).triu(1).bool()
    staged = Counter(counts.staged_counts)
    for options in ({}, {"attn_mask": mask}, {"attn_mask": mask, "is_causal": True}):
        there = copy.deepcopy(module).to("npu:0")
        results = []
        for each, value in ((module, x), (there, x.to("npu:0"))):
            value = value.clone().requires_grad_()
            named = {name: t.to(value.device) if torch.is_tensor(t) else t for name, t in options.items()}
            out = each(value, value, value, need_weights=needs_weights, **named)[0]
            out.square().sum().backward()
            results.append((out.detach().cpu(), value.grad.cpu()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
    assert not [name for name in Counter(counts.staged_counts) - staged if "attention" in name]


def test_N5_attention_is_cast_as_the_whole(library: Any) -> None:
    q = torch.randn(2, 4, 3, 8)
    for where in ("cpu", "npu"):
        with torch.autocast(where, dtype=torch.bfloat16):
            there = q.to(where)
            out = torch.nn.functional.scaled_dot_product_attention(there, there.bfloat16(), there)
            assert out.dtype is torch.bfloat16
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.nn.functional.scaled_dot_product_attention(there, there.half(), there)


@pytest.mark.parametrize("how", ["plain", "causal", "truths", "numbers", "shared"])
def test_N5_attention_in_its_parts(how: str, library: Any) -> None:
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2 if how == "shared" else 4, 5, 8), torch.randn(2, 4, 5, 6)
    v = v[:, :2] if how == "shared" else v
    masks = {"truths": torch.rand(2, 1, 3, 5) > 0.5, "numbers": torch.randn(3, 5)}
    options = {"is_causal": how == "causal", "enable_gqa": how == "shared", "scale": 0.3}
    found, staged = [], dict(counts.staged_counts)
    for where in ("cpu", "npu"):
        given = [t.detach().to(where).requires_grad_() for t in (q, k, v)]
        mask = masks[how].to(where) if how in masks else None
        out = torch.nn.functional.scaled_dot_product_attention(*given, mask, **options)
        out.sin().sum().backward()
        found.append([out.detach().cpu(), *(t.grad.cpu() for t in given)])
    torch.testing.assert_close(*found)
    assert counts.staged_counts == staged
    with pytest.raises(RuntimeError, match="npu:0"):
        torch.nn.functional.scaled_dot_product_attention(q.npu(), k.npu(), v)


def test_N5_native_kernels_can_be_switched_off_for_attention(library: Any) -> None:
    assert mindtorch.npu.is_available()
    staging.use_native(False)
    try:
        q = torch.randn(2, 4, 3, 8)
        native = torch.nn.functional.scaled_dot_product_attention(q.npu(), q.npu(), q.npu()).cpu()
        assert torch.equal(native, torch.nn.functional.scaled_dot_product_attention(q, q, q))
    finally:
        staging.use_native(True)
