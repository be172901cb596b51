"""N5: native operations by ATen overload, over the test library, compared with torch on the CPU."""

from __future__ import annotations

import pytest
import torch
from native_calls import Device, eager, same

from mindtorch._ext import aclnn
from mindtorch.npu.kernels import DTYPES, NATIVE


def layouts(*sizes: int) -> list[torch.Tensor]:
    """Tensors of one shape: contiguous, transposed, with gaps and an offset, expanded."""
    plain = torch.randn(sizes)
    gaps = torch.randn(3, *(2 * size + 1 for size in sizes))[1][tuple(slice(1, None, 2) for _ in sizes)]
    turned = torch.randn(sizes[::-1]).permute(*range(len(sizes))[::-1])
    return [plain, turned, gaps, torch.randn(sizes[-1]).expand(sizes)]


LAYOUTS = range(4)
EXACT = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EXACT)
def test_N5_binary_operations_are_exact(device: Device, name: str, layout: int) -> None:
    one = layouts(3, 4)[layout]
    numbers = [2.5, -3, 0.1, 1e-50, 1e300] + [True] * (name != "sub.Tensor")
    for other in [*layouts(3, 4), *map(torch.randn, [(4,), (3, 1), (2, 1, 1), ()]), *numbers]:
        same(device.run(f"aten::{name}", one, other), eager(f"aten::{name}", one, other), True)


@pytest.mark.parametrize("name", ["add.Tensor", "sub.Tensor"])
def test_N5_alpha_scales_the_other_operand(device: Device, name: str) -> None:
    one, other = torch.randn(3, 4), torch.randn(4)
    for alpha in (2, -0.5):
        native = device.run(f"aten::{name}", one, other, alpha=alpha)
        same(native, eager(f"aten::{name}", one, other, alpha=alpha), False)
    same(device.run(f"aten::{name}", one, 3, alpha=2), eager(f"aten::{name}", one, 3, alpha=2), True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["neg", "relu", "exp", "sigmoid", "tanh", "silu", "gelu"])
def test_N5_unary_operations(device: Device, name: str, layout: int) -> None:
    most = 30.0 if name == "gelu" else float("inf")  # torch's own gelu(inf) is nan on processors with AVX-512
    for one in [layouts(3, 4)[layout], torch.tensor([0.0, -0.0, most, float("nan")]), torch.randn(()),
                torch.empty(0, 2)]:  # fmt: skip
        same(device.run(f"aten::{name}", one), eager(f"aten::{name}", one), name in ("neg", "relu"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_N5_short_floats(device: Device, dtype: torch.dtype) -> None:
    one, other = torch.randn(4, 5).to(dtype), torch.randn(5).to(dtype)
    same(device.run("aten::add.Tensor", one, other), one + other, True)
    same(device.run("aten::mul.Tensor", one, 1.5), one * 1.5, True)
    same(device.run("aten::exp", one), one.exp(), False)
    same(device.run("aten::mm", one, one.t()), one @ one.t(), False)
    same(device.run("aten::_to_copy", one, dtype=torch.float32), one.float(), True)


def test_N5_conversions_round_as_torch_does(device: Device) -> None:
    values = torch.cat([torch.randn(500) * 10.0**p for p in range(-9, 6)] + [torch.tensor([65504.0, 65519.9, 65520.0])])
    for dtype in (torch.float16, torch.bfloat16):
        same(device.run("aten::_to_copy", values, dtype=dtype), values.to(dtype), True)


def test_N5_gelu_in_both_modes(device: Device) -> None:
    one = torch.randn(100) * 3
    for mode in ("none", "tanh"):
        same(device.run("aten::gelu", one, approximate=mode), torch.nn.functional.gelu(one, approximate=mode), False)


@pytest.mark.parametrize("name", ["add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor"])
def test_N5_in_place_operations_change_the_tensor_itself(device: Device, name: str) -> None:
    for one in layouts(3, 4)[:3]:
        for other in (torch.randn(3, 4), torch.randn(4), 2.0):
            held = device.give(one)
            result = NATIVE[f"aten::{name}"](device.calls, (held, device.give(other)), {})
            assert result is held
            same(held.back(), eager(f"aten::{name}", one, other), True)


def test_N5_in_place_operations_refuse_overlaps(device: Device) -> None:
    expanded = device.give(torch.randn(4).expand(3, 4))
    assert NATIVE["aten::add_.Tensor"](device.calls, (expanded, 1.0), {}) is NotImplemented
    assert NATIVE["aten::relu_"](device.calls, (expanded,), {}) is NotImplemented
    assert NATIVE["aten::zero_"](device.calls, (expanded,), {}) is NotImplemented
    whole = device.give(torch.randn(6))
    part = device.give(torch.randn(5))
    part.base, part.numel, part.offset = whole.base, whole.numel, 1
    shorter = device.give(torch.randn(5))
    shorter.base, shorter.numel = whole.base, whole.numel
    assert NATIVE["aten::copy_"](device.calls, (part, shorter), {}) is NotImplemented
    assert NATIVE["aten::add_.Tensor"](device.calls, (part, shorter), {}) is NotImplemented
    assert NATIVE["aten::copy_"](device.calls, (part, part), {}) is part


@pytest.mark.parametrize(("one", "other"), [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((0, 4), (4, 2))])
def test_N5_matrix_products(device: Device, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    a, b = torch.randn(one), torch.randn(other)
    same(device.run("aten::mm", a, b), a @ b, False)
    transposed = torch.randn(one[::-1]).t(), torch.randn(other[::-1]).t()
    same(device.run("aten::mm", *transposed), transposed[0] @ transposed[1], False)
    for added in (torch.randn(other[1]), torch.randn(one[0], other[1]), torch.randn(1, 1), torch.randn(())):
        same(device.run("aten::addmm", added, a, b), torch.addmm(added, a, b), False)
        same(device.run("aten::addmm", added, a, b, beta=0.5, alpha=2),
             torch.addmm(added, a, b, beta=0.5, alpha=2), False)  # fmt: skip


def test_N5_addmm_with_beta_0_does_not_look_at_what_is_added(device: Device) -> None:
    a, b, added = torch.randn(2, 3), torch.randn(3, 2), torch.full((2,), float("nan"))
    same(device.run("aten::addmm", added, a, b, beta=0), a @ b, False)


def test_N5_batched_products(device: Device) -> None:
    a, b = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    same(device.run("aten::bmm", a, b), torch.bmm(a, b), False)
    same(device.run("aten::bmm", a.transpose(1, 2), a), torch.bmm(a.transpose(1, 2), a), False)
    for one, other in [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2)),
                       ((4,), (2, 4, 3))]:  # fmt: skip
        x, y = torch.randn(one), torch.randn(other)
        same(device.run("aten::matmul", x, y), x @ y, False)


def test_N5_float32_products_are_computed_in_float32(device: Device) -> None:
    a, b = torch.full((1, 1), 1 + 2.0**-20), torch.ones(1, 1)
    assert device.run("aten::mm", a, b).item() == a.item()  # the cube unit's shorter formats would lose this


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_N5_sums_and_means(device: Device, name: str, layout: int) -> None:
    one = layouts(2, 3, 4)[layout]
    same(device.run(f"aten::{name}", one), eager(f"aten::{name}", one), False)
    overload = "sum.dim_IntList" if name == "sum" else "mean.dim"
    for dims in ([0], [1, 2], [-1], [0, 1, 2], [], None):
        for keepdim in (False, True):
            native = device.run(f"aten::{overload}", one, dims, keepdim)
            same(native, eager(f"aten::{overload}", one, dims, keepdim), False)


def test_N5_maxima(device: Device) -> None:
    for one in [*layouts(3, 4), torch.tensor([[1.0, float("nan"), 3.0], [5.0, 5.0, -1.0]])]:
        same(device.run("aten::max", one), one.max(), True)
        for dim, keepdim in ((0, False), (1, True), (-1, False)):
            expected = one.max(dim, keepdim)
            same(device.run("aten::max.dim", one, dim, keepdim), (expected.values, expected.indices), True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_N5_softmax(device: Device, layout: int) -> None:
    one = layouts(2, 3, 4)[layout] * 10
    for dim in (0, 1, -1):
        same(device.run("aten::_softmax", one, dim, False), eager("aten::_softmax", one, dim, False), False)
    assert device.queued("Softmax") == 3
    assert device.run("aten::softmax.int", one, 0, torch.float64) is NotImplemented


@pytest.mark.parametrize("layout", LAYOUTS)
def test_N5_layer_norm(device: Device, layout: int) -> None:
    one = layouts(3, 4, 5)[layout]
    for shape in ([5], [4, 5]):
        weight, bias = torch.randn(shape), torch.randn(shape)
        for arguments in ((weight, bias), (weight, None), (None, bias), (None, None)):
            native = device.run("aten::native_layer_norm", one, shape, *arguments, 1e-5)
            same(native, eager("aten::native_layer_norm", one, shape, *arguments, 1e-5), False)


def test_N5_fills(device: Device) -> None:
    for dtype, value in [(torch.float32, 2.5), (torch.float32, -1), (torch.int64, 7), (torch.bool, True)]:
        zeros = torch.zeros(6, 9, dtype=dtype)
        for one in (zeros, zeros.t(), zeros[::2, 1::2]):
            held = device.give(one)
            assert NATIVE["aten::fill_.Scalar"](device.calls, (held, value), {}) is held
            assert torch.equal(held.back(), torch.full(held.sizes, value, dtype=dtype))
            assert NATIVE["aten::zero_"](device.calls, (held,), {}) is held
            assert torch.equal(held.back(), torch.zeros(held.sizes, dtype=dtype))
    for dtype, value in [(torch.int64, 1.5), (torch.uint8, 300), (torch.int8, -129), (torch.float32, 1e39),
                         (torch.float16, 70000)]:  # fmt: skip
        assert device.run("aten::fill_.Scalar", torch.zeros(3, dtype=dtype), value) is NotImplemented
    for value in (float("inf"), float("nan")):
        expected = torch.full((3,), value, dtype=torch.float16)
        same(device.run("aten::fill_.Scalar", torch.zeros(3, dtype=torch.float16), value), expected, True)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_N5_copies_and_clones_of_every_dtype(device: Device, dtype: torch.dtype) -> None:
    source = torch.randint(0, 2, (3, 4)).to(dtype) if dtype is torch.bool else (torch.randn(3, 4) * 50).to(dtype)
    for one in (source, source.t(), source[:, ::2], source[1].expand(2, 4)):
        same(device.run("aten::clone", one), one.clone(), True)
        same(device.run("aten::clone", one, memory_format=torch.contiguous_format), one.contiguous(), True)
    target = device.give(torch.zeros(4, 3, dtype=dtype))
    assert NATIVE["aten::copy_"](device.calls, (target, device.give(source.t())), {}) is target
    assert torch.equal(target.back(), source.t())
    NATIVE["aten::copy_"](device.calls, (target, device.give(source[0, :3])), {"non_blocking": True})
    assert torch.equal(target.back(), source[0, :3].expand(4, 3))


def test_N5_large_integers_are_moved_exactly(device: Device) -> None:
    one = torch.tensor([2**62 + 1, -(2**62) - 3])
    same(device.run("aten::clone", one), one, True)
    same(device.run("aten::cat", [one, one], 0), torch.cat([one, one]), True)
    same(device.run("aten::index_select", one, 0, torch.tensor([1, 0, 1])), one[[1, 0, 1]], True)


def test_N5_concatenation(device: Device) -> None:
    parts = [torch.randn(2, 3), torch.randn(1, 3), torch.empty(0), torch.empty(0, 3)]
    same(device.run("aten::cat", parts), torch.cat(parts), True)
    wide = [torch.randn(2, 3, 4), torch.randn(2, 1, 4)]
    same(device.run("aten::cat", wide, -2), torch.cat(wide, -2), True)
    same(device.run("aten::cat", [torch.randn(3, 0)] * 2, 0), torch.empty(6, 0), True)
    many = [torch.randn(2) for _ in range(100)]
    same(device.run("aten::cat", many), torch.cat(many), True)
    for wrong in ([torch.randn(2, 3), torch.randn(2, 4)], [torch.randn(2), torch.randn(2, 2)]):
        assert device.run("aten::cat", wrong) is NotImplemented


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_N5_selections(device: Device, index: torch.dtype) -> None:
    one, chosen = torch.randn(3, 4, 5).transpose(0, 2), torch.tensor([2, 0, 2], dtype=index)
    for dim in (0, 1, -1):
        same(device.run("aten::index_select", one, dim, chosen), one.index_select(dim, chosen), True)
    weight, rows = torch.randn(7, 3), torch.randint(0, 7, (2, 4)).to(index)
    same(device.run("aten::embedding", weight, rows, -1, False, False), torch.embedding(weight, rows), True)


NOT_TAKEN: list[tuple[str, tuple]] = [
    ("add.Tensor", (torch.ones(2, dtype=torch.int64), 1.5)),
    ("div.Tensor", (torch.ones(2, dtype=torch.int64), 2)),
    ("add.Tensor", (torch.ones(2), torch.ones(2, dtype=torch.int64))),
    ("mul.Tensor", (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float16))),
    ("add.Tensor", (torch.ones(2), torch.ones(3))),
    ("add.Tensor", (torch.ones(2), 1j)),
    ("add.Tensor", (torch.ones(2), 2**70)),
    ("add.Tensor", (torch.ones(2), 1, True)),
    ("sub.Tensor", (torch.ones(2), True)),
    ("mul.Tensor", (torch.ones([1] * 9), 2)),
    ("mm", (torch.ones(2, 3), torch.ones(2, 3))),
    ("mm", (torch.ones(2, 0), torch.ones(0, 3))),
    ("bmm", (torch.ones(2, 3, 3), torch.ones(1, 3, 3))),
    ("addmm", (torch.ones(3, 1, 1), torch.ones(2, 3), torch.ones(3, 2))),
    ("sum", (torch.empty(0),)),
    ("sum.dim_IntList", (torch.ones(2, 3), [0, 0])),
    ("sum.dim_IntList", (torch.ones(2, 3), [2])),
    ("max", (torch.empty(0),)),
    ("max.dim", (torch.ones(2), 1)),
    ("_softmax", (torch.ones(2), 5, False)),
    ("native_layer_norm", (torch.ones(2, 3), [2], None, None, 1e-5)),
    ("exp", (torch.ones(2, dtype=torch.float64),)),
    ("index_select", (torch.ones(2), 0, torch.ones(2))),
    ("embedding", (torch.ones(2), torch.tensor([0]))),
    ("copy_", (torch.ones(2), torch.ones(3))),
    ("copy_", (torch.ones(2, dtype=torch.int64), torch.ones(2))),
]


@pytest.mark.parametrize(("name", "args"), NOT_TAKEN)
def test_N5_what_is_not_taken_is_left_to_the_cpu(device: Device, name: str, args: tuple) -> None:
    before = device.library.calls()
    assert device.run(f"aten::{name}", *args) is NotImplemented
    assert device.library.calls("aclCreateTensor") == 0
    assert before <= device.library.calls()


def test_N5_a_tensor_elsewhere_is_not_taken(device: Device) -> None:
    here, elsewhere = device.give(torch.ones(2)), torch.ones(2)
    for name, args in [("add.Tensor", (here, elsewhere)), ("mm", (here, elsewhere)), ("cat", ([here, elsewhere],)),
                       ("copy_", (here, elsewhere))]:  # fmt: skip
        assert NATIVE[f"aten::{name}"](device.calls, args, {}) is NotImplemented


def test_N5_names_are_overloads_of_torch() -> None:
    for name in NATIVE:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "default").name() == name


def test_N5_missing_operations_are_just_not_there(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    monkeypatch.setattr(aclnn, "available", lambda name: False)
    for name, args in [("exp", (torch.ones(2),)), ("mm", (torch.ones(2, 2),) * 2), ("sum", (torch.ones(2),))]:
        assert device.run(f"aten::{name}", *args) is NotImplemented
    monkeypatch.setattr(aclnn, "available", lambda name: name == "Gelu")
    assert device.run("aten::gelu", torch.ones(2)) is NotImplemented  # it computes the approximation
    expected = torch.nn.functional.gelu(torch.ones(2), approximate="tanh")
    same(device.run("aten::gelu", torch.ones(2), approximate="tanh"), expected, False)


@pytest.mark.parametrize(("most", "more"), [("T" * 18, "T" * 19), ("T" * 18 + "dd", "T" * 19 + "dd"), ("dd", "ddd")])
def test_N5_an_operations_parameters_are_declared_up_to_what_a_call_holds(most: str, more: str) -> None:
    aclnn.declare({"NoSuchOperation": most})
    with pytest.raises(ValueError, match=r"\[aclnnNoSuchOperation\] expected at most 18 parameters and 2 doubles"):
        aclnn.declare({"NoSuchOperation": more})
